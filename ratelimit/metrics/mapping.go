package metrics

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
	"github.com/prometheus/statsd_exporter/pkg/mappercache/randomreplacement"
	"github.com/prometheus/statsd_exporter/pkg/registry"
)

// Mapping names the counters and gauges of envoyproxy/ratelimit for Prometheus by a mapping file of statsd_exporter, as
// envoyproxy/ratelimit does: with the same library, at a scrape. It is safe for concurrent use.
type Mapping struct{ file *mapper.MetricMapper }

// maxPlaces has room for all names of a scrape: the file takes 100 us for the names of a rule.
const maxPlaces = 8 * (MaxRules + 1000)

// ReadMapping reads a file. The cache has a registry of its own, so its metrics are not shown.
func ReadMapping(name string) (*Mapping, error) {
	m := &mapper.MetricMapper{Logger: slog.New(slog.DiscardHandler)}
	if err := m.InitFromFile(name); err != nil {
		return nil, fmt.Errorf("mapping file %q: %w", name, err)
	}
	cache, err := randomreplacement.NewMetricMapperRRCache(prometheus.NewRegistry(), maxPlaces)
	if err != nil {
		return nil, fmt.Errorf("mapping file %q: %w", name, err)
	}
	m.UseCache(cache)
	return &Mapping{m}, nil
}

// mapped are the metrics that the Mapping names. Without one there are none. They are made anew for each scrape, so
// that those of rules that went away do not stay. The steps: for each counter and gauge, find the mapping of its name
// in statsd, and add the value to the metric that it names. The registry gathers the result.
func (c Collector) mapped() ([]*dto.MetricFamily, error) {
	if c.Mapping == nil {
		return nil, nil
	}
	registered := prometheus.NewRegistry()
	all := registry.NewRegistry(registered, c.Mapping.file)
	numbers := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "numbers"}, []string{"type"}) // the library's own
	add := func(kind mapper.MetricType) func(name string, n uint64) {
		return func(name string, n uint64) {
			name = valid(name) // the mapper panics on other bytes, which requests may have
			to, labels, found := c.Mapping.file.GetMapping(name, kind)
			if !found {
				to = &mapper.MetricMapping{Name: name}
			}
			metric, help := mapper.EscapeMetricName(to.Name), cmp.Or(to.HelpText, "Mapped from statsd.")
			value := float64(n)
			if to.Scale.Set {
				value *= to.Scale.Val
			}
			// The cases leave out what has no place in the result.
			counts := kind == mapper.MetricTypeCounter
			switch {
			case to.Action == mapper.ActionTypeDrop:
				return
			// A second sluice_ metric of that name would break the scrape.
			case strings.HasPrefix(metric, "sluice_"):
				return
			// envoyproxy/ratelimit sends no counter that is 0, and without a mapping each rule has its own metrics.
			case counts && (!found && n == 0 || value < 0):
				return
			}
			var made interface{ Add(v float64) }
			var err error
			if counts {
				made, err = all.GetCounter(metric, labels, help, to, numbers)
			} else {
				made, err = all.GetGauge(metric, labels, help, to, numbers)
			}
			if err == nil { // as there, the first one of a name decides about its kind
				made.Add(value)
			}
		}
	}
	count := add(mapper.MetricTypeCounter)
	rows := c.hitRows(statsdName)
	for i := range rows {
		for _, h := range hits {
			count(rows[i].labels+"."+h.name, uint64(h.of(&rows[i].sum)))
		}
	}
	c.served(count)
	c.Gauges(add(mapper.MetricTypeGauge))
	return registered.Gather()
}

// unmapped are the metrics about which the mapping does not decide. What it drops is not shown either.
func (c Collector) unmapped(all, mapped []*dto.MetricFamily) []*dto.MetricFamily {
	if c.Mapping == nil {
		return all
	}
	// A name that the mapping took must not come twice in one scrape.
	names := map[string]bool{}
	for _, f := range mapped {
		names[f.GetName()] = true
	}
	return slices.DeleteFunc(all, func(f *dto.MetricFamily) bool {
		theirs := strings.HasPrefix(f.GetName(), "ratelimit_") && f.GetType() == dto.MetricType_COUNTER
		return theirs || names[f.GetName()]
	})
}
