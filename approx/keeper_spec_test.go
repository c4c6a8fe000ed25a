package approx

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
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
	if got := s.Share(s.now, s.rule, begins); got != want {
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
	if a := s.applies(); a.Now.Fence != 5 {
		t.Errorf("nobody has answered, and it applies for %+v", a)
	}
	s.passes(SeatTTL/2 - SeatTTL/20 - 1)
	s.share(epoch, 50, "its time is not over")
	s.passes(1)
	s.share(epoch, 0, "nobody has renewed it")
	if len(s.told) != 1 || s.told[0].Fence != 5 {
		t.Errorf("it was told of %+v, and there was one change", s.told)
	}
}

// Windows that began before the seat's last tenant had certainly ended are not
// to be spent in: it may have spent its share there. From then on they are.
func TestSeatHasATaint(t *testing.T) {
	s := newKeeperScript(t)
	s.sits(Tenancy{Seat: 0, Fence: 5, Taint: epoch}, 0)
	s.share(epoch-1, 0, "the window began before the taint")
	s.share(epoch, 50, "the window began with it")
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
	if got := s.Share(s.now, &wide, epoch); got != 20 {
		t.Errorf("a fifth of 100 is %d", got)
	}
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	for range 2 { // the first is not answered
		a := s.applies()
		if a.Seats != 2 {
			t.Errorf("there are two seats now: %+v", a)
		}
		s.Answer(s.now, a, s.plan, Tenancy{}, errors.New("gone"))
	}
}

// While the ledger learns, a node takes no seat that may be another's. Owners claim theirs again at once.
func TestSeatsWhileTheLedgerLearns(t *testing.T) {
	learning := true
	s := newKeeperScript(t)
	s.Epoch = func() ratelimit.EpochKnown { return ratelimit.EpochKnown{ID: 1, Asked: s.now, Learning: learning} }
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
	for seat, clean := range []bool{true, false} {
		s.sits(Tenancy{Seat: seat, Fence: 5}, 0)
		a, ok := s.Leaving(Confirmed(clean))
		if !ok || !a.Leave || a.Clean != clean || a.Now.Seat != seat || a.Now.Fence != 5 || a.Holder != 7 || a.valid() != nil {
			t.Errorf("%+v %v", a, ok)
		}
		s.share(epoch, 0, "it has left")
	}
	s.sits(none, 0)
	if a, ok := s.Leaving(true); ok {
		t.Errorf("all seats are taken, and it gives up %+v", a)
	}
}

// An answer that takes the seat away, or gives another, ends what all had agreed
// on: meanwhile the others may have agreed on something else. So does one that
// came when the time was over.
func TestAgreementEndsWithTheSeat(t *testing.T) {
	for _, c := range []struct {
		name  string
		after time.Duration
		t     Tenancy
		want  ratelimit.Tokens
	}{
		{"renewed in time", SeatTTL - SeatTTL/20 - 1, Tenancy{Seat: 1, Fence: 5}, 50},
		{"renewed too late", SeatTTL - SeatTTL/20, Tenancy{Seat: 1, Fence: 5}, 0},
		{"another tenancy", time.Second, Tenancy{Seat: 1, Fence: 6}, 0},
	} {
		s := newKeeperScript(t)
		s.sits(Tenancy{Seat: 1, Fence: 5}, 0)
		s.passes(c.after)
		c.t.TTL = SeatTTL // and some have another plan now
		s.Answer(s.now, Application{}, s.plan, c.t, nil)
		s.share(epoch, c.want, c.name)
	}
}

// An agreement read from a learning ledger does not count: it may lack other tenants.
func TestAgreementWhileTheLedgerLearns(t *testing.T) {
	learning := true
	s := newKeeperScript(t)
	s.Epoch = func() ratelimit.EpochKnown { return ratelimit.EpochKnown{ID: 1, Asked: s.now, Learning: learning} }
	answer := Tenancy{Seat: 1, Fence: 5, TTL: SeatTTL, Agreed: true}
	s.Answer(s.now, Application{epoch: 1}, s.plan, answer, nil)
	s.share(epoch, 0, "the ledger learns")
	learning = false
	s.Due(s.now, s.plan)
	s.share(epoch, 0, "what was agreed on is not known")
	s.Answer(s.now, Application{epoch: 1}, s.plan, answer, nil)
	s.share(epoch, 50, "it knows all")
}

