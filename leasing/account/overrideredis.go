package account

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// overridesName is a sorted set of the names of keys with a record, now or recently.
func (l *Redis) overridesName() string { return l.prefix + "overrides" }

// now is the time of the server, or of a simulation.
func (l *Redis) now(c *redis.TimeCmd) instant {
	if at := l.at(); at != 0 {
		return at
	}
	return instant(c.Val().UnixMicro())
}

// Override implements [Overrider].
func (l *Redis) Override(ctx context.Context, key string) (o ratelimit.Override, err error) {
	all, now, err := l.overrides(ctx, l.universal().Pipeline(), []string{key})
	if err != nil {
		return o, err
	}
	return all[0].Answer(now), nil
}

// overrides reads the records of keys.
func (l *Redis) overrides(ctx context.Context, pipe redis.Pipeliner, keys []string) ([]Overridden, instant, error) {
	cmds, at := make([]*redis.StringCmd, len(keys)), pipe.Time(ctx)
	for i, key := range keys {
		cmds[i] = pipe.Get(ctx, overrideOf(l.prefix, key))
	}
	_, _ = pipe.Exec(ctx) // each has its own error
	all, errs := make([]Overridden, len(keys)), []error{at.Err()}
	for i, c := range cmds {
		text, err := c.Result()
		if !errors.Is(err, redis.Nil) {
			errs = append(errs, err)
		}
		all[i], err = DecodeOverride(text)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, 0, fmt.Errorf("redis: %w", err)
	}
	return all, l.now(at), nil
}

// SetOverride implements [Overrider]. It adds the name to the set before it writes the record, and once more after:
// Overrides drops names without a record.
func (l *Redis) SetOverride(ctx context.Context, c *OverrideChange) (o ratelimit.Override, err error) {
	if err := c.Check(); err != nil {
		return o, err
	}
	client, named := l.universal(), redis.Z{Member: c.Key}
	if l.people != nil { // a transaction ends the watch of a connection for trips
		client = l.people
	}
	if err := client.ZAdd(ctx, l.overridesName(), named).Err(); err != nil {
		return o, fmt.Errorf("redis: %w", err)
	}
	err = redis.TxFailedErr
	for try := 0; errors.Is(err, redis.TxFailedErr) && try < triesMost; try++ {
		err = client.Watch(ctx, func(tx *redis.Tx) (err error) {
			o, err = l.change(ctx, tx, c)
			return err
		}, overrideOf(l.prefix, c.Key))
	}
	switch {
	case errors.Is(err, redis.TxFailedErr):
		return ratelimit.Override{}, ErrContended
	case err == nil:
		err = errors.Join(l.claimAnew(ctx, c), client.ZAdd(ctx, l.overridesName(), named).Err())
	case errors.Is(err, ratelimit.ErrOverrideChanged), errors.Is(err, ErrRecord):
		return o, err
	}
	if err != nil {
		return o, fmt.Errorf("redis: %w", err)
	}
	return o, nil
}

// change makes a change, unless the record changes in the meantime: then the error is redis.TxFailedErr.
func (l *Redis) change(ctx context.Context, tx *redis.Tx, c *OverrideChange) (o ratelimit.Override, err error) {
	all, now, err := l.overrides(ctx, tx.Pipeline(), []string{c.Key})
	if err != nil {
		return o, err
	}
	r := &all[0]
	changed, err := r.Change(now, c)
	if changed {
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			name := overrideOf(l.prefix, c.Key)
			p.Set(ctx, name, r.Encode(), 0)
			if until := r.Until(); until < lastTime {
				p.PExpireAt(ctx, name, time.UnixMicro(int64(until)))
			}
			return nil
		})
	}
	return r.Answer(now), err
}

// claimAnew recalls the holders of a key's accounts, so that they claim: the change applies to all later claims.
func (l *Redis) claimAnew(ctx context.Context, c *OverrideChange) error {
	client := l.universal()
	at := client.Time(ctx)
	if at.Err() != nil {
		return at.Err()
	}
	pipe := client.Pipeline()
	for _, w := range c.windows(l.now(at)) {
		name := l.nameOf(c.Key, w)
		fields, err := client.HKeys(ctx, name).Result()
		if err != nil {
			return err
		}
		for _, f := range fields {
			if holder, ok := strings.CutPrefix(f, "h:"); ok {
				pipe.Publish(ctx, recallsOf(holder), name)
			}
		}
	}
	if _, err := pipe.Exec(ctx); !redis.HasErrorPrefix(err, "NOPERM") { // a recall may be lost
		return err
	}
	return nil
}

// Overrides implements [Overrider].
func (l *Redis) Overrides(ctx context.Context, prefix, after string, n int) ([]ratelimit.NamedOverride, error) {
	return listed(n, after, func(after string, n int) (names []string, all []Overridden, now instant, err error) {
		page := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(n)}
		if after >= prefix {
			page.Min = "(" + after
		}
		names, err = l.universal().ZRangeByLex(ctx, l.overridesName(), page).Result()
		if err != nil {
			return nil, nil, 0, fmt.Errorf("redis: %w", err)
		}
		if len(names) == 0 {
			return nil, nil, 0, nil
		}
		all, now, err = l.overrides(ctx, l.universal().Pipeline(), names)
		for i := range all {
			if all[i].Set == 0 {
				err = errors.Join(err, l.unname(ctx, names[i]))
			}
		}
		return names, all, now, err
	})
}

// unname drops the name of a key without a record, unless it is set in the meantime.
func (l *Redis) unname(ctx context.Context, key string) error {
	client := l.universal()
	err := client.ZRem(ctx, l.overridesName(), key).Err()
	if n, there := client.Exists(ctx, overrideOf(l.prefix, key)).Result(); n > 0 || there != nil {
		err = errors.Join(err, there, client.ZAdd(ctx, l.overridesName(), redis.Z{Member: key}).Err())
	}
	return err
}

var _ Overrider = (*Redis)(nil)
