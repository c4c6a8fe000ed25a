package account

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// An override is a record next to a key's accounts, in their slot of a Cluster. It is a version byte, as doubles the
// requests, the end, and the time of setting, then the length of a text, and both texts. A ledger reads it in the
// step that settles a message, applies it, and answers with it.

// Overridden is such a record. The zero one is none. It is not safe for concurrent use.
type Overridden struct{ ratelimit.Override }

const (
	overrideRecord = 1
	overrideHead   = 1 + 3*8
	// Special values of the requests.
	isUnlimited, isRemoved = -1, -2
	// overrideKept is the time for which a removed or ended record stays. Otherwise a node that restates an older
	// override after a loss of data restores the removed one.
	overrideKept = time.Hour
)

// overridesOf is the prefix of the names of a ledger's overrides, before the key.
func overridesOf(prefix string) string { return prefix + "o{" }

func overrideOf(prefix, key string) string { return overridesOf(prefix) + key + "}" }

func (r *Overridden) requests() int64 {
	switch {
	case r.Removed:
		return isRemoved
	case r.Unlimited:
		return isUnlimited
	}
	return int64(r.Requests)
}

func (r *Overridden) texts() string {
	return string(binary.AppendUvarint(nil, uint64(len(r.By)))) + r.By + r.Reason
}

