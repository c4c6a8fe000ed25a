package leasing

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// overrides are those of a process that decides alone, in its memory: lost with it. Each change counts from the next
// ask on. While there are none, an ask costs a look at a number. They are safe for concurrent use.
type overrides struct {
	n    atomic.Int32
	mu   sync.RWMutex
	all  map[string]*ownOverride // guarded by mu; by key
	most int
}

// ownOverride is a key's. The record is guarded by the lock of all.
type ownOverride struct {
	account.Overridden
	last atomic.Pointer[judged]
}

// judged is the rule that a key was last asked under, and that in force.
type judged struct{ asked, rule *ratelimit.Rule }

// rule is the one in force for an ask. It allocates when a key is asked the first time under an override, or a rule.
func (o *overrides) rule(now ledgerTime, a *ask) *ratelimit.Rule {
	if o.n.Load() == 0 || !a.Rule.Limit.Overridable() {
		return a.Rule
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	x := o.all[string(a.Key)]
	if x == nil || x.Removed() || !x.In(now) {
		return a.Rule
	}
	last := x.last.Load()
	if last == nil || last.asked != a.Rule {
		own := *a.Rule
		own.Limit = own.Limit.Under(x.InForce(now))
		last = &judged{a.Rule, &own}
		x.last.Store(last)
	}
	return last.rule
}

// has tells whether a key has an override in force.
func (o *overrides) has(now ledgerTime, key []byte) bool {
	if o.n.Load() == 0 {
		return false
	}
	o.mu.RLock()
	defer o.mu.RUnlock()
	x := o.all[string(key)]
	return x != nil && x.InForce(now) != nil
}

// Override implements [ratelimit.Overrider].
func (l *Local) Override(_ context.Context, now instant, a *ask) (x ratelimit.Override, ok bool, err error) {
	if !a.Rule.Limit.Overridable() {
		return x, false, ratelimit.ErrOverrides
	}
	o, at := &l.overrides, l.ledgerNow(now)
	o.mu.RLock()
	defer o.mu.RUnlock()
	if is := o.all[string(a.Key)]; is != nil {
		return is.Answer(at), is.InForce(at) != nil, nil
	}
	return x, false, nil
}

// SetOverride implements [ratelimit.Overrider].
func (l *Local) SetOverride(
	_ context.Context, now instant, a *ask, is *ratelimit.Override, match ratelimit.Match,
) (ratelimit.Override, error) {
	at := l.ledgerNow(now)
	c := account.OverrideChange{Key: string(a.Key), Limit: a.Rule.Limit, Override: is, Match: match}
	if err := c.Check(); err != nil {
		return ratelimit.Override{}, err
	}
	o := &l.overrides
	o.mu.Lock()
	defer o.mu.Unlock()
	next := &ownOverride{}
	if was := o.all[c.Key]; was != nil {
		next.Overridden = was.Overridden
	} else if is == nil && match.Any {
		return ratelimit.Override{}, nil // there is none, and nothing is lost here that somebody tells again
	} else if len(o.all) >= o.most {
		maps.DeleteFunc(o.all, func(_ string, x *ownOverride) bool { return at >= x.Until() })
		if len(o.all) >= o.most {
			return ratelimit.Override{}, account.ErrFull
		}
	}
	if _, err := next.Change(at, &c); err != nil {
		return next.Answer(at), err
	}
	if o.all == nil {
		o.all = map[string]*ownOverride{}
	}
	o.all[c.Key] = next
	o.n.Store(int32(len(o.all)))
	return next.Answer(at), nil
}

// Overrides implements [ratelimit.Overrider]. Those that are over may be among them. Only the copy of what there is
// holds up decisions: no record changes once it is there.
func (l *Local) Overrides(_ context.Context, prefix, after string, n int) (all []ratelimit.NamedOverride, _ error) {
	o := &l.overrides
	o.mu.RLock()
	copied := maps.Clone(o.all)
	o.mu.RUnlock()
	for key, x := range copied {
		if name := KeyName([]byte(key)); !x.Removed() && strings.HasPrefix(name, prefix) && name > after {
			all = append(all, ratelimit.NamedOverride{Key: name, Override: x.Override})
		}
	}
	slices.SortFunc(all, func(a, b ratelimit.NamedOverride) int { return strings.Compare(a.Key, b.Key) })
	return all[:min(n, len(all))], nil
}

var _ ratelimit.Overrider = (*Local)(nil)
