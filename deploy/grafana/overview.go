package main

// highest is the highest window of each rule, as a percentage of some tokens. A window's use is the sum of three parts:
// tokens from leases, admissions by on_store_failure, and drift. Rules that do not drift lack the last series: "or 0 *"
// adds zeros with the same labels, because PromQL drops rows that match nothing.
func highest(of string) string {
	most := func(metric string) string { return `sum by (` + by + `) (` + metric + `{` + on + `})` }
	return `100 * (max by (` + by + `) (sluice_window_used_tokens{` + on + `}) + ` + most("sluice_worst_key_by_policy_tokens") +
		` + (` + most("sluice_worst_key_over_admission_tokens") + ` or 0 * ` + most("sluice_limit_tokens") + `)) / max by (` + by + `) (` + of + ` > 0)`
}

// declaredNow is the declared worst case of a window, with the limit. Windows to which on_store_failure added have the
// number of an outage: also after the store is back, or if an owner did not answer. Under open there is none.
const declaredNow = `(sluice_declared_outage_tokens{` + on + `} and on (` + by + `) ` + added + `) or` +
	` (sluice_limit_tokens{` + on + `} + sluice_declared_over_admission_tokens{` + on + `} unless on (` + by + `) ` + added + `)`

// added selects rules: in a window of the last 30 s, on_store_failure admitted tokens.
const added = `sum by (` + by + `) (sluice_worst_key_by_policy_tokens{` + on + `}) > 0`

// overview is the first dashboard to open: which nodes run, and which problems there are.
var overview = dashboard{"sluice-overview", "Sluice: overview", []panel{
	{"Nodes", "Nodes that Prometheus reaches.", "none", false, true, []query{{`count (sluice_build_info{` + in + `}) or vector(0)`, "up"}}},
	{"Rules beyond their bound, in the last hour", "Keys and windows that admitted more than their rule declares. Above 0 is a bug.", "none", false, true, []query{
		{`sum (increase(sluice_windows_beyond_bound_total{` + in + `}[1h]))`, "beyond"},
	}},
	{"Highest window of one key, % of its limit", "Of the last 30 s: what decisions used, with what drift and on_store_failure admitted beyond, at all nodes. Above 100 % the limit was exceeded, as far as the rule declares.", "percent", false, false, []query{{highest("sluice_limit_tokens{" + on + "}"), "{{domain}}.{{rule}}"}}},
	{"Highest window of one key, % of its declared worst case", "The same, of the rule's declared worst case. If on_store_failure admitted tokens, the number for an outage counts, and rules with open have none. Above 100 % a promise is broken.", "percent", false, false, []query{{highest(declaredNow), "{{domain}}.{{rule}}"}}},
	{"Calls by result", "OK and over limit are decisions. For errors and shed calls, Envoy's failure_mode_deny decides.", "ops", true, false, []query{
		{`sum by (code) (rate(sluice_answers_total{` + in + `}[$__rate_interval]))`, "{{code}}"},
		{`sum (rate(ratelimit_service_should_rate_limit_error{` + in + `}[$__rate_interval]))`, "errors"},
		{`sum (rate(sluice_shed_total{` + in + `}[$__rate_interval]))`, "shed"},
	}},
	{"Refusals by rule", "The ten rules with the most refusals per second.", "ops", false, false, []query{
		{`topk(10, sum by (domain, rule) (rate(sluice_denied_total{` + on + `}[$__rate_interval])))`, "{{domain}}.{{rule}}"},
	}},
	{"Decided without the store", "Per second, by reason. The rule's on_store_failure decides whether they are admitted.", "ops", false, false, []query{
		{`sum by (reason) (rate(sluice_fallback_decisions_total{` + in + `}[$__rate_interval]))`, "{{reason}}"},
	}},
	{"Time of a decision", "From reading a request to writing its answer, over all nodes. Envoy waits 20 ms by default.", "s", false, false, []query{
		{`histogram_quantile(0.5, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "median"},
		{`histogram_quantile(0.99, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99"},
	}},
	{"Store", "Nodes with an open breaker, which do not reach the store, and the time of a round trip.", "none", false, false, []query{
		{`sum (sluice_store_breaker_open{` + in + `})`, "nodes that do not reach it"},
		{`1000 * histogram_quantile(0.99, sum by (le) (rate(sluice_store_duration_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99 of a round trip, ms"},
	}},
	{"Room for keys", "Keys tracked by each node, as a share of MAX_KEYS. At 100 %, new keys share budgets.", "percentunit", false, false, []query{
		{`sum without (kind) (sluice_keys{` + in + `}) / sluice_keys_max{` + in + `}`, "{{instance}}"},
	}},
	{"CPU and memory", "Per node.", "none", false, false, []query{
		{`rate(process_cpu_seconds_total{` + in + `}[$__rate_interval]) and on (job, instance) sluice_build_info{` + in + `}`, "processors {{instance}}"},
		{`process_resident_memory_bytes{` + in + `} / 1e9 and on (job, instance) sluice_build_info{` + in + `}`, "GB {{instance}}"},
	}},
	{"Versions", "Nodes per version. A rollout shows several.", "none", false, false, []query{
		{`count by (version) (sluice_build_info{` + in + `})`, "{{version}}"},
	}},
	{"Bad rules", "Loads of bad rules in five minutes, and nodes that run the last good copy of the rules.", "none", false, false, []query{
		{`sum by (instance) (increase(ratelimit_service_config_load_error{` + in + `}[5m]))`, "refused {{instance}}"},
		{`sum (sluice_config_from_copy{` + in + `})`, "nodes on a copy"},
	}},
}}
