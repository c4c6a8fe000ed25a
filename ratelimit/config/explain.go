package config

// Step is the match of one entry of a descriptor.
type Step struct {
	Entry   string `json:"entry"`   // key=value
	Matched string `json:"matched"` // in the rules: key, key_value or key_pattern; "": no match
	Why     string `json:"why"`
}

// Explain shows the match of a descriptor, level by level, as in Match.
func (d *Domain) Explain(entries []Entry) []Step {
	var steps []Step
	at := d.root
	for i := range entries {
		e := &entries[i]
		step := Step{Entry: e.Key + "=" + e.Value}
		n := at.find(e)
		switch s := at[e.Key]; {
		case s == nil:
			step.Why = "no rule has this key at this level"
		case n == nil:
			step.Why = "no value, pattern or default of this key matches"
		case n == s.exact[e.Value]:
			step.Matched, step.Why = e.Key+"_"+e.Value, "the value is the rule's"
		case n == s.bare:
			step.Matched, step.Why = e.Key, "the default of this key: no value or pattern matches"
		default:
			step.Matched, step.Why = e.Key+"_"+n.pattern.text, "the first pattern that matches"
			if n.share {
				step.Why += "; all its values share one budget"
			}
		}
		if n == nil {
			return append(steps, step)
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
