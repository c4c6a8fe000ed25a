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
	asked *ratelimit.Rule // that the key was last asked under
	in    uint32          // the number of the rule in force then
}

// rule is the one in force for an ask of a key. It allocates when a limit is in force the first time under a rule.
func (s *counterShard) rule(now ledgerTime, k *lent, a *ask) *ratelimit.Rule {
	if k == nil || k.over == nil || !k.over.In(now) || !a.Rule.Limit.Overridable() {
		return a.Rule
	}
	if x := k.over; x.asked != a.Rule {
		s.override(k, &ownOverride{
			x.Overridden, a.Rule, s.rules.number(ruleKey{a.Rule, a.Rule.Limit.Under(&x.Override)}),
		})
	}
	return s.rules.uses[k.over.in].rule
}

// override replaces the override of a key.
func (s *counterShard) override(k *lent, x *ownOverride) {
	if k.over != nil && k.over.asked != nil {
		s.rules.leave(k.over.in)
	}
	k.over = x
}

// overridden tells whether an override is in force.
func (k *lent) overridden(now ledgerTime) bool {
	return k != nil && k.over != nil && k.over.In(now)
}

// adoptOverride takes in a record from another process. Of two the later counts.
func (s *counterShard) adoptOverride(k *lent, x *account.Overridden) {
	if x.Set > 0 && (k.over == nil || k.over.Set < x.Set) {
		own := *x
		own.By, own.Reason = strings.Clone(x.By), strings.Clone(x.Reason) // they are a part of a parcel
		s.override(k, &ownOverride{Overridden: own})
	}
}

// Override implements [ratelimit.Overrider].
func (l *Local) Override(_ context.Context, now instant, a *ask) (x ratelimit.Override, ok bool, err error) {
	if !a.Rule.Limit.Overridable() {
		return x, false, ratelimit.ErrOverrides
	}
	at := l.LedgerNow(now)
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
	at := l.LedgerNow(now)
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
		return o, nil // there is none, and nothing is lost here that another node reports again
	}
	if _, err := next.Change(at, &change); err != nil {
		return next.Answer(at), err
	}
	if c == nil {
		if c = l.tracked.begin(s, at, id, a); c == nil {
			return o, account.ErrFull
		}
	}
	setOwned(c, a.Rule) // it may have been counted under another mode
	s.override(s.beside(c), &next)
	return next.Answer(at), nil
}

// Overrides implements [ratelimit.Overrider]. A part of the keys is held up at a time.
func (l *Local) Overrides(
	_ context.Context, now instant, prefix, after string, n int,
) (all []ratelimit.NamedOverride, _ error) {
	at := l.LedgerNow(now)
	least := func() {
		slices.SortFunc(all, func(a, b ratelimit.NamedOverride) int { return strings.Compare(a.Key, b.Key) })
		all = all[:min(n, len(all))]
	}
	var some []ratelimit.NamedOverride
	for i := range l.tracked.shards {
		s := &l.tracked.shards[i]
		some = some[:0]
		s.mu.Lock()
		for id, k := range s.lent {
			if k.overridden(at) {
				key := string(s.keys.Key(s.keys.Get(id)))
				some = append(some, ratelimit.NamedOverride{Key: key, Override: k.over.Override})
			}
		}
		s.mu.Unlock()
		for _, o := range some {
			o.Key = KeyName([]byte(o.Key))
			if strings.HasPrefix(o.Key, prefix) && o.Key > after {
				all = append(all, o)
			}
		}
		if len(all) > 2*n {
			least()
		}
	}
	least()
	return all, nil
}

var _ ratelimit.Overrider = (*Local)(nil)
