package metrics

import (
	"reflect"
	"regexp"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// A scrape of a node that has everything shows each metric of the catalogue, and no other. A tag with a slip would have
// a metric without help, or none.
func TestCatalogueIsShown(t *testing.T) {
	c := collector(t, `
domain: d
descriptors:
  - {key: a, coordination: {mode: approx}, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: h, hold: {amount: 5, on: [0, 1]}, rate_limit: {unit: day, requests_per_unit: 100}}
`)
	c.Ring = func() ratelimit.RoutingStats { return ratelimit.RoutingStats{} }
	c.Seat = func() (int, bool) { return 0, true }
	c.Safety = func() StoreSafety { return StoreSafety{Known: true} }
	c.Budgets = map[string]*transport.Budget{"grpc": transport.NewBudget(1)}
	c.Stats.NoDescriptors.Named([]byte("d")).Sources[0].Add(1)
	c.Limiter = func() ratelimit.LimiterStats { return ratelimit.LimiterStats{SyncAge: time.Second} }
	shown := map[string]about{}
	heads := regexp.MustCompile(`(?m)^# HELP (\S+) (.*)\n# TYPE \S+ (\S+)$`)
	for _, m := range heads.FindAllStringSubmatch(scrape(t, c), -1) {
		shown[m[1]] = about{m[3], m[2]}
	}
	if !reflect.DeepEqual(shown, catalogue) {
		t.Errorf("a scrape has %d metrics, and the catalogue %d", len(shown), len(catalogue))
		for name, is := range shown {
			if catalogue[name] != is {
				t.Errorf("%s: shown %+v, in the catalogue %+v", name, is, catalogue[name])
			}
		}
		for name := range catalogue {
			if shown[name].kind == "" {
				t.Errorf("%s is not shown", name)
			}
		}
	}
}
