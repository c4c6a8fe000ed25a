package metrics

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/statsd_exporter/pkg/mapper"
)

// Mapping names the counters and gauges of envoyproxy/ratelimit for Prometheus by a mapping file of statsd_exporter, as
// envoyproxy/ratelimit does: with the same library, at a scrape. It is safe for concurrent use.
type Mapping struct {
	file *mapper.MetricMapper

	mu     sync.Mutex
	places map[statsdMetric]place // guarded by mu; the file takes 100 us for the names of a rule
}

// statsdMetric is a name in statsd.
type statsdMetric struct {
	kind mapper.MetricType
	name string
}

// place is where such a metric is in Prometheus.
type place struct {
	metric, help, labels string // metric is "" where it is not shown
	scale                float64
	own                  bool // without a mapping
}

// maxPlaces has room for all names of a scrape. When rules have changed that often, the map starts anew.
const maxPlaces = 8 * (MaxRules + 1000)

// ReadMapping reads a file.
func ReadMapping(name string) (*Mapping, error) {
	m := &mapper.MetricMapper{Logger: slog.New(slog.DiscardHandler)}
	if err := m.InitFromFile(name); err != nil {
		return nil, fmt.Errorf("mapping file %q: %w", name, err)
	}
	return &Mapping{file: m, places: map[statsdMetric]place{}}, nil
}

// of is the place of a metric.
func (m *Mapping) of(s statsdMetric) place {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, known := m.places[s]
	if !known {
		if len(m.places) >= maxPlaces {
			clear(m.places)
		}
		p = m.read(s)
		m.places[s] = p
	}
	return p
}

// read reads the place of a metric from the file. Without a mapping, it has its name, with "_" for what Prometheus has
// not.
func (m *Mapping) read(s statsdMetric) place {
	name := valid(s.name) // the mapper panics on other bytes, which requests may have
	to, labels, found := m.file.GetMapping(name, s.kind)
	if !found {
		to = &mapper.MetricMapping{Name: name}
	}
	p := place{metric: mapper.EscapeMetricName(to.Name), help: cmp.Or(to.HelpText, "Mapped from statsd."), own: !found}
	if to.Action == mapper.ActionTypeDrop || strings.HasPrefix(p.metric, "sluice_") {
		p.metric = "" // a second sluice_ metric of that name would break the scrape
	}
	pairs := make([]string, 0, 2*len(labels))
	for _, label := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, label, labels[label])
	}
	p.labels = labelText(pairs...)
	p.scale = 1
	if to.Scale.Set {
		p.scale = to.Scale.Val
	}
	return p
}

// families are metrics by their names.
type families map[string]*family

// family is one metric, with its values by labels.
type family struct {
	kind   mapper.MetricType
	help   string
	values map[string]float64
}

// mapped reads what the Mapping names. Without one it is nil.
func (c Collector) mapped() families {
	if c.Mapping == nil {
		return nil
	}
	all := families{}
	add := func(kind mapper.MetricType) func(name string, n uint64) {
		return func(name string, n uint64) { all.add(kind, c.Mapping.of(statsdMetric{kind, name}), n) }
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
	return all
}

// add adds the value of a metric.
func (f families) add(kind mapper.MetricType, p place, n uint64) {
	if p.metric == "" || p.own && kind == mapper.MetricTypeCounter && n == 0 {
		return // envoyproxy/ratelimit sends no counter that is 0, and without a mapping each rule has its own metrics
	}
	m := f[p.metric]
	if m == nil {
		m = &family{kind, p.help, map[string]float64{}}
		f[p.metric] = m
	}
	if m.kind == kind { // as there, the first one of a name decides
		m.values[p.labels] += p.scale * float64(n)
	}
}

// replaces reports whether the mapping decides about a metric of the registry. What it drops is not shown either.
func (f families) replaces(m *dto.MetricFamily) bool {
	theirs := strings.HasPrefix(m.GetName(), "ratelimit_") && m.GetType() == dto.MetricType_COUNTER
	return f != nil && (theirs || f[m.GetName()] != nil)
}

// helpEscapes are those of texts that are not in quotes.
var helpEscapes = strings.NewReplacer("\\", `\\`, "\n", `\n`)

// write writes them in the text format 0.0.4 of Prometheus.
func (f families) write(w io.Writer) error {
	b := bufio.NewWriterSize(w, 64<<10) // Flush says the first error
	for _, name := range slices.Sorted(maps.Keys(f)) {
		m := f[name]
		fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, helpEscapes.Replace(valid(m.help)), name, m.kind)
		for _, labels := range slices.Sorted(maps.Keys(m.values)) {
			series := name
			if labels != "" {
				series += "{" + labels + "}"
			}
			fmt.Fprintln(b, series, strconv.FormatFloat(m.values[labels], 'f', -1, 64))
		}
	}
	return b.Flush()
}
