package approx

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// keeperScript is a keeper that the test drives: it applies, and the test
// answers.
type keeperScript struct {
	testing.TB
	*Keeper
	now  ratelimit.Instant
	rule *ratelimit.Rule
	plan Plan
	told []Tenancy
}

func newKeeperScript(t testing.TB) *keeperScript {
	s := &keeperScript{TB: t, now: ratelimit.Instant(time.Hour)}
	s.Keeper = NewKeeper(nil, 7, func() ratelimit.Instant { return s.now })
	s.OnChange = func(t Tenancy, _ error) { s.told = append(s.told, t) }
	s.rule = &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10_000}, Coordination: ratelimit.DefaultCoordination()}
	s.rule.Coordination.Mode, s.rule.Coordination.MaxNodes = ratelimit.Approx, 2 // 50 tokens each
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	return s
}

func (s *keeperScript) passes(d time.Duration) { s.now = s.now.Add(d) }

// applies expects an application.
func (s *keeperScript) applies() Application {
	s.Helper()
	a, due := s.Due(s.now, s.plan)
	if !due {
		s.Fatal("nothing is applied for")
	}
	return a
}

// waits expects that it is not time to apply.
func (s *keeperScript) waits(why string) {
	s.Helper()
	if a, due := s.Due(s.now, s.plan); due {
		s.Fatalf("%s, and it applies: %+v", why, a)
	}
}

// share expects so many tokens of a window that began at begins.
func (s *keeperScript) share(begins ratelimit.LedgerTime, want ratelimit.Tokens, why string) {
	s.Helper()
	if got, _ := s.Share(s.now, s.rule, begins); got != want {
		s.Errorf("%s: the share is %d and not %d", why, got, want)
	}
}

// sits gives it a seat.
func (s *keeperScript) sits(t Tenancy, back time.Duration) {
	s.Helper()
	a, sent := s.applies(), s.now
	s.passes(back)
	t.TTL, t.Agreed = SeatTTL, true
	s.Answer(sent, a, s.plan, t, nil)
}

// A seat may be used for its time less the margin, counted from when it was
// applied for: the ledger counts from later, and gives it to another then.
func TestSeatEndsBeforeTheLedgerThinksSo(t *testing.T) {
	s := newKeeperScript(t)
	s.share(epoch, 0, "it has no seat")
	s.sits(Tenancy{Seat: 1, Fence: 5}, 2*time.Second)
	s.share(epoch, 50, "it has one of two seats")
	s.passes(SeatTTL - SeatTTL/20 - 2*time.Second - 1)
	s.share(epoch, 50, "its time is not over")
	if seat, wanted := s.Seat(); seat != 1 || !wanted {
		t.Errorf("it has seat %d, wanted %v", seat, wanted)
	}
	s.passes(1)
	s.share(epoch, 0, "its time is over, less the margin")
	if seat, wanted := s.Seat(); seat != -1 || !wanted {
		t.Errorf("it has seat %d, wanted %v", seat, wanted)
	}
}

// It is renewed at half of its time; what was not answered is asked again, and
// does not lengthen it.
func TestSeatIsRenewedAtHalf(t *testing.T) {
	s := newKeeperScript(t)
	s.sits(Tenancy{Seat: 0, Fence: 5}, 0)
	s.passes(SeatTTL/2 - 1)
	s.waits("more than half of its time is left")
	s.passes(1)
	a := s.applies()
	if a.Now.Seat != 0 || a.Now.Fence != 5 || a.Holder != 7 || a.TTL != SeatTTL || a.Seats != 2 || a.Leave {
		t.Errorf("it applies for %+v", a)
	}
	s.Answer(s.now, a, s.plan, Tenancy{}, errors.New("gone"))
	s.applies()
	s.passes(SeatTTL/2 - SeatTTL/20 - 1)
	s.share(epoch, 50, "its time is not over")
	s.passes(1)
	s.share(epoch, 0, "nobody has renewed it")
	if len(s.told) != 1 || s.told[0].Fence != 5 {
		t.Errorf("it was told of %+v, and there was one change", s.told)
	}
}

// Windows that began before the seat's last tenant had certainly ended are not
// to be spent in: it may have spent its share there. From then on they are. A
// bucket's share is passed on, and its heir says so.
func TestSeatHasATaint(t *testing.T) {
	s := newKeeperScript(t)
	s.sits(Tenancy{Seat: 0, Fence: 5, Taint: epoch}, 0)
	s.share(epoch-1, 0, "the window began before the taint")
	s.share(epoch, 50, "the window began with it")
	if _, heir := s.Share(s.now, s.rule, epoch); heir != 5 {
		t.Errorf("heir %d, want the tenancy's fence", heir)
	}
	clean := newKeeperScript(t)
	clean.sits(Tenancy{Seat: 0, Fence: 5}, 0)
	if _, heir := clean.Share(clean.now, clean.rule, epoch); heir != 0 {
		t.Errorf("heir %d of a seat on which nobody was", heir)
	}
}

// A seat that the rule does not divide by is no seat for it; nor is one that
// there is no more, which is not renewed either.
func TestSeatBeyondTheRule(t *testing.T) {
	s := newKeeperScript(t)
	wide := *s.rule
	wide.Path, wide.Coordination.MaxNodes = "q", 5
	s.plan = NewPlan([]*ratelimit.Rule{s.rule, &wide})
	s.sits(Tenancy{Seat: 2, Fence: 5}, 0)
	s.share(epoch, 0, "the rule divides by 2, and this is seat 2")
	if got, _ := s.Share(s.now, &wide, epoch); got != 20 {
		t.Errorf("a fifth of 100 is %d", got)
	}
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	if a := s.applies(); a.Seats != 2 {
		t.Errorf("there are two seats now: %+v", a)
	}
}

// While the ledger learns, nobody takes a seat that may be another's; who has
// one claims it again at once.
func TestSeatsWhileTheLedgerLearns(t *testing.T) {
	learning := true
	s := newKeeperScript(t)
	s.Learning = func() bool { return learning }
	s.waits("the ledger learns")
	learning = false
	s.sits(Tenancy{Seat: 0, Fence: 5}, 0)
	s.waits("it has a seat")
	learning = true
	if a := s.applies(); a.Now.Fence != 5 {
		t.Errorf("the ledger may not know of its seat, and it applies for %+v", a)
	}
}

// Leaving gives the seat up at once, whatever the ledger says; without a seat
// there is nothing to say.
func TestKeeperLeaves(t *testing.T) {
	s := newKeeperScript(t)
	if a, ok := s.Leaving(true); ok {
		t.Errorf("it has no seat, and gives up %+v", a)
	}
	for _, clean := range []bool{true, false} {
		s.sits(Tenancy{Seat: 1, Fence: 5}, 0)
		a, ok := s.Leaving(clean)
		if !ok || !a.Leave || a.Clean != clean || a.Now.Seat != 1 || a.Now.Fence != 5 || a.Holder != 7 || a.valid() != nil {
			t.Errorf("%+v %v", a, ok)
		}
		s.share(epoch, 0, "it has left")
	}
	s.sits(none, 0)
	if a, ok := s.Leaving(true); ok {
		t.Errorf("all seats are taken, and it gives up %+v", a)
	}
}
