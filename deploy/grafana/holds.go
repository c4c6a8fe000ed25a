package main

// holds shows rules with holds: requests reserve an estimate until their cost arrives.
var holds = dashboard{"sluice-holds", "Sluice: token budgets", []panel{
	{"Tokens held and used", "Tokens per second: held at the start of requests, used, given back and charged on top. Holds that are never settled stay charged.", "ops", true, false, []query{
		{`sum by (` + by + `) (rate(sluice_hold_tokens_total{` + on + `}[$__rate_interval]))`, "held {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_cost_tokens_total{` + on + `}[$__rate_interval]))`, "used {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_released_tokens_total{` + on + `}[$__rate_interval]))`, "given back {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_hold_charged_tokens_total{` + on + `}[$__rate_interval]))`, "charged on top {{domain}}.{{rule}}"},
	}},
	{"Unsettled holds", "Tokens held minus tokens settled, since the start of each node. Requests in flight raise it for a while. If it stays high, ends of requests are lost or report no cost.", "short", false, false, []query{
		{`sum by (` + by + `) (sluice_hold_tokens_total{` + on + `}) - sum by (` + by + `) (sluice_hold_settled_tokens_total{` + on + `})`, "{{domain}}.{{rule}}"},
	}},
	{"Cost of requests, as a share of their hold", "Above 100 %, requests cost more than they held, and the excess can go beyond the limit. Far below 100 %, estimates are too high and reserve unused tokens.", "percentunit", false, false, []query{
		{`histogram_quantile(0.5, sum by (le, domain, rule) (rate(sluice_hold_cost_ratio_bucket{` + on + `}[$__rate_interval])))`, "median {{domain}}.{{rule}}"},
		{`histogram_quantile(0.9, sum by (le, domain, rule) (rate(sluice_hold_cost_ratio_bucket{` + on + `}[$__rate_interval])))`, "p90 {{domain}}.{{rule}}"},
	}},
	{"Debt of holds", "Tokens per second charged beyond the limit, for requests that cost more than their hold.", "ops", false, false, []query{
		{`sum by (` + by + `) (rate(sluice_hold_debt_tokens_total{` + on + `}[$__rate_interval]))`, "{{domain}}.{{rule}}"},
	}},
	{"Holds settled, by result", "Settled by cost, ended without a cost, settled after the window, or refused: forged, expired, of another budget, or settled before.", "ops", false, false, []query{
		{`sum by (result) (rate(sluice_holds_settled_total{` + on + `}[$__rate_interval]))`, "{{result}}"},
	}},
	{"Admitted and refused", "Requests with a hold, and refused decisions, per second.", "ops", false, false, []query{
		{`sum by (` + by + `) (rate(sluice_holds_total{` + on + `}[$__rate_interval]))`, "held {{domain}}.{{rule}}"},
		{`sum by (` + by + `) (rate(sluice_denied_total{` + on + `}[$__rate_interval]))`, "refused {{domain}}.{{rule}}"},
	}},
}}
