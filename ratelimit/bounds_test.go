package ratelimit_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/ratelimit"
)

func boundsRule(t *testing.T, fields map[string]string) *ratelimit.Rule {
	t.Helper()
	r := &ratelimit.Rule{
		Limit:        ratelimit.Limit{Unit: ratelimit.Minute, Requests: 600},
		Coordination: ratelimit.DefaultCoordination(),
	}
	for field, text := range fields {
		if err := r.Coordination.Set(field, text); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// Tokens of a crashed node come back with the end of its month, also of the longest one.
func TestDeclaredUnderLastsToTheMonthsEnd(t *testing.T) {
	zone, err := time.LoadLocation("America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	calendar, err := ratelimit.NewCalendar(15, zone)
	if err != nil {
		t.Fatal(err)
	}
	month := boundsRule(t, nil)
	month.Limit.Unit = ratelimit.Month
	for _, limit := range []ratelimit.Limit{month.Limit, month.Limit.Cut(), month.Limit.Billed(calendar)} {
		month.Limit = limit
		lasts := month.Declare(3, ratelimit.SharedStore).Under.Lasts
		for w := limit.WindowAt(0) + 600; w < 1200; w++ {
			if length := limit.WindowEnd(w).Sub(limit.WindowEnd(w - 1)); length > lasts {
				t.Fatalf("window %d of %s has %v, and tokens of a crashed node are said to be unused for up to %v", w, limit,
					length, lasts)
			}
		}
	}
}

// What people read of bounds is made of their numbers.
func TestBoundsAreSaid(t *testing.T) {
	for _, c := range []struct {
		name    string
		fields  map[string]string
		nodes   int
		storage ratelimit.Storage
		over    ratelimit.Tokens
		note    string
		under   string
		wait    string
		ops     string
		outage  string
	}{
		{
			"leasing", nil, 3, ratelimit.SharedStore, 0, "",
			"after a crash of a node, up to 30 tokens and 3s of that node's traffic stay unused for up to 1m0s",
			"one round trip to the store, at most 15ms",
			"at most 1/s for each key and node, 90 a window, and 27/s while requests are refused and tokens can return",
			"1200 in the windows in which it begins and ends, and 600 (200 a node) between",
		},
		{
			"eager, of a size",
			map[string]string{
				"reclaim": "eager", "lease.size": "10", "on_store_failure": "closed", "store_deadline": "70ms",
			},
			3, ratelimit.SharedStore, 30, "10 for each silent node",
			"after a crash of a node, up to 15 tokens stay unused for up to 11s",
			"one round trip to the store, at most 70ms",
			"at most 1/s for each key and node, 90 a window, one for each 5 tokens, and 27/s while requests are refused and " +
				"tokens can return",
			"leases in hand, then 0",
		},
		{
			"approx",
			map[string]string{"mode": "approx", "drift_budget": "5%", "on_store_failure": "open"},
			3, ratelimit.SharedStore, 30, "",
			"after a crash of a node, up to 30 tokens and 3s of that node's traffic stay unused for up to 1m0s",
			"2ms, and none above the watermark; without a share, one round trip to the store, at most 15ms",
			"at most 1/s for each key and node, 90 a window, and 27/s while requests are refused and tokens can return",
			"all demand",
		},
		{
			"routing",
			map[string]string{"mode": "routing", "on_store_failure": "closed"},
			3, ratelimit.SharedStore, 0, "",
			"after a crash of a node, up to 30 tokens and 3s of that node's traffic stay unused for up to 1m0s",
			"one hop to the owner of the key, at most 15ms",
			"at most 1/s for each key, by its owner, 90 a window, and 27/s while requests are refused and tokens can " +
				"return; one for each request while the owner does not answer",
			"leases in hand, then 0",
		},
		{
			"routing without a store",
			map[string]string{"mode": "routing"},
			3, ratelimit.OwnMemory, 0,
			"with PEERS; after an owner's crash at most the limit once more, and partitions " +
				"count separately",
			"0", "one hop to the owner of the key, at most 15ms", "0", "1380 in the windows in which it begins and ends, and 180 (60 a node) between",
		},
		{"three alone", nil, 3, ratelimit.OwnMemory, 1200, "each node counts alone", "0", "none", "0", "no store"},
		{"one alone", nil, 1, ratelimit.OwnMemory, 0, "", "0", "none", "0", "no store"},
	} {
		b := boundsRule(t, c.fields).Declare(c.nodes, c.storage)
		got := []any{
			b.Over.Tokens, b.Over.Note(), b.Under.String(), b.Wait.String(), b.StoreOps.String(), b.OnOutage.String(),
		}
		want := []any{c.over, c.note, c.under, c.wait, c.ops, c.outage}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", c.name, d)
		}
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var again ratelimit.Bounds
		if err := json.Unmarshal(text, &again); err != nil || again != b {
			t.Errorf("%s: %v\n%s is read as\n%+v, and was\n%+v", c.name, err, text, again, b)
		}
	}
}

// A limit of 0 refuses without asking anybody, and no rule without a limit promises one.
func TestBoundsOfNothing(t *testing.T) {
	zero := boundsRule(t, map[string]string{"on_store_failure": "open"})
	zero.Limit.Requests = 0
	b := zero.Declare(3, ratelimit.SharedStore)
	if b.OnOutage.String() != "0" || b.OnOutage.Fleet() != (ratelimit.Amount{}) || b.Wait.String() != "none" ||
		b.StoreOps.String() != "0" || b.Under.String() != "0" || b.Over.Percent(0) != 0 {
		t.Errorf("%+v", b)
	}
	zero.Coordination.Mode = ratelimit.Routing
	if apart := zero.Declare(3, ratelimit.OwnMemory).OnOutage; apart != (ratelimit.Outage{}) {
		t.Errorf("without a store: %+v", apart)
	}
	zero.Limit.Ceiling = 9 // each key may have an override, which an outage hides
	if out := zero.Declare(3, ratelimit.SharedStore); out.OnOutage.Fleet().Bounded() || out.Wait.Longest == 0 {
		t.Errorf("with max_override: %+v", out)
	}
	unlimited := ratelimit.Rule{Unlimited: true}
	if got := unlimited.Declare(3, ratelimit.SharedStore); got != (ratelimit.Bounds{Unlimited: true}) {
		t.Errorf("%+v", got)
	}
}

// An amount that hangs on demand grows with it, up to the most that a key can have.
func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		of   ratelimit.Amount
		rate float64
		want ratelimit.Tokens
		text string
	}{
		{ratelimit.Amount{}, 100, 0, "0"},
		{ratelimit.Amount{Tokens: 30}, 100, 30, "30"},
		{ratelimit.Amount{Demand: 2 * time.Second}, 0.7, 2, "2s of that node's traffic"},
		{ratelimit.Amount{Tokens: 30, Demand: 2 * time.Second}.Times(3), 10, 150, "90 tokens and 6s of that node's traffic"},
		{ratelimit.Amount{Demand: ratelimit.AllDemand}, 0, 0, "all demand"},
		{ratelimit.Amount{Demand: ratelimit.AllDemand}.Times(3), 1000, ratelimit.MaxLimit, "all demand"},
	} {
		if got := c.of.At(c.rate); got != c.want || c.of.String() != c.text {
			t.Errorf("%+v at %v: %d, %q; want %d, %q", c.of, c.rate, got, c.of, c.want, c.text)
		}
	}
}
