package config

// Step is the match of one entry of a descriptor. `sluice explain` and the console show it.
type Step struct {
	Entry   string `json:"entry"`   // key=value
	Matched string `json:"matched"` // in the rules: key, key_value or key_pattern; "": no match
	Why     string `json:"why"`
}

// Explain shows the match of a descriptor, level by level, as in Match. It stops at the first entry without a match:
// the request has no rule then.
func (d *Domain) Explain(entries []Entry) []Step {
	var steps []Step
	at := d.root
	for i := range entries {
		e := &entries[i]
		step := Step{Entry: e.Key + "=" + e.Value}
		n := at.find(e)
		if n == nil {
			step.Why = "no value, pattern or default of this key matches"
			if at[e.Key] == nil {
				step.Why = "no rule has this key at this level"
			}
			return append(steps, step)
		}
		step.Matched = n.segment(e.Key)
		switch {
		// In the order of Domain.Match.
		case n.exact:
			step.Why = "the value is the rule's"
		case n.share:
			step.Why = "the first pattern that matches; all its values share one budget"
		case n.nth > 0:
			step.Why = "the first pattern that matches"
		default:
			step.Why = "the default of this key: no value or pattern matches"
		}
		at = n.below
		if i == len(entries)-1 {
			switch {
			case n.rule == nil:
				step.Why += "; it has no rate_limit"
			case n.rule.Unlimited:
				step.Why += "; it is unlimited"
			}
		}
		steps = append(steps, step)
	}
	return steps
}
