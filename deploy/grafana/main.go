// Command grafana writes the JSON of the dashboards next to it: `make dashboards`. One definition of a panel
// makes all dashboards look alike.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// panel is one chart. about tells readers how to read it. A title is also its key in looks, so two panels that share a
// title share their look.
type panel struct {
	title, about, unit string
	wide               bool
	stat               bool // a number instead of a chart
	queries            []query
}

// query is one line of a chart. Its legend may name labels of the result, such as {{instance}}.
type query struct{ expr, legend string }

// step is the least value of a color. It colors all values from there to the next step.
type step struct {
	from  float64
	color string
}

// look is how a panel shows values that are right or wrong: below all steps they are green. Panels without an entry in
// looks have Grafana's colors.
type look struct {
	bars  bool
	steps []step
}

// looks are those of panels, by title. Steps such as 0.5 and 100.5 lie between possible values, so that rounding does
// not change a color.
var looks = map[string]look{
	"Nodes": {steps: []step{{-1, "red"}, {1, "green"}}},
	"Rules beyond their bound, in the last hour":              {steps: []step{{0.5, "red"}}},
	"Highest window of one key, % of its limit":               {true, []step{{100.5, "orange"}}},
	"Highest window of one key, % of its declared worst case": {true, []step{{100.5, "red"}}},
	"Over-admission of the worst key, % of its allowance":     {steps: []step{{80, "orange"}, {100.5, "red"}}},
	"Breaker":         {steps: []step{{0.5, "red"}}},
	"Different rings": {steps: []step{{1.5, "red"}}},
	"Room for keys":   {steps: []step{{0.8, "orange"}, {0.95, "red"}}},
}

// colors are the thresholds of a panel.
func (l look) colors() object {
	steps := []object{{"color": "green", "value": nil}}
	for _, s := range l.steps {
		steps = append(steps, object{"color": s.color, "value": s.from})
	}
	return object{"mode": "absolute", "steps": steps}
}

// dashboard is a page of panels. The uid is also the name of its file, and the end of its URL.
type dashboard struct {
	uid, title string
	panels     []panel
}

// by are the labels of a rule; on, the choice of rules at the top of a page. A variable of the page with "All" chosen
// is .*, and matches metrics without that label, too.
const (
	by = "domain, rule, mode"
	on = `namespace=~"$namespace",domain=~"$domain",rule=~"$rule"`
	in = `namespace=~"$namespace"` // for metrics of nodes
)

