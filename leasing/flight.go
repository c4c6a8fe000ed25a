package leasing

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// flight is a claim under way, with those who wait behind it.
type flight struct {
	lease.Flight             // guarded by the shard's mu
	id           keytable.ID // of its key
	name         string      // of its account
	done         chan struct{}
	err          error // read after done
}

// do does what the key wants done. The caller holds the shard's lock.
func (f *Fleet) do(h *busyKey, now instant) {
	if t := h.Ready(); t != nil {
		f.doAll(h, now, t)
	}
}

func (f *Fleet) doAll(h *busyKey, now instant, t *lease.Todo) {
	for _, last := range t.LastWords {
		fl := f.newFlight(h, last)
		fl.Claim.Key = fl.name
		// A full queue is left to claims that requests wait for.
		// It counts until another window has passed, and waits for company.
		f.laneOf(fl.name).put(f, fl, lease.Company)
	}
	if t.Claim != nil {
		f.launch(now, h, f.newFlight(h, t.Claim))
	}
	if t.Report.At != 0 {
		f.reportThen(h, now, t.Report)
	}
}

// reportThen has a report sent then, if there is still something to be reported.
func (f *Fleet) reportThen(h *busyKey, now instant, r lease.Report) {
	id, s := h.id, h.shard
	f.after(max(0, r.At.Sub(now)), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if h := s.find(id); h != nil && h.ReportDue(r) {
			f.launch(f.clock(), h, f.newFlight(h, new(lease.Flight)))
		}
	})
}

// launch queues a claim for which nobody waits, or does nothing when the queue is full; the caller
// holds the shard's lock.
func (f *Fleet) launch(now instant, h *busyKey, fl *flight) {
	patience := h.Patience(now, &fl.Flight)
	// Alone, it is worth nothing before somebody waits; nor is it in a Cluster, where nothing is drawn. What has
	// drifted is told all the same.
	if patience > lease.Company && (!f.gathers || len(f.lanes) > 1) && h.Lease.Drifted() == 0 {
		return
	}
	if !f.laneOf(fl.name).put(f, fl, patience) {
		return
	}
	// The sender cannot be ahead of this line: it writes the claim under the shard's lock,
	// which the caller holds.
	h.flight = fl
	h.Queued(&fl.Flight)
}

// newFlight is for what a key wants to claim.
func (f *Fleet) newFlight(h *busyKey, what *lease.Flight) *flight {
	return &flight{Flight: *what, id: h.id, name: f.keyName(h.key()), done: make(chan struct{})}
}

// ended tells whether the flight was answered, or will not be.
func (fl *flight) ended() bool {
	select {
	case <-fl.done:
		return true
	default:
		return false
	}
}

// enqueue hands a flight to the senders; when there are too many, it has failed.
func (f *Fleet) enqueue(fl *flight) {
	select {
	case f.laneOf(fl.name).queue <- fl:
		return
	default:
	}
	// Other asks may have joined the flight since it was made. They wait for it, so that it must
	// end with an error, and the key must be free for another claim.
	s := f.shard(fl.id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.find(fl.id); h != nil && h.flight == fl { // at the node's end another may have taken its place
		h.lands()
	}
	fl.err = errQueueFull
	close(fl.done)
}

var errQueueFull = errors.New("too many claims wait to be sent")

// join finds the claim that an ask waits for, or makes one, which the caller
// must enqueue; nil if there can be none, and why.
func (f *Fleet) join(now instant, a *ask) (fl *flight, launch bool, reason ratelimit.FallbackReason) {
	s, id, h := f.locked(a.Key)
	defer s.mu.Unlock()
	if h == nil {
		if h = f.admit(s, now, id, a.Key); h == nil {
			return nil, false, ratelimit.FallbackTableFull
		}
	}
	how, waiting := h.Join(now, a)
	switch how {
	case lease.UntilTurn:
		return f.untilTurn(h, now), false, 0
	case lease.UntilAgain:
		return f.untilAgain(h, now), false, 0
	case lease.Behind:
		f.hurry(h)
		return h.flight, false, 0
	case lease.Paused:
		return nil, false, ratelimit.FallbackError
	case lease.Alone:
	}
	fl = f.newFlight(h, &waiting)
	// While its part of the store counts as dead, no request waits for it.
	if f.laneOf(fl.name).refused(now) {
		return nil, false, ratelimit.FallbackBreaker
	}
	h.takes(fl)
	return fl, true, 0
}

// untilTurn is a flight that ends when the next window has begun, which is soon.
func (f *Fleet) untilTurn(h *busyKey, now instant) *flight {
	return f.resting(&h.turning, h.TurnsAt().Sub(now))
}

// untilAgain is a flight that ends when what was recalled may be there.
func (f *Fleet) untilAgain(h *busyKey, now instant) *flight {
	return f.resting(&h.recalled, h.AgainAt().Sub(now))
}

// resting is a flight that carries nothing, and ends after a while: one for all who wait
// for that, with one timer.
func (f *Fleet) resting(at **flight, d time.Duration) *flight {
	if *at == nil || (*at).ended() {
		fl := &flight{done: make(chan struct{})}
		f.after(d, func() { close(fl.done) })
		*at = fl
	}
	return *at
}
