package routing

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/routing/wire"
)

// Bounds of messages under way.
const (
	// Beyond peerQueue a call fails at once, and its request is decided without the owner. Otherwise a peer
	// that does not read keeps requests, and their memory, without a bound.
	peerQueue = 4096 // calls that wait to be sent to one peer
	// peerPending is of calls without an answer. As many asks of a peer are answered at a time: the next frame is not
	// read before. With fewer, asks would hold up accounts that they wait for, in later frames.
	peerPending = 4 * peerQueue
	frameCalls  = 256 // in one message
	maxPeers    = 1000
	maxFrame    = 4 << 20
	// parcelsAtOnce is how many parcels to one peer may be without a receipt, and one more: each is kept in
	// memory until then. The walk fills only walkedAtOnce of them, which keep the peer busy. An account with
	// waiting requests travels behind all that were sent before it.
	parcelsAtOnce = 8
	walkedAtOnce  = 2
)

var (
	// ErrLost is the effect of a loss, as OnPeer gets it.
	ErrLost     = errors.New("usage of this window may be admitted again")
	errPeerGone = errors.New("the peer is unreachable")
	errSilent   = errors.New("the peer did not answer in time")
	errPeerBusy = errors.New("too many requests wait for the peer")
	errParcel   = errors.New("it sends accounts, as it has no store: set the same STORE_URL or REDIS_URL on all nodes")
)

// bell wakes its waiter; it may ring for nothing. A nil bell wakes none.
type bell chan struct{}

func (b bell) ring() {
	select {
	case b <- struct{}{}:
	default:
	}
}

// link is this node's way to another: messages that wait to be sent, and those without an answer. It has no socket; the
// stream's owner takes frames from it. It is safe for concurrent use. A link stays the same while its member lives,
// over any number of streams.
type link struct {
	addr     string
	wake     func()       // has frames taken; it must not block
	ready    atomic.Bool  // introduced
	lastSeen atomic.Int64 // the instant of its last message
	missed   atomic.Int64 // the instant at which an answer was last given up; 0: never

	mu      sync.Mutex
	queue   []*call          // guarded by mu
	pending map[uint64]*call // guarded by mu: sent, not answered
	next    uint64           // guarded by mu
	report  doneReport       // guarded by mu
	out     outbox           // guarded by mu
}

// doneReport goes to a peer after all parcels: this node has no accounts of others, under a ring. The zero one is not
// sent.
type doneReport struct {
	digest  uint64 // of the ring
	changes uint64 // this node's, then; from 1
}

// silent reports whether a wait for the other is in vain: an answer of it was given up a short while ago, and
// no message came since.
func (l *link) silent(now instant) bool {
	if l == nil {
		return false // its next post finds out
	}
	missed := instant(l.missed.Load())
	// A message of the other after the miss shows that it is there again, and the pause ends early.
	return missed != 0 && int64(missed) >= l.lastSeen.Load() && now < missed.Add(silentFor)
}

// miss notes that an answer of the other was given up. The next requests need not find out again.
func (l *link) miss(now instant) {
	if l != nil {
		l.missed.Store(int64(now))
	}
}

// alive reports whether a message of the other came a short while ago.
func (l *link) alive(now instant) bool {
	return l != nil && now.Sub(instant(l.lastSeen.Load())) < aliveFor
}

// call is one message that is answered by one reply.
type call struct {
	put   func(f *wire.Frame, id uint64) // puts it into a frame
	bell  bell
	reply *wire.Reply // read after done
	err   error       // read after done
	done  chan struct{}
	sent  bool // it was written into a frame; read after done

	mu   sync.Mutex // held when done is closed
	then []func()   // guarded by mu: go on when the call has ended
}

func newCall(put func(*wire.Frame, uint64)) *call { return &call{put: put, done: make(chan struct{})} }

// failedCall is a call that was not sent.
func failedCall(err error) *call {
	c := newCall(nil)
	c.finish(nil, err)
	return c
}

// finish ends a call, and runs what waits for it. A call is finished once: by its reply, by the end of its stream, or
// because it could not be queued.
func (c *call) finish(reply *wire.Reply, err error) {
	// They are set before done is closed, so that its readers need no lock.
	c.reply, c.err = reply, err
	c.mu.Lock()
	// A caller of after either leaves its function here before, or finds the call over and runs it itself:
	// it runs once in any case.
	then := c.then
	close(c.done)
	c.mu.Unlock()
	c.bell.ring()
	for _, do := range then {
		do()
	}
}

// after has something done when the call has ended, without a lock. Functions run in the goroutine of the one that
// finishes the call, or at once in the caller's.
func (c *call) after(do func()) {
	c.mu.Lock()
	over := c.ended()
	if !over {
		c.then = append(c.then, do)
	}
	c.mu.Unlock()
	if over {
		do()
	}
}

