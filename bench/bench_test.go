package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/realenvoy"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/leasing/redistest/program"
)

var realEnvoy = flag.Bool("envoy", false, "run TestEndToEnd, with a real Envoy, for two minutes")

// measure runs a measurement of sluice with all its commands, and of the servers that sluicelab runs. It returns the
// result, and its page for a terminal. There must be as much progress as was announced.
func measure[R report.Result](t *testing.T, m report.Measurement) (result R, page string) {
	t.Helper()
	given := m.Given()
	given.Binary, given.Lab = built(t, "sluice"), built(t, "sluicelab")
	told, all := 0, 0
	given.Progress = func(done, of int, _ string) { told, all = done+1, of }
	got, err := m.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if told != all || told == 0 {
		t.Errorf("%d steps were told of %d", told, all)
	}
	var text strings.Builder
	if err := got.Page().WriteText(&text); err != nil {
		t.Fatal(err)
	}
	return got.(R), text.String()
}

// fleet builds sluice, and opens a fleet of it until the test ends, on a Redis if shared.
func fleet(t *testing.T, shared bool, rules string, nodes int) *process.Fleet {
	t.Helper()
	binary := built(t, "sluice")
	var f *process.Fleet
	var err error
	if shared {
		f, err = openFleet(binary, rules, nodes, 0)
	} else {
		f, err = process.StartFleet(binary, rules, nodes)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.Stop)
	return f
}

// built is a program, which is built where it has changed.
func built(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and starts programs")
	}
	binary, err := program.Build(name, "cmd/"+name)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// A request that may have been counted in either of two windows is evidence of
// nothing; any other counts where it was asked.
func TestTally(t *testing.T) {
	tally := newTally(2, time.Second)
	at := func(ms int64) time.Time { return time.UnixMilli(1_800_000_000_000 + ms) }
	ask := func(from, to int64, ok bool) { tally.answered(1, at(from), at(from), at(to), ok, nil) }
	ask(100, 110, false) // none had been admitted yet
	ask(200, 210, true)
	ask(300, 310, false) // one had
	ask(400, 410, true)
	ask(500, 510, true) // one more than the limit
	ask(990, 1010, true)
	ask(996, 997, true)
	ask(1003, 1004, false)
	ask(1100, 1110, true)
	var m Measured
	m.count(tally)
	if m.Admitted != 6 || m.Over != 1 || m.Under != 0 || m.Allowed != 3 || m.Early != 2 || m.Asked != 9 {
		t.Errorf("%+v, want 6 of 9 admitted, 1 over, 0 under of 3, 2 early", m)
	}
	ask(1200, 1210, false)
	m.count(tally)
	if m.Under != 0 {
		t.Errorf("%d under: what was admitted at the turn may have been this window's", m.Under)
	}
}

// A measurement begins where the turn of a window is in its middle, or, of tokens, where none is in it.
func TestTurnOfAWindow(t *testing.T) {
	at := func(second int64) time.Time { return time.Unix(1_800_000_000+second, 0) } // a minute begins there
	for _, c := range []struct {
		now            int64
		window, length time.Duration
		want           time.Duration
	}{
		{0, time.Minute, time.Minute, 30 * time.Second},
		{30, time.Minute, time.Minute, 0},
		{31, time.Minute, time.Minute, 59 * time.Second},
		{50, time.Minute, 40 * time.Second, 50 * time.Second},
		{0, time.Minute, 20 * time.Second, 0},
		{0, time.Hour, time.Minute, 0},
		{0, time.Hour, time.Hour, 0},
		{0, time.Second, time.Second, 500 * time.Millisecond},
	} {
		if got := untilTurnIsHalfway(at(c.now), c.window, c.length); got != c.want {
			t.Errorf("at second %d, %v of windows of %v: waits %v, want %v", c.now, c.length, c.window, got, c.want)
		}
	}
	if d := untilFits(at(20), time.Minute, 37*time.Second); d != 0 {
		t.Errorf("40 s before the turn, 37 s wait %v", d)
	}
	if d := untilFits(at(20), time.Minute, 39*time.Second); d < 40*time.Second || d > 41*time.Second {
		t.Errorf("40 s before the turn, 39 s wait %v", d)
	}
}

