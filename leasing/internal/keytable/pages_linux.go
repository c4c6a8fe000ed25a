package keytable

import "golang.org/x/sys/unix"

// keepSmall has the system keep memory in small pages, where it would make huge ones by itself. Of a
// huge page the system clears or copies all of 2 MB at once, while whoever uses any of it waits, with a
// shard locked: for milliseconds on a virtual machine that has to ask its host for the memory. That a
// large table is then less often in the processor's address cache costs a decision less than the noise
// of its measurement (docs/adr, decision 18).
func keepSmall(b []byte) {
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // systems that have none say so
}
