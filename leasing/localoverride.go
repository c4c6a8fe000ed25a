package leasing

import (
	"context"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The override of a key at a node that decides alone, or that owns the key, is a record beside its counter: the key has
// a counter for as long as there is the record, and where accounts move, both do. Each change counts from the next ask
// on. All of them are lost with the process.

// ownOverride is a key's.
type ownOverride struct {
	account.Overridden
	asked, in *ratelimit.Rule // that the key was last asked under, and that in force
}

// rule is the one in force for an ask. It allocates when a key is asked the first time under an override, or a rule.
func (k *lent) rule(now ledgerTime, a *ask) *ratelimit.Rule {
	if k == nil || k.over == nil || !k.over.In(now) || !a.Rule.Limit.Overridable() {
		return a.Rule
	}
	x := k.over
	if x.asked != a.Rule {
		own := *a.Rule
		own.Limit = own.Limit.Under(&x.Override)
		x.asked, x.in = a.Rule, &own
	}
	return x.in
}

// overridden tells whether an override is in force.
func (k *lent) overridden(now ledgerTime) bool {
	return k != nil && k.over != nil && k.over.InForce(now) != nil
}

// adopt takes in a record from another process. Of two the later counts.
func (k *lent) adopt(x *account.Overridden) {
	if x.Set > 0 && (k.over == nil || k.over.Set < x.Set) {
		k.over = &ownOverride{Overridden: *x}
	}
}

// Override implements [ratelimit.Overrider].
func (l *Local) Override(_ context.Context, now instant, a *ask) (x ratelimit.Override, ok bool, err error) {
	if !a.Rule.Limit.Overridable() {
		return x, false, ratelimit.ErrOverrides
	}
	at := l.ledgerNow(now)
	s, _, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	if k := s.of(c); k.overridden(at) {
		return k.over.Override, true, nil
	}
	return x, false, nil
}

// SetOverride implements [ratelimit.Overrider].
func (l *Local) SetOverride(
	_ context.Context, now instant, a *ask, is *ratelimit.Override, match ratelimit.Match,
) (o ratelimit.Override, err error) {
	at := l.ledgerNow(now)
	change := account.OverrideChange{Key: string(a.Key), Limit: a.Rule.Limit, Override: is, Match: match}
	if err := change.Check(); err != nil {
		return o, err
	}
	s, id, c := l.tracked.locked(a.Key)
	defer s.mu.Unlock()
	next := ownOverride{}
	if k := s.of(c); k != nil && k.over != nil {
		next.Overridden = k.over.Overridden
	} else if is == nil && match.Any {
		return o, nil // there is none, and nothing is lost here that somebody tells again
	}
	if _, err := next.Change(at, &change); err != nil {
		return next.Answer(at), err
	}
	if c == nil {
		if c = l.tracked.add(s, at, id, a.Key, a.Rule.Limit.Algorithm); c == nil {
			return o, account.ErrFull
		}
		c.Val = l.tracked.before(a)
	}
	s.beside(c).over = &next
	return next.Answer(at), nil
}

// Overrides implements [ratelimit.Overrider]. A part of the keys is held up at a time.
func (l *Local) Overrides(
	_ context.Context, now instant, prefix, after string, n int,
) (all []ratelimit.NamedOverride, _ error) {
	at := l.ledgerNow(now)
	least := func() {
		slices.SortFunc(all, func(a, b ratelimit.NamedOverride) int { return strings.Compare(a.Key, b.Key) })
		all = all[:min(n, len(all))]
	}
	for i := range l.tracked.shards {
		s := &l.tracked.shards[i]
		s.mu.Lock()
		for id, k := range s.lent {
			if !k.overridden(at) {
				continue
			}
			name := KeyName(s.keys.Key(s.keys.Get(id)))
			if strings.HasPrefix(name, prefix) && name > after {
				all = append(all, ratelimit.NamedOverride{Key: name, Override: k.over.Override})
			}
		}
		s.mu.Unlock()
		if len(all) > 2*n {
			least()
		}
	}
	least()
	return all, nil
}

var _ ratelimit.Overrider = (*Local)(nil)
