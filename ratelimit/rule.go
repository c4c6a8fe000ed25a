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
	// Overridden says that an override of the key set the limit. Peaks of usage are of the rule's own limit alone.
	Overridden bool
	Shadow     bool     // its status is always OK; it still counts
	Quota      bool     // it denies only together with all other quota rules
	Replaces   []string // names of rules that this one replaces when both match
	// Metadata goes into the dynamic metadata of the requests that pass.
	Metadata     map[string]any
	Coordination Coordination
	// Hold says that requests reserve an estimate until their cost is known; nil: they cost their hits.
	Hold     *Hold
	Counters *RuleCounters
	// MetricNames say how much of a request's values the statistics may name.
	MetricNames MetricNaming
}

// FullName is the domain and the path, as in "edge.tier_gold.api_key".
func (r *Rule) FullName() string { return r.Domain + "." + r.Path }

// MetricNaming says which of the request's values a rule's statistics name.
type MetricNaming struct {
	Detailed bool   // detailed_metric: all of them
	Levels   []bool // value_to_metric at each level of the path; nil: at none
	Shared   []bool // share_threshold at each level, which is named by its pattern; nil: at none
}

// FromRequest reports whether statistics name anything of the request.
func (m *MetricNaming) FromRequest() bool { return m.Detailed || m.Levels != nil }

// AppendLevel appends the name of one level, after NameSeparator if it is not
// the first. key and value are the request's.
func (r *Rule) AppendLevel(b []byte, level int, key, value string) []byte {
	if level > 0 {
		b = append(b, NameSeparator...)
	}
	m := &r.MetricNames
	if m.Shared != nil && m.Shared[level] || !m.Detailed && !m.Levels[level] {
		return append(b, r.Keys[level]...)
	}
	b = append(b, key...)
	if value != "" {
		b = append(append(b, '_'), value...)
	}
	return b
}

// NameSeparator stands between the levels of a name.
const NameSeparator = "\x00"
