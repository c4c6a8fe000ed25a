package metrics

import (
	"bytes"
	"io"
	"strconv"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Metrics of rules are written as text here, not by the Prometheus client: it
// takes about two microseconds for each of a hundred thousand series.

// row is one rule, or all that share its labels, at one moment.
type row struct {
	theirs string // labels: domain, key1, key2
	counts
}

// counts are what a rule's counters said.
type counts struct{ total, within, near, over, shadow, refunded uint64 }

func (n *counts) add(c *ratelimit.RuleCounters) {
	n.total += c.TotalHits.Load()
	n.within += c.WithinLimit.Load()
	n.near += c.NearLimit.Load()
	n.over += c.OverLimit.Load()
	n.shadow += c.ShadowMode.Load()
	n.refunded += c.Refunded.Load()
}

// ruleRow is a rule for the metrics that are about limits, not about hits.
type ruleRow struct {
	labels                      string // domain, rule, mode
	rule                        *ratelimit.Rule
	denied, admitted, debt      uint64
	sources                     [len(ratelimit.Sources)]uint64
	fallbacks                   [len(ratelimit.FallbackReasons)]uint64
	over, under                 uint64
	near, beyond, usedUp        uint64
	overByPolicy, byPolicy      uint64
	leased, drifting            int64
	worst                       ratelimit.Tokens
	declared, share, driftLimit ratelimit.Tokens
	holds                       holdCounts
}

// rows reads all counters. Rules that come out with the same labels are summed,
// and so are those beyond MaxRules.
func (c Collector) rows() (hits []row, rules []ruleRow) {
	all := c.Store.Rules()
	seen := make(index, min(len(all.All()), MaxRules))
	others := labelText("domain", ratelimit.OtherName, "key1", ratelimit.OtherName, "key2", "")
	all.EachCounters(func(domain string, keys []string, n *ratelimit.RuleCounters) {
		i, labels := seen.of(labelText("domain", domain, "key1", keys[0], "key2", strings.Join(keys[1:], ".")), others)
		if i == len(hits) {
			hits = append(hits, row{theirs: labels})
		}
		hits[i].add(n)
	})
	clear(seen)
	others = labelText("domain", ratelimit.OtherName, "rule", ratelimit.OtherName, "mode", "")
	for _, r := range all.All() {
		i, labels := seen.of(labelText("domain", r.Domain, "rule", r.Path, "mode", r.Coordination.Mode.String()),
			others)
		if i == len(rules) {
			rules = append(rules, ruleRow{labels: labels, rule: r})
			rules[i].declare(r)
		}
		rules[i].add(r.Counters)
	}
	return hits, rules
}

// index is the place of each row, by its labels.
type index map[string]int

// of finds the row of labels, or makes one; when there are MaxRules, that of
// others. It returns which labels the row has.
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

func (w *ruleRow) declare(r *ratelimit.Rule) {
	if r.Unlimited {
		return
	}
	w.declared = r.DeclaredOver()
	switch at := r.AtLedger(); {
	case at != r:
		w.share, w.driftLimit = at.DriftShare(), r.Reserve()
	case r.Coordination.Mode.Spec().Drifts:
		w.share, w.driftLimit = r.DriftShare(), r.Coordination.DriftBudget.Of(r.Limit.Capacity())
	}
}

func (w *ruleRow) add(c *ratelimit.RuleCounters) {
	w.holds.add(c.Held())
	w.addDecisions(c)
	c.EachNamed(func(_ string, c *ratelimit.RuleCounters) { w.addDecisions(c) })
	w.over += c.OverAdmitted.Load()
	w.under += c.UnderAdmitted.Load()
	w.near += c.NearBound.Load()
	w.beyond += c.BeyondBound.Load()
	w.overByPolicy += c.OverByPolicy.Load()
	w.byPolicy += c.BeyondByPolicy.Load()
	w.usedUp += c.ShareUsedUp.Load()
	w.leased += c.Leased.Load()
	w.drifting += c.Drifting.Load()
	w.worst = max(w.worst, c.Worst.Lately())
}

func (w *ruleRow) addDecisions(c *ratelimit.RuleCounters) {
	w.denied += c.Denied.Load()
	w.debt += c.Debt.Load()
	w.admitted += c.WithinLimit.Load() + c.ShadowMode.Load()
	for i := range c.Sources {
		w.sources[i] += c.Sources[i].Load()
	}
	for i := range c.Fallbacks {
		w.fallbacks[i] += c.Fallbacks[i].Load()
	}
}

// limited and approx choose the rules that a metric is about.
func limited(r *ruleRow) bool { return !r.rule.Unlimited }
func approx(r *ruleRow) bool  { return r.driftLimit > 0 }
func every(*ruleRow) bool     { return true }

// The metrics of rules.
var (
	hitMetrics = []struct {
		name, help string
		of         func(*counts) uint64
	}{
		{"ratelimit_service_rate_limit_total_hits", "All hits of a rule.", func(n *counts) uint64 { return n.total }},
		{
			"ratelimit_service_rate_limit_within_limit", "Hits within the limit.",
			func(n *counts) uint64 { return n.within },
		},
		{
			"ratelimit_service_rate_limit_near_limit", "Hits within the limit, and above NEAR_LIMIT_RATIO of it.",
			func(n *counts) uint64 { return n.near },
		},
		{"ratelimit_service_rate_limit_over_limit", "Hits above the limit.", func(n *counts) uint64 { return n.over }},
		{
			"ratelimit_service_rate_limit_shadow_mode", "Hits over a limit in shadow_mode.",
			func(n *counts) uint64 { return n.shadow },
		},
		{
			"ratelimit_service_rate_limit_total_negative_hits", "Hits refunded by is_negative_hits.",
			func(n *counts) uint64 { return n.refunded },
		},
	}
	ruleMetrics = []struct {
		name, kind, help string
		has              func(*ruleRow) bool
		of               func(*ruleRow) int64
	}{
		{
			"sluice_denied_total", "counter", "Decisions that were OVER_LIMIT, before shadow_mode.", every,
			func(r *ruleRow) int64 { return int64(r.denied) },
		},
		{
			"sluice_admitted_tokens_total", "counter", "Tokens admitted, shadow_mode included.", every,
			func(r *ruleRow) int64 { return int64(r.admitted) },
		},
		{
			"sluice_debt_tokens_total", "counter", "Tokens charged beyond the limit: charges after the fact, and " +
				"refused requests under on_deny: charge.", limited, func(r *ruleRow) int64 { return int64(r.debt) },
		},
		{
			"sluice_limit_tokens", "gauge", "The limit, in tokens for each key and unit (token_bucket: the burst).",
			limited, func(r *ruleRow) int64 { return int64(r.rule.Limit.Capacity()) },
		},
		{"sluice_declared_over_admission_tokens", "gauge", "Declared over-admission of each key and window " +
			"while the store works.", limited, func(r *ruleRow) int64 { return int64(r.declared) }},
		{
			"sluice_over_admitted_tokens_total", "counter",
			"Tokens admitted beyond the limit by all nodes, as reported to " +
				"this one. In mode approx, the sum over nodes is an upper bound.", limited,
			func(r *ruleRow) int64 { return int64(r.over) },
		},
		{
			"sluice_under_admitted_tokens_total", "counter", "Tokens refused here while other nodes held unspent ones.",
			limited, func(r *ruleRow) int64 { return int64(r.under) },
		},
		{
			"sluice_windows_near_bound_total", "counter", "Windows in which this node used 4/5 of its share of " +
				"the drift budget.", limited,
			func(r *ruleRow) int64 { return int64(r.near) },
		},
		{"sluice_windows_beyond_bound_total", "counter", "Windows in which this node exceeded its share. " +
			"A value above 0 is a bug.", limited, func(r *ruleRow) int64 { return int64(r.beyond) }},
		{
			"sluice_over_admitted_by_policy_tokens_total", "counter",
			"Tokens beyond the limit that " +
				"on_store_failure admitted at this node.", limited,
			func(r *ruleRow) int64 { return int64(r.overByPolicy) },
		},
		{
			"sluice_windows_beyond_by_policy_total", "counter", "Windows in which on_store_failure exceeded the " +
				"limit at this node.", limited,
			func(r *ruleRow) int64 { return int64(r.byPolicy) },
		},
		{"sluice_drift_share_used_up_total", "counter", "Decisions that found the share of the key " +
			"used up.", approx, func(r *ruleRow) int64 { return int64(r.usedUp) }},
		{
			"sluice_leased_tokens", "gauge", "Tokens leased to this node and unspent, of this window and the next.",
			limited, func(r *ruleRow) int64 { return r.leased },
		},
		{"sluice_drift_unconfirmed_tokens", "gauge", "Tokens spent here and not yet confirmed by the store, " +
			"all keys.", limited, func(r *ruleRow) int64 { return r.drifting }},
		{
			"sluice_worst_key_over_admission_tokens", "gauge", "Tokens that the worst key went beyond its limit in a " +
				"window of the last 30 s, by this node's drift: at most sluice_drift_share_tokens.", approx,
			func(r *ruleRow) int64 { return int64(r.worst) },
		},
		{
			"sluice_drift_share_tokens", "gauge", "Tokens of each key that a seat may spend unconfirmed.", approx,
			func(r *ruleRow) int64 { return int64(r.share) },
		},
		{
			"sluice_drift_budget_tokens", "gauge", "Tokens of each key that all seats together may spend unconfirmed.",
			approx, func(r *ruleRow) int64 { return int64(r.driftLimit) },
		},
	}
)

// WriteRuleMetrics writes the metrics of rules in the text format 0.0.4 of
// Prometheus.
func (c Collector) WriteRuleMetrics(w io.Writer) error {
	hits, rules := c.rows()
	var b bytes.Buffer
	head := func(name, kind, help string) {
		b.WriteString("# HELP " + name + " " + help + "\n# TYPE " + name + " " + kind + "\n")
	}
	line := func(name, labels string, n int64) {
		b.WriteString(name)
		b.WriteByte('{')
		b.WriteString(labels)
		b.WriteString("} ")
		b.Write(strconv.AppendInt(b.AvailableBuffer(), n, 10))
		b.WriteByte('\n')
	}
	flush := func() error {
		defer b.Reset()
		_, err := w.Write(b.Bytes())
		return err
	}
	for _, m := range hitMetrics {
		head(m.name, "counter", m.help)
		for i := range hits {
			line(m.name, hits[i].theirs, int64(m.of(&hits[i].counts)))
		}
		if err := flush(); err != nil {
			return err
		}
	}
	for _, m := range ruleMetrics {
		head(m.name, m.kind, m.help)
		for i := range rules {
			if m.has(&rules[i]) {
				line(m.name, rules[i].labels, m.of(&rules[i]))
			}
		}
		if err := flush(); err != nil {
			return err
		}
	}
	head("sluice_decisions_total", "counter", "Decisions by where they were made; reason says why the ledger did not "+
		"make it.")
	for i := range rules {
		rules[i].decisions(func(labels string, n uint64) { line("sluice_decisions_total", labels, int64(n)) })
	}
	if err := flush(); err != nil {
		return err
	}
	writeHolds(rules, head, line)
	return flush()
}

// decisions gives the series of sluice_decisions_total: that of leases, and
// those of other sources that there were.
func (w *ruleRow) decisions(each func(labels string, n uint64)) {
	for i, n := range w.sources {
		if source := ratelimit.Source(i); source != ratelimit.FromFallback && (n > 0 || source == ratelimit.FromLease) {
			each(w.labels+`,source="`+ratelimit.Sources[i]+`",reason=""`, n)
		}
	}
	for i, n := range w.fallbacks {
		if n > 0 {
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

func valid(s string) string { return strings.ToValidUTF8(s, "?") }
