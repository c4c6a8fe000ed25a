package declare_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
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

// Tokens of a crashed node count as long as others: of a bucket until it has filled, of a sliding window also in the
// next one.
func TestDeclaredUnderLastsAsLongAsCharges(t *testing.T) {
	r := boundsRule(t, nil)
	for _, c := range []struct {
		algorithm ratelimit.Algorithm
		burst     ratelimit.Tokens
		lasts     time.Duration
	}{
		{ratelimit.FixedWindow, 0, time.Minute},
		{ratelimit.SlidingWindow, 0, 2 * time.Minute},
		{ratelimit.TokenBucket, 60, 6 * time.Second},
		{ratelimit.TokenBucket, 6000, 10 * time.Minute},
	} {
		r.Limit.Algorithm, r.Limit.Burst = c.algorithm, c.burst
		if lasts := declare.Of(r, 3, declare.SharedStore).Under.Lasts; lasts != c.lasts {
			t.Errorf("%s: tokens of a crashed node are said to be unused for %v, must be %v", r.Limit, lasts, c.lasts)
		}
	}
}

// What people read of bounds is made of their numbers, as testdata/bounds.txt has it: of rules of 600 a minute.
func TestBoundsAreSaid(t *testing.T) {
	datadriven.RunTest(t, "testdata/bounds.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "doubts" { // of a rule in each line
			var out strings.Builder
			for line := range strings.SplitSeq(in.Input, "\n") {
				text := config.Text{Data: []byte("domain: d\ndescriptors: [{key: k, " + line + "}]\n")}
				o := config.Options{Coordination: ratelimit.DefaultCoordination()}
				rules, _, problems := config.Parse([]config.Text{text}, o)
				if problems != nil {
					t.Fatal(problems)
				}
				fmt.Fprintf(&out, "%q\n", declare.Doubts(rules.All()[0]))
			}
			return out.String()
		}
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
		limit, most := fields["requests"], fields["max_override"]
		delete(fields, "requests")
		delete(fields, "max_override")
		rule := boundsRule(t, fields)
		_, _ = fmt.Sscan(limit, &rule.Limit.Requests)
		_, _ = fmt.Sscan(most, &rule.Limit.Ceiling)
		rule.Unlimited = in.HasArg("unlimited")
		b := declare.Of(rule, nodes, storage)
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