// A node reads often while the plans of tenants differ, and writes while its own plan differs. Otherwise it
// waits.
func TestKeeperAsksForNews(t *testing.T) {
	s := newKeeperScript(t)
	s.sits(Tenancy{Seat: 1, Fence: 5}, 0)
	s.waits("nothing has changed")
	s.Answer(s.now, Application{}, s.plan, Tenancy{Seat: 1, Fence: 5, TTL: SeatTTL}, nil)
	s.applies()
	s.sits(Tenancy{Seat: 1, Fence: 5}, 0)
	s.waits("all have agreed")
	wider := *s.rule
	wider.Coordination.MaxNodes = 3
	s.plan = NewPlan([]*ratelimit.Rule{&wider})
	if a := s.applies(); a.Seats != 3 {
		t.Errorf("%+v", a)
	}
}

// A node takes no seat while the ledger learns, if it had none, was refused one, or has one that no longer
// counts.
func TestNoSeatIsTakenWhileTheLedgerLearns(t *testing.T) {
	s := newKeeperScript(t)
	learning := false
	s.Epoch = func() ratelimit.EpochKnown { return ratelimit.EpochKnown{ID: 1, Asked: s.now, Learning: learning} }
	s.sits(none, 0)
	learning = true
	s.waits("all seats were taken")

	s = newKeeperScript(t)
	s.Epoch = func() ratelimit.EpochKnown { return ratelimit.EpochKnown{ID: 1, Asked: s.now, Learning: learning} }
	learning = false
	wide := *s.rule
	wide.Coordination.MaxNodes = 3
	s.plan = NewPlan([]*ratelimit.Rule{&wide})
	s.sits(Tenancy{Seat: 2, Fence: 5}, 0)
	learning = true
	s.passes(SeatTTL)
	s.applies() // it may be the one that the ledger has lost
	learning = false
	s.sits(Tenancy{Seat: 2, Fence: 5}, 0)
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	learning = true
	s.passes(SeatTTL - SeatTTL/20 - 1)
	s.applies()
	s.passes(1)
	s.waits("its seat does not count any more")
}