var dashboards = []dashboard{
	overview,
	{"sluice-drift", "Sluice: drift", []panel{
		{"Over-admission of the worst key, % of its allowance", "Tokens that the worst key of each rule went beyond its limit in a window of the last 30 s, as a part of each node's share of the drift budget. At 100 % the allowance is used up. A value above 100 % breaks the promise.", "percent", true, false, []query{
			{`max by (` + by + `) (100 * sluice_worst_key_over_admission_tokens{` + on + `} / (sluice_drift_share_tokens > 0))`, "{{domain}}.{{rule}}"},
			{`vector(100)`, "allowance"},
		}},
		{"Over-admission of all keys", "Tokens admitted beyond limits, a minute, of all keys together. The allowance is for each key, so it has no line here.", "short", false, false, []query{
			{`sum by (` + by + `) (60 * rate(sluice_over_admitted_tokens_total{` + on + `}[5m]))`, "{{domain}}.{{rule}}"},
		}},
		{"Keys and windows near, and beyond, their bound", "Each key and window counts separately. BEYOND above 0 is a bug.", "short", false, false, []query{
			{`sum by (` + by + `) (increase(sluice_windows_near_bound_total{` + on + `}[5m]))`, "near {{domain}}.{{rule}}"},
			{`sum by (` + by + `) (increase(sluice_windows_beyond_bound_total{` + on + `}[5m]))`, "BEYOND {{domain}}.{{rule}}"},
		}},
		{"Unconfirmed drift", "Tokens spent and not yet confirmed by the store, now, of all keys together.", "short", false, false, []query{
			{`sum by (` + by + `) (sluice_drift_unconfirmed_tokens{` + on + `})`, "{{domain}}.{{rule}}"},
		}},
		{"Decisions by drift, and shares used up", "Decisions before the store's reply, and decisions that waited for it because the node's share was used up.", "ops", false, false, []query{
			{`sum by (` + by + `) (rate(sluice_decisions_total{` + on + `,source="drift"}[$__rate_interval]))`, "drift {{domain}}.{{rule}}"},
			{`sum by (` + by + `) (rate(sluice_drift_share_used_up_total{` + on + `}[$__rate_interval]))`, "used up {{domain}}.{{rule}}"},
		}},
		{"Under-admission", "Tokens refused by one node while others held unspent ones.", "short", false, false, []query{
			{`sum by (` + by + `) (rate(sluice_under_admitted_tokens_total{` + on + `}[$__rate_interval]))`, "{{domain}}.{{rule}}"},
		}},
		{"Drift seats", "Drift seat of each node. -1: no seat, so rules of mode approx use leases only.", "none", false, false, []query{{`sluice_drift_seat{` + in + `}`, "{{instance}}"}}},
	}},
	holds,
	{"sluice-modes", "Sluice: modes and leases", []panel{
		{"Admitted and refused", "Tokens admitted and decisions refused, per second.", "ops", true, false, []query{
			{`sum by (` + by + `) (rate(sluice_admitted_tokens_total{` + on + `}[$__rate_interval]))`, "admitted {{domain}}.{{rule}}"},
			{`sum by (` + by + `) (rate(sluice_denied_total{` + on + `}[$__rate_interval]))`, "refused {{domain}}.{{rule}}"},
		}},
		{"Debt", "Tokens per second charged beyond limits: late charges and refused requests.", "ops", false, false, []query{
			{`sum by (` + by + `) (rate(sluice_debt_tokens_total{` + on + `}[$__rate_interval]))`, "{{domain}}.{{rule}}"},
		}},
		{"Decisions by mode and source", "Source of decisions: a lease, the store, the key's owner, drift, or on_store_failure.", "ops", false, false, []query{
			{`sum by (mode, source) (rate(sluice_decisions_total{` + on + `}[$__rate_interval]))`, "{{mode}} {{source}}"},
		}},
		{"Tokens leased and unspent", "For the current window and the next.", "short", false, false, []query{{`sum by (` + by + `) (sluice_leased_tokens{` + on + `})`, "{{domain}}.{{rule}}"}}},
		{"Lease sizes", "Tokens granted per claim.", "short", false, false, []query{
			{`histogram_quantile(0.5, sum by (le) (rate(sluice_lease_tokens_bucket{` + in + `}[$__rate_interval])))`, "median"},
			{`histogram_quantile(0.99, sum by (le) (rate(sluice_lease_tokens_bucket{` + in + `}[$__rate_interval])))`, "p99"},
		}},
		{"Claims, by reason", "Claims per second.", "ops", false, false, []query{{`sum by (reason) (rate(sluice_claims_total{` + in + `}[$__rate_interval]))`, "{{reason}}"}}},
		{"Time of a decision", "From reading a request to writing its answer.", "s", false, false, []query{
			{`histogram_quantile(0.5, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "median"},
			{`histogram_quantile(0.99, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99"},
			{`histogram_quantile(0.999, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99.9"},
		}},
		{"Keys tracked", "Keys in the table of each node, and MAX_KEYS.", "short", false, false, []query{{`sum without (kind) (sluice_keys{` + in + `})`, "{{instance}}"}, {`sluice_keys_max{` + in + `}`, "most {{instance}}"}}},
	}},
	{"sluice-store", "Sluice: store", []panel{
		{"Store operations", "Round trips of all nodes, and decisions that needed no round trip.", "ops", true, false, []query{
			{`sum by (result) (rate(sluice_store_operations_total{` + in + `}[$__rate_interval]))`, "{{result}}"},
			{`sum (rate(sluice_store_operations_saved_total{` + in + `}[$__rate_interval]))`, "saved"},
		}},
		{"Time of a round trip", "", "s", false, false, []query{
			{`histogram_quantile(0.5, sum by (le) (rate(sluice_store_duration_seconds_bucket{` + in + `}[$__rate_interval])))`, "median"},
			{`histogram_quantile(0.99, sum by (le) (rate(sluice_store_duration_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99"},
		}},
		{"Breaker", "1: the store does not answer this node, so the node sends no claims.", "none", false, false, []query{{`sluice_store_breaker_open{` + in + `}`, "{{instance}}"}}},
		{"Time since the store answered", "", "s", false, false, []query{{`sluice_store_sync_age_seconds{` + in + `}`, "{{instance}}"}}},
		{"Claims that wait to be sent", "", "short", false, false, []query{{`sluice_claims_queued{` + in + `}`, "{{instance}}"}}},
		{"Late claims and recoveries", "Claims that arrived late, and recoveries after data loss in the store.", "short", false, false, []query{
			{`sum (increase(sluice_claims_stale_total{` + in + `}[5m]))`, "late claims"},
			{`sum (increase(sluice_ledger_recoveries_total{` + in + `}[5m]))`, "recoveries"},
		}},
	}},
	{"sluice-routing", "Sluice: routing", []panel{
		{"Nodes in the ring, as each sees it", "", "none", false, false, []query{{`sluice_ring_members{` + in + `}`, "{{instance}}"}}},
		{"Different rings", "1 when all nodes of each fleet agree. Each region has a ring of its own.", "none", false, true, []query{{`max (count by (namespace, job, region) (count_values by (namespace, job, region) ("ring", sluice_ring_fingerprint{` + in + `})))`, "rings"}}},
		{"Requests between nodes", "Per second.", "ops", true, false, []query{{`sum by (instance, kind) (rate(sluice_peer_asks_total{` + in + `}[$__rate_interval]))`, "{{instance}} {{kind}}"}}},
		{"Hot keys", "Busy keys of each owner, and decisions of other nodes on them from their own leases (with a store).", "short", false, false, []query{
			{`sluice_hot_keys{` + in + `}`, "keys {{instance}}"}, {`sum by (instance) (rate(sluice_hot_key_decisions_total{` + in + `}[$__rate_interval]))`, "decisions/s {{instance}}"},
		}},
		{"Accounts handed over", "", "short", false, false, []query{{`sum by (instance) (increase(sluice_accounts_handed_over_total{` + in + `}[5m]))`, "{{instance}}"}}},
		{"Peers refused, invalid messages", "", "short", false, false, []query{
			{`sum (increase(sluice_peers_refused_total{` + in + `}[5m]))`, "refused"}, {`sum (increase(sluice_peer_messages_malformed_total{` + in + `}[5m]))`, "malformed"},
		}},
	}},
	{"sluice-envoys", "Sluice: Envoys with leases", []panel{
		{"Streams and buckets", "Envoys that enforce limits themselves (RLQS).", "short", false, false, []query{
			{`sum by (instance) (sluice_rlqs_streams{` + in + `})`, "streams {{instance}}"}, {`sum by (instance) (sluice_rlqs_buckets{` + in + `})`, "buckets {{instance}}"},
		}},
		{"Requests decided by Envoys", "Reported by Envoys every 5 s.", "ops", false, false, []query{{`sum by (decision) (rate(sluice_rlqs_requests_total{` + in + `}[$__rate_interval]))`, "{{decision}}"}}},
		{"Tokens granted and credited", "Credited: tokens that are proven unspent, and can be granted again.", "short", true, false, []query{
			{`sum by (kind) (rate(sluice_rlqs_tokens_total{` + in + `,kind=~"granted|credited"}[$__rate_interval]))`, "{{kind}}"},
			{`sum(sluice_rlqs_unproven_tokens{` + in + `})`, "unproven now"},
		}},
		{"Tokens beyond leases", "Excess: admitted without a grant. Uncovered: charged when the limit was used up. Carried: charged to a second window.", "short", false, false, []query{
			{`sum by (instance, kind) (increase(sluice_rlqs_tokens_total{` + in + `,kind=~"excess|uncovered|carried"}[5m]))`, "{{instance}} {{kind}}"},
		}},
		{"Streams refused and reports lost", "Streams and buckets beyond their maximum, streams without reads, indivisible rules, and lost reports.", "short", false, false, []query{
			{`sum by (reason) (increase(sluice_rlqs_refused_total{` + in + `}[5m]))`, "{{reason}}"}, {`sum (increase(sluice_rlqs_reports_lost_total{` + in + `}[5m]))`, "reports lost"},
		}},
	}},
	{"sluice-failures", "Sluice: failures", []panel{
		{"Decisions without the store", "By reason. The rule's on_store_failure decides whether they are admitted.", "ops", true, false, []query{{`sum by (reason) (rate(sluice_fallback_decisions_total{` + in + `}[$__rate_interval]))`, "{{reason}}"}}},
		{"By rule", "", "ops", false, false, []query{{`sum by (` + by + `, reason) (rate(sluice_decisions_total{` + on + `,source="fallback"}[$__rate_interval]))`, "{{domain}}.{{rule}} {{reason}}"}}},
		{"Errors", "Calls answered with an error, malformed calls, and bugs.", "ops", false, false, []query{
			{`sum by (err_type) (rate(ratelimit_service_should_rate_limit_error{` + in + `}[$__rate_interval]))`, "{{err_type}}"},
			{`sum (rate(sluice_bad_requests_total{` + in + `}[$__rate_interval]))`, "malformed"},
			{`sum (rate(sluice_panics_total{` + in + `}[$__rate_interval]))`, "bugs"},
		}},
		{"Calls shed", "Calls answered UNAVAILABLE without a charge because the node is overloaded, and calls whose callers gave up, with their charge returned.", "ops", false, false, []query{
			{`sum by (instance, reason) (rate(sluice_shed_total{` + in + `}[$__rate_interval]))`, "{{instance}} {{reason}}"},
			{`sum by (instance) (rate(sluice_calls_given_up_total{` + in + `}[$__rate_interval]))`, "{{instance}} given up"},
		}},
		{"Configs refused", "", "short", false, false, []query{{`sum by (instance) (increase(ratelimit_service_config_load_error{` + in + `}[5m]))`, "{{instance}}"}}},
		{"Requests without a rule", "No rule has their domain, or a key of theirs.", "ops", false, false, []query{
			{`sum (rate(sluice_unknown_domain_total{` + in + `}[$__rate_interval]))`, "unknown domains"},
			{`sum by (domain, key) (rate(sluice_unlimited_requests_total{` + in + `}[$__rate_interval]))`, "{{domain}} {{key}}"},
		}},
		{"Keys beyond the table", "Decisions for keys without a place, because the node tracks MAX_KEYS keys already.", "ops", false, false, []query{{`sum by (instance) (rate(sluice_decision_sources_total{` + in + `,source="overflow"}[$__rate_interval]))`, "shared {{instance}}"}, {`sum by (instance) (rate(sluice_fallback_decisions_total{` + in + `,reason="table_full"}[$__rate_interval]))`, "alone {{instance}}"}}},
	}},
}

type object = map[string]any

// json is the dashboard as Grafana imports it. It places panels from left to right in a grid of 24 columns, two to a
// row, or one that is wide. All values come from the definition, so the files change only with it.
func (d *dashboard) json() ([]byte, error) {
	source := object{"type": "prometheus", "uid": "${source}"}
	var panels []object
	x, y := 0, 0
	for i, p := range d.panels {
		width := 12
		if p.wide {
			width = 24
		}
		if x+width > 24 {
			x, y = 0, y+8
		}
		var targets []object
		for j, q := range p.queries {
			targets = append(targets, object{"refId": string(rune('A' + j)), "expr": q.expr, "legendFormat": q.legend, "datasource": source})
		}
		kind := "timeseries"
		if p.stat {
			kind = "stat"
		}
		defaults := object{"unit": p.unit, "custom": object{"fillOpacity": 8, "showPoints": "never"}}
		if l, ok := looks[p.title]; ok {
			defaults["thresholds"] = l.colors()
			if kind == "timeseries" {
				defaults["custom"] = object{"fillOpacity": 8, "showPoints": "never", "thresholdsStyle": object{"mode": "line"}}
			}
			if l.bars {
				kind = "bargauge"
				defaults["min"] = 0
			}
		}
		panels = append(panels, object{
			"id": i + 1, "title": p.title, "description": p.about, "type": kind, "datasource": source, "targets": targets,
			"gridPos":     object{"x": x, "y": y, "w": width, "h": 8},
			"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
			"options":     object{"legend": object{"displayMode": "list", "placement": "bottom"}, "tooltip": object{"mode": "multi"}},
		})
		x += width
		if x >= 24 {
			x, y = 0, y+8
		}
	}
	// A choice at the top of the page, filled by labels that Prometheus has now. All is the default.
	choose := func(name, query string) object {
		return object{
			"name": name, "label": name, "type": "query", "datasource": source, "query": object{"query": query, "refId": name}, "definition": query,
			"includeAll": true, "multi": true, "allValue": ".*", "current": object{"text": "All", "value": "$__all"}, "refresh": 2, "sort": 1,
		}
	}
	return json.MarshalIndent(object{
		"uid": d.uid, "title": d.title, "tags": []string{"sluice"}, "schemaVersion": 39, "version": 1, "editable": true, "refresh": "10s",
		"time": object{"from": "now-30m", "to": "now"}, "panels": panels,
		"links": []object{{"type": "dashboards", "tags": []string{"sluice"}, "title": "Sluice", "asDropdown": true, "includeVars": true, "keepTime": true}},
		"templating": object{"list": []object{
			{"name": "source", "label": "source", "type": "datasource", "query": "prometheus", "current": object{}},
			choose("namespace", "label_values(sluice_build_info, namespace)"),
			choose("domain", `label_values(sluice_limit_tokens{namespace=~"$namespace"}, domain)`),
			choose("rule", `label_values(sluice_limit_tokens{domain=~"$domain"}, rule)`),
		}},
	}, "", "  ")
}

func main() {
	if err := write(filepath.Join("deploy", "grafana", "dashboards")); err != nil {
		fmt.Fprintln(os.Stderr, "grafana:", err)
		os.Exit(1)
	}
}

// write writes all dashboards into a folder. Each is named by its uid.
func write(dir string) error {
	for i := range dashboards {
		text, err := dashboards[i].json()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, dashboards[i].uid+".json"), append(text, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}
