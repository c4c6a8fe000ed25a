package declare_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/declare"

	"github.com/cockroachdb/datadriven"

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
		lasts := declare.Of(month, 3, declare.SharedStore).Under.Lasts
		for w := limit.WindowAt(0) + 600; w < 1200; w++ {
			if length := limit.WindowEnd(w).Sub(limit.WindowEnd(w - 1)); length > lasts {
				t.Fatalf("window %d of %s has %v, and tokens of a crashed node are said to be unused for up to %v",
					w, limit, length, lasts)
			}
		}
	}
}

// What people read of bounds is made of their numbers, as testdata/bounds.txt has it: of rules of 600 a minute.
func TestBoundsAreSaid(t *testing.T) {
	datadriven.RunTest(t, "testdata/bounds.txt", func(t *testing.T, in *datadriven.TestData) string {
		fields, nodes, storage := map[string]string{}, 0, declare.SharedStore
		for field := range strings.Lines(in.Input) {
			name, text, _ := strings.Cut(strings.TrimSpace(field), " ")
			if name != "" {
				fields[name] = text
			}
		}
		if in.Cmd == "alone" {
			storage = declare.OwnMemory
		}
		in.ScanArgs(t, "nodes", &nodes)
		b := declare.Of(boundsRule(t, fields), nodes, storage)
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var again declare.Bounds
		if err := json.Unmarshal(text, &again); err != nil || again != b {
			t.Errorf("%v\n%s is read as\n%+v, and was\n%+v", err, text, again, b)
		}
		return fmt.Sprintf("over: %d, %q\nunder: %s\nwait: %s\nstore: %s\noutage: %s\n",
			b.Over.Tokens, b.Over.Note(), b.Under,
			b.Wait, b.StoreOps, b.OnOutage)
	})
}

// A limit of 0 refuses without asking anybody, and no rule without a limit promises one.
func TestBoundsOfNothing(t *testing.T) {
	zero := boundsRule(t, map[string]string{"on_store_failure": "open"})
	zero.Limit.Requests = 0
	b := declare.Of(zero, 3, declare.SharedStore)
	if b.OnOutage.String() != "0" || b.OnOutage.Fleet() != (declare.Amount{}) || b.Wait.String() != "none" ||
		b.StoreOps.String() != "0" || b.Under.String() != "0" || b.Over.Percent(0) != 0 {
		t.Errorf("%+v", b)
	}
	zero.Coordination.Mode = ratelimit.Routing
	if apart := declare.Of(zero, 3, declare.OwnMemory).OnOutage; apart != (declare.Outage{}) {
		t.Errorf("without a store: %+v", apart)
	}
	zero.Limit.Ceiling = 9 // each key may have an override, which an outage hides
	if out := declare.Of(zero, 3, declare.SharedStore); out.OnOutage.Fleet().Bounded() || out.Wait.Longest == 0 {
		t.Errorf("with max_override: %+v", out)
	}
	unlimited := ratelimit.Rule{Unlimited: true}
	if got := declare.Of(&unlimited, 3, declare.SharedStore); got != (declare.Bounds{Unlimited: true}) {
		t.Errorf("%+v", got)
	}
}

// An amount that hangs on demand grows with it, up to the most that a key can have.
func TestAmounts(t *testing.T) {
	for _, c := range []struct {
		of   declare.Amount
		rate float64
		want ratelimit.Tokens
		text string
	}{
		{declare.Amount{}, 100, 0, "0"},
		{declare.Amount{Tokens: 30}, 100, 30, "30"},
		{declare.Amount{Demand: 2 * time.Second}, 0.7, 2, "2s of that node's traffic"},
		{
			declare.Amount{Tokens: 30, Demand: 2 * time.Second}.Times(3), 10, 150,
			"90 tokens and 6s of that node's traffic",
		},
		{declare.Amount{Demand: declare.AllDemand}, 0, 0, "all demand"},
		{declare.Amount{Demand: declare.AllDemand}.Times(3), 1000, ratelimit.MaxLimit, "all demand"},
	} {
		if got := c.of.At(c.rate); got != c.want || c.of.String() != c.text {
			t.Errorf("%+v at %v: %d, %q; want %d, %q", c.of, c.rate, got, c.of.String(), c.want, c.text)
		}
	}
}

// check doubts settings that are valid and cannot have their effect.
func TestDoubts(t *testing.T) {
	blind := &ratelimit.Hold{Amount: 7, On: []ratelimit.Tokens{0}}
	for _, c := range []struct {
		change func(*ratelimit.Rule)
		want   []string // none: there is no doubt
	}{
		{func(*ratelimit.Rule) {}, nil},
		{func(r *ratelimit.Rule) {
			r.Limit.Requests, r.Coordination.StoreDeadline = 1<<32-1, 19*time.Millisecond
		}, nil},
		{func(r *ratelimit.Rule) { r.Coordination.StoreDeadline = 20 * time.Millisecond }, []string{
			"store_deadline 20ms is not below 20ms, the default timeout of Envoy",
		}},
		{func(r *ratelimit.Rule) { r.Limit.Requests = 1 << 32 }, []string{
			"requests_per_unit is 4294967296, and RLS has 32 bits for it",
		}},
		{func(r *ratelimit.Rule) { r.Limit.Algorithm, r.Limit.Burst = ratelimit.TokenBucket, 1<<32-1 }, nil},
		{func(r *ratelimit.Rule) { r.Limit.Algorithm, r.Limit.Burst = ratelimit.TokenBucket, 1<<32 }, []string{
			"burst is 4294967296, and with a store a bucket holds at most 4294967295",
		}},
		{func(r *ratelimit.Rule) { r.Hold = blind }, nil},
		{func(r *ratelimit.Rule) { r.Hold, r.Quota = blind, true }, []string{"its end credits up to 7"}},
		{func(r *ratelimit.Rule) { r.Hold, r.Shadow = blind, true }, []string{"its end credits up to 7"}},
		{func(r *ratelimit.Rule) { r.Limit = ratelimit.AtOnce(3, time.Minute); r.Hold = r.Limit.HoldsSlot() }, nil},
		{func(r *ratelimit.Rule) {
			r.Limit = ratelimit.AtOnce(3, time.Minute)
			r.Coordination.Mode, r.Coordination.Audit, r.Coordination.Lease.Fixed = ratelimit.Approx, true, 5
		}, []string{"mode approx has no effect", "audit true has", "lease.size 5 has"}},
	} {
		r := boundsRule(t, nil)
		c.change(r)
		doubts := declare.Doubts(r)
		all := strings.Join(doubts, "; ")
		if len(doubts) != len(c.want) {
			t.Errorf("doubts are %q, must be %q", doubts, c.want)
		}
		for _, want := range c.want {
			if !strings.Contains(all, want) {
				t.Errorf("doubts are %q, must be %q", doubts, c.want)
			}
		}
	}
}
