package ratelimit

// Rule is one configured limit, compiled. It is immutable after it is built
// and safe for concurrent use; its counters are shared by the rules that
// replace it on a reload.
type Rule struct {
	Domain string
	// Path names the rule inside its domain: the config's keys and values from
	// the top, as in "tier_gold.api_key".
	Path string
	// Keys are the parts of Path, one a level.
	Keys []string
	// Name is the config's rate_limit.name, "" if it has none.
	Name      string
	Limit     Limit
	Unlimited bool
	// Override says that the request brought its own limit.
	Override bool
	Shadow   bool     // its status is always OK; it still counts
	Quota    bool     // it denies only together with all other quota rules
	Replaces []string // names of rules that this one replaces when both match
	// Metadata goes into the dynamic metadata of the requests that pass.
	Metadata     map[string]any
	Coordination Coordination
	Counters     *RuleCounters
	// MetricNames say how much of a request's values the statistics may name.
	MetricNames MetricNaming
}

// MetricNaming is a rule's wish for the names of its statistics.
type MetricNaming struct {
	Detailed bool   // detailed_metric: all of the request's values
	Levels   []bool // value_to_metric at each level of the path
}