// A ledger that lost its data assigns occupied seats again, to nodes that have not noticed the loss. A new
// seat is not used until the epoch, read after the assignment, is still the earlier one. If it is another,
// the node gives the seat up, and its share may have been spent.
func TestNewSeatIsProven(t *testing.T) {
	var known ratelimit.EpochKnown
	begin := func(t *testing.T) *keeperScript {
		s := newKeeperScript(t)
		known = ratelimit.EpochKnown{ID: 1, Asked: s.now}
		s.Epoch = func() ratelimit.EpochKnown { return known }
		s.sits(Tenancy{Seat: 1, Fence: 5}, time.Second)
		s.waits("it has a seat")
		s.share(epoch, 0, "nothing was heard since")
		return s
	}
	t.Run("nothing was lost", func(t *testing.T) {
		s := begin(t)
		known.Asked = s.now - 1
		s.waits("the epoch was asked for before")
		s.share(epoch, 0, "the epoch was asked for before")
		known.Asked, known.Learning = s.now, true
		s.applies()
		s.share(epoch, 0, "the ledger learns")
		known.Learning = false
		s.waits("it is proven")
		s.share(epoch, 50, "it is proven")
		known = ratelimit.EpochKnown{ID: 2, Asked: s.now, Learning: true}
		if a := s.applies(); a.Leave {
			t.Error("the ledger lost its data later, and the seat is given up")
		}
		s.share(epoch, 50, "the ledger lost its data later")
	})
	t.Run("the first seat is one like others", func(t *testing.T) {
		s := newKeeperScript(t)
		known = ratelimit.EpochKnown{ID: 1, Asked: s.now}
		s.Epoch = func() ratelimit.EpochKnown { return known }
		s.sits(Tenancy{Seat: 0, Fence: 5}, time.Second)
		s.share(epoch, 0, "nothing was heard since")
		known.Asked = s.now
		s.waits("it is proven")
		s.share(epoch, 50, "it is proven")
	})
	t.Run("the data was lost, and no rule needs a seat", func(t *testing.T) {
		s := begin(t)
		known, s.plan = ratelimit.EpochKnown{ID: 2, Asked: s.now, Learning: true}, NewPlan(nil)
		if a := s.applies(); !a.Leave || a.valid() != nil {
			t.Errorf("%+v", a)
		}
	})
	t.Run("the data was lost", func(t *testing.T) {
		s := begin(t)
		known = ratelimit.EpochKnown{ID: 2, Asked: s.now, Learning: true}
		for range 2 { // the first answer is lost
			a := s.applies()
			if !a.Leave || a.Clean || a.Now.Seat != 1 || a.Now.Fence != 5 || a.valid() != nil {
				t.Fatalf("%+v", a)
			}
			s.Answer(s.now, a, s.plan, Tenancy{}, errors.New("gone"))
		}
		s.Answer(s.now, s.applies(), s.plan, none, nil)
		s.waits("the ledger learns")
		s.share(epoch, 0, "it has no seat")
		known.Learning = false
		if a := s.applies(); a.Leave || a.Now.Fence != 0 {
			t.Errorf("%+v", a)
		}
	})
	t.Run("the data was lost, and learned again", func(t *testing.T) {
		s := begin(t)
		known = ratelimit.EpochKnown{ID: 2, Asked: s.now}
		if a := s.applies(); !a.Leave {
			t.Errorf("the seat was given before the loss was noticed, and it applies for %+v", a)
		}
		s.share(epoch, 0, "the seat may be another's")
	})
	t.Run("another seat while the ledger learns", func(t *testing.T) {
		s := begin(t)
		known.Asked = s.now
		s.waits("it is proven")
		known = ratelimit.EpochKnown{ID: 2, Asked: s.now, Learning: true}
		s.sits(Tenancy{Seat: 0, Fence: 6}, 0)
		s.share(epoch, 0, "who has this seat may not have told the ledger yet")
	})
	t.Run("answers that were lost, and renewals, are no proof", func(t *testing.T) {
		s := begin(t)
		s.passes(SeatTTL / 2)
		s.Answer(s.now, s.applies(), s.plan, Tenancy{}, errors.New("gone"))
		s.share(epoch, 0, "an answer was lost")
		s.sits(Tenancy{Seat: 1, Fence: 5}, 0)
		s.share(epoch, 0, "it was renewed")
	})
}

// scriptedSeats answers applications as the test says.
type scriptedSeats struct {
	asked  []Application
	t      Tenancy
	err    error
	longer bool // a request would wait for more than a second
}

func (s *scriptedSeats) Sit(ctx context.Context, a Application) (Tenancy, error) {
	if end, bounded := ctx.Deadline(); !bounded || time.Until(end) > time.Second {
		s.longer = true
	}
	s.asked = append(s.asked, a)
	return s.t, s.err
}

// While rules need seats, one is kept; when they need none any more, it is given
// up, as one of which not all is confirmed, once. A keeper that never needed one
// says nothing.
func TestKeeperKeepsWhatRulesNeed(t *testing.T) {
	ledger := &scriptedSeats{t: Tenancy{Seat: 1, Fence: 5, TTL: SeatTTL, Agreed: true}}
	s := newKeeperScript(t)
	s.seats = ledger
	nothing := NewPlan(nil)
	s.keep(context.Background(), nothing)
	if len(ledger.asked) != 0 {
		t.Fatalf("no rule needs a seat, and it asks %+v", ledger.asked)
	}
	if _, wanted := s.Seat(); wanted {
		t.Error("no rule needs a seat, and one is wanted")
	}
	if s.Leave(context.Background(), true); len(ledger.asked) != 0 || len(s.told) != 0 {
		t.Fatalf("it has no seat, and gives up %+v, and tells of %+v", ledger.asked, s.told)
	}
	s.keep(context.Background(), s.plan)
	s.keep(context.Background(), s.plan)
	if len(ledger.asked) != 1 {
		t.Fatalf("it has a seat since a moment ago, and has asked %+v", ledger.asked)
	}
	if seat, wanted := s.Seat(); seat != 1 || !wanted {
		t.Errorf("seat %d, wanted %v", seat, wanted)
	}
	s.keep(context.Background(), nothing)
	s.keep(context.Background(), nothing)
	if len(ledger.asked) != 2 || !ledger.asked[1].Leave || ledger.asked[1].Clean {
		t.Fatalf("no rule needs the seat any more, and it has asked %+v", ledger.asked)
	}
	if _, wanted := s.Seat(); wanted {
		t.Error("no rule needs a seat any more, and one is wanted")
	}
	if ledger.longer {
		t.Error("it would wait for more than a second")
	}
}

