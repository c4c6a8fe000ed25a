package shed

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// node is a model of a gRPC server on one processor, and of its callers. Readers, handlers and writers take
// turns in the order in which they became ready, as in Go's scheduler. Sockets hold unread bytes. Callers send
// their calls every tick, give up after a while, and have a bounded number of calls outstanding. The costs are
// about those of grpc-go, by its profiles.
type node struct {
	gate  *Gate // nil: all calls are begun
	now   time.Duration
	ready []func() // tasks that wait for the processor
	conns []*link
	turn  int
	after []wake

	rate             float64 // of calls, by second
	length, patience time.Duration
	due              float64
	ticked           time.Duration

	// honest calls each 5 ms over a connection of its own, if it is not nil.
	honest        *link
	honestTook    []time.Duration
	honestRefused int

	refusal int           // what it costs to refuse a call, in ns
	store   time.Duration // that each call waits for, if it is not 0
	storing int

	offered, sent, refused, inTime, charged int
}

// The costs of a call, and of a system call that reads or writes many.
const (
	costRead, costRefused, costBegin, costHandle, costDead, costWrite, costCancel = 2800, 100, 1500, 8000, 2500, 2700, 1500 // ns
	costRefusedTraced                                                             = 350                                     // its headers have to be read
	costReading, costFlush                                                        = 2000, 5000
	batch                                                                         = 100 // calls that one read takes
	slice                                                                         = 10 * time.Millisecond
)

type wake struct {
	at time.Duration
	do func()
}

type rpc struct {
	link     *link
	intended time.Duration
	seen     time.Duration     // by the reader
	over     bool              // answered, refused or given up, for the caller
	canceled bool              // in the server's view
	inside   ratelimit.Instant // since when, for the gate; 0: it is not
}

type frame struct {
	call   *rpc
	cancel bool
}

type link struct {
	most, outstanding int
	inside            int // calls, for the gate
	waiting           []*rpc
	socket            []frame
	reading           bool // the reader is ready, runs or sleeps
	out               []*rpc
	writing           bool
}

func newNode(gate *Gate, conns, outstanding int) *node {
	n := &node{gate: gate, patience: 20 * time.Millisecond, refusal: costRefused}
	for range conns {
		n.conns = append(n.conns, &link{most: outstanding / conns})
	}
	return n
}

func (n *node) instant() ratelimit.Instant { return ratelimit.Instant(n.now + time.Hour) }

// work uses the processor; meanwhile callers go on.
func (n *node) work(ns int) {
	n.now += time.Duration(ns)
	for n.ticked+tickEvery <= n.now {
		n.ticked += tickEvery
		n.tick(n.ticked)
	}
	for len(n.after) > 0 && n.after[0].at <= n.now {
		w := n.after[0]
		n.after = n.after[1:]
		w.do()
	}
}

const tickEvery = 500 * time.Microsecond

// tick has callers give up and send.
func (n *node) tick(now time.Duration) {
	for _, l := range n.conns {
		for len(l.waiting) > 0 && (l.waiting[0].over || now-l.waiting[0].intended > n.patience) {
			if c := l.waiting[0]; !c.over {
				c.over = true
				l.outstanding--
				l.socket = append(l.socket, frame{c, true})
			}
			l.waiting = l.waiting[1:]
		}
	}
	if now <= n.length {
		for n.due += n.rate * tickEvery.Seconds(); n.due >= 1; n.due-- {
			n.offered++
			l := n.conns[n.turn%len(n.conns)]
			n.turn++
			if l == n.honest {
				continue
			}
			if l.outstanding >= l.most {
				continue
			}
			n.sent++
			l.outstanding++
			c := &rpc{link: l, intended: now}
			l.waiting = append(l.waiting, c)
			l.socket = append(l.socket, frame{c, false})
		}
		if l := n.honest; l != nil && now%(5*time.Millisecond) < tickEvery {
			l.socket = append(l.socket, frame{&rpc{link: l, intended: now}, false})
		}
	}
	for _, l := range n.conns {
		if !l.reading && len(l.socket) > 0 {
			l.reading = true
			n.ready = append(n.ready, func() { n.read(l) })
		}
	}
}

// read is a reader's turn: it reads until its socket is empty or its time slice is
// over.
func (n *node) read(l *link) {
	for began := n.now; len(l.socket) > 0; {
		if n.now-began > slice {
			n.ready = append(n.ready, func() { n.read(l) })
			return
		}
		n.readBatch(l)
	}
	l.reading = false
}

func (n *node) sleep(d time.Duration, do func()) {
	i := len(n.after)
	for i > 0 && n.after[i-1].at > n.now+d {
		i--
	}
	n.after = slices.Insert(n.after, i, wake{n.now + d, do})
}

func (n *node) readBatch(l *link) {
	frames := l.socket[:min(batch, len(l.socket))]
	l.socket = l.socket[len(frames):]
	now := n.instant()
	n.work(costReading)
	var in []frame
	refused := false
	for _, f := range frames {
		switch {
		case n.gate == nil || f.cancel && f.call.inside != 0:
			in = append(in, f)
		case f.cancel: // of a refused call: without an effect
		case n.gate.Arrive(now, l.inside, n.patience):
			l.inside++
			f.call.inside = now
			in = append(in, f)
		default:
			n.work(n.refusal)
			n.answered(f.call, true)
			refused = true
		}
	}
	if refused {
		n.work(costFlush)
	}
	for _, f := range in {
		if f.cancel {
			n.leave(f.call)
			n.work(costCancel)
			f.call.canceled = true
			continue
		}
		n.work(costRead)
		f.call.seen = n.now
		n.begin(f.call)
	}
}

