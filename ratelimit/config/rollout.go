package config

import "slices"

// Effect is what a change of one of some fields does to a fleet that shares a store
// and gets its new rules node by node.
type Effect struct {
	Fields []string // as [FieldChange] names them, or a [ChangeKind]
	// Anew says that budgets count from nothing: the keys are others.
	Anew bool
	// Spent is what becomes of tokens that were spent in the window, Leases of the
	// leases that nodes hold, and Meanwhile is what holds while nodes differ.
	Spent, Leases, Meanwhile string
}

// Effects has every field of a rule, and every kind of change, once.
var Effects = []Effect{
	{
		Fields: []string{"requests_per_unit", "burst"},
		Spent: "count on. If more was spent than the new limit, requests are refused until the window ends; a " +
			"bucket holds at most its new burst at once",
		Leases: "nodes with the old rules go on under the old limit; a node with the new rules asks the store before " +
			"it spends on",
		Meanwhile: "the larger of the two limits holds for the fleet",
	},
	{
		Fields: []string{
			"unit", "unit_multiplier", "billing.day", "billing.time_zone", "algorithm", "share_threshold",
		},
		Anew:  true,
		Spent: "are forgotten: the budget counts from nothing under the new rule",
		Leases: "are spent by nodes with the old rules until they end; a node with the new rules leaves its own, and " +
			"gives back what is unspent",
		Meanwhile: "both budgets are open: the fleet may admit the old limit and the new one",
	},
	{
		Fields: []string{"mode"},
		Spent: "count on in the store. Without one, a change to or from routing counts from nothing: other nodes " +
			"keep the accounts",
		Leases: "are spent until they end, whatever the mode",
		Meanwhile: "nodes of both modes share the store's budget; with approx among them, the drift budget comes on " +
			"top",
	},
	{
		Fields: []string{"max_nodes", "drift_budget"},
		Spent:  "count on",
		Leases: "stay",
		Meanwhile: "under approx a node uses the smaller of its two shares until a window begins in which all nodes " +
			"have the new rules; when the store is gone, a node's local share is by its own rules",
	},
	{
		Fields:    []string{"lease.size", "lease.min", "lease.max", "lease.ttl"},
		Spent:     "count on",
		Leases:    "stay as they are; the next claim of a node is by its new rules",
		Meanwhile: "the limit holds as always",
	},
	{
		Fields: []string{"hold"},
		Spent:  "count on; what requests in flight hold is settled by what they held",
		Leases: "stay",
		Meanwhile: "each node holds by its own rules, and settles what any node has held; what is held without an id " +
			"(on) is settled by the amount of the node that hears of the cost",
	},
	{
		Fields: []string{"lease.reserve"},
		Spent:  "count on",
		Leases: "stay; nodes with the new rules claim up to the limit less the new reserve",
		Meanwhile: "a node uses the smaller of its two shares until a window begins in which all nodes with a seat " +
			"have the new rules; nodes without a seat, and those of rules without a reserve, grant themselves what " +
			"is reserved: the fleet may admit the larger reserve beyond the limit",
	},
	{
		Fields:    []string{"reclaim"},
		Spent:     "count on",
		Leases:    "are reclaimed early only if they were claimed as eager",
		Meanwhile: "the bound of eager holds: one lease for each node that goes silent",
	},
	{
		Fields:    []string{"on_store_failure", "local_cap", "max_staleness"},
		Spent:     "count on",
		Leases:    "stay",
		Meanwhile: "when the store is gone, each node decides by its own rules",
	},
	{
		Fields:    []string{"low_watermark", "check_timeout", "store_deadline", "sync_interval"},
		Spent:     "count on",
		Leases:    "stay",
		Meanwhile: "nodes wait differently for the store; the bounds hold",
	},
	{
		Fields:    []string{"unlimited", "rate_limit"},
		Spent:     "of the limited rule are forgotten when their window ends",
		Leases:    "are given back by nodes whose rule is unlimited",
		Meanwhile: "nodes whose rule is unlimited admit all, and charge nothing; the others keep the limit",
	},
	{
		Fields: []string{"debt"},
		Spent:  "count on",
		Leases: "stay",
		Meanwhile: "a claim of a node whose rule says debt: carry has the debt of the window before count for " +
			"all nodes",
	},
	{
		Fields:    []string{"on_deny", "shadow_mode", "quota_mode", "replaces"},
		Spent:     "count on",
		Leases:    "stay",
		Meanwhile: "each node answers and charges by its own rules: a request that one refuses, another may admit",
	},
	{
		Fields:    []string{"name", "metadata", "detailed_metric", "value_to_metric", "audit"},
		Spent:     "count on",
		Leases:    "stay",
		Meanwhile: "answers, statistics and records of nodes differ; decisions do not",
	},
	{
		Fields:    []string{string(Added)},
		Spent:     "count from the first request that a node with the rule decides",
		Leases:    "there are none yet",
		Meanwhile: "nodes without the rule decide by what matched before, or admit all where nothing did",
	},
	{
		Fields:    []string{string(Removed)},
		Spent:     "are forgotten when their window ends",
		Leases:    "are given back",
		Meanwhile: "nodes that still have the rule keep its limit; the others decide by what matches now, or admit all",
	},
	{
		Fields:    []string{string(Reordered)},
		Spent:     "count on where the unit and the algorithm of the rule that matches now are the same",
		Leases:    "stay under the same condition",
		Meanwhile: "nodes decide the same request by different rules, and the larger limit holds for the fleet",
	},
}

// EffectsOf are those of one change, without repetition, in the order of Effects.
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
	return effects
}
