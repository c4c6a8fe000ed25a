package main

// holds is for rules whose requests hold an estimate until their cost is known.
var holds = dashboard{"sluice-holds", "Sluice: token budgets", []panel{
	{"Held, and used", "Tokens a second: what requests hold at their start, what they have cost, and what was given back and charged on top. What is held and never settled stays charged.", "ops", true, false, []query{
		{`sum by (` + by + `) (rate(sluice_hold_tokens_total{` + on + `}[$__rate_interval]))`, "held {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_cost_tokens_total{` + on + `}[$__rate_interval]))`, "used {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_released_tokens_total{` + on + `}[$__rate_interval]))`, "given back {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_charged_tokens_total{` + on + `}[$__rate_interval]))`, "charged on top {{domain}}.{{rule}}"},
	}},
	{"Held now, or never settled", "Tokens held less tokens settled, of all nodes, since each of them started. It rises with requests in flight; a rise that stays is ends that are lost, or of unknown cost.", "short", false, false, []query{
		{`sum by (` + by + `) (sluice_hold_tokens_total{` + on + `}) - sum by (` + by + `) (sluice_hold_settled_tokens_total{` + on + `})`, "{{domain}}.{{rule}}"},
	}},
	{"Cost, in percent of what was held", "Above 100 a request has cost more than it held, which may lie beyond the limit. Far below 100, estimates keep others from tokens that nobody uses.", "percent", false, false, []query{
		{`histogram_quantile(0.5, sum by (le, domain, rule) (rate(sluice_hold_cost_percent_bucket{` + on + `}[$__rate_interval])))`, "median {{domain}}.{{rule}}"},
		{`histogram_quantile(0.9, sum by (le, domain, rule) (rate(sluice_hold_cost_percent_bucket{` + on + `}[$__rate_interval])))`, "p90 {{domain}}.{{rule}}"},
	}},
	{"Beyond the limit", "Tokens a second of costs above their holds that the limit had no room for.", "ops", false, false, []query{
		{`sum by (` + by + `) (rate(sluice_hold_debt_tokens_total{` + on + `}[$__rate_interval]))`, "{{domain}}.{{rule}}"},
	}},
	{"What became of holds", "Settled by their cost, ended without one, after their window, or refused: forged, expired, of another budget, settled before.", "ops", false, false, []query{
		{`sum by (result) (rate(sluice_holds_settled_total{` + on + `}[$__rate_interval]))`, "{{result}}"},
	}},
	{"Admitted and refused", "Requests that hold, and decisions refused, a second.", "ops", false, false, []query{
		{`sum by (` + by + `) (rate(sluice_holds_total{` + on + `}[$__rate_interval]))`, "held {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_denied_total{` + on + `}[$__rate_interval]))`, "refused {{domain}}.{{rule}}"},
	}},
}}
