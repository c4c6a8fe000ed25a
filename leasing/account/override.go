package account

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

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
	if r.Set == 0 || !r.In(now) {
		return nil
	}
	o := r.Override
	return &o
}

// inAnswers is the part that answers bring of the record: what is in force, or that it was removed. It allocates.
func (r *Overridden) inAnswers(now instant) *ratelimit.Override {
	if r.Removed {
		o := r.Override
		return &o
	}
	return r.InForce(now)
}

// judge is a claim with the limit of the record.
func (r *Overridden) judge(now instant, c Claim) Claim {
	c.Limit = c.Limit.Under(r.InForce(now))
	return c
}

// override applies the record to a limit.
func (g *Grant) override(r *Overridden, l *ratelimit.Limit) {
	if g.Err == nil && l.Overridable() {
		g.Override = r.inAnswers(g.At)
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
	// Again means that a ledger may have lost it: Set stays its version, and one that was set or removed later stays.
	Again bool
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
	if !c.Match.Any && c.Match.Set != r.Answer(now).Set {
		return false, ratelimit.ErrOverrideChanged
	}
	set := max(now, r.Set+1)
	*r = c.record()
	r.Set = set
	return true, nil
}

// Answer is the override in force; one that is not Set: none.
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
	// Override is the one in force; one that is not Set: none.
	Override(ctx context.Context, key string) (ratelimit.Override, error)
	// SetOverride also recalls the holders of the key's accounts, so that they claim. With
	// [ratelimit.ErrOverrideChanged] it returns the override in force.
	SetOverride(ctx context.Context, c *OverrideChange) (ratelimit.Override, error)
	Overrides(ctx context.Context, prefix, after string, n int) ([]ratelimit.NamedOverride, error)
}

// MostListed bounds the overrides of one list.
const MostListed = 10_000

// listed collects up to n overrides in force. next reads up to n names after a name, and their records.
func listed(
	n int, after string, next func(after string, n int) (names []string, all []Overridden, now instant, err error),
) (found []ratelimit.NamedOverride, err error) {
	for n = min(n, MostListed); len(found) < n; {
		names, all, now, err := next(after, n-len(found))
		if err != nil || len(names) == 0 {
			return found, err
		}
		for i := range all {
			if o := all[i].InForce(now); o != nil {
				found = append(found, ratelimit.NamedOverride{Key: names[i], Override: *o})
			}
		}
		after = names[len(names)-1]
	}
	return found, nil
}
