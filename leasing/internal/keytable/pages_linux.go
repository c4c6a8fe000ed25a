package keytable

import "golang.org/x/sys/unix"

// keepSmall makes the system keep memory in small pages, and not in huge ones. The system clears or copies a
// huge page of 2 MB at once, while its user waits with a locked shard. That takes milliseconds on a virtual
// machine that requests the memory from its host. More misses of the address cache cost a decision less than
// the noise of its measurement (docs/adr, decision 18).
func keepSmall(b []byte) {
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // systems without huge pages return an error
}