// An operator gets each change: a seat, none, and seats without an answer.
func TestKeeperTellsOfChanges(t *testing.T) {
	ledger := &scriptedSeats{err: errors.New("gone")}
	s := newKeeperScript(t)
	s.seats = ledger
	var told []string
	s.OnChange = func(t Tenancy, err error) { told = append(told, fmt.Sprint(t.Seat, " ", err)) }
	s.keep(context.Background(), s.plan)
	ledger.t, ledger.err = none, nil
	s.keep(context.Background(), s.plan)
	s.passes(SeatTTL)
	ledger.t = Tenancy{Seat: 0, Fence: 5, TTL: SeatTTL, Agreed: true}
	s.keep(context.Background(), s.plan)
	s.passes(SeatTTL / 2)
	s.keep(context.Background(), s.plan) // renewed: no change
	s.passes(SeatTTL / 2)
	ledger.err = errors.New("gone again")
	s.keep(context.Background(), s.plan)
	ledger.t.Fence, ledger.err = 6, nil
	s.keep(context.Background(), s.plan)
	s.keep(context.Background(), NewPlan(nil))
	if got, want := strings.Join(told, "; "), "-1 gone; 0 <nil>; -1 gone again; 0 <nil>; -1 <nil>"; got != want {
		t.Errorf("told of %s\nwant    %s", got, want)
	}
}

// A keeper whose first application finds all seats taken reports that, once. It applies for a seat also for a
// rule of one node.
func TestKeeperTellsThatAllSeatsAreTaken(t *testing.T) {
	s := newKeeperScript(t)
	s.rule.Coordination.MaxNodes = 1
	s.plan = NewPlan([]*ratelimit.Rule{s.rule})
	for range 2 {
		s.sits(none, 0)
		if len(s.told) != 1 || s.told[0].Seat >= 0 {
			t.Errorf("all seats are taken, and it told of %+v", s.told)
		}
		s.passes(SeatTTL)
	}
	if seat, wanted := s.Seat(); seat != -1 || !wanted {
		t.Errorf("it has the seat %d and wants one: %v", seat, wanted)
	}
	s.sits(Tenancy{Seat: 0, Fence: 5}, 0)
	if seat, wanted := s.Seat(); seat != 0 || !wanted {
		t.Errorf("it has the seat %d and wants one: %v", seat, wanted)
	}
	s.Answer(s.now, Application{}, NewPlan(nil), Tenancy{Seat: 0, Fence: 5}, nil)
	if seat, wanted := s.Seat(); seat != 0 || wanted {
		t.Errorf("no rule needs a seat; it has the seat %d and wants one: %v", seat, wanted)
	}
}

// deadlines notes how long applications may take.
type deadlines []time.Duration

func (d *deadlines) Sit(ctx context.Context, _ Application) (Tenancy, error) {
	end, _ := ctx.Deadline()
	*d = append(*d, time.Until(end))
	return Tenancy{Seat: 0, Fence: 5, TTL: SeatTTL}, nil
}

// The seats have a second to answer, also for a leaving node.
func TestSeatsHaveASecondToAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, d := newKeeperScript(t), deadlines{}
		s.seats = &d
		s.keep(t.Context(), s.plan)
		s.Leave(t.Context(), Unconfirmed)
		if !slices.Equal(d, deadlines{time.Second, time.Second}) {
			t.Errorf("an application, and the last, may take %v", d)
		}
	})
}
