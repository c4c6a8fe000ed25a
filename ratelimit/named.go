package ratelimit

import (
	"maps"
	"slices"
	"sync/atomic"
)

// Bounds of names that come from requests (value_to_metric, detailed_metric,
// limits that requests bring along).
const (
	// MaxNames is how many names of one rule are counted apart.
	MaxNames = 1000
	// MaxNameLen is the longest name that is counted apart, in bytes.
	MaxNameLen = 256
	// OtherName is what all other names are counted under.
	OtherName = "(other)"
)

// NameBudget is how many more names all rules together may have.
type NameBudget struct{ left atomic.Int64 }

// NewNameBudget makes a budget of n names.
func NewNameBudget(n int64) *NameBudget {
	b := new(NameBudget)
	b.left.Store(n)
	return b
}

// take takes the place of one more name, if there is one. Of no budget there always is.
func (b *NameBudget) take() bool {
	if b == nil || b.left.Add(-1) >= 0 {
		return true
	}
	b.give(1)
	return false
}

// give gives back n places.
func (b *NameBudget) give(n int) {
	if b != nil {
		b.left.Add(int64(n))
	}
}

// Restore gives back the names of counters that are not used any more. Requests that have begun before may still count
// there, under no new name.
func (b *NameBudget) Restore(c *RuleCounters) {
	if all := c.names.Swap(&names{other: new(RuleCounters), closed: true}); all != nil {
		b.give(len(all.by))
	}
}

// names counts by name. It is immutable: a new name makes a copy, at most MaxNames times, so that it is read without a
// lock.
type names struct {
	by     map[string]*RuleCounters
	other  *RuleCounters
	closed bool // there are no new names
}

// Named returns the counters of one name below these, or of OtherName if there are too many. It allocates when a name
// is new, and takes no lock. A new name copies the map: a rule has few, and each is read far more often.
func (c *RuleCounters) Named(name []byte) *RuleCounters {
	for {
		all := c.names.Load()
		if all == nil {
			c.names.CompareAndSwap(nil, &names{by: map[string]*RuleCounters{}, other: new(RuleCounters)})
			continue
		}
		if n := all.by[string(name)]; n != nil {
			return n
		}
		if all.closed || len(name) > MaxNameLen || len(all.by) >= MaxNames || !c.Budget.take() {
			return all.other
		}
		more := &names{by: maps.Clone(all.by), other: all.other}
		more.by[string(name)] = new(RuleCounters)
		if !c.names.CompareAndSwap(all, more) {
			c.Budget.give(1) // another was faster
		}
	}
}

// EachNamed calls f with every name below these counters, and at last with OtherName if anything was counted there. The
// names are sorted, so that bounded lists have the same ones each time.
func (c *RuleCounters) EachNamed(f func(name string, c *RuleCounters)) {
	all := c.names.Load()
	if all == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(all.by)) {
		f(name, all.by[name])
	}
	if all.other.Requests() > 0 {
		f(OtherName, all.other)
	}
}
