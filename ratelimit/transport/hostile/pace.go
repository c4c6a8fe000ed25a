package hostile

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Pace slows all attackers of this package down to a part of one processor's time, including the kernel's
// part. Before it is called, they run at full speed.
//
// An attacker on the attacked machine takes the processors that the server needs, which says nothing about
// the server. A paced one begins, sends and holds as much, only later. The pace is the process's, because its
// processor time is.
func Pace(share float64) {
	pace.mu.Lock()
	defer pace.mu.Unlock()
	pace.share = share
	pace.left = 0
	pace.used = cpu()
	pace.at = time.Now()
}

var pace struct {
	mu    sync.Mutex
	share float64       // guarded by mu; 0: no pace is kept
	left  time.Duration // guarded by mu: what may be used before the next is sent. It is at most burst
	used  time.Duration // guarded by mu: of the processor when left was reckoned
	at    time.Time     // guarded by mu: when it was reckoned
}

// burst is the processor time that may be used at once after a rest.
const burst = 5 * time.Millisecond

// step waits until the next may be sent. It holds mu meanwhile, so that all others wait
// behind it.
func step() {
	pace.mu.Lock()
	defer pace.mu.Unlock()
	for pace.share > 0 {
		now, used := time.Now(), cpu()
		earned := time.Duration(pace.share * float64(now.Sub(pace.at)))
		pace.left = min(pace.left+earned-(used-pace.used), burst)
		pace.used, pace.at = used, now
		if pace.left >= 0 {
			return
		}
		time.Sleep(time.Duration(float64(-pace.left) / pace.share))
	}
}

// cpu is the processor time that this process has used, the kernel's for it included.
func cpu() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

var sent atomic.Int64

// Sent is how many bytes all attackers of this package have sent.
func Sent() int64 { return sent.Load() }

// paced is a connection that keeps the pace.
type paced struct{ net.Conn }

// piece is the number of bytes before the next look at the pace.
const piece = 16 << 10

// Write implements net.Conn.
func (p paced) Write(b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		step()
		var m int
		m, err = p.Conn.Write(b[n:min(n+piece, len(b))])
		n += m
		sent.Add(int64(m))
	}
	return n, err
}
