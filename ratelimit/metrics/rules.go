package metrics

import (
	"bufio"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// Metrics of rules are written as text here, not by the Prometheus client: it
// takes about two microseconds for each of a hundred thousand series.

// ruleRow is one rule, or all that share its labels, at one moment.
type ruleRow struct {
	labels                      string          // domain, rule, mode; of hits: hitLabels, or statsdName
	rule                        *ratelimit.Rule // nil, of hits
	sum                         ratelimit.RuleCounters
	declared, share, driftLimit ratelimit.Tokens
	outage                      declare.Amount // of all nodes, in a window with the edge of an outage
}

// metric is one of rules; has chooses those that it is about.
type metric struct {
	name string
	has  func(*ruleRow) bool
	of   func(*ruleRow) int64
}

// hitRows reads what rules and names of requests count. Those that come out with the same labels are summed, and so are
// those beyond MaxRules. label is hitLabels, or statsdName for a Mapping.
func (c Collector) hitRows(label func(domain string, keys []string) string) (rows []ruleRow) {
	all := c.Store.Rules()
	seen := make(index, min(len(all.All()), MaxRules))
	others := label(ratelimit.OtherName, []string{ratelimit.OtherName})
	all.EachCounters(func(domain string, keys []string, n *ratelimit.RuleCounters) {
		i, labels := seen.of(label(domain, keys), others)
		if i == len(rows) {
			rows = append(rows, ruleRow{labels: labels})
		}
		rows[i].sum.Add(n)
	})
	return rows
}

// hitLabels are the labels of hits without a Mapping: as in envoyproxy/ratelimit, those of the first two levels.
func hitLabels(domain string, keys []string) string {
	second := ""
	if len(keys) > 1 {
		second = segment(keys[1])
	}
	return labelText("domain", segment(domain), "key1", segment(keys[0]), "key2", second)
}

// rows reads the counters of rules, as hitRows does. Rules beyond MaxRules share a row named (other).
func (c Collector) rows() (rules []ruleRow) {
	all := c.Store.Rules()
	seen := make(index, min(len(all.All()), MaxRules))
	others := labelText("domain", ratelimit.OtherName, "rule", ratelimit.OtherName, "mode", "")
	for _, r := range all.All() {
		i, labels := seen.of(labelText("domain", r.Domain, "rule", r.Path, "mode", r.Coordination.Mode.String()),
			others)
		if i == len(rules) {
			rules = append(rules, ruleRow{labels: labels, rule: r})
			if labels == others {
				rules[i].rule = &ratelimit.Rule{Domain: ratelimit.OtherName, Path: ratelimit.OtherName}
			}
		}
		rules[i].declare(r, c.Declare(r))
		rules[i].sum.Add(r.Counters)
		r.Counters.EachNamed(func(_ string, c *ratelimit.RuleCounters) { rules[i].sum.Add(c) })
		if r.Hold != nil { // an increase from the first value would not be seen
			rules[i].sum.Holds()
		}
	}
	return rules
}

// index is the place of each row, by its labels.
type index map[string]int

// of finds the row of labels, or makes one; when there are MaxRules, that of others. It returns which labels the row
// has.
func (x index) of(labels, others string) (int, string) {
	if _, ok := x[labels]; !ok && len(x) >= MaxRules {
		labels = others
	}
	i, ok := x[labels]
	if !ok {
		i = len(x)
		x[labels] = i
	}
	return i, labels
}

// declare adds the limit and the bounds of a rule: those of a row are the largest. It is the worst case of one key, so
// bounds of several rules in a row do not add up.
func (w *ruleRow) declare(r *ratelimit.Rule, b declare.Bounds) {
	if r.Limit.Capacity() > w.rule.Limit.Capacity() { // of (other), whose rule is no other's
		w.rule.Limit = r.Limit
	}
	w.declared = max(w.declared, b.Over.Tokens)
	w.outage.Tokens = max(w.outage.Tokens, b.OnOutage.Edges.Tokens)
	w.outage.Demand = max(w.outage.Demand, b.OnOutage.Edges.Demand)
	if r.Unlimited || !r.Drifts() {
		return
	}
	share := r.DriftShare()
	w.share = max(w.share, share)
	w.driftLimit = max(w.driftLimit, share*ratelimit.Tokens(r.Coordination.MaxNodes))
}

// The rules that metrics are about.
func limited(r *ruleRow) bool { return !r.rule.Unlimited }
func approx(r *ruleRow) bool  { return r.driftLimit > 0 }
func every(*ruleRow) bool     { return true }

// boundedOutage is of rules that declare a number of tokens for an outage.
func boundedOutage(r *ruleRow) bool { return limited(r) && r.outage.Demand == 0 && r.outage.Tokens > 0 }
func holds(r *ruleRow) bool         { return r.sum.Held() != nil }

// hits are a rule's counters by envoyproxy/ratelimit's names for statsd, which are also the ends of its names for
// Prometheus. One of them has no metric there, and is not in the catalogue.
var hits = fields[ratelimit.RuleCounters]("statsd")

// ruleMetrics are the metrics of rules: counters, and what follows from their declarations.
var ruleMetrics = append(ruleCounters(), []metric{
	{"sluice_admitted_tokens_total", every, func(r *ruleRow) int64 { return int64(r.admitted()) }},
	{"sluice_limit_tokens", limited, func(r *ruleRow) int64 { return int64(r.rule.Limit.Capacity()) }},
	{"sluice_declared_over_admission_tokens", limited, func(r *ruleRow) int64 { return int64(r.declared) }},
	{"sluice_window_used_tokens", limited, func(r *ruleRow) int64 { return int64(r.sum.Used.Lately()) }},
	{"sluice_worst_key_by_policy_tokens", limited, func(r *ruleRow) int64 { return int64(r.sum.Alone.Lately()) }},
	{"sluice_declared_outage_tokens", boundedOutage, func(r *ruleRow) int64 { return int64(r.outage.Tokens) }},
	{"sluice_worst_key_over_admission_tokens", approx, func(r *ruleRow) int64 { return int64(r.sum.Worst.Lately()) }},
	{"sluice_drift_share_tokens", approx, func(r *ruleRow) int64 { return int64(r.share) }},
	{"sluice_drift_budget_tokens", approx, func(r *ruleRow) int64 { return int64(r.driftLimit) }},
}...)

// ruleCounters are the metrics that are one counter of a rule, or of its holds. The tag rules of a counter chooses the
// rules that have it: limited ones, every one, or those that drift.
func ruleCounters() (all []metric) {
	about := map[string]func(*ruleRow) bool{"": limited, "every": every, "approx": approx}
	for _, f := range fields[ratelimit.RuleCounters]("metric") {
		all = append(all, metric{f.name, about[f.rules], func(r *ruleRow) int64 { return f.of(&r.sum) }})
	}
	for _, f := range fields[ratelimit.HoldCounters]("metric") {
		all = append(all, metric{f.name, holds, func(r *ruleRow) int64 { return f.of(r.sum.Held()) }})
	}
	return all
}

// WriteRuleMetrics writes the metrics of rules in the text format 0.0.4 of Prometheus. All rows of a metric follow each
// other below its head, as the format demands. It allocates little for each row: a scrape of 10,000 rules has 100,000
// lines.
func (c Collector) WriteRuleMetrics(w io.Writer) error {
	rules := c.rows()
	b := bufio.NewWriterSize(w, 64<<10) // Flush says the first error
	head := func(name string) {
		m := catalogue[name]
		_, _ = b.WriteString("# HELP " + name + " " + m.help + "\n# TYPE " + name + " " + m.kind + "\n")
	}
	series := func(name, labels string) {
		_, _ = b.WriteString(name)
		_ = b.WriteByte('{')
		_, _ = b.WriteString(labels)
		_, _ = b.WriteString("} ")
	}
	line := func(name, labels string, n int64) {
		series(name, labels)
		_, _ = b.Write(append(strconv.AppendInt(b.AvailableBuffer(), n, 10), '\n'))
	}
	fraction := func(name, labels string, v float64) {
		series(name, labels)
		_, _ = b.Write(append(strconv.AppendFloat(b.AvailableBuffer(), v, 'g', -1, 64), '\n'))
	}
	write := func(rows []ruleRow, metrics ...metric) {
		for _, m := range metrics {
			head(m.name)
			for i := range rows {
				if !m.has(&rows[i]) {
					continue
				}
				n := m.of(&rows[i])
				// A counter that requests make overflow starts anew, and is never negative.
				if catalogue[m.name].kind == "counter" {
					n &= math.MaxInt64
				}
				line(m.name, rows[i].labels, n)
			}
		}
	}
	if c.Mapping == nil {
		named := c.hitRows(hitLabels)
		for _, h := range hits {
			name := "ratelimit_service_rate_limit_" + h.name
			if catalogue[name].help != "" {
				write(named, metric{name, every, func(r *ruleRow) int64 { return h.of(&r.sum) }})
			}
		}
	}
	write(rules, ruleMetrics...)
	head("sluice_decisions_total")
	for i := range rules {
		rules[i].decisions(func(labels string, n uint64) { line("sluice_decisions_total", labels, int64(n)) })
	}
	writeHolds(rules, head, line, fraction)
	return b.Flush()
}

// admitted are tokens, shadow_mode included.
func (w *ruleRow) admitted() uint64 {
	return w.sum.WithinLimit.Load() + w.sum.ShadowMode.Load() + w.sum.ShadowRest.Load()
}

// decisions gives the series of sluice_decisions_total: that of leases, and those of other sources that there were. A
// series that is always 0 costs memory in Prometheus for each rule. That of leases is always there, so that a rate can
// begin at 0.
func (w *ruleRow) decisions(each func(labels string, n uint64)) {
	for i := range w.sum.Sources {
		n := w.sum.Sources[i].Load()
		if source := ratelimit.Source(i); source != ratelimit.FromFallback && (n > 0 || source == ratelimit.FromLease) {
			each(w.labels+`,source="`+ratelimit.Sources[i]+`",reason=""`, n)
		}
	}
	for i := range w.sum.Fallbacks {
		if n := w.sum.Fallbacks[i].Load(); n > 0 {
			source, reason := ratelimit.Sources[ratelimit.FromFallback], ratelimit.FallbackReasons[i]
			each(w.labels+`,source="`+source+`",reason="`+reason+`"`, n)
		}
	}
}

var labelEscapes = strings.NewReplacer("\\", `\\`, "\n", `\n`, `"`, `\"`)

// labelText writes names and values as labels.
func labelText(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(pairs[i] + `="`)
		_, _ = labelEscapes.WriteString(&b, valid(pairs[i+1]))
		b.WriteByte('"')
	}
	return b.String()
}

// valid replaces invalid UTF-8, which one request may have, and for which Prometheus would reject the whole scrape.
func valid(s string) string { return strings.ToValidUTF8(s, "?") }
