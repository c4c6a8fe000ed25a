package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A refund that cannot reach the key's owner counts in its own window, if it reaches the owner in the next one.
func TestLateRefundsCountInTheirWindow(t *testing.T) {
	for _, at := range []struct {
		refund   time.Duration // the window ends after a minute
		admitted int
	}{{59700 * time.Millisecond, 10}, {60100 * time.Millisecond, 13}} {
		s, a := newPair(t)
		s.rule.Limit.Unit = ratelimit.Minute
		key := a.ownedBy("b:1")
		s.play(time.Second + at.refund - time.Duration(s.now))
		a.cut = true
		s.breakAll("a:1", "b:1")
		s.play(100 * time.Millisecond)
		s.one("a:1", ask{Key: key, Kind: ratelimit.Refund, Cost: 3})
		s.play(61300*time.Millisecond - time.Duration(s.now))
		n := s.admits("b:1", key, 6)
		a.cut = false
		s.play(3 * time.Second)
		if n += s.admits("b:1", key, 10); n != at.admitted {
			t.Errorf("%d of 10 were admitted after a refund at %v, want %d", n, at.refund, at.admitted)
		}
	}
}

// A charge of an ended window counts nowhere, also if it cannot reach the key's owner at first.
func TestLateChargesCountInNoOtherWindow(t *testing.T) {
	s, a := newPair(t)
	s.rule.Limit.Unit = ratelimit.Minute
	key := a.ownedBy("b:1")
	held := s.one("a:1", ask{Key: key, Cost: 1})
	s.play(61*time.Second - time.Duration(s.now) + time.Second)
	a.cut = true
	s.breakAll("a:1", "b:1")
	s.one("a:1", ask{Key: key, Kind: ratelimit.Charge, Cost: 8, Window: held.Window})
	a.cut = false
	s.play(3 * time.Second)
	if n := s.admits("b:1", key, 12); n != 10 {
		t.Errorf("%d of 10 are admitted in the window after that of a charge", n)
	}
}

// A hold of a bucket is settled while its owner is cut off, after an admission in the owner's place: both count there.
func TestReleaseAfterAnAdmissionInPlaceOfTheOwner(t *testing.T) {
	s, a := newPair(t)
	s.rule.Limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Year, Requests: 1000, Burst: 1000}
	s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
	key := a.ownedBy("b:1")
	held := s.one("a:1", ask{Key: key, Cost: 600})
	a.cut = true
	s.breakAll("a:1", "b:1")
	s.one("a:1", ask{Key: key, Cost: 5})
	s.one("a:1", ask{Key: key, Kind: ratelimit.Release, Cost: 100, Window: held.Window})
	a.cut = false
	s.play(3 * time.Second)
	if v := s.one("b:1", ask{Key: key, Kind: ratelimit.Peek}); v.Remaining != 495 {
		t.Errorf("600 and 5 are charged of 1000, and 100 given back: %+v", v)
	}
}

// A key without room in its owner's table has one budget there, for requests of the owner and of peers. What is taken
// back returns to it.
func TestUntrackedKeyHasOneLimit(t *testing.T) {
	s, a := newPair(t)
	s.rule.Path = "user"
	b, key := s.nodes["b:1"].core, []byte(nil)
	b.local = local.New(1, s.now, time.Unix(1_800_000_000, 0))
	b.base = baseOf{b.local}
	for k := 0; b.local.Stats().Overflow == 0; k++ {
		if key = keyOf(k); b.ownerOf(key) == "b:1" {
			s.one("b:1", ask{Key: key, Cost: 1})
		}
	}
	spent := ask{Rule: s.rule, Key: key, Cost: 9}
	v := s.one("a:1", spent)
	a.Undo([]ask{spent}, []verdict{v})
	s.play(time.Second)
	if n := s.admits("a:1", key, 4) + s.admits("b:1", key, 12); n != 9 || v.Charged != 9 {
		t.Errorf("after 1 of 10, %d are admitted, and %d more when they are taken back", v.Charged, n)
	}
}
