package rls

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// player plays requests as scripts write them.
type player struct {
	*fixture
	holds map[string]string // of answers, by the names that a script gives them
}

func TestEachRequestGetsItsAnswer(t *testing.T) {
	var p *player
	text := ""
	datadriven.RunTest(t, "testdata/answers.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "rules" {
			if in.Input != "" {
				text = in.Input
			}
			p = &player{holdFixtureOf(t, text), map[string]string{}}
			o := &p.options
			o.ShadowMode, o.QuotaMode, o.SpareOthers = in.HasArg("shadow"), in.HasArg("quota"), in.HasArg("spare")
			o.DynamicMetadata, o.IETF = in.HasArg("metadata"), in.HasArg("ietf")
			if in.HasArg("near") {
				o.NearLimitRatio = 0.7
			}
			if in.HasArg("headers") {
				o.Headers.Limit, o.Headers.Remaining, o.Headers.Reset = "L", "Rem", "Res"
			}
			if in.HasArg("cache") {
				o.LocalCache = NewLocalCache(1)
			}
			return ""
		}
		var out strings.Builder
		for line := range strings.SplitSeq(in.Input, "\n") {
			if said := p.play(t, line); said != "" {
				fmt.Fprintln(&out, said)
			}
		}
		return out.String()
	})
}

// play does what a line says: without one of the words below, it is a request.
func (p *player) play(t *testing.T, line string) string {
	for name, hold := range p.holds {
		line = strings.ReplaceAll(line, "$"+name, hold)
	}
	cmd, rest, _ := strings.Cut(line, " ")
	first, rest, _ := strings.Cut(rest, " ")
	switch cmd {
	case "end": // of a request: its hold, and its cost, if that is known
		hold, cost, known := strings.Cut(rest, " ")
		n := unsaid
		if known {
			i, _ := strconv.Atoi(cost)
			n = usage(i)
		}
		p.ends(first, hold, n)
		return ""
	case "pass":
		d, err := time.ParseDuration(first)
		if err != nil {
			t.Fatal(err)
		}
		p.pass(d)
		return ""
	case "left":
		return fmt.Sprintf("%s: %d", first, p.left(first))
	case "override":
		rule, key := p.rules().Domain("d").Match([]config.Entry{{Key: first, Value: "a"}}, nil)
		n, _ := strconv.Atoi(rest)
		o := &overrides.Override{Override: ratelimit.Override{Requests: ratelimit.Tokens(n)}, Per: rule.Limit.Per()}
		set, err := p.overrides.Set(context.Background(), key, o, table.Any)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(set.Requests)
	case "counts":
		if first == "names" {
			return p.counted()
		}
		for _, r := range p.rules().All() {
			if c := r.Counters; r.Path == first {
				return fmt.Sprintf("%s: %d near, %d denied, %d locally; %v", first, c.NearLimit.Load(), c.Denied.Load(),
					c.OverLocally.Load(), p.holdsCounted(first))
			}
		}
	case "post":
		w := httptest.NewRecorder()
		in := strings.NewReader(strings.TrimPrefix(line, "post "))
		p.ServeJSON(w, httptest.NewRequest(http.MethodPost, "/json", in))
		body := strings.NewReplacer(" ", "", "\u00a0", "", "\n", "").Replace(w.Body.String()) // protojson varies it
		return fmt.Sprintf("%d %q %s", w.Code, w.Header().Get("Retry-After"), body)
	case "cache":
		return fmt.Sprintf("%+v", p.options.LocalCache.Stats())
	}
	return p.answered(line)
}

// answered sends descriptors, with | between two. "-> NAME" gives the answer's hold a name, "hits=N" before it is the
// request's hits_addend, and "nowhere" leaves out its domain.
func (p *player) answered(line string) string {
	line, name, named := strings.Cut(line, " -> ")
	r := rlsRequest()
	if rest, ok := strings.CutPrefix(line, "nowhere "); ok {
		r.Domain, line = "", rest
	}
	if n, err := fmt.Sscanf(line, "hits=%d", &r.HitsAddend); n == 1 && err == nil {
		_, line, _ = strings.Cut(line, " ")
	}
	for text := range strings.SplitSeq(line, " | ") {
		if text != "" {
			r.Descriptors = append(r.Descriptors, p.descriptor(text))
		}
	}
	a, err := p.call(r)
	if err != nil {
		return err.Error()
	}
	said := short(a)
	for _, st := range a.Statuses {
		if l := st.CurrentLimit; l.GetName() != "" {
			said += fmt.Sprintf("; %q has the unit %v", l.Name, l.Unit)
		}
	}
	if headers := headersOf(a); headers != "" {
		said += "; " + headers
	}
	if hold := holdOf(p, a); hold != "" {
		said += "; a hold"
		if named {
			p.holds[name] = hold
		}
	}
	if domain := a.GetDynamicMetadata().GetFields()["domain"]; domain != nil {
		said += "; metadata of " + domain.GetStringValue()
	}
	return said
}

// descriptor is KEY=VALUE,KEY=VALUE, and then +HITS, -HITS to be given back, or a limit N/UNIT or N/UNIT*MULTIPLIER.
func (p *player) descriptor(text string) *common.RateLimitDescriptor {
	parts := strings.Split(text, " ")
	d := desc(parts[0])
	for _, part := range parts[1:] {
		switch sign := part[0]; sign {
		case '+', '-':
			n, err := strconv.ParseUint(part[1:], 10, 64)
			if err != nil {
				p.Fatal(err)
			}
			d.HitsAddend, d.IsNegativeHits = wrapperspb.UInt64(n), sign == '-'
		default:
			var n, unit, multiplier uint32
			if k, _ := fmt.Sscanf(part, "%d/%d*%d", &n, &unit, &multiplier); k < 2 {
				p.Fatalf("%q is no limit", part)
			}
			override(d, n, typev3.RateLimitUnit(unit))
			if multiplier > 0 {
				d.Limit.UnitMultiplier = wrapperspb.UInt32(multiplier)
			}
		}
	}
	return d
}

// counted is total_hits by name, of every name with hits.
func (f *fixture) counted() string {
	sums := map[string]uint64{}
	f.rules().EachCounters(func(domain string, keys []string, c *ratelimit.RuleCounters) {
		if n := c.TotalHits.Load(); n > 0 {
			sums[domain+"."+strings.Join(keys, ".")] += n
		}
	})
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		fmt.Fprintf(&b, "%s:%d ", name, sums[name])
	}
	return strings.TrimSpace(b.String())
}

func headersOf(a *rlsv3.RateLimitResponse) string {
	var all []string
	for _, h := range a.ResponseHeadersToAdd {
		all = append(all, h.Key+": "+h.Value)
	}
	return strings.Join(all, " | ")
}
