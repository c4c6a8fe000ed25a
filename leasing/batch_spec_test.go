package leasing

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// timedLedger takes its time for a batch, by the clock of a script.
type timedLedger struct {
	*nodeScript
	takes   time.Duration
	batches int
	err     error
}

func (l *timedLedger) Settle(ctx context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	l.batches++
	l.passes(l.takes)
	if l.err != nil {
		fillErrors(grants, l.err)
		return
	}
	l.ledger.Settle(ctx, claims, grants)
}

// sendsAll has the node's own sender settle what waits.
func (s *nodeScript) sendsAll(to *timedLedger) {
	s.fleet.ledger = to
	l := &s.fleet.lanes[0]
	s.fleet.settle(l, l.take())
}

// How long the ledger takes for a batch is measured in microseconds; while the breaker
// is open it is not asked at all, and who waits is told why.
func TestBatchesAreTimedAndBroken(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	slow := &timedLedger{nodeScript: s, takes: 3 * time.Millisecond}
	r := s.asks(1)
	s.sendsAll(slow)
	r.says(false, ratelimit.FromClaim)
	if x := s.Stats().StoreTime; x.Count != 1 || x.Sum != 3000 {
		t.Errorf("a round trip of 3 ms is counted as %+v", x)
	}
	slow.err = errors.New("gone")
	for range breakAfter {
		s.passes(time.Minute)
		r = s.asks(1)
		s.sendsAll(slow)
		r.decided()
	}
	s.passes(time.Minute) // it is tried once
	first := s.newKeyFlight(1)
	s.fleet.settle(&s.fleet.lanes[0], []*flight{first})
	asked := slow.batches
	second := s.newKeyFlight(1)
	s.fleet.settle(&s.fleet.lanes[0], []*flight{second})
	if slow.batches != asked || !errors.Is(second.err, errBreaker) || !second.ended() {
		t.Errorf("%d batches, not %d: %v", slow.batches, asked, second.err)
	}
}

// newKeyFlight is a claim for the script's key.
func (s *nodeScript) newKeyFlight(waiting tokens) *flight {
	return s.fleet.newFlight(s.keyHeld(), &lease.Flight{Waiting: waiting})
}

// A time that no clock can show says nothing of the ledger's: not when it comes alone,
// nor with a grant that says another.
func TestImpossibleTimesAreNotHeard(t *testing.T) {
	for at, timely := range map[ledgerTime]bool{
		-1: true, ledger.MostFence + 1: true,
		ledgertest.Epoch.Add(time.Second): false, // one that could be, beside one that could not
	} {
		s := newNodeScript(t, perMinute100)
		s.Hears()
		s.leased(5)
		l := &s.fleet.lanes[0]
		before := l.clock
		s.passes(time.Second)
		b := &batch{Fleet: s.fleet, lane: l, sent: s.now, timely: timely}
		b.answered(nil, epochAnswer{at: at})
		if l.clock != before || s.Stats().ClockSteps != [2]uint64{} {
			t.Errorf("%d is believed: %+v, and before %+v", at, l.clock, before)
		}
	}
}

// What is returned ahead of its window asks for nothing, so that it is not to be made
// larger either.
func TestWhatIsGivenBackAheadIsNotStretched(t *testing.T) {
	s, _ := turning(t, 0)
	s.Recalls()
	s.rule.Coordination.Lease.Auto, s.rule.Coordination.Lease.Fixed = true, 0
	if !s.rule.Stretched() {
		t.Fatal("the rule's leases are to be stretched")
	}
	claims := s.Release(s.now)
	if len(claims) != 2 || claims[0].Stretch || claims[1].Stretch {
		t.Errorf("%+v", claims)
	}
}

// A rule of mode approx that begins anew by its other name has reported nothing yet: as
// much as was known of the window before has its own last word.
func TestLastWordAfterAClaimThatWasLost(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.drifts(4)
	s.exchange() // 5 are known
	s.SetDrift(nil)
	s.passes(46 * time.Second)
	s.asks(1)
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.SetDrift(d)
	s.passes(time.Second)
	s.late(5).says(false, ratelimit.FromDrift)
	if b := s.Batch(); b != nil {
		b.Fail(errors.New("lost"))
	}
	s.passes(time.Minute)
	s.late(1).says(false, ratelimit.FromDrift)
	b = s.Batch()
	if b == nil || !slices.ContainsFunc(b.Claims(), func(c ratelimit.Claim) bool { return c.Final && c.Spent == 5 }) {
		t.Errorf("5 were spent that nobody knows of, and it sends %+v", b)
	}
}

// The last word on a window is no claim for the key: one that is under way stays so.
func TestLastWordEndsNoClaim(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(4)
	s.exchange()
	s.keyHeld().Reported = 4 // the last report was lost
	s.passes(46 * time.Second)
	s.sweeps()
	last, c := s.sends()
	if !c.Final {
		t.Fatalf("the window is over: %+v", c)
	}
	s.SetDrift(nil)
	s.asks(1)
	s.sends()
	s.settled(last, 0)
	s.asks(1)
	s.quiet("a claim is under way")
}

