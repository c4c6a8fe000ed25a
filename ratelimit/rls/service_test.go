package rls

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Answers, headers, metadata and statistics are as testdata/answers.txt has them.
func TestEachRequestGetsItsAnswer(t *testing.T) {
	text := ""
	var f *fixture
	var holds map[string]string // of answers, by the names that a script gives them
	datadriven.RunTest(t, "testdata/answers.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "rules" {
			if in.Input != "" {
				text = in.Input
			}
			if f, holds = holdFixtureOf(t, text), map[string]string{}; in.HasArg("absent") {
				f = newFixture(t, Options{}, "")
			}
			if in.HasArg("dead") {
				alone := local.New(100, f.now, f.wall())
				l := slots.New(deadSlots{}, alone, func() ratelimit.Instant { return f.now })
				l.Nodes = func() int { return 1 }
				f.limiter = l
			}
			o := &f.options
			o.ShadowMode, o.QuotaMode, o.SpareOthers = in.HasArg("shadow"), in.HasArg("quota"), in.HasArg("spare")
			o.DynamicMetadata, o.IETF = in.HasArg("metadata"), in.HasArg("ietf")
			if in.HasArg("near") {
				o.NearLimitRatio = 0.7
			}
			if in.HasArg("headers") {
				o.Headers = HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}
			}
			if in.HasArg("cache") {
				o.LocalCache = NewLocalCache(1)
			}
			return ""
		}
		// A descriptor is KEY=VALUE,KEY=VALUE, and then +HITS, -HITS to be given back, or a limit N/UNIT or
		// N/UNIT*MULTIPLIER. Before the first, "hits=N" is the request's hits_addend, and "nowhere" leaves out its
		// domain.
		request := func(line string) *rlsv3.RateLimitRequest {
			r := rlsRequest()
			if rest, ok := strings.CutPrefix(line, "nowhere "); ok {
				r.Domain, line = "", rest
			}
			if n, err := fmt.Sscanf(line, "hits=%d", &r.HitsAddend); n == 1 && err == nil {
				_, line, _ = strings.Cut(line, " ")
			}
			for text := range strings.SplitSeq(line, " | ") {
				parts := strings.Split(text, " ")
				d := desc(parts[0])
				if text != "" {
					r.Descriptors = append(r.Descriptors, d)
				}
				for _, part := range parts[1:] {
					if sign := part[0]; sign == '+' || sign == '-' {
						n, err := strconv.ParseUint(part[1:], 10, 64)
						if err != nil {
							t.Fatal(err)
						}
						hits(d, n).IsNegativeHits = sign == '-'
						continue
					}
					var n, unit, multiplier uint32
					if k, _ := fmt.Sscanf(part, "%d/%d*%d", &n, &unit, &multiplier); k < 2 {
						t.Fatalf("%q is no limit", part)
					}
					override(d, n, typev3.RateLimitUnit(unit))
					if multiplier > 0 {
						d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
					}
				}
			}
			return r
		}
		answered := func(line string) string { // "-> NAME" gives the answer's hold a name
			line, name, named := strings.Cut(line, " -> ")
			a, err := f.call(request(line))
			if err != nil {
				return err.Error()
			}
			said := short(a)
			for _, st := range a.Statuses {
				if l := st.CurrentLimit; l.GetName() != "" {
					said += fmt.Sprintf("; %q has the unit %v", l.Name, l.Unit)
				}
			}
			between := "; "
			for _, h := range a.ResponseHeadersToAdd {
				said += between + h.Key + ": " + h.Value
				between = " | "
			}
			if hold := holdOf(t, a); hold != "" {
				said += "; a hold"
				if named {
					holds[name] = hold
				}
			}
			if domain := a.GetDynamicMetadata().GetFields()["domain"]; domain != nil {
				said += "; metadata of " + domain.GetStringValue()
			}
			return said
		}
		counts := func(of string) string {
			if of == "names" { // total_hits by name, of every name with hits
				sums := map[string]uint64{}
				f.rules().EachCounters(func(domain string, keys []string, c *ratelimit.RuleCounters) {
					if n := c.TotalHits.Load(); n > 0 {
						sums[domain+"."+strings.Join(keys, ".")] += n
					}
				})
				return strings.TrimSuffix(strings.TrimPrefix(fmt.Sprint(sums), "map["), "]")
			}
			if of == "unlimited" {
				sums := map[string]uint64{}
				f.Stats.Unlimited.EachNamed(func(name string, n *ratelimit.RuleCounters) {
					sums[strings.TrimPrefix(name, "d"+ratelimit.NameSeparator)] = n.Requests()
				})
				return fmt.Sprint(sums)
			}
			for _, r := range f.rules().All() {
				if c := r.Counters; r.Path == of {
					return fmt.Sprintf("%s: %d near, %d denied, %d locally; %v", of, c.NearLimit.Load(),
						c.Denied.Load(), c.OverLocally.Load(), f.holdsCounted(of))
				}
			}
			return "no rule " + of
		}
		var play func(line string) string
		play = func(line string) string { // without one of the words below, it is a request
			if again, ok := strings.CutPrefix(line, "times 100 "); ok { // lines with ; between two, # is 1 to 10
				for i := range 100 {
					for line := range strings.SplitSeq(strings.ReplaceAll(again, "#", fmt.Sprint(1+i%10)), "; ") {
						play(line)
					}
				}
				return ""
			}
			for name, hold := range holds {
				line = strings.ReplaceAll(line, "$"+name, hold)
			}
			cmd, rest, _ := strings.Cut(line, " ")
			first, rest, _ := strings.Cut(rest, " ")
			switch cmd {
			case "end": // of a request: its hold, its cost, if that is known, and its status, if the gateway tells it
				hold, rest, _ := strings.Cut(rest, " ")
				status, cost := uint64(0), unsaid
				for part := range strings.FieldsSeq(rest) {
					if _, err := fmt.Sscanf(part, "status=%d", &status); err == nil {
						continue
					}
					if _, err := fmt.Sscan(part, &cost); err != nil {
						t.Fatal(err)
					}
				}
				f.ends(first, hold, status, cost)
				return ""
			case "pass":
				d, err := time.ParseDuration(first)
				if err != nil {
					t.Fatal(err)
				}
				f.now = f.now.Add(d)
				return ""
			case "left":
				return fmt.Sprintf("%s: %d", first, f.left(first))
			case "override":
				rule, key := f.rules().Domain("d").Match([]config.Entry{{Key: first, Value: "a"}}, nil)
				n, _ := strconv.Atoi(rest)
				o := &overrides.Override{Per: rule.Limit.Per()}
				o.Requests = ratelimit.Tokens(n)
				set, err := f.overrides.Set(t.Context(), key, o, table.Any)
				if err != nil {
					t.Fatal(err)
				}
				return fmt.Sprint(set.Requests)
			case "counts":
				return counts(first)
			case "post":
				w := httptest.NewRecorder()
				in := strings.NewReader(strings.TrimPrefix(line, "post "))
				f.ServeJSON(w, httptest.NewRequest(http.MethodPost, "/json", in))
				// Protojson varies its spaces.
				body := strings.NewReplacer(" ", "", "\u00a0", "", "\n", "").Replace(w.Body.String())
				return fmt.Sprintf("%d %q %s", w.Code, w.Header().Get("Retry-After"), body)
			case "json": // a method, and headers, with | between two
				method, headers, _ := strings.Cut(strings.TrimPrefix(line, "json "), " | ")
				r := httptest.NewRequest(method, "/json", post().Body)
				for header := range strings.SplitSeq(headers, " | ") {
					name, value, _ := strings.Cut(header, ": ")
					r.Header.Set(name, value)
				}
				w := httptest.NewRecorder()
				f.ServeJSON(w, r)
				if w.Code == http.StatusOK {
					return "200"
				}
				return fmt.Sprintf("%d %s", w.Code, strings.TrimSpace(w.Body.String()))
			case "cache":
				return fmt.Sprintf("%+v", f.options.LocalCache.Stats())
			}
			return answered(line)
		}
		var out strings.Builder
		for line := range strings.SplitSeq(in.Input, "\n") {
			if said := play(line); said != "" {
				fmt.Fprintln(&out, said)
			}
		}
		return out.String()
	})
}

