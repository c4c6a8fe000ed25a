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

// A request without a rule counts as unlimited if no rule has one of its keys. It does not where rules have other
// values of the key, or are deeper.
func TestUnlimitedRequestsAreCounted(t *testing.T) {
	f := newFixture(t, Options{}, `
domain: d
descriptors:
  - {key: api_key, rate_limit: {unit: day, requests_per_unit: 9}}
  - {key: user, value: bob, rate_limit: {unit: day, requests_per_unit: 9}}
  - key: path
    value: /login
    descriptors: [{key: ip, rate_limit: {unit: day, requests_per_unit: 9}}]
`)
	for _, c := range []struct{ descriptors, counts string }{
		{"api_key=x", ""},
		{"user=ann", ""},             // another value
		{"path=/login", ""},          // only deeper rules
		{"path=/other,ip=1", ""},     // another value above
		{"api_ky=x", "api_ky"},       // written wrong
		{"path=/login,ipp=1", "ipp"}, // the same, below
		{"api_key=x,more=y", "more"}, // deeper than any rule
		{"api_ky=x;api_key=x", ""},   // another descriptor is limited
		{"user=ann;typo=x", "typo"},  // the first that is unknown
		{"one=1;two=2", "one"},       //
		{"path=/login,ip=1;typo=x", ""},
	} {
		before := map[string]uint64{}
		count := func(into map[string]uint64) {
			f.Stats.Unlimited.EachNamed(func(name string, n *ratelimit.RuleCounters) { into[name] = n.Requests() })
		}
		count(before)
		q := rlsRequest()
		for text := range strings.SplitSeq(c.descriptors, ";") {
			q.Descriptors = append(q.Descriptors, desc(text))
		}
		f.must(q)
		after := map[string]uint64{}
		count(after)
		counts := ""
		for name, n := range after {
			if n > before[name] {
				counts += strings.TrimPrefix(name, "d"+ratelimit.NameSeparator)
			}
		}
		if counts != c.counts {
			t.Errorf("%s counts as %q, must as %q", c.descriptors, counts, c.counts)
		}
	}
}
