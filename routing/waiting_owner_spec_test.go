package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/hot"
	"github.com/sluice-gate/sluice/routing/wire"
)

// unsettled makes it unknown whether others have accounts of a core's keys.
func (n *scriptNode) unsettled() *view {
	v := n.view.Load()
	v.stable.Store(false)
	v.since = nil
	return v
}

// A key that its owner calls hot is leased from then on, not forwarded; its request
// waits below for the lease, and others of the request do not.
func TestHotKeyIsLeased(t *testing.T) {
	s, a := newPair(t)
	c, m := a.core, a.core.members["b:1"]
	for _, hot := range []bool{false, true} {
		m.take(0)
		w := a.waits("b:1", 1)
		w.advance(s.now)
		m.replied([]*wire.Reply{{Id: m.take(0).GetAsks()[0].GetId(), Hot: hot}})
		if w.advance(s.now) || len(c.hotHere.Names()) == 1 != hot {
			t.Errorf("hot %v: %q are leased", hot, c.hotHere.Names())
		}
	}
	// From now on a request states its demand, and its grant decides the later ones.
	w := a.waits("b:1", 1)
	w.advance(s.now)
	asks := m.take(0).GetAsks()
	if totals := asks[0].GetTotals(); totals.GetLife() != totals.GetSeq() || totals.GetWant() < 5 {
		t.Fatalf("it says %v", totals)
	}
	m.replied([]*wire.Reply{{Id: asks[0].GetId(), Charged: 5, Remaining: 100, Lease: &wire.Lease{
		Window: 3, Granted: asks[0].GetTotals().GetWant(), Keep: true, ForUs: 1e6,
	}}})
	w = a.waits("b:1", 2)
	w.asks[0].Key = a.ownedBy("a:1")
	if w.advance(s.now) || c.stats.hot.Load() != 1 || m.take(0) != nil {
		t.Errorf("%+v", w.states)
	}
	if v := w.verdicts[1]; v.OverLimit || v.Source != ratelimit.FromLease || v.Window != 3 || v.Charged != 5 {
		t.Errorf("%+v", v)
	}
	s.now = s.now.Add(time.Second)
	if w = a.waits("b:1", 1); !w.advance(s.now) || len(m.take(0).GetAsks()) != 1 {
		t.Error("the lease is over, and it is spent")
	}
}

// Without a store, a node has one budget for outages of a key, if its owner does not answer a request or the
// claim of a hot key's lease. All its admissions together are as the rule declares.
func TestHotKeyHasOneBudgetForOutages(t *testing.T) {
	s, a := newPair(t)
	s.rule.Coordination.OnStoreFailure, s.rule.Coordination.MaxNodes = ratelimit.FailLocal, 3
	key, reasons, admitted := a.ownedBy("b:1"), map[ratelimit.FallbackReason]int{}, ratelimit.Tokens(0)
	s.crash("b:1")
	for i := range 12 {
		a.hotHere = hot.Leases{}
		if i%2 == 0 {
			a.hotHere.Start(s.now, key)
		}
		v := s.one("a:1", ask{Key: key, Cost: 1})
		reasons[v.Reason]++
		admitted += v.Charged
	}
	if admitted != 3 || reasons[ratelimit.FallbackPeer] != 12 || len(reasons) > 1 {
		t.Errorf("%d were admitted, want 3; decisions without the owner by reason: %v", admitted, reasons)
	}
}