// deadSlots is a ledger that does not answer.
type deadSlots struct{}

func (deadSlots) Slots(_ context.Context, _ []account.SlotAsk, answers []account.SlotAnswer) {
	for i := range answers {
		answers[i].Err = errors.New("the store is down")
	}
}

func TestBadRequests(t *testing.T) {
	big := strings.Repeat("x", 1<<20)
	many := rlsRequest()
	for range 10_000 {
		many.Descriptors = append(many.Descriptors, desc("twenty=x"))
	}
	deep := rlsRequest(desc(strings.Repeat("a=b,", 200)))
	f := newFixture(t, Options{}, testRules)
	large := f.wired(rlsRequest(desc("twenty=x"), desc("a=b,c="+big)))
	for i, c := range []struct {
		in   []byte
		want string
	}{
		{f.wired(many), "request has more than 1000 descriptors"},
		{f.wired(deep), "descriptor 0 has more than 100 entries"},
		{large, "descriptor 1, entry 1: value has 1048576 bytes, and the maximum is 65536"},
		{[]byte{0x0a, 2, 0xff, 0xfe}, "domain is not valid UTF-8"},
		{[]byte("\x0a\x01d\x12\x06\x0a\x04\x0a\x02\xc3\x28"), "descriptor 0, entry 0: key is not valid UTF-8"},
	} {
		err := f.answer(context.Background(), &call{in: c.in})
		if n := int(f.Stats.BadRequests.Load()); err == nil || !strings.Contains(err.Error(), c.want) || n != i+1 {
			t.Errorf("got %v, want %s; %d bad requests are counted", err, c.want, n)
		}
	}
	w := httptest.NewRecorder()
	f.ServeJSON(w, httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(big)))
	if w.Code != http.StatusRequestEntityTooLarge || !strings.Contains(w.Body.String(), "larger than 262144 bytes") {
		t.Errorf("a large body: %d %s", w.Code, w.Body)
	}
	f.expect("OK: OK 19/20 45s", rlsRequest(desc("twenty=x"))) // nothing was changed
}

