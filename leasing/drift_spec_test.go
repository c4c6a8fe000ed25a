package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shareOfTen may drift by ten tokens, and remembers of which window it was asked.
type shareOfTen struct {
	heir   ratelimit.Fence
	begins ratelimit.LedgerTime
}

func (d *shareOfTen) Share(_ ratelimit.Instant, _ *ratelimit.Rule, begins ratelimit.LedgerTime) (ratelimit.Tokens, ratelimit.Fence) {
	d.begins = begins
	return 10, d.heir
}

// newDriftScript is a node under a rule of mode approx that has asked the ledger
// for one token, and spent it; plenty is left.
func newDriftScript(t testing.TB, l ratelimit.Limit) (*nodeScript, *shareOfTen) {
	s, d := newNodeScript(t, l), &shareOfTen{}
	c := &s.rule.Coordination
	c.Mode, c.MaxNodes, c.CheckTimeout, c.LowWatermark = ratelimit.Approx, 2, 2*time.Millisecond, ratelimit.Share{PPM: 200_000}
	c.SyncInterval, c.Lease.TTL = 10*time.Second, time.Hour
	s.SetDrift(d)
	s.leased(1)
	return s, d
}

func (s *nodeScript) drifts(n tokens) { s.Helper(); s.asks(n).says(false, ratelimit.FromDrift) }

// waitsFor expects a request to be undecided, and to wait that long.
func (s *nodeScript) waitsFor(r *nodeRequest, d time.Duration) {
	s.Helper()
	if r.decided() {
		s.Fatalf("it should wait for the ledger, and was decided: %+v", r.v[0])
	}
	if got := r.wait.Patience(); got != d {
		s.Errorf("it waits for %v, and should for %v", got, d)
	}
}

// While plenty is left a request does not wait: it is drawn on the node's share,
// and reported. The ledger's answer confirms it, and the share is free again.
func TestDriftInsteadOfAClaim(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.drifts(4)
	b, c := s.sends()
	if c.Spent != 5 || c.Granted != 1 {
		t.Errorf("4 tokens beyond the one that was granted: %+v", c)
	}
	if want := ledgertest.Epoch.Add(-15 * time.Second); d.begins != want {
		t.Errorf("the share was asked for of a window that began at %d, and it began at %d", d.begins, want)
	}
	s.drifts(6)
	s.waitsFor(s.asks(1), 2*time.Millisecond) // ten are unconfirmed
	s.settled(b, 0)                           // 4 are confirmed, and one is granted besides
	s.drifts(5)
	s.waitsFor(s.asks(1), 2*time.Millisecond)
}

// When little is left, it waits for the ledger for check_timeout first; then it
// drifts, if the share has as much, and otherwise waits on.
func TestDriftAfterWaiting(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.other(ratelimit.Claim{Seq: 1, Waiting: 79})
	s.passes(10 * time.Second)
	s.drifts(1)
	s.exchange() // 19 are left, which is less than a fifth
	a, b := s.asks(10), s.asks(3)
	s.waitsFor(a, 2*time.Millisecond)
	s.waitsFor(b, 2*time.Millisecond)
	s.passes(2 * time.Millisecond)
	if more := a.wait.TimeOver(); more != ratelimit.StoreDeadline-2*time.Millisecond {
		t.Errorf("it waits for %v more", more)
	}
	a.says(false, ratelimit.FromDrift)
	b.wait.TimeOver()
	if b.decided() {
		t.Errorf("its share is used up, and 3 more are had: %+v", b.v)
	}
	s.exchange()
	b.says(false, ratelimit.FromClaim)
}

// What was heard longer ago than sync_interval says nothing of how much is left.
func TestDriftOnOldNews(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.passes(10 * time.Second)
	s.drifts(1)
	s.exchange()
	s.passes(10 * time.Second)
	s.drifts(2)
	s.exchange()
	s.passes(10*time.Second + 1)
	s.waitsFor(s.asks(2), 2*time.Millisecond)
}

// A window's share is not the next one's: in a fixed window it is there anew. Of
// a sliding one, what was not confirmed before counts on, and the share is asked
// for of the window before, for that counts too.
func TestDriftInTheNextWindow(t *testing.T) {
	s, d := newDriftScript(t, perMinute100)
	s.drifts(10)
	s.sends() // and nothing is heard of it
	s.passes(46 * time.Second)
	r := s.asks(10)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	r.says(false, ratelimit.FromDrift)
	if want := ledgertest.Epoch.Add(45 * time.Second); d.begins != want {
		t.Errorf("asked of a window that began at %d, and it began at %d", d.begins, want)
	}

	s, d = newDriftScript(t, sliding100)
	s.drifts(3)
	if want := ledgertest.Epoch.Add(-75 * time.Second); d.begins != want {
		t.Errorf("asked of a window that began at %d, and the one before began at %d", d.begins, want)
	}
}

// A bucket has no windows. What a tenant that crashed may have spent of its seat's
// share was never confirmed; its heir takes one share as spent before it drifts
// itself, once, and reports it.
func TestHeirTakesAShareAsSpent(t *testing.T) {
	s, d := newDriftScript(t, bucket100)
	d.heir = 5
	r := s.asks(1)
	s.waitsFor(r, 2*time.Millisecond)
	_, c := s.sends()
	if c.Spent != 11 {
		t.Errorf("one is spent, and the share of ten may have been: %+v", c)
	}
	if d.begins < ledgertest.Epoch {
		t.Error("a bucket has no windows")
	}

	s, d = newDriftScript(t, bucket100)
	d.heir = 5
	s.asks(1)
	s.exchange() // which confirms it
	s.drifts(7)
	if _, c = s.sends(); c.Spent > 20 {
		t.Errorf("a second share was taken as spent: %+v", c)
	}
}

// Without a share, or under another mode, a request waits for the ledger.
func TestDriftNeedsAShare(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.SetDrift(nil)
	s.waitsFor(s.asks(1), 2*time.Millisecond)
	s, _ = newDriftScript(t, perMinute100)
	s.rule.Coordination.Mode = ratelimit.Leasing
	s.waitsFor(s.asks(1), ratelimit.StoreDeadline)
}

// The ledger has lost its data, and confirms drift while it is told again what
// others had spent: with tokens that may be gone. The share stays used up until the
// window ends.
func TestDriftConfirmedByALedgerThatRelearns(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.drifts(10)
	s.ledger.Forget()
	_, g := s.exchange()
	if !g.Relearning || g.Granted < 11 {
		t.Fatalf("the ledger should notice the loss, and confirm 11: %+v", g)
	}
	if more := g.Granted - 11; more > 0 {
		s.spends(more)
	}
	r := s.asks(1)
	s.waitsFor(r, 2*time.Millisecond)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	if r.decided() {
		t.Errorf("a second share was spent: %+v", r.v)
	}
	s.passes(46 * time.Second)
	r = s.asks(10)
	s.passes(2 * time.Millisecond)
	r.wait.TimeOver()
	r.says(false, ratelimit.FromDrift)
}
