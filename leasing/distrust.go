package leasing

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A ledger may be wrong in more ways than one answer shows. What is here bounds what
// that costs: no key is claimed again and again without a pause, no refusal is held
// for long without being asked for again, and a clock that is set to and fro does not
// have everything told each time.

const (
	// A ledger's clock that was set so many times in stepsRest is not acted upon once
	// more until that has passed; nor is a loss of its data.
	mostSteps = 4
	stepsRest = 10 * time.Second

	// evictionRest is how long nothing is told again because of lost accounts: a
	// ledger that has no room would lose others for those.
	evictionRest = time.Minute
)

// ErrClockSet says that the ledger's clock was set.
var ErrClockSet = errors.New("the store's clock was set: leases are claimed anew")

// ErrEvicted says that an account was lost alone.
var ErrEvicted = errors.New("the store has lost an account that was in use: its maxmemory-policy may evict, or " +
	"somebody deleted it; what it had granted may be granted again")

// reject checks the grants of a batch; those that cannot be become errors. It returns
// false when one speaks of a time that cannot be.
func (b *batch) reject(grants []ratelimit.Grant) (timely bool) {
	timely = true
	lag := peersLag
	if b.beats {
		lag = 0
	}
	for i := range grants {
		g, c := &grants[i], &b.claims[i]
		if err := ledger.CheckGrant(c, g, lag); err != nil {
			*g = ratelimit.Grant{Seq: c.Seq, Err: err}
		}
		kind, ok := ratelimit.RejectionOf(g.Err)
		if !ok {
			continue
		}
		timely = timely && kind != ratelimit.RejectedClock && kind != ratelimit.RejectedWindow
		b.stats.rejected[kind].Add(1)
		b.warn(g.Err)
	}
	return timely
}

// peersLag is by how much the clock of an account that came from another node may be
// behind that of the node that has it now.
const peersLag = time.Minute

func (f *Fleet) warn(err error) {
	if f.OnWarning != nil {
		f.OnWarning(err)
	}
}

// clockSteps are how often a ledger's clock was set of late, or its data lost.
type clockSteps struct {
	n     int
	since instant
	late  bool // one is to be acted upon when they rest
	ahead bool // it went ahead
}

// may tells whether one more may be acted upon now, by which the clock was set: 0 if data was
// lost.
func (s *clockSteps) may(now instant, step time.Duration) bool {
	if now.Sub(s.since) >= stepsRest {
		s.n, s.since = 0, now
	}
	s.n++
	if s.n <= mostSteps {
		return true
	}
	s.late, s.ahead = true, s.ahead || step > 0
	return false
}

// rested tells whether one that came too soon is due.
func (s *clockSteps) rested(now instant) (due, ahead bool) {
	if !s.late || now.Sub(s.since) < stepsRest {
		return false, false
	}
	due, ahead = true, s.ahead
	*s = clockSteps{n: 1, since: now}
	return due, ahead
}

// stepped takes in that a part of the ledger has had its clock set.
func (f *Fleet) stepped(l *lane, now instant, step time.Duration) {
	ahead := step > 0
	if ahead {
		f.stats.clockSteps[0].Add(1)
	} else {
		f.stats.clockSteps[1].Add(1)
	}
	f.warn(fmt.Errorf("%w (by at least %v)", ErrClockSet, step.Round(time.Millisecond)))
	l.mu.Lock()
	may := l.steps.may(now, step)
	l.set = now
	l.mu.Unlock()
	if may {
		f.lapse(now, ahead)
	}
}

// lost takes in that a part of the ledger has lost its data.
func (f *Fleet) lost(l *lane, now instant) {
	f.stats.recoveries.Add(1)
	l.mu.Lock()
	may := l.losses.may(now, 0)
	l.mu.Unlock()
	if may {
		f.doubtAll(now)
	}
}

// lapse has leases claimed anew after the ledger's clock was set. When it went ahead
// of this node's, they are over there.
func (f *Fleet) lapse(now instant, ahead bool) {
	if ahead {
		f.lapsed.Store(int64(now))
	}
	f.doubtAll(now)
}

// lapseLate acts on what lanes put off.
func (f *Fleet) lapseLate(now instant) {
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		due, ahead := l.steps.rested(now)
		lost, _ := l.losses.rested(now)
		l.mu.Unlock()
		if due || lost {
			f.lapse(now, ahead)
		}
	}
}

// missed takes in that the account of a claim had been lost, which had granted this
// node what the claim says, and others who knows how much: they are asked to tell, and
// this node to tell of its other accounts.
func (f *Fleet) missed(sent, now instant, c *ratelimit.Claim) {
	f.stats.missing.Add(1)
	f.stats.missingTokens.Add(uint64(max(0, min(c.Granted-c.Returned, c.Limit.Capacity()))))
	f.warn(ErrEvicted)
	f.DoubtEvicted(sent, now)
}

// DoubtEvicted has all accounts told again that were told before sent, for the ledger
// may have lost some of them: it is known to evict. Not more often than each minute.
func (f *Fleet) DoubtEvicted(sent, now ratelimit.Instant) {
	last := f.evicted.Load()
	if last != 0 && now.Sub(instant(last)) < evictionRest || !f.evicted.CompareAndSwap(last, int64(now)) {
		return
	}
	f.doubtAll(sent)
}

// plausible bounds for how long an epoch may say that it learns: one whose clock went
// back since would learn for as long.
func plausible(e ratelimit.Epoch, at ledgerTime) ratelimit.Epoch {
	if latest := at.Add(ledger.LongestLearning); at > 0 && e.Learning > latest {
		e.Learning = latest
	}
	return e
}