// A bug is one failed request, and counted, wherever a request meets it.
func TestBugsOverJSONAreCounted(t *testing.T) {
	f := newFixture(t, Options{}, testRules)
	sound := f.limiter
	f.limiter = &leaver{sound, func() { panic("a bug") }}
	if _, err := f.call(rlsRequest(desc("five=x"))); !errors.Is(err, errInternal) {
		t.Error(err)
	}
	f.limiter = sound
	f.expect("OK: OK 19/20 45s", rlsRequest(desc("twenty=x")))
	f.clock = func() ratelimit.Instant { panic("a bug") }
	w := httptest.NewRecorder()
	f.ServeJSON(w, post())
	if n := f.Stats.Panics.Load(); n != 2 || w.Code != http.StatusServiceUnavailable {
		t.Errorf("%d bugs of 2 are counted, /json answers %d", n, w.Code)
	}
}

func TestAnswerAllocatesNothing(t *testing.T) {
	f := newFixture(t, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}},
		testRules+"  - {key: named, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}\n")
	q := rlsRequest(desc("five=0123456789"), desc("twenty=x"), desc("node=x,leaf=y"), desc("named=z"))
	c := &call{in: f.wired(q)}
	if n := testing.AllocsPerRun(1000, func() {
		if err := f.answer(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// post is a request of /json for key "twenty".
func post() *http.Request {
	return httptest.NewRequest(http.MethodPost, "/json", strings.NewReader(
		`{"domain":"d","descriptors":[{"entries":[{"key":"twenty","value":"x"}]}]}`))
}

// leaver is a limiter whose caller gives up while it decides.
type leaver struct {
	ratelimit.Limiter
	leave func()
}

func (l *leaver) Decide(ctx context.Context, now ratelimit.Instant, asks []ratelimit.Ask,
	verdicts []ratelimit.Verdict,
) {
	l.Limiter.Decide(ctx, now, asks, verdicts)
	l.leave()
}

// What a call was charged is given back if its caller gave up meanwhile, of all its
// rules; it is then not answered, and not counted as admitted. What it settles counts, and the cost of what has ended.
func TestCallersThatGiveUpAreNotCharged(t *testing.T) {
	for _, gate := range []*shed.Gate{nil, shed.NewGate(20 * time.Millisecond)} {
		f := holdFixtureOf(t, testRules+
			"  - {key: h, hold: {amount: 4}, rate_limit: {unit: day, requests_per_unit: 9}}\n")
		f.options.Gate = gate
		hold, _ := f.takes(desc("h=a"))
		ctx, cancel := context.WithCancel(context.Background())
		inner := f.limiter
		f.limiter = &leaver{inner, cancel}
		ends := descOf("h=a,"+EntryHold+"="+hold, 1)
		ended := descOf("twenty=b,"+EntryHold+"="+hold, 1)
		c := &call{in: f.wired(rlsRequest(desc("twenty=a"), desc("five=a"), ends, ended))}
		for range 100 {
			if err := f.answer(ctx, c); !errors.Is(err, errGone) {
				t.Fatalf("answered, with %v", err)
			}
		}
		f.limiter = inner
		if n := f.left("twenty=b"); n != 0 {
			t.Errorf("a rule without a hold has %d left of 20, and ended requests cost 100", n)
		}
		again := rlsRequest(desc("twenty=a"), desc("five=a"), desc("h=a"))
		f.expect("OK: OK 19/20 45s, OK 4/5 3585s, OK 4/9 57585s", again)
		if f.Stats.OK.Load() != 2 || f.Stats.ServiceErrors.Load() != 0 {
			t.Errorf("%d counted as OK, %d as errors", f.Stats.OK.Load(), f.Stats.ServiceErrors.Load())
		}
		want := map[string]uint64{"taken": 2, "open": 4, "settled": 1, "released": 3, "replayed": 99}
		if got := f.holdsCounted("h"); !maps.Equal(got, want) {
			t.Errorf("of holds: %v, want %v", got, want)
		}
		if gate != nil && gate.Stats().GivenUp != 100 {
			t.Errorf("%d counted as given up", gate.Stats().GivenUp)
		}
	}
}

// A caller that closes its side before it was answered is not taken for one that may pass.
func TestGoneCallersAreNotOK(t *testing.T) {
	f := newFixture(t, Options{Gate: shed.NewGate(time.Second)}, testRules)
	server := httptest.NewServer(http.HandlerFunc(f.ServeJSON))
	defer server.Close()
	for range 20 {
		c, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body := `{"domain":"d","descriptors":[{"entries":[{"key":"twenty"}]}]}`
		_, _ = fmt.Fprintf(c, "POST /json HTTP/1.0\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		_ = c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(c)
		c.Close()
		if err != nil || !strings.Contains(string(answer), "503") && !strings.Contains(string(answer), "overallCode") {
			t.Fatalf("%q, %v", answer, err)
		}
	}
}

// An overloaded node refuses /json as it does gRPC, and charges nothing.
func TestJSONIsShed(t *testing.T) {
	gate := shed.NewGate(20 * time.Millisecond)
	f := newFixture(t, Options{Gate: gate}, testRules)
	code := func() int {
		w := httptest.NewRecorder()
		f.ServeJSON(w, post())
		return w.Code
	}
	if code := code(); code != http.StatusOK {
		t.Errorf("a quiet node: %d", code)
	}
	for own := range 60 { // of which some are answered, 50 us one after the other
		gate.Arrive(f.now, own, time.Second)
	}
	for left := range 40 {
		f.now = f.now.Add(50 * time.Microsecond)
		gate.Leave(f.now, 59-left, 1)
	}
	for range 2000 { // each of a connection of its own
		gate.Arrive(f.now, 0, time.Second)
	}
	if code := code(); code != http.StatusServiceUnavailable {
		t.Errorf("while 2,000 calls wait: %d", code)
	}
}

// One instant names the windows of all budgets: this node's, moved into those that the ledger has charged. A budget
// whose window has no instant in common with the others is left out, and so is one of a window that is not known.
func TestInstantOfAHold(t *testing.T) {
	minute, hour := ratelimit.Limit{Unit: ratelimit.Minute}, ratelimit.Limit{Unit: ratelimit.Hour}
	bucket := ratelimit.Limit{Unit: ratelimit.Hour, Algorithm: ratelimit.TokenBucket}
	of := func(w ratelimit.Window) *ratelimit.Verdict { return &ratelimit.Verdict{Window: w} }
	in := instants{0, 1<<32 - 1}
	if got := in.nearest(77); got != 77 {
		t.Errorf("of no window: %d, must be 77", got)
	}
	for _, c := range []struct {
		limit *ratelimit.Limit
		v     *ratelimit.Verdict
		ok    bool
		in    instants
	}{
		{&hour, of(2), true, instants{3600, 7199}},
		{&minute, of(120), true, instants{7140, 7199}},
		{&minute, of(121), false, instants{7140, 7199}},
		{&bucket, of(9), true, instants{7140, 7199}},
		{&bucket, of(0), false, instants{7140, 7199}},
		{&minute, of(0), false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Window: 120}, false, instants{7140, 7199}},
		{&minute, &ratelimit.Verdict{Source: ratelimit.FromFallback, Booked: 120}, true, instants{7140, 7199}},
	} {
		if ok := in.narrow(c.limit, c.v); ok != c.ok || in != c.in {
			t.Errorf("%v, %+v: %v, %v, must be %v, %v", c.limit, c.v, ok, in, c.ok, c.in)
		}
	}
	for at, want := range map[int64]int64{0: 7140, 7150: 7150, 7200: 7199} {
		if got := in.nearest(at); got != want {
			t.Errorf("nearest to %d is %d, must be %d", at, got, want)
		}
	}
}

var shareSeeds = flag.Uint64("share-seeds", 1, "how many demands are played for each hold")

// At twice the demand and with a heavy tail, learned estimates use nearly all of the limit. One window may be over by
// one long answer: over many, they use no more, and a higher quantile keeps each window within a hundredth. Beside
// them: what is held at most, which is never over; and a peek, which is over by all that is in flight. How far single
// windows go is printed.
func TestShareOfTheLimit(t *testing.T) {
	const limit, longest, minutes = 1_000_000, 20_000, 6
	const rules = `
domain: d
descriptors:
  - key: llm
    %s
    rate_limit: {unit: minute, requests_per_unit: 1000000}
`
	type flying struct { // a request
		ends ratelimit.Instant
		hold string
		cost int
	}
	// What is used in each whole minute but the first, of requests whose costs have a heavy tail (Pareto, 1.5, up to
	// 20,000) and whose demand is twice the limit. They take up to five seconds. What is refused does not come back.
	usedOf := func(hold string, request usage, seed uint64) (used []int) {
		if hold != "" {
			hold = "hold: " + hold
		}
		f := holdFixtureOf(t, fmt.Sprintf(rules, hold))
		r := rand.New(rand.NewPCG(seed, 12))
		cost := func() int { return min(longest, int(350/math.Pow(1-r.Float64(), 1/1.5))) }
		mean := 0
		for range 100_000 {
			mean += cost()
		}
		perSecond := 2 * limit / 60 / (float64(mean) / 100_000)
		var open []flying // the first to end first
		in := map[int64]int{}
		next := f.now
		for f.now < ratelimit.Instant(minutes*time.Minute) {
			if len(open) > 0 && open[0].ends <= next {
				x := open[0]
				open = open[1:]
				f.now = x.ends
				if x.hold != "" {
					f.ends("llm=x", x.hold, 0, usage(x.cost))
				} else {
					f.takes(descOf("llm=x", usage(x.cost)))
				}
				continue
			}
			f.now = next
			next = f.now.Add(time.Duration(r.ExpFloat64() / perSecond * float64(time.Second)))
			n := cost()
			asks := request
			if request == unsaid {
				asks = usage(n) // a client that says its cost exactly
			}
			hold, over := f.takes(descOf("llm=x", asks))
			if over {
				continue
			}
			in[f.wall().Unix()/60] += n // the window that it was charged in
			x := flying{f.now.Add(time.Duration(r.Float64() * 5 * float64(time.Second))), hold, n}
			at, _ := slices.BinarySearchFunc(open, x, func(a, b flying) int { return cmp.Compare(a.ends, b.ends) })
			open = slices.Insert(open, at, x)
		}
		first := time.Unix(1_800_000_015, 0).Unix() / 60
		for minute := first + 1; minute < first+minutes-1; minute++ {
			used = append(used, in[minute])
		}
		return used
	}
	for _, c := range []struct {
		name, hold        string
		request           usage
		least, mean, most float64 // parts of the limit that windows use: the mean is at most mean
	}{
		{"learned 0.97", "{learned: 0.97, max: 20000}", 0, 0.92, 1.01, 1.01},
		{"learned 0.9", "{learned: 0.9, max: 20000}", 0, 0.95, 1.01, 1 + 4*float64(longest)/limit},
		{"constant, the mean", "{amount: 1000}", 0, 0.95, 1.05, 1.05},
		{"the maximum", "{amount: 20000}", 0, 0.6, 1, 1},
		{"a peek, and a charge", "", 0, 1.02, 1.2, 1.2},
		{"said by the client", "{from: request, max: 20000}", unsaid, 0.95, 1, 1},
	} {
		var all []float64
		mean, beyond := 0., 0
		for seed := range *shareSeeds {
			for _, used := range usedOf(c.hold, c.request, seed) {
				share := float64(used) / limit
				all, mean = append(all, share), mean+share
				if share > 1.01 {
					beyond++
				}
			}
		}
		mean /= float64(len(all))
		least, most := slices.Min(all), slices.Max(all)
		said := fmt.Sprintf("%s, %d windows: %.2f %% of the limit in the mean, from %.2f to %.2f; %d were over by "+
			"more than 1 %%", c.name, len(all), 100*mean, 100*least, 100*most, beyond)
		if t.Log(said); least < c.least || mean > c.mean || most > c.most {
			t.Errorf("%s; must be from %.2f to %.2f, and %.2f in the mean", said, c.least, c.most, c.mean)
		}
	}
}
