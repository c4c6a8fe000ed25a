package rls

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
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
			f, holds = holdFixtureOf(t, text), map[string]string{}
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
		play := func(line string) string { // without one of the words below, it is a request
			for name, hold := range holds {
				line = strings.ReplaceAll(line, "$"+name, hold)
			}
			cmd, rest, _ := strings.Cut(line, " ")
			first, rest, _ := strings.Cut(rest, " ")
			switch cmd {
			case "end": // of a request: its hold, and its cost, if that is known
				hold, cost, known := strings.Cut(rest, " ")
				n, _ := strconv.Atoi(cost)
				if !known {
					n = int(unsaid)
				}
				f.ends(first, hold, 0, usage(n))
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
