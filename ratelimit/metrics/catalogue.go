package metrics

import (
	_ "embed"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/shed"
)

// The catalogue has a line for each metric: its kind, its name and its help. Where a metric is one counter, the
// counter's field has the name in its tag: metric:"NAME", or metric:"NAME,LABEL=VALUE" for one of several labels. So a
// new counter is a field, and a line there.
//
//go:embed metrics.txt
var catalogueText string

// about is what the catalogue says of a metric.
type about struct{ kind, help string }

var catalogue = readCatalogue()

// Example of a line: counter ratelimit_service_config_load_success Loads of valid rules.
func readCatalogue() map[string]about {
	all := map[string]about{}
	for line := range strings.Lines(catalogueText) {
		kind, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		name, help, _ := strings.Cut(rest, " ")
		all[name] = about{kind, help}
	}
	return all
}

// labelValues are the values of the last label, for counters in an array; "" is not shown.
var labelValues = map[string][]string{
	"sluice_decision_sources_total":   ratelimit.Sources[:],
	"sluice_fallback_decisions_total": ratelimit.FallbackReasons[:],
	"sluice_claims_total":             ratelimit.ClaimReasons[:],
	"sluice_store_clock_steps_total":  {"ahead", "back"},
	"sluice_shed_total":               shed.Reasons[:],
	"sluice_override_changes_total":   OverrideResults[:],
}

// page takes the values of a scrape.
type page chan<- prometheus.Metric

// desc describes a metric. Pairs are names and values of labels, by turns. It is made anew for each value: the labels
// of a metric may differ from scrape to scrape.
func desc(name string, pairs ...string) *prometheus.Desc {
	labels := prometheus.Labels{}
	for i := 0; i < len(pairs); i += 2 {
		labels[pairs[i]] = pairs[i+1]
	}
	return prometheus.NewDesc(name, catalogue[name].help, nil, labels)
}

// put shows a value. A value that cannot be a metric is a bug here, and panics.
func (p page) put(name string, v float64, pairs ...string) {
	kind := prometheus.GaugeValue
	if catalogue[name].kind == "counter" {
		kind = prometheus.CounterValue
	}
	p <- prometheus.MustNewConstMetric(desc(name, pairs...), kind, v)
}

// tagged shows the tagged fields of a struct, which is not copied. Pairs are labels of all of them. The struct has
// atomic fields, so it is read by pointer, field by field. An array has one value for each of labelValues.
func (p page) tagged(of any, pairs ...string) {
	s := reflect.ValueOf(of).Elem()
	for i := range s.NumField() {
		text := s.Type().Field(i).Tag.Get("metric")
		tag := strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == '=' })
		if len(tag) == 0 {
			continue
		}
		name, labels := tag[0], slices.Concat(pairs, tag[1:])
		if v := s.Field(i); v.Kind() != reflect.Array {
			p.put(name, float64(count(v)), labels...)
			continue
		}
		for j, value := range labelValues[name] {
			if value != "" {
				p.put(name, float64(count(s.Field(i).Index(j))), append(labels, value)...)
			}
		}
	}
}

// distribution shows one, whose values are multiplied by scale. Bucket i counts values of at most 2^i. The last one has
// all larger values, which Prometheus takes from the count.
func (p page) distribution(name string, c ratelimit.DistributionCounts, scale float64) {
	buckets, sum := map[float64]uint64{}, uint64(0)
	for i, n := range c.Buckets[:len(c.Buckets)-1] {
		sum += n
		buckets[scale*float64(int64(1)<<i)] = sum
	}
	p <- prometheus.MustNewConstHistogram(desc(name), c.Count, scale*float64(c.Sum), buckets)
}

// count is a number, the length of a list, or 1 for true. v must be addressable: atomic counters are read through their
// address.
func count(v reflect.Value) int64 {
	switch x := v.Addr().Interface().(type) {
	case *atomic.Uint64:
		return int64(x.Load())
	case *atomic.Int64:
		return x.Load()
	case *bool:
		return int64(Flag(*x))
	}
	switch {
	case v.Kind() == reflect.Slice:
		return int64(v.Len())
	case v.CanUint():
		return int64(v.Uint())
	}
	return v.Int()
}

// Flag is the value of a gauge that is 1 or 0.
func Flag(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// field is a counter of a T, with its name in a tag.
type field[T any] struct {
	name  string
	rules string // which rules it is about; "": limited ones
	of    func(*T) int64
}

// fields are those of a T with such a tag. It uses reflection once, when the program starts, and then one function for
// each field.
func fields[T any](key string) (all []field[T]) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[T]()) {
		if name := f.Tag.Get(key); name != "" {
			of := func(s *T) int64 { return count(reflect.ValueOf(s).Elem().FieldByIndex(f.Index)) }
			all = append(all, field[T]{name, f.Tag.Get("rules"), of})
		}
	}
	return all
}

// each gives the fields of a struct by their names in statsd.
func each[T any](s *T, see func(name string, n uint64)) {
	for _, f := range fields[T]("statsd") {
		see(f.name, uint64(f.of(s)))
	}
}
