package console

import (
	"cmp"
	"maps"
	"slices"
	"unique"
)

// RuleRates are those of one rule at a node, a second.
type RuleRates struct {
	ID      string  `json:"id"`
	Passed  float64 `json:"passed,omitempty"`
	Refused float64 `json:"refused,omitempty"`
	Alone   float64 `json:"alone,omitempty"`
}

func (r *RuleRates) add(o *RuleRates) {
	r.Passed += o.Passed
	r.Refused += o.Refused
	r.Alone += o.Alone
}

// add adds another node's rates. The slowest node and the worst key count, and rules are left out. P99 of two nodes
// cannot be added: the larger one is the worst case.
func (r *Rates) add(o *Rates) {
	r.Passed += o.Passed
	r.Refused += o.Refused
	r.Failed += o.Failed
	r.Alone += o.Alone
	if o.P99 > 0 { // 0: it had no calls
		r.P99 = max(r.P99, o.P99)
	}
	r.Worst = max(r.Worst, o.Worst)
}

// longestID is the longest name of a rule in a registration, in bytes: the store sends those of each node to each.
const longestID = 1 << 10

// busiestRules are those with the most decisions, at most chartedRules. Rules with long names are left out.
func busiestRules(all []RuleRates) []RuleRates {
	all = slices.DeleteFunc(all, func(r RuleRates) bool { return r.Passed+r.Refused == 0 || len(r.ID) > longestID })
	slices.SortFunc(all, func(a, b RuleRates) int {
		return cmp.Or(cmp.Compare(b.Passed+b.Refused, a.Passed+a.Refused), cmp.Compare(a.ID, b.ID))
	})
	return all[:min(len(all), chartedRules)]
}

// others are the nodes of the fleet but this one, by the rates that they registered last. A rule that is not among the
// busiest of a node lacks that node's part.
type others struct {
	nodes int
	rates Rates
	rules map[string]*RuleRates // at most watchedRules
}

// othersOf leaves out silent nodes, and all of a list that is too old. A silent node's last rates would be drawn as a
// flat line.
func othersOf(f Fleet) (o others) {
	if f.Old {
		return o
	}
	o.rules = map[string]*RuleRates{}
	for i := range f.Nodes {
		n := &f.Nodes[i]
		if n.Here || n.Silent || n.Rates == nil {
			continue
		}
		o.nodes++
		o.rates.add(n.Rates)
		for j := range n.Rates.Rules {
			o.addRule(&n.Rates.Rules[j])
		}
	}
	return o
}

// A rule beyond watchedRules is left out, so that other nodes cannot grow this node's memory.
func (o *others) addRule(r *RuleRates) {
	id := unique.Make(r.ID).Value() // each look has it
	if o.rules[id] == nil {
		if len(o.rules) == watchedRules {
			return
		}
		o.rules[id] = &RuleRates{ID: id}
	}
	o.rules[id].add(r)
}

// busiest are the rules with the most decisions in a time, in the order of their names: they keep their columns while
// others overtake them.
func busiest(all []*look) []string {
	decided := map[string]float64{}
	for i := 1; i < len(all); i++ {
		is, was := all[i], all[i-1]
		for id, now := range is.rules {
			if old, ok := was.rules[id]; ok {
				of := now.since(old)
				decided[id] += float64(of[countPassed] + of[countRefused])
			}
		}
		for id, r := range is.others.rules {
			decided[id] += (r.Passed + r.Refused) * is.at.Sub(was.at).Seconds()
		}
	}
	ids := slices.SortedFunc(maps.Keys(decided), func(a, b string) int {
		return cmp.Or(cmp.Compare(decided[b], decided[a]), cmp.Compare(a, b))
	})
	// The order by decisions chooses the rules, and the order by name shows them.
	ids = ids[:min(len(ids), chartedRules)]
	slices.Sort(ids)
	return ids
}