func (n *node) leave(c *rpc) {
	if c.inside != 0 && n.gate != nil {
		c.link.inside--
		n.gate.Leave(n.instant(), c.link.inside, c.inside)
		c.inside = 0
	}
}

func (n *node) begin(c *rpc) {
	n.work(costBegin)
	n.ready = append(n.ready, func() { n.handle(c) })
}

func (n *node) handle(c *rpc) {
	end := func() {}
	if n.gate != nil {
		began := n.instant()
		n.gate.Begin(began)
		end = func() { n.gate.End(began) }
	}
	if n.gate != nil && (c.canceled || n.now-c.seen > n.patience) {
		end()
		n.work(costDead)
		return
	}
	n.charged++
	n.work(costHandle)
	if n.store == 0 {
		end()
		n.reply(c)
		return
	}
	n.storing++
	n.sleep(n.store, func() {
		n.storing--
		end()
		n.reply(c)
	})
}

// reply gives an answer to the writer.
func (n *node) reply(c *rpc) {
	l := c.link
	l.out = append(l.out, c)
	if !l.writing {
		l.writing = true
		n.ready = append(n.ready, func() { n.write(l) })
	}
}

func (n *node) write(l *link) {
	out := l.out
	l.out, l.writing = nil, false
	n.work(costFlush)
	for _, c := range out {
		n.work(costWrite)
		n.leave(c)
		n.answered(c, false)
	}
}

// answered delivers the end of a call to the caller.
func (n *node) answered(c *rpc, refused bool) {
	switch {
	case c.over:
		return
	case c.link == n.honest && refused:
		n.honestRefused++
	case c.link == n.honest:
		n.honestTook = append(n.honestTook, n.now-c.intended)
	case refused:
		n.refused++
	case n.now-c.intended <= n.patience:
		n.inTime++
	}
	c.over = true
	c.link.outstanding--
}

// run runs for a time, and until all calls have come to an end.
func (n *node) run(rate float64, length time.Duration) {
	n.rate, n.length = rate, n.now+length
	for n.now < n.length+2*n.patience || len(n.ready) > 0 || n.storing > 0 {
		if len(n.ready) == 0 {
			n.work(10_000)
			continue
		}
		do := n.ready[0]
		n.ready = n.ready[1:]
		do()
	}
}

// capacity is what a model without a gate answers by second when it always has calls
// to answer, 128 at a time as bench/overload does.
func capacity(conns int) float64 {
	n := newNode(nil, conns, max(128, conns))
	n.patience = time.Second
	n.run(1e6, time.Second)
	return float64(n.charged) / n.length.Seconds()
}

// In the model, callers are an Envoy with its default circuit breaker (1,024 calls outstanding), over one
// connection or many. At ten times the capacity at least 80 % of it is answered in time, and at most a
// twentieth of the charges is late. That holds also if each call has headers of its own (traced), which cost
// more to refuse. Below the capacity almost no call is shed.
func TestModelOfOverload(t *testing.T) {
	for _, conns := range []int{1, 4, 16, 64} {
		capacity := capacity(conns)
		for _, times := range []float64{0.5, 0.9, 2, 5, 10} {
			name := fmt.Sprintf("%d connections, %g times the capacity of %.0f", conns, times, capacity)
			n := newNode(NewGate(patience), conns, 1024)
			n.run(times*capacity, time.Second)
			modelHolds(t, n, name, times, capacity)
			traced := newNode(NewGate(patience), conns, 1024)
			traced.refusal = costRefusedTraced
			traced.run(times*capacity, time.Second)
			modelHolds(t, traced, name+", traced", times, capacity)
		}
	}
}

func modelHolds(t *testing.T, n *node, name string, times, capacity float64) {
	t.Helper()
	goodput := float64(n.inTime) / capacity
	t.Logf("%s: goodput %.2f, refused %.2f, charged and not answered %d", name, goodput, float64(n.refused)/capacity, n.charged-n.inTime)
	if times > 1 && goodput < 0.8 || times < 1 && float64(n.inTime) < 0.98*float64(n.offered) {
		t.Errorf("%s: goodput is %.2f of it", name, goodput)
	}
	if unanswered := n.charged - n.inTime; unanswered > n.charged/20 {
		t.Errorf("%s: %d of %d charged calls were not answered in time", name, unanswered, n.charged)
	}
	if s := n.gate.Stats(); s.Waiting != 0 || s.InFlight != 0 {
		t.Errorf("%s: afterwards %+v", name, s)
	}
}

// A connection that floods delays an honest one on the same node only briefly, and has none of its calls
// refused. The timeouts of the flood's callers have little influence. Nearly all of the capacity is used.
func TestModelOfAFlood(t *testing.T) {
	capacity := capacity(1)
	for _, maxWait := range []time.Duration{patience, 100 * time.Millisecond} {
		for _, times := range []float64{2, 10} {
			n := newNode(NewGate(maxWait), 2, 6000)
			n.patience, n.honest = maxWait, n.conns[1]
			n.run(times*capacity, 2*time.Second)
			slices.Sort(n.honestTook)
			calls, p99 := len(n.honestTook)+n.honestRefused, n.honestTook[len(n.honestTook)*99/100]
			goodput := float64(n.inTime) / 2 / capacity
			t.Logf("up to %v, %g times the capacity: goodput %.2f; of %d honest calls %d are refused, p99 %v", maxWait, times, goodput, calls, n.honestRefused, p99)
			if n.honestRefused > 0 || p99 > 30*time.Millisecond || goodput < 0.8 {
				t.Errorf("up to %v, %g times the capacity: goodput is %.2f; of %d honest calls %d are refused, p99 is %v", maxWait, times, goodput, calls, n.honestRefused, p99)
			}
		}
	}
}
