package main

// overview is what to open first: are the nodes there, is anything wrong, whose is
// it, and how does that compare with what is usual.
var overview = dashboard{"sluice-overview", "Sluice: overview", []panel{
	{"Nodes", "Nodes that Prometheus reaches.", "none", false, true, []query{{`sum (up{job=~".*sluice.*",` + in + `})`, "up"}}},
	{"Rules beyond their bound, in the last hour", "Keys and windows that admitted more than their rule declares. 0, but for what on_store_failure admitted.", "none", false, true, []query{
		{`sum (increase(sluice_windows_beyond_bound_total{` + in + `}[1h]))`, "beyond"},
	}},
	{"Calls, and what became of them", "OK and over limit are decisions; errors and shed calls are not: Envoy lets them pass, or refuses them, as failure_mode_deny says.", "ops", true, false, []query{
		{`sum by (code) (rate(sluice_answers_total{` + in + `}[$__rate_interval]))`, "{{code}}"},
		{`sum (rate(ratelimit_service_should_rate_limit_error{` + in + `}[$__rate_interval]))`, "errors"},
		{`sum (rate(sluice_shed_total{` + in + `}[$__rate_interval]))`, "shed"},
	}},
	{"Refused, by rule", "The ten that refuse most, a second.", "ops", false, false, []query{
		{`topk(10, sum by (domain, rule) (rate(sluice_denied_total{` + on + `}[$__rate_interval])))`, "{{domain}}.{{rule}}"},
	}},
	{"Decided without the store", "A second, by reason. on_store_failure of the rule says what was decided.", "ops", false, false, []query{
		{`sum by (reason) (rate(sluice_fallback_decisions_total{` + in + `}[$__rate_interval]))`, "{{reason}}"},
	}},
	{"Time of a decision", "From a request's bytes to its answer's, of all nodes. Envoy waits 20 ms by default.", "s", false, false, []query{
		{`histogram_quantile(0.5, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "median"},
		{`histogram_quantile(0.99, sum by (le) (rate(ratelimit_service_response_time_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99"},
	}},
	{"Store", "Nodes whose breaker is open: they do not reach the store. And how long a round trip takes.", "none", false, false, []query{
		{`sum (sluice_store_breaker_open{` + in + `})`, "nodes that do not reach it"},
		{`1000 * histogram_quantile(0.99, sum by (le) (rate(sluice_store_seconds_bucket{` + in + `}[$__rate_interval])))`, "p99 of a round trip, ms"},
	}},
	{"Room for keys", "Keys that a node holds, as a share of MAX_KEYS. At 1, new keys share budgets.", "percentunit", false, false, []query{
		{`sluice_keys{in="leases",` + in + `} / ignoring (in) sluice_keys_max`, "{{instance}}"},
	}},
	{"Processor and memory", "Of each node.", "none", false, false, []query{
		{`rate(process_cpu_seconds_total{job=~".*sluice.*",` + in + `}[$__rate_interval])`, "processors {{instance}}"},
		{`process_resident_memory_bytes{job=~".*sluice.*",` + in + `} / 1e9`, "GB {{instance}}"},
	}},
	{"Versions", "Nodes of each; more than one while a version is rolled out.", "none", false, false, []query{
		{`count by (version) (sluice_build_info{` + in + `})`, "{{version}}"},
	}},
	{"Rules that were refused, and rules from the copy", "Loads of bad rules in five minutes; and nodes that run the last good copy.", "none", false, false, []query{
		{`sum by (instance) (increase(ratelimit_service_config_load_error{` + in + `}[5m]))`, "refused {{instance}}"},
		{`sum (sluice_config_from_copy{` + in + `})`, "nodes on a copy"},
	}},
}}
