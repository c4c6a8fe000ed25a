package rls

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

const namingRules = `
domain: d
descriptors: [{key: named, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 9}}]
`

// However many values, names and domains there are, nothing is lost, and so many are counted apart.
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