// Real fleets, a Redis each: they answer all that is asked, within what their mode declares, and what Redis did is there
// to compare. TestAccuracy has the mode that is not here.
func TestFleets(t *testing.T) {
	t.Parallel()
	r, page := measure[*Compared](t, &FleetsOptions{
		Nodes: []int{2}, Rate: 500, Length: time.Second, Rounds: 1, Rows: []string{"hot"}, Ways: []string{"baseline", "routing", "approx"}, Seed: 1,
	})
	if len(r.Measured) != 3 {
		t.Fatalf("%d measurements, want 3", len(r.Measured))
	}
	for i, m := range r.Measured {
		// Redis' time is certain where each request asks it: else it may be lost in what an idle one takes.
		if m.Asked < 300 || m.CPU < 0 || i < 2 && m.CPU == 0 || m.Bytes <= 0 || m.P99 <= 0 || m.NodeRatio <= 0 {
			t.Errorf("nothing was measured: %+v", m)
		}
		if asks := m.Commands["incrby"]; (i == 0) != (asks == m.Asked) {
			t.Errorf("%s: %d INCRBY for %d decisions", m.Mode, asks, m.Asked)
		}
		if i > 0 && m.Claims+m.Draws <= 0 {
			t.Errorf("%s: nothing was claimed: %+v", m.Mode, m)
		}
	}
	if !strings.Contains(page, rows[5].name) || strings.Contains(page, "PROBLEM") {
		t.Errorf("the page does not show the row, or shows a problem:\n%s", page)
	}
}

// A figure beyond its bound fails the run.
func TestBeyondTheBound(t *testing.T) {
	calm, struck := &row{limit: 300}, &row{limit: 300, strike: func(*process.Fleet) error { return nil }}
	leasing := &way{fields: map[string]string{}}
	for _, c := range []struct {
		m       Measured
		row     *row
		way     *way
		problem string
	}{
		{
			Measured{Over: 16, Declared: 15, Fallbacks: map[string]int64{"deadline": 4}},
			struck, leasing,
			"16 over the limit of 300, and 15 are declared while the store answers in time; decisions without it: map[deadline:4]",
		},
		{Measured{Over: 15, Declared: 15}, struck, leasing, ""},
		{Measured{Failed: 1}, struck, leasing, ""},
		{Measured{Failed: 1, Asked: 10, Admitted: 8}, calm, leasing, "1 of 10 calls had no answer"},
		{Measured{Asked: 10, Admitted: 8}, calm, leasing, ""},
		{Measured{Asked: 10, Admitted: 7}, calm, leasing, "the nodes count 10 hits and 8 within the limit, the caller 10 and 7"},
		{Measured{Asked: 10, Admitted: 7}, calm, &way{}, ""},
	} {
		c.m.check(c.row, c.way, &tally{}, map[string]int64{"total_hits": 10, "within_limit": 8})
		if (c.m.Problem == "") != (c.problem == "") || !strings.Contains(c.m.Problem, c.problem) {
			t.Errorf("%+v: %q, want %q", c.m, c.m.Problem, c.problem)
		}
		page := (&Compared{Measured: []Measured{c.m}, of: &comparison{}}).Page()
		if (page.Problems() == nil) != (c.problem == "") {
			t.Errorf("the report says %v", page.Problems())
		}
	}
}

// The figures of a row are the medians of its rounds, and for some also the most. Problems are all kept.
func TestMediansOfRounds(t *testing.T) {
	r := ofRounds([]Measured{{CPU: 30, P99: 1, Problem: "one"}, {CPU: 10, P99: 3}, {CPU: 20, P99: 2, Problem: "two"}})
	if r.CPU != 20 || r.MostCPU != 30 || r.P99 != 2 || r.MostP99 != 3 || r.Problem != "one; two" {
		t.Errorf("%+v", r)
	}
}

