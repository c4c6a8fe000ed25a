package leasing

import (
	"context"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Nodes get the events of an audited rule before its tokens are spent, and these events equal the ledger's record.
// They include late charges, refunds, a reset and returns at the end: their sum is that of the ledger.
func TestAuditHearsFirst(t *testing.T) {
	const limit = 1000
	c := newCluster(t, 3, ratelimit.Limit{Unit: ratelimit.Year, Requests: limit})
	c.rule.Coordination.Audit = true
	var mu sync.Mutex
	var granted tokens
	var there, here []account.Event
	c.ledger.OnEvent = func(e *account.Event) {
		mu.Lock()
		defer mu.Unlock()
		there = append(there, *e)
	}
	for _, f := range c.nodes {
		f.OnAudit = func(claim *account.Claim, g *account.Grant) {
			mu.Lock()
			defer mu.Unlock()
			granted += g.Granted
			here = append(here, account.NewEvent(claim, g))
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

	if len(here) != len(there) {
		t.Errorf("nodes heard of %d events, and %d are on record", len(here), len(there))
	}
	probe := account.Claim{
		Key: there[0].Key, Window: there[0].Window, Limit: c.rule.Limit, Holder: 1, Seq: 1, Divisor: 1,
	}
	var g [1]account.Grant
	if _, _, err := c.ledger.Settle(context.Background(), []account.Claim{probe}, g[:]); err != nil || g[0].Err != nil {
		t.Fatal(err, g[0].Err)
	}
	for name, events := range map[string][]account.Event{"nodes": here, "the ledger": there, "both": append(here, there...)} {
		all := audit.Replay(events)
		if len(all) != 1 || all[0].Over != 0 || all[0].Taken != g[0].Sum || all[0].Debt != max(0, g[0].Sum-limit) {
			t.Errorf("%s: %+v, and the ledger has %d", name, all[0], g[0].Sum)
		}
		if w := all[0]; w.Granted != granted || w.Charged < limit || w.Refunded < 300 || w.Rule != "d.p" {
			t.Errorf("%s: %+v", name, w)
		}
	}
}
