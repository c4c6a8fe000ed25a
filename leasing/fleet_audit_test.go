package leasing

import (
	"context"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Nodes get the events of an audited rule before its tokens are spent. They include draws, late charges, refunds, a
// reset and returns at the end: their sum is that of the ledger.
func TestAuditHearsFirst(t *testing.T) {
	const limit = 1000
	c := newCluster(t, 3, ratelimit.Limit{Unit: ratelimit.Year, Requests: limit})
	c.rule.Coordination.Audit = true
	var mu sync.Mutex
	var granted tokens
	drew := false
	var here []audit.Event
	for _, f := range c.nodes {
		f.OnAudit = func(r *ratelimit.Rule, claim *account.Claim, g *account.Grant) {
			mu.Lock()
			defer mu.Unlock()
			e := audit.NewEvent(r, claim, g)
			here, granted = append(here, e), granted+e.Granted
			drew = drew || e.Kind == audit.WasDraw
		}
	}
	admitted := tokens(0)
	for i := range 2 * limit {
		if v := c.ask(i%3, "k", ratelimit.Spend, 1); !v.OverLimit {
			admitted++
		}
		mu.Lock()
		if admitted > granted {
			t.Fatalf("%d were admitted, and %d are on record", admitted, granted)
		}
		mu.Unlock()
	}
	c.ask(0, "k", ratelimit.Refund, 300)
	c.ask(1, "k", ratelimit.Spend, 2*limit) // a denial charges
	if err := c.nodes[2].Reset(context.Background(), c.clock(), &ratelimit.Ask{Rule: c.rule, Key: []byte("k")}); err != nil {
		t.Fatal(err)
	}
	c.ask(0, "k", ratelimit.Spend, 10)
	c.end()

	probe := account.Claim{
		Key: here[0].Key, Window: here[0].Window, Limit: c.rule.Limit, Holder: 1, Seq: 1,
	}
	var g [1]account.Grant
	if _, _, err := c.ledger.Settle(context.Background(), []account.Claim{probe}, g[:]); err != nil || g[0].Err != nil {
		t.Fatal(err, g[0].Err)
	}
	all := audit.Replay(here)
	if len(all) != 1 || all[0].Over != 0 || all[0].Taken != g[0].Sum || all[0].Debt != max(0, g[0].Sum-limit) || all[0].Unrecorded != 0 {
		t.Errorf("%+v, and the ledger has %d", all[0], g[0].Sum)
	}
	if w := all[0]; w.Granted != granted || w.Charged < limit || w.Refunded < 300 || w.Rule != "d.p" || !drew {
		t.Errorf("%+v, draws: %v", w, drew)
	}
	// Without the last events of a node, what they took is not on record.
	if all = audit.Replay(here[:len(here)/3]); all[0].Unrecorded != 0 {
		t.Errorf("of a part of the time, all of it, %d are unknown", all[0].Unrecorded)
	}
	var others []audit.Event
	for _, e := range here {
		if e.Holder != here[0].Holder {
			others = append(others, e)
		}
	}
	if all = audit.Replay(others); all[0].Unrecorded == 0 {
		t.Error("without the record of one node, nothing is missing")
	}
}
