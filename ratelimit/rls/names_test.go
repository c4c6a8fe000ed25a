package rls

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit"
)

const namingRules = `
domain: d
descriptors:
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: wild, value: "a*", rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: named, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: named, value: "w*", value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
  - key: named
    value: "s*"
    value_to_metric: true
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 9}
  - key: top
    value_to_metric: true
    descriptors:
      - {key: low, rate_limit: {unit: day, requests_per_unit: 9}}
      - {key: all, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}
`

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

func TestNamesOfStatistics(t *testing.T) {
	for _, c := range []struct{ request, want string }{
		{"plain=x", "d.plain:1"},
		{"wild=abc", "d.wild_a*:1"},
		{"named=x", "d.named_x:1"},
		{"named=", "d.named:1"},
		{"named=wx", "d.named_wx:1"},
		{"named=sx", "d.named_s*:1"},
		{"top=x,low=y", "d.top_x.low:1"},
		{"top=x,all=y", "d.top_x.all_y:1"},
		{"none=x", ""},
	} {
		f := newFixture(t, Options{}, namingRules)
		f.must(rlsRequest(desc(c.request)))
		if got := f.counted(); got != c.want {
			t.Errorf("%s is counted under %q, want %q", c.request, got, c.want)
		}
	}
	f := newFixture(t, Options{}, namingRules)
	f.must(rlsRequest(override(desc("any=x,thing=y"), 3, typev3.RateLimitUnit_DAY)))
	if got := f.counted(); got != "d.any_x.thing_y:1" {
		t.Errorf("a limit that the request brought along is counted under %q", got)
	}
}

// However many values, names and domains there are, nothing is lost, and so
// many are counted apart.
func TestNamesAreBounded(t *testing.T) {
	f := newFixture(t, Options{}, namingRules)
	const workers, each = 4, 3000
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				f.must(rlsRequest(desc(fmt.Sprintf("named=%d", i)),
					override(desc(fmt.Sprintf("o=%d", i*workers+w)), 1, typev3.RateLimitUnit_DAY)))
				unknown := rlsRequest(desc("a=b"))
				unknown.Domain = fmt.Sprintf("unknown %d", i)
				f.must(unknown)
			}
		})
	}
	wg.Wait()
	f.must(rlsRequest(desc("named=" + strings.Repeat("x", 2*ratelimit.MaxNameLen))))
	names, sums := 0, [2]uint64{}
	f.rules().EachCounters(func(_ string, keys []string, c *ratelimit.RuleCounters) {
		names++
		kind := 0
		if strings.HasPrefix(keys[0], "o_") {
			kind = 1
		}
		sums[kind] += c.Requests()
	})
	if names > 2*ratelimit.MaxNames+20 || sums[0]+sums[1] != 2*workers*each+1 {
		t.Errorf("%d names count %v decisions, want %d", names, sums, 2*workers*each+1)
	}
	unknown, requests := 0, uint64(0)
	f.Stats.UnknownDomains.EachNamed(func(_ string, c *ratelimit.RuleCounters) {
		unknown++
		requests += c.Requests()
	})
	if unknown != ratelimit.MaxNames+1 || requests != workers*each {
		t.Errorf("%d unknown domains, asked for %d times", unknown, requests)
	}
}

// The name of a known value costs no memory.
func TestNamesAllocateNothing(t *testing.T) {
	f := newFixture(t, Options{}, namingRules)
	in, err := proto.Marshal(rlsRequest(desc("top=x,all=y")))
	if err != nil {
		t.Fatal(err)
	}
	c := &call{in: bytes.Clone(in)}
	if n := testing.AllocsPerRun(100, func() {
		if err := f.answer(context.Background(), c); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
