package routing

import (
	"context"
	"errors"
	"iter"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Requests of a Stepped are coroutines: they wait in the code of a Router, and go on when the node is pumped.

// task is a request, or the asks of a peer's frame: a coroutine, which sleeps as a Router's goroutine does. next runs
// it until it sleeps or ends, and yield, which it calls itself, suspends it. stop makes yield return false, so that it
// unwinds.
type task struct {
	next  func() (open bool)
	stop  func()
	yield func() bool
	// A sleep ends at due, or before with an event.
	due   instant
	event <-chan struct{}
	done  func()
	// see is called with the places of verdicts that are made, perhaps again and again; nil: nothing is.
	verdicts []verdict
	see      func(i int)
}

// taskKey is the key of a task in its context.
type taskKey struct{}

// errEnded unwinds the tasks of a node that has ended.
var errEnded = errors.New("routing: the node has ended")

// sleep goes on when the node is pumped at due, or after the event.
func (t *task) sleep(due instant, event <-chan struct{}) {
	t.due, t.event = due, event
	if !t.yield() {
		panic(errEnded)
	}
}

// sleeps reports whether a task has nothing to do yet.
func (t *task) sleeps(now instant) bool {
	select {
	case <-t.event:
		return false
	default:
		return now < t.due
	}
}

// begin runs do until it sleeps. When do has returned, perhaps after further sleeps, done is called. A panic of a task
// passes through next to the driver, except errEnded.
func (s *Stepped) begin(t *task, do func(ctx context.Context)) {
	ctx := context.WithValue(context.Background(), taskKey{}, t)
	next, stop := iter.Pull(func(yield func(struct{}) bool) {
		t.yield = func() bool { return yield(struct{}{}) }
		defer func() {
			if fault := recover(); fault != nil && fault != any(errEnded) {
				panic(fault)
			}
		}()
		do(ctx)
	})
	t.next = func() bool { _, open := next(); return open }
	t.stop = stop
	s.resume(t)
}

// resume runs a task until it sleeps again. It reports whether the task has ended.
func (s *Stepped) resume(t *task) (ended bool) {
	if s.ended {
		t.stop()
		return false
	}
	if t.next() {
		s.tasks = append(s.tasks, t)
		return false
	}
	t.done()
	return true
}

// sleep implements driver.
func (s *Stepped) sleep(ctx context.Context, b bell, until instant) {
	ctx.Value(taskKey{}).(*task).sleep(until, b)
}

// stepping is a base that leases from a store which the driver plays.
type stepping struct {
	*leasing.Stepped
	clock ratelimit.Clock
}

// decide implements limiter.
func (s stepping) decide(ctx context.Context, now instant, within time.Duration, asks []ask, verdicts []verdict) {
	w := s.Ask(now, asks, verdicts)
	if w == nil {
		return
	}
	// The task is in the context, because the base is called by the same code as in a Router.
	t := ctx.Value(taskKey{}).(*task)
	until := w.Patience()
	if within > 0 {
		until = min(until, within)
	}
	for at := now.Add(until); ; {
		t.watch(w, verdicts)
		t.sleep(at, w.Next())
		now = s.clock()
		// There may be more time more than once. When there is none left, Advance ends the wait.
		for more := time.Duration(1); now >= at && more > 0; at = at.Add(more) {
			more = w.TimeOver()
		}
		if !w.Advance(now) {
			return
		}
	}
}

// watch shows verdicts that the store's limiter has charged or credited, though the store does not have them yet, or
// others hold them up.
func (t *task) watch(w *leasing.Wait, verdicts []verdict) {
	for i := range verdicts {
		v := &verdicts[i]
		if t.see != nil && w.Decided(i) && v.Source != ratelimit.FromFallback {
			for j := range t.verdicts {
				if &t.verdicts[j] == v {
					t.see(j)
				}
			}
		}
	}
}

// watchAsked has the task of a context see the verdicts of a peer's asks.
func watchAsked(ctx context.Context, verdicts []verdict, see func(i int)) {
	t := ctx.Value(taskKey{}).(*task)
	t.verdicts, t.see = verdicts, see
}

// Stepped is a node in a ring that a driver runs in its own time. It has no goroutine, socket or timer, and
// reads only the given clock. The same calls have the same results in every run. It decides, joins, leaves
// and hands over by the code of a [Router]. Only waits and the transport of frames differ. It is not safe for
// concurrent use.
//
// Its driver carries frames between nodes (Wires), in order as a stream does, and reports streams that open
// and break. After the answer of a Store, it calls Pump.
type Stepped struct {
	*core
	o     SteppedOptions
	inlet map[string]*inlet
	steppedWork
	open  map[string]bool // streams that are open, or being opened
	left  func()
	due   instant // of the tick
	alarm instant // the earliest requested time of after; 0: none
	woken bool
	ended bool
}

// steppedWork is the work in progress of a Stepped, and its requests to its driver.
type steppedWork struct {
	tasks []*task
	dials []*member
	ends  []*member
}

// SteppedOptions are all that a Stepped node depends on.
type SteppedOptions struct {
	Options            // of them, Addr, Region and HotRate
	Incarnation uint64 // not 0, and another one for each that ever had the address
	Clock       ratelimit.Clock
	Wall        time.Time
	After       func(time.Duration, func()) // calls when the node's clock has gone on by that much
	Random      func() float64
	Local       *local.Limiter   // budgets of this process, where there is no store
	Store       *leasing.Stepped // or what leases from one
	Wires       Wires
	// Decided, if set, is called with each decision of this node for its peers, and Undone with each charge
	// that it takes back.
	Decided, Undone func(a *ratelimit.Ask, v *ratelimit.Verdict)
}

// Wires carry frames. They must not call the node before they have returned.
type Wires interface {
	// Dial opens a stream to a node, whose Accept is to be given hello. Opened or
	// Closed answers.
	Dial(to string, hello []byte)
	// HangUp ends the stream that this node has opened.
	HangUp(to string)
	// Send sends a frame on the stream that this node has opened, or an answer on
	// the one that the other has.
	Send(to string, answer bool, frame []byte)
}
