package metrics

import "sync/atomic"

// OverrideResult is what became of a change of an override.
type OverrideResult uint8

// The results.
const (
	OverrideSet OverrideResult = iota
	OverrideRemoved
	OverrideConflict // it was not the version that the change named
	OverrideRefused  // the rule, or the change itself, did not allow it
	OverrideFailed   // the store, or the owner of the key, did not answer
)

// OverrideResults are their names, by value.
var OverrideResults = [...]string{
	OverrideSet: "set", OverrideRemoved: "removed", OverrideConflict: "conflict", OverrideRefused: "refused",
	OverrideFailed: "failed",
}

// OverrideChanges counts changes of overrides by result. No node counts the overrides: the store has them, and a node
// reads those of its keys only. The zero value is ready, and it is safe for concurrent use.
type OverrideChanges struct {
	Results [len(OverrideResults)]atomic.Uint64 `metric:"sluice_override_changes_total,result"`
}

// Count counts one.
func (c *OverrideChanges) Count(r OverrideResult) { c.Results[r].Add(1) }
