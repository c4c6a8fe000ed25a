package account

import (
	"context"
	"errors"

	"github.com/sluice-gate/sluice/ratelimit"
)

// recordOf names the record of an override: in the order of keys, so that the key is the end of the name.
func (l *CAS) recordOf(key string) StoreKey { return StoreKey{Name: overridesOf(l.prefix) + key} }

// Override implements [Overrider].
func (l *CAS) Override(ctx context.Context, key string) (o ratelimit.Override, err error) {
	all, now, err := l.overrides(ctx, []StoreKey{l.recordOf(key)})
	if err != nil {
		return o, err
	}
	return all[0].Answer(now), nil
}

// overrides reads records.
func (l *CAS) overrides(ctx context.Context, keys []StoreKey) ([]Overridden, instant, error) {
	s, err := l.read(ctx, keys)
	if err != nil {
		return nil, 0, err
	}
	all, errs := make([]Overridden, len(keys)), make([]error, len(keys))
	for i := range all {
		all[i], errs[i] = DecodeOverride(string(s.Records[i].Data))
	}
	return all, s.Now, errors.Join(errs...)
}

// SetOverride implements [Overrider].
func (l *CAS) SetOverride(ctx context.Context, c *OverrideChange) (o ratelimit.Override, err error) {
	if err := c.Check(); err != nil {
		return o, err
	}
	var failed error
	_, err = l.edit(ctx, []StoreKey{l.recordOf(c.Key)}, func(now instant, _ int, r *Record) *Change {
		is, err := DecodeOverride(string(r.Data))
		changed := false
		if err == nil {
			changed, err = is.Change(now, c)
			o = is.Answer(now)
		}
		if failed = err; !changed {
			return nil
		}
		return &Change{Data: is.Encode(), Until: is.Until()}
	})
	switch {
	case err != nil:
		return ratelimit.Override{}, err
	case failed != nil:
		return o, failed
	}
	return o, l.touch(ctx, c)
}

// touch changes the accounts of an override's key, and recalls their holders. A claim that has read the earlier
// record then fails, because its account has changed.
func (l *CAS) touch(ctx context.Context, c *OverrideChange) error {
	s, err := l.read(ctx, nil)
	if err != nil {
		return err
	}
	var keys []StoreKey
	for _, w := range c.windows(s.Now) {
		keys = append(keys, l.keyOf(&Claim{Key: c.Key, Limit: c.Limit}, w))
	}
	var failed error
	holders := make([][]ratelimit.Holder, len(keys))
	_, err = l.edit(ctx, keys, func(now instant, i int, r *Record) *Change {
		var a state
		if a.read(*r); a.err != nil {
			failed = a.err
			return nil
		}
		if a.version == 0 { // a new account, for as long as a claim may be in flight
			a.over = max(keys[i].Over, now.Add(overrideKept))
			if keys[i].Over == 0 {
				a.bucket = &bucket{}
			}
		}
		holders[i] = a.holders()
		return &Change{Data: a.encode(), Until: a.over}
	})
	for i, k := range keys {
		l.recall(k.Name, holders[i])
	}
	return errors.Join(err, failed)
}

// Lister is a store that can list records.
type Lister interface {
	// List returns up to n names that begin with prefix and come after a name, in the order of their bytes.
	List(ctx context.Context, prefix, after string, n int) ([]string, error)
}

// Overrides implements [Overrider], for a store that is a [Lister].
func (l *CAS) Overrides(ctx context.Context, prefix, after string, n int) ([]ratelimit.NamedOverride, error) {
	store, ok := l.store.(Lister)
	if !ok {
		return nil, ratelimit.ErrOverrides
	}
	begin := overridesOf(l.prefix)
	return listed(n, after, func(after string, n int) (names []string, all []Overridden, now instant, err error) {
		found, err := store.List(ctx, begin+prefix, begin+after, n)
		if err != nil || len(found) == 0 {
			return nil, nil, 0, err
		}
		keys := make([]StoreKey, len(found))
		for i, name := range found {
			keys[i].Name = name
			names = append(names, name[len(begin):])
		}
		all, now, err = l.overrides(ctx, keys)
		return names, all, now, err
	})
}

var _ Overrider = (*CAS)(nil)