// status is that of the reply; of a call without one it is not in time.
func (c *call) status() uint32 {
	if !c.ended() || c.err != nil || c.reply == nil {
		return notInTime
	}
	return c.reply.GetStatus()
}

// ended reports whether it was answered, or will not be.
func (c *call) ended() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// post queues a call, which has failed at once if it cannot be sent. The caller holds no lock: functions that
// wait for a failed call run here.
func (l *link) post(c *call) {
	if err := l.enqueue(c); err != nil {
		c.finish(nil, err)
	}
}

// enqueue queues a call, if it can be sent.
func (l *link) enqueue(c *call) error {
	// A link is nil where the ring names a node without a way to it any more.
	if l == nil || !l.ready.Load() {
		return errPeerGone
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.ready.Load() { // it has broken meanwhile
		return errPeerGone
	}
	if len(l.queue) >= peerQueue || len(l.pending) >= peerPending {
		return errPeerBusy
	}
	l.queue = append(l.queue, c)
	l.wake()
	return nil
}

// take writes the next frame: calls first, because requests wait for them, and at most one parcel; nil if there is no
// message. stamp is the ledger's time. The stream's owner calls it again until it returns nil.
func (l *link) take(stamp int64) *wire.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := min(len(l.queue), frameCalls)
	p := l.out.next()
	if n == 0 && p == nil && l.report == (doneReport{}) {
		return nil
	}
	f := &wire.Frame{}
	for _, c := range l.queue[:n] {
		l.put(f, c)
	}
	l.queue = slices.Delete(l.queue, 0, n)
	if p != nil {
		l.parcel(f, p, stamp)
	}
	// Done states that nothing of others is here or on its way, so that it must not overtake a
	// parcel.
	if l.out.next() == nil {
		f.Done = l.report.digest
		f.DoneChanges = l.report.changes
		l.report = doneReport{}
	}
	return f
}

// put writes a call; the caller holds mu.
func (l *link) put(f *wire.Frame, c *call) {
	l.next++
	l.pending[l.next] = c
	c.sent = true
	c.put(f, l.next)
}

// ping writes a frame that is answered, so that both get a message.
func (l *link) ping(stamp int64) *wire.Frame {
	l.mu.Lock()
	defer l.mu.Unlock()
	f := &wire.Frame{Sent: stamp}
	l.put(f, newCall(func(f *wire.Frame, id uint64) { f.Ping = id }))
	return f
}

// replied handles replies. finish may run functions that lock the core, so it is called without mu.
func (l *link) replied(replies []*wire.Reply) {
	for _, reply := range replies {
		l.mu.Lock()
		c := l.pending[reply.GetId()]
		delete(l.pending, reply.GetId())
		l.mu.Unlock()
		// A reply to nothing is left out: the call was ended when an earlier stream broke.
		if c != nil {
			c.finish(reply, nil)
		}
	}
}

// broke ends all messages that were sent or wait; parcels are kept. A charge in one of them may have been booked: its
// caller notes it as arrears, or has it undone.
func (l *link) broke(err error) {
	// This is first: later messages would be queued without an end.
	l.ready.Store(false)
	l.mu.Lock()
	calls := make([]*call, 0, len(l.pending)+len(l.queue))
	// In the order in which they were sent, so that a simulation does the same in every run.
	for _, id := range slices.Sorted(maps.Keys(l.pending)) {
		calls = append(calls, l.pending[id])
	}
	calls = append(calls, l.queue...)
	clear(l.pending)
	l.queue, l.report = nil, doneReport{}
	l.mu.Unlock()
	for _, c := range calls {
		c.finish(nil, err)
	}
}

// announceDone reports to the peer under which ring this node has nothing of others.
func (l *link) announceDone(digest, changes uint64) {
	l.mu.Lock()
	l.report = doneReport{digest, changes}
	l.mu.Unlock()
	l.wake()
}

const (
	// silentFor is the time without asks to an owner after a request has waited for it in vain, unless it
	// answers meanwhile. After that one request tries it again. Without it, each request would spend half of
	// its time on an owner that does not answer.
	silentFor = 100 * time.Millisecond
	// aliveFor is the time after its last message in which an owner without an answer counts as late instead
	// of gone. A late owner may have spent the rest of the limit, so that no other node admits.
	aliveFor = 250 * time.Millisecond
)

// parcel writes a parcel into a frame; the caller holds mu.
func (l *link) parcel(f *wire.Frame, p *parcel, stamp int64) {
	l.out.unsent++
	// With First the receiver drops the receipts before it.
	f.Parcel = &wire.Parcel{Number: p.number, First: l.out.sealed[0].number, Sent: stamp, Accounts: p.w.B}
}

// The reply to an ask.
const (
	answered  = 0
	notOwner  = 1
	malformed = 2
	notInTime = 3
)