// A fence that could not be makes this node compare none with the one it had, which
// may have been the lie; another lie says nothing of the fence.
func TestFenceAfterALie(t *testing.T) {
	for _, wrong := range []bool{false, true} {
		s := newNodeScript(t, perMinute100)
		g := s.leased(1)
		s.asks(1)
		b, c := s.sends()
		lie := ratelimit.Grant{
			Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: -1, Carried: true, TTL: c.TTL,
			ResetAfter: time.Minute, At: g.At,
		}
		if wrong {
			lie.Granted, lie.Fence = c.Granted, c.Fence
		}
		b.Answer([]ratelimit.Grant{lie})
		s.passes(lease.LongestPause)
		s.asks(1)
		want := g.Fence
		if wrong {
			want = 0
		}
		if _, c = s.sends(); c.Fence != want {
			t.Errorf("a wrong fence %v: the next claim has %d, not %d", wrong, c.Fence, want)
		}
	}
}

// hearsOfALoss has a request wait for a claim that is answered 5 ms later, as the test wants it, and returns when the
// claim was sent.
func (s *nodeScript) hearsOfALoss(by func(*ratelimit.Grant)) (sent instant) {
	s.Helper()
	s.asks(1)
	b, c := s.sends()
	sent = s.now
	s.passes(5 * time.Millisecond)
	g := ratelimit.Grant{
		Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: c.Granted + 1, Carried: true,
		TTL: c.TTL, ResetAfter: time.Minute, At: ledgertest.Epoch,
	}
	by(&g)
	b.Answer([]ratelimit.Grant{g})
	return sent
}

// Where the ledger has missed an account, what was told before that claim was sent is
// told again, and nothing that it has heard since. Who hears no epochs does not tell:
// data that was lost has another sign there.
func TestMissedAccountHasOthersTold(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newNodeScript(t, perMinute100)
		s.fleet.beats = hears
		s.leased(1)
		sent, missing := s.hearsOfALoss(func(g *ratelimit.Grant) { g.Missing = true }), uint64(1)
		if !hears {
			sent, missing = 0, 0
		}
		if got := instant(s.fleet.doubt.Load()); got != sent || s.Stats().Missing != missing {
			t.Errorf("hears %v: told again is what was told before %v, not %v: %+v", hears, got, sent, s.Stats())
		}
	}
}

// A ledger without epochs tells that it has lost its data by an answer: all leases are told again. One with epochs has
// another sign.
func TestLossThatAnAnswerTells(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newNodeScript(t, perMinute100)
		s.fleet.beats = hears
		s.leased(1)
		sent, losses := s.hearsOfALoss(func(g *ratelimit.Grant) { g.Relearning = true }), uint64(1)
		if hears {
			sent, losses = 0, 0
		}
		if got := instant(s.fleet.doubt.Load()); got != sent || s.Stats().Recoveries != losses {
			t.Errorf("hears %v: told again is what was told before %v, not %v: %+v", hears, got, sent, s.Stats())
		}
	}
}

// What a ledger that is being told of its losses has confirmed frees no share, be it
// one token.
func TestConfirmedByALedgerThatLearns(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(1)
	b, c := s.sends()
	b.Answer([]ratelimit.Grant{{
		Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: c.Granted + 1, Carried: true, Relearning: true, TTL: c.TTL,
		ResetAfter: 45 * time.Second, At: ledgertest.Epoch, Available: 90,
	}})
	if r := s.asks(10); r.decided() {
		t.Errorf("one of ten was used before the loss: %+v", r.v[0])
	}
	s.drifts(9)
}

// What a policy admitted accounts for as much that is over as it was, once.
func TestOverByPolicyIsCountedOnce(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.rule.Counters = &ratelimit.RuleCounters{}
	s.keyHeld().Unasked = 5
	for range 2 {
		s.drifts(1)
		b, c := s.sends()
		b.Answer([]ratelimit.Grant{{
			Seq: c.Seq, Window: c.Window, Fence: c.Fence + 1, Granted: c.Granted, Carried: true,
			TTL: c.TTL, ResetAfter: 45 * time.Second, At: ledgertest.Epoch,
			Available: 90, OverAdmitted: 3, Over: 3,
		}})
	}
	if n := s.rule.Counters.OverByPolicy.Load(); n != 5 {
		t.Errorf("5 were admitted by the policy, and %d are counted as over by it", n)
	}
}

// Under a sliding window, what is not confirmed of the window before counts in the one
// that an answer begins.
func TestAnswerOfTheNextWindowCarriesDrift(t *testing.T) {
	s, _ := newDriftScript(t, sliding100)
	s.drifts(4)
	b, _ := s.sends()
	s.passes(46 * time.Second)
	s.settled(b, 0)
	if h := s.keyHeld(); h.Carried != 4 || h.Before != 5 {
		t.Errorf("%d of 4 unconfirmed, and %d of 5 that were spent, count in the next window", h.Carried, h.Before)
	}
}

// A node that hears of epochs draws nothing before it knows one: it could not tell that the data was lost since.
func TestNobodyDrawsInAnUnknownEpoch(t *testing.T) {
	for _, hears := range []bool{false, true} {
		s := newNodeScript(t, perMinute100)
		s.ledger = roomyLedger(s)
		s.Recalls()
		s.rule.Coordination.Lease.Auto, s.rule.Coordination.Lease.Fixed = true, 0
		if hears {
			s.Hears()
		}
		s.asks(1)
		b, _ := s.sends()
		s.settled(b, 0) // the ledger's clock is known from here on
		s.asksOf(2)
		b = s.Batch()
		if b == nil || len(b.Claims()) != 1 || !b.Claims()[0].Stretch {
			t.Fatalf("a claim for the second key was due: %+v", b)
		}
		if draws := b.Claims()[0].Draw != 0; draws == hears {
			t.Errorf("it hears of epochs, %v, and knows none; it draws: %v", hears, draws)
		}
	}
}