// Encode is the record's form at stores.
func (r *Overridden) Encode() []byte {
	b := []byte{overrideRecord}
	for _, n := range []int64{r.requests(), int64(r.Expires), int64(r.Set)} {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return append(b, r.texts()...)
}

// DecodeOverride is the reverse of Encode. No text is no override.
func DecodeOverride(text string) (r Overridden, err error) {
	if text == "" {
		return r, nil
	}
	var n [3]int64
	if len(text) > overrideHead && text[0] == overrideRecord && unpacked(text[1:overrideHead], n[:]) {
		by, size := binary.Uvarint([]byte(text[overrideHead:]))
		rest := text[min(len(text), overrideHead+max(0, size)):]
		if size > 0 && by <= uint64(len(rest)) {
			r.Override = ratelimit.Override{
				Requests: tokens(max(0, n[0])), Unlimited: n[0] == isUnlimited, Removed: n[0] == isRemoved,
				Expires: instant(n[1]), Set: instant(n[2]), By: rest[:by], Reason: rest[by:],
			}
			if n[0] >= isRemoved && checkOverride(&r.Override) == nil && r.Set > 0 {
				return r, nil
			}
		}
	}
	return Overridden{}, fmt.Errorf("%w: an override of %d bytes that begins with %.16x", ErrRecord, len(text), text)
}

func checkOverride(o *ratelimit.Override) error {
	switch {
	case o.Requests < 0, o.Requests > ratelimit.MaxLimit, o.Unlimited && o.Requests != 0,
		o.Expires < 0, o.Expires > lastTime, o.Set < 0, o.Set > lastTime:
		return fmt.Errorf("%w: a limit of %d requests, over at %d", ErrOverride, o.Requests, o.Expires)
	case len(o.By) > ratelimit.MaxOverrideText, len(o.Reason) > ratelimit.MaxOverrideText,
		!utf8.ValidString(o.By), !utf8.ValidString(o.Reason):
		return fmt.Errorf("%w: texts are at most %d bytes of UTF-8", ErrOverride, ratelimit.MaxOverrideText)
	}
	return nil
}

// ErrOverride means that an override is invalid.
var ErrOverride = errors.New("the override is invalid")

// InForce is the override, if it is in force; else nil. It allocates.
func (r *Overridden) InForce(now instant) *ratelimit.Override {
	if r == nil || r.Set == 0 || !r.In(now) {
		return nil
	}
	o := r.Override
	return &o
}

// said is what answers bring of the record: what is in force, or that it was removed. It allocates.
func (r *Overridden) said(now instant) *ratelimit.Override {
	if r == nil || r.Set == 0 || !r.Removed && !r.In(now) {
		return nil
	}
	o := r.Override
	return &o
}

// judge is a claim with the limit of the record.
func (r *Overridden) judge(now instant, c Claim) Claim {
	c.Limit = c.Limit.Under(r.InForce(now))
	return c
}

// override applies the record to a limit.
func (g *Grant) override(r *Overridden, l *ratelimit.Limit) {
	if g.Err == nil && l.Overridable() {
		g.Override = r.said(g.At)
	}
}

// Until is the time from which the record may be dropped.
func (r *Overridden) Until() instant {
	switch {
	case r.Removed:
		return r.Set.Add(overrideKept)
	case r.Expires > 0:
		return min(r.Expires, lastTime).Add(overrideKept)
	}
	return lastTime
}

// OverrideChange sets the override of a key.
type OverrideChange struct {
	Key      string              // at the ledger
	Limit    ratelimit.Limit     // the key's
	Override *ratelimit.Override // nil: it is removed
	Match    ratelimit.Match
	// Again says that a ledger may have lost it: Set stays its version, and one that was set or removed later stays.
	Again bool
	Audit string // as of a claim
}

// Check reports the errors of a change.
func (c *OverrideChange) Check() error {
	switch {
	case !c.Limit.Overridable():
		return ratelimit.ErrOverrides
	case c.Key == "", c.Again && (c.Override == nil || c.Override.Set == 0):
		return errClaim
	case c.Override == nil:
		return checkOverride(&ratelimit.Override{By: c.Match.By})
	}
	return checkOverride(c.Override)
}

// record is the record of the change, without the time of setting.
func (c *OverrideChange) record() Overridden {
	if c.Override == nil {
		return Overridden{ratelimit.Override{Removed: true, By: c.Match.By}}
	}
	return Overridden{*c.Override}
}

// Change makes a change at an instant. It reports whether the record has changed.
func (r *Overridden) Change(now instant, c *OverrideChange) (changed bool, err error) {
	if c.Again {
		if changed = c.Override.Set > r.Set; changed {
			*r = c.record()
		}
		return changed, nil
	}
	has := instant(0)
	if is := r.InForce(now); is != nil {
		has = is.Set
	}
	if !c.Match.Any && c.Match.Set != has {
		return false, ratelimit.ErrOverrideChanged
	}
	set := max(now, r.Set+1)
	*r = c.record()
	r.Set = set
	return true, nil
}

// Answer is the override in force.
func (r *Overridden) Answer(now instant) (o ratelimit.Override) {
	if is := r.InForce(now); is != nil {
		o = *is
	}
	return o
}

// windows are the windows whose holders a change recalls: they may have tokens in hand, or refuse.
func (c *OverrideChange) windows(now instant) []ratelimit.Window {
	if c.Limit.Algorithm == ratelimit.TokenBucket {
		return []ratelimit.Window{0}
	}
	w := c.Limit.WindowAt(now)
	return []ratelimit.Window{w, w + 1}
}

// Overrider is a ledger that keeps overrides of keys, by their names. It is safe for concurrent use, and blocks at
// most until ctx is done. Its methods are those of [ratelimit.Overrider].
type Overrider interface {
	Override(ctx context.Context, key string) (o ratelimit.Override, ok bool, err error)
	// SetOverride also recalls the holders of the key's accounts, so that they claim. With
	// [ratelimit.ErrOverrideChanged] it returns the override in force.
	SetOverride(ctx context.Context, c *OverrideChange) (ratelimit.Override, error)
	Overrides(ctx context.Context, prefix, after string, n int) ([]ratelimit.NamedOverride, error)
}

// MostListed bounds the overrides of one list.
const MostListed = 10_000

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
func (l *Redis) Override(ctx context.Context, key string) (o ratelimit.Override, ok bool, err error) {
	all, now, err := l.overrides(ctx, l.universal().Pipeline(), []string{key})
	if err != nil {
		return o, false, err
	}
	is := all[0].InForce(now)
	return all[0].Answer(now), is != nil, nil
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
			if c.Audit != "" {
				stream := RecordName(l.prefix, c.Key)
				p.XAdd(ctx, &redis.XAddArgs{Stream: stream, MaxLen: eventsKept, Approx: true, Values: []any{
					"override", r.Encode(), "rule", c.Audit, "key", c.Key, "limit", int64(c.changed(r).Limit),
				}})
				p.PExpire(ctx, stream, recordKept)
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
				pipe.Publish(ctx, recallChannel+holder[:min(9, len(holder))], name)
			}
		}
	}
	_, err := pipe.Exec(ctx)
	return err
}

// Overrides implements [Overrider].
func (l *Redis) Overrides(
	ctx context.Context, prefix, after string, n int,
) (found []ratelimit.NamedOverride, err error) {
	n = min(n, MostListed)
	for len(found) < n {
		page := &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + prefix + "\xff", Count: int64(n - len(found))}
		if after >= prefix {
			page.Min = "(" + after
		}
		names, err := l.universal().ZRangeByLex(ctx, l.overridesName(), page).Result()
		if err != nil {
			return nil, fmt.Errorf("redis: %w", err)
		}
		if len(names) == 0 {
			return found, nil
		}
		records, now, err := l.overrides(ctx, l.universal().Pipeline(), names)
		if err != nil {
			return nil, err
		}
		for i := range records {
			if o := records[i].InForce(now); o != nil {
				found = append(found, ratelimit.NamedOverride{Key: names[i], Override: *o})
			} else if records[i].Set == 0 {
				err = errors.Join(err, l.unname(ctx, names[i]))
			}
		}
		if err != nil {
			return nil, err
		}
		after = names[len(names)-1]
	}
	return found, nil
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
