package ratelimit

import (
	"hash/maphash"
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

// Restore gives back the names of counters that are not used any more.
func (b *NameBudget) Restore(c *RuleCounters) {
	if t := c.names.Load(); t != nil {
		b.left.Add(int64(t.size.Load()))
	}
}

// names counts by name. It is a hash table with open addressing that only
// grows, so that it is read without a lock.
type names struct {
	slots [2 * MaxNames]atomic.Pointer[namedCounters]
	size  atomic.Int32
	other RuleCounters
}

type namedCounters struct {
	name string
	RuleCounters
}

var nameSeed = maphash.MakeSeed()

// Named returns the counters of one name below these, or of OtherName if there
// are too many. It allocates when a name is new, and takes no lock.
func (c *RuleCounters) Named(name []byte) *RuleCounters {
	t := c.names.Load()
	if t == nil {
		c.names.CompareAndSwap(nil, new(names))
		t = c.names.Load()
	}
	if len(name) > MaxNameLen {
		return &t.other
	}
	at := int(maphash.Bytes(nameSeed, name) % uint64(len(t.slots)))
	for {
		slot := &t.slots[at]
		n := slot.Load()
		if n == nil {
			if n = t.add(slot, name, c.Budget); n == nil {
				return &t.other
			}
		}
		if n.name == string(name) {
			return &n.RuleCounters
		}
		at = (at + 1) % len(t.slots)
	}
}

// add puts a name into a free slot and returns the slot's present value; nil if there is no room.
func (t *names) add(slot *atomic.Pointer[namedCounters], name []byte, budget *NameBudget) *namedCounters {
	if t.size.Add(1) > MaxNames {
		t.size.Add(-1)
		return nil
	}
	if budget != nil && budget.left.Add(-1) < 0 {
		budget.left.Add(1)
		t.size.Add(-1)
		return nil
	}
	n := &namedCounters{name: string(name)}
	if slot.CompareAndSwap(nil, n) {
		return n
	}
	t.size.Add(-1) // another was faster
	if budget != nil {
		budget.left.Add(1)
	}
	return slot.Load()
}

// EachNamed calls f with every name below these counters, and at last with
// OtherName if anything was counted there.
func (c *RuleCounters) EachNamed(f func(name string, c *RuleCounters)) {
	t := c.names.Load()
	if t == nil {
		return
	}
	for i := range t.slots {
		if n := t.slots[i].Load(); n != nil {
			f(n.name, &n.RuleCounters)
		}
	}
	if t.other.Requests() > 0 {
		f(OtherName, &t.other)
	}
}
