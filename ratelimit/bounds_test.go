package ratelimit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/zone"
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
				fmt.Fprintf(&out, "%q\n", rules.All()[0].Doubts())
			}
			return out.String()
		}
		fields, nodes, storage := map[string]string{}, 0, ratelimit.SharedStore
		for field := range strings.Lines(in.Input) {
			name, text, _ := strings.Cut(strings.TrimSpace(field), " ")
			if name != "" {
				fields[name] = text
			}
		}
		if in.Cmd == "alone" {
			storage = ratelimit.OwnMemory
		}
		in.ScanArgs(t, "nodes", &nodes)
		limit, most := fields["requests"], fields["max_override"]
		delete(fields, "requests")
		delete(fields, "max_override")
		rule := boundsRule(t, fields)
		_, _ = fmt.Sscan(limit, &rule.Limit.Requests)
		_, _ = fmt.Sscan(most, &rule.Limit.Ceiling)
		rule.Unlimited = in.HasArg("unlimited")
		b := rule.Declare(nodes, storage)
		text, err := json.Marshal(b)
		if err != nil {
			t.Fatal(err)
		}
		var again ratelimit.Bounds
		if err := json.Unmarshal(text, &again); err != nil || again != b {
			t.Errorf("%v\n%s is read as\n%+v, and was\n%+v", err, text, again, b)
		}
		return fmt.Sprintf("over: %d, %q\nunder: %s\nwait: %s\nstore: %s\noutage: %s\n", b.Over.Tokens, b.Over.Note(), b.Under,
			b.Wait, b.StoreOps, b.OnOutage)
	})
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
			t.Errorf("%+v at %v: %d, %q; want %d, %q", c.of, c.rate, got, c.of.String(), c.want, c.text)
		}
	}
}

// The name of an account tells its key, whatever is in it.
func TestKeysOfNames(t *testing.T) {
	// Zones far ahead of UTC and behind it, and such whose clocks are set at midnight.
	zones := []string{
		"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo", "Asia/Kathmandu",
	}
	billed := func(day int, name string) ratelimit.Limit {
		c, err := zone.Calendar(day, name)
		if err != nil {
			t.Fatal(err)
		}
		return ratelimit.Limit{Unit: ratelimit.Month, Requests: 30_000_000_000}.Billed(c)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, rnd.IntN(30))
		for i := range b {
			b[i] = byte(rnd.IntN(256))
			if rnd.IntN(4) == 0 {
				b[i] = "|=~#%{}.*"[rnd.IntN(9)]
			}
		}
		return string(b)
	}
	for range 10_000 {
		l := ratelimit.Limit{
			Unit:       ratelimit.Unit(1 + rnd.IntN(int(ratelimit.CalendarMonth))),
			Algorithm:  ratelimit.Algorithm(rnd.IntN(len(ratelimit.Algorithms))),
			Multiplier: uint32(rnd.IntN(3) * rnd.IntN(1000)),
		}
		if rnd.IntN(4) == 0 {
			l = billed(1+rnd.IntN(31), zones[rnd.IntN(len(zones))])
		}
		key := ratelimit.AppendPrefix(nil, text(), l)
		for range rnd.IntN(4) {
			key = ratelimit.AppendEntry(key, text(), text(), rnd.IntN(4) == 0)
		}
		key = ratelimit.SealKey(key, 0)
		if got, ok := ratelimit.KeyOfName(ratelimit.KeyName(key)); !ok || !bytes.Equal(got, key) {
			t.Fatalf("%q is the name of %q, and read as that of %q", ratelimit.KeyName(key), key, got)
		}
	}
	edge := ratelimit.AppendPrefix(nil, "edge", billed(15, "America/New_York"))
	got := ratelimit.KeyName(ratelimit.AppendEntry(edge, "user", "bob", ratelimit.OfRequest))
	if got != "month@15@America/New_York|edge|user=bob" {
		t.Error(got)
	}
	for _, name := range []string{
		"", "#0", "x|y", "minute", "minute.none|d", "minute*x|d", "minute|%", "minute|%G0",
		"month@|d", "month@x@UTC|d", "month@200@UTC|d", "minute@1@UTC|d", "month.sliding_window@1@UTC|d", "month@1@%|d",
		"sluice:life",
	} {
		if key, ok := ratelimit.KeyOfName(name); ok {
			t.Errorf("%q is the name of %q", name, key)
		}
	}
}
