// Effects of a change of rules, as sluice check --from and the documentation state them. Whether usage starts anew
// follows from the key (ratelimit.AppendPrefix): the unit, the algorithm and the entries are in it, the number is not.

package config

import "slices"

// Effect describes a change of some fields for a fleet that shares a store and gets its new rules
// node by node.
type Effect struct {
	Fields []string // names of [FieldChange], or a [ChangeKind]
	// Anew means that usage starts from 0, because the keys change.
	Anew bool
	// Spent describes tokens that were spent in the window, Leases the leases of nodes, and
	// Meanwhile the guarantee while nodes differ.
	Spent, Leases, Meanwhile string
}

// Effects has every field of a rule, and every kind of change, once.
var Effects = []Effect{
	{
		Fields: []string{"requests_per_unit", "burst", "concurrency"},
		Spent: "stay charged. If they exceed the new limit, requests are refused until the window ends, of a sliding " +
			"window until the next one ends. A bucket shrinks to its new burst",
		Leases:    "continue under the old limit on old nodes. Nodes with the new rules claim before they spend",
		Meanwhile: "the larger limit holds for the fleet",
	},
	{
		Fields: []string{
			"unit", "unit_multiplier", "hold_ttl", "billing.day", "billing.time_zone", "algorithm", "share_threshold",
		},
		Anew:      true,
		Spent:     "are dropped: the new rule starts a new account",
		Leases:    "continue on old nodes until they end. Nodes with the new rules return their leases",
		Meanwhile: "the fleet can admit the old limit plus the new one",
	},
	{
		Fields:    []string{"mode"},
		Spent:     "stay charged in the store. Without a store, a change to or from routing starts new accounts",
		Leases:    "continue until they end",
		Meanwhile: "both modes share the account in the store. With approx, the drift budget is added",
	},
	{
		Fields: []string{"max_nodes", "drift_budget"},
		Spent:  "stay charged",
		Leases: "stay",
		Meanwhile: "in mode approx, a node uses the smaller of its old and new share, until all nodes have the new " +
			"rules and a window begins. In an outage, each node uses its own rules",
	},
	{
		Fields:    []string{"lease.size"},
		Spent:     "stay charged",
		Leases:    "stay. The next claim of a node follows its new rules",
		Meanwhile: "the limit holds",
	},
	{
		Fields: []string{"hold"},
		Spent:  "stay charged. Requests in flight are settled by their holds",
		Leases: "stay",
		Meanwhile: "each node takes holds by its own rules, and settles the holds of all nodes. For a hold without " +
			"an id, it subtracts the amount in its own rules",
	},
	{
		Fields:    []string{"reclaim"},
		Spent:     "stay charged",
		Leases:    "are reclaimed early only if they were claimed under the new rule",
		Meanwhile: "the declared bound of reclaim: eager holds",
	},
	{
		Fields:    []string{"on_store_failure"},
		Spent:     "stay charged",
		Leases:    "stay",
		Meanwhile: "in an outage, each node decides by its own rules",
	},
	{
		Fields:    []string{"check_timeout", "store_deadline"},
		Spent:     "stay charged",
		Leases:    "stay",
		Meanwhile: "nodes wait for different times. The bounds hold",
	},
	{
		Fields:    []string{"unlimited", "rate_limit"},
		Spent:     "are dropped when the window of the limited rule ends",
		Leases:    "are returned by nodes with the unlimited rule",
		Meanwhile: "nodes with the unlimited rule admit all requests without a charge. The others keep the limit",
	},
	{
		Fields:    []string{"on_deny", "shadow_mode", "quota_mode", "replaces"},
		Spent:     "stay charged",
		Leases:    "stay",
		Meanwhile: "each node answers and charges by its own rules. One can refuse a request that another admits",
	},
	{
		Fields:    []string{"max_override"},
		Spent:     "stay charged",
		Leases:    "of keys with an override continue under the limit in force at their node",
		Meanwhile: "each node applies overrides by its own rules: the larger limit holds for the fleet",
	},
	{
		Fields:    []string{"name", "metadata", "detailed_metric", "value_to_metric", "audit"},
		Spent:     "stay charged",
		Leases:    "stay",
		Meanwhile: "answers, statistics and records differ. Decisions agree",
	},
	{
		Fields:    []string{string(Added)},
		Spent:     "count from the first request at a node with the rule",
		Leases:    "none yet",
		Meanwhile: "nodes without the rule use the previous match, or admit all",
	},
	{
		Fields:    []string{string(Removed)},
		Spent:     "are dropped when their window ends",
		Leases:    "are returned",
		Meanwhile: "nodes with the rule keep its limit. The others use the new match, or admit all",
	},
	{
		Fields:    []string{string(Reordered)},
		Spent:     "stay charged if unit and algorithm of the new match are the same",
		Leases:    "stay under the same condition",
		Meanwhile: "nodes use different rules for the same request, and the larger limit holds for the fleet",
	},
}

// EffectsOf are the effects of one change, without repetition, in the order of Effects. If a rule becomes unlimited, or
// starts a new account, there is no other effect: nothing else stays charged.
func EffectsOf(c *Change) []*Effect {
	var effects []*Effect
	for i := range Effects {
		e := &Effects[i]
		about := slices.Contains(e.Fields, string(c.Kind)) ||
			slices.ContainsFunc(c.Fields, func(f FieldChange) bool { return slices.Contains(e.Fields, f.Field) })
		if about {
			effects = append(effects, e)
		}
	}
	// The first effect with such a field makes the others untrue.
	for _, alone := range []string{"unlimited", "unit"} {
		for _, e := range effects {
			if slices.Contains(e.Fields, alone) {
				return []*Effect{e}
			}
		}
	}
	return effects
}