// A caller of a closed loop never reaches the end of its keys, whatever the rate of the load.
func TestClosedLoopHasKeysForEver(t *testing.T) {
	l, first := load.Load{Rate: 1e-3, Keys: 1_000_000, Length: 20 * time.Millisecond}, 0
	calls := 0
	caller.Closed(t.Context(), 1, l, 1, time.Now(), func(r load.Request, _ time.Time) {
		calls++
		if r.Key == 0 {
			first++
		}
	})
	if calls < 100 || first > calls/10 {
		t.Errorf("%d of %d requests are for the first of a million keys", first, calls)
	}
}

// Each row has a load.
func TestEveryRowHasALoad(t *testing.T) {
	for _, r := range slices.Concat(rows, scenarios) {
		l := r.load(100, time.Second)
		if err := report.Check(&l); err != nil || r.id == "" || r.name == "" {
			t.Errorf("%s: %v", r.name, err)
		}
	}
}

// Options that are wrong are refused, with each problem. Where the other limiters cannot be built, the command says so.
func TestOptionsAreChecked(t *testing.T) {
	for want, m := range map[string]report.Measurement{
		"--nodes is 0; --rounds is 0; --rate is -1; --rows is luke; --ways is x": &FleetsOptions{
			Nodes: []int{0}, Rate: -1, Length: 1e9, Rows: []string{"luke"}, Ways: []string{"x"},
		},
		"building other rate limiters":            &FleetsOptions{Nodes: []int{1}, Rate: 100, Length: 1e9, Rounds: 1, Ways: []string{"gubernator"}},
		"--case is six; --nodes is 11":            &TokensOptions{Nodes: 11, Case: []string{"six"}},
		"--rounds is 0; --round is 0s":            &CostOptions{},
		"--rounds is 0; --rate is 0":              &EnvoyOptions{},
		"--step is 0s; --rounds; --times is 1000": &OverloadOptions{Times: []float64{1000}},
	} {
		_, err := m.Measure(t.Context())
		for part := range strings.SplitSeq(want, "; ") {
			if err == nil || !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := process.OpenRedis(); !errors.Is(err, process.ErrNoRedis) {
		t.Errorf("without redis-server: %v", err)
	}
}

// An answer of gubernator is read by the fields of gubernator.proto: the status of the only response, or an error.
func TestAnswersOfGubernator(t *testing.T) {
	one := func(fields ...byte) []byte { return protowire.AppendBytes([]byte{10}, fields) }
	for _, c := range []struct {
		answer []byte
		ok     bool
		err    error
	}{
		{one(16, 10, 24, 9), true, nil}, // a status of 0 is left out
		{one(8, 1, 16, 10), false, nil},
		{one(42, 2, 'n', 'o'), false, errAnswer},
		{nil, false, errAnswer},
		{[]byte{10, 200}, false, errAnswer},
		{one(8), false, errAnswer},
	} {
		if ok, err := underLimit(c.answer); ok != c.ok || !errors.Is(err, c.err) {
			t.Errorf("%x: %v, %v", c.answer, ok, err)
		}
	}
}

// Servers are called in turn: an empty one, one that decides, and two of which one decides for the other.
func TestCost(t *testing.T) {
	t.Parallel()
	r, page := measure[*CostReport](t, &CostOptions{
		Rounds: 2, Round: 500 * time.Millisecond, Forwarded: true,
	})
	for _, s := range r.Servers {
		if s.Calls < 100 || s.CPUPerCall <= 0 || s.Least > s.Most || s.P99 < s.P50 {
			t.Errorf("%+v", s)
		}
	}
	if len(r.Servers) != 3 || !strings.Contains(page, "a forwarded decision, both nodes together") {
		t.Errorf("it prints\n%s", page)
	}
}

// Each way through a real Envoy answers its requests, and its cost is in the right place. Envoy pays for each request, a
// service only where it is called, and least where Envoys have leases.
func TestEndToEnd(t *testing.T) {
	if !*realEnvoy {
		t.Skip("not asked for: make envoy-test runs it")
	}
	if _, err := realenvoy.Find(); err != nil {
		t.Skipf("REPORTED MISSING: nothing was run with an Envoy: %v", err)
	}
	r, page := measure[*EnvoyReport](t, &EnvoyOptions{Nodes: 1, Rounds: 1, Round: 3 * time.Second, Rate: 100, Keys: 10})
	t.Log("\n" + page)
	costs := map[string]EnvoyCost{}
	for _, w := range r.Ways {
		costs[w.Name] = w
		if w.Requests < 200 || w.Refused > 0 || w.P50 <= 0 || w.P99 < w.P50 || w.EnvoyCPU <= 0 {
			t.Errorf("%+v", w)
		}
		if asked := w.Name != "no filter"; asked != (w.ServiceCPU > 0) {
			t.Errorf("%s: the service took %v us", w.Name, w.ServiceCPU)
		}
	}
	if len(costs) != 7 || costs["RLQS"].ServiceCPU > costs["leasing"].ServiceCPU {
		t.Errorf("with leases the service takes more than with calls: %+v", costs)
	}
}

// A real server, for a short time: what the callers counted and what the server
// says fits together, at any speed of the machine.
func TestOverload(t *testing.T) {
	o := &OverloadOptions{
		Step: 300 * time.Millisecond, Times: []float64{0.5, 4}, Rounds: 1,
	}
	r, page := measure[*OverloadReport](t, o)
	if len(r.Steps) != 2 || r.Capacity <= 0 || !strings.Contains(page, "of capacity") {
		t.Fatalf("%+v\n%s", r, page)
	}
	for _, s := range r.Steps {
		if sum := s.HeldBack + s.Shed + s.GivenUp + s.Goodput; sum < 0.999*s.Offered || sum > 1.001*s.Offered {
			t.Errorf("%g times: of %.0f calls a second, %.0f are accounted for: %+v", s.Times, s.Offered, sum, s)
		}
		if want := s.Times * r.Capacity; s.Offered < 0.95*want || s.Offered > 1.05*want {
			t.Errorf("%g times the capacity of %.0f is %.0f", s.Times, r.Capacity, s.Offered)
		}
		// What the callers gave up may have been charged, and nothing else.
		if s.Charged > s.GivenUp+1 || s.P50 > s.P99 || s.P99 > impatience+impatience/100 {
			t.Errorf("%+v", s)
		}
	}
	if s := medianStep([]OverloadStep{{Share: 0.9, Goodput: 1}, {Share: 0.1, Goodput: 2}, {Share: 0.5, Goodput: 3}}); s.Goodput != 3 {
		t.Errorf("the median is no round: %+v", s)
	}
}

// litellm's case with real fleets: who peeks goes over, and who holds what a request costs at most does not.
func TestFiveAtOnce(t *testing.T) {
	t.Parallel()
	r, page := measure[*TokensReport](t, &TokensOptions{Nodes: 2, Length: 10 * time.Second, Case: []string{"five"}, Seed: 1})
	if len(r.Measured) != len(tokenWays) {
		t.Fatalf("%d ways are measured, must be %d", len(r.Measured), len(tokenWays))
	}
	for i := range r.Measured {
		m, w := &r.Measured[i], &tokenWays[i]
		if m.Requests < 20 || m.P99 <= 0 || m.Operations <= 0 || m.Used < 50 {
			t.Errorf("nothing was measured: %+v", m)
		}
		if w.hold != nil && m.Over > m.Bound || (w.name == "header" || w.name == "maximum") && m.Over+m.Bound > 0 {
			t.Errorf("%s: %d over, in flight were at most %d beyond what they held", m.Way, m.Over, m.Bound)
		}
		if w.baseline && (m.Over == 0 || m.Fitted > 0) {
			t.Errorf("%s: %d over, and %d refused that fitted: it admits whatever comes until the limit is passed", m.Way, m.Over, m.Fitted)
		}
	}
	if strings.Count(page, "learned") != 2 {
		t.Error(page)
	}
}

// What is over is what requests in flight cost beyond what they held, at its highest.
func TestTokensInFlight(t *testing.T) {
	p := &player{of: &tokenCase{limit: 100}}
	p.latency = newLatencies()
	p.begins(nil, 60, 40, time.Millisecond)
	p.begins(nil, 30, 10, time.Millisecond)
	p.ends(nil, nil, 40)
	p.begins(envoy.ErrOver, 10, 10, time.Millisecond)
	p.begins(envoy.ErrOver, 11, 11, time.Millisecond)
	p.begins(context.DeadlineExceeded, 1, 1, time.Millisecond)
	p.ends(context.DeadlineExceeded, nil, 1)
	if p.used != 90 || p.asked != 5 || p.refused != 2 || p.fitted != 1 || p.failed != 1 || p.mostExcess != 50 || p.excess != 10 {
		t.Errorf("%+v", p)
	}
}

// Real nodes, asked in turn: a peek at a small limit shows what is left in all, and all that is left is admitted.
func TestSmallLimitsOfAFleet(t *testing.T) {
	t.Parallel()
	const nodes = 3
	limits := []int{29, 59}
	for limit := range 17 {
		limits = append(limits, limit+1)
	}
	for _, mode := range []string{"leasing", "approx", "routing", "routing without a store"} {
		name, _, alone := strings.Cut(mode, " ")
		var rules strings.Builder
		fmt.Fprintf(&rules, "domain: %s\ndescriptors:\n", domain)
		for _, limit := range limits {
			fmt.Fprintf(&rules, "  - {key: %s, value: \"%d\", coordination: {mode: %s, store_deadline: 1s}, rate_limit: {unit: year, requests_per_unit: %d}}\n", entry, limit, name, limit)
		}
		f := fleet(t, !alone, rules.String(), nodes)
		ask := func(limit, hits int) (bool, int) {
			r := caller.Request(domain, entry, fmt.Sprint(limit))
			r.Descriptors[0].HitsAddend = wrapperspb.UInt64(uint64(hits))
			answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(t.Context(), r)
			if err != nil {
				t.Fatal(err)
			}
			return answer.GetOverallCode() == rls.RateLimitResponse_OK, int(answer.GetStatuses()[0].GetLimitRemaining())
		}
		for _, limit := range limits {
			for left := limit; left >= 0; left-- {
				if ok, shown := ask(limit, 0); !ok || shown != left {
					t.Fatalf("%s: of %d, %d are left; a peek is OK %v, and shows %d", mode, limit, left, ok, shown)
				}
				if ok, shown := ask(limit, 1); ok != (left > 0) || shown != max(0, left-1) {
					t.Fatalf("%s: of %d, %d are left; a request for one is OK %v, and shows %d", mode, limit, left, ok, shown)
				}
			}
		}
	}
}

// Real nodes: a limit of 10 requests in flight by charges and refunds, of refused requests too, as Envoy does it at the
// end of a stream.
func TestRequestsInFlightByRefunds(t *testing.T) {
	t.Parallel()
	const nodes, limit, callers, length = 3, 10, 24, 3 * time.Second
	rules := fmt.Sprintf("domain: %s\ndescriptors:\n  - {key: %s, coordination: {store_deadline: 1s}, rate_limit: {unit: year, requests_per_unit: %d}}\n", domain, entry, limit)
	f := fleet(t, true, rules, nodes)
	ask := func(refund bool) bool {
		r := caller.Request(domain, entry, "k")
		r.Descriptors[0].HitsAddend, r.Descriptors[0].IsNegativeHits = wrapperspb.UInt64(1), refund
		answer, err := rls.NewRateLimitServiceClient(f.Pool.Next()).ShouldRateLimit(t.Context(), r)
		if err != nil {
			t.Error(err)
		}
		return answer.GetOverallCode() == rls.RateLimitResponse_OK
	}
	var held, most, admitted atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for end := time.Now().Add(length); time.Now().Before(end); time.Sleep(rand.N(30 * time.Millisecond)) {
				if ask(false) {
					admitted.Add(1)
					for n := held.Add(1); n > most.Load(); {
						most.Store(n)
					}
					time.Sleep(rand.N(50 * time.Millisecond))
					held.Add(-1)
				}
				ask(true)
			}
		})
	}
	all.Wait()
	if most.Load() > limit || admitted.Load() <= limit {
		t.Errorf("%d are held at once, of %d, and %d were admitted", most.Load(), limit, admitted.Load())
	}
	t.Logf("%d at once, %d admitted", most.Load(), admitted.Load())
}
