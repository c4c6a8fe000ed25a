package account

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// LookThrough sets a separate client for the views of users, so that they and claims never wait for each other's
// connections. Call it before the ledger is used.
func (l *Redis) LookThrough(people redis.UniversalClient) { l.people = people }

// Look reads an account for a view; nil: there is none. It blocks at most until ctx is done. The account is one hash,
// so its fields are of one instant. The time and the previous sum may be a moment later. Crash reclaim uses the view,
// too: its claim has the Seq that was read plus 1, and is overtaken if the holder was faster.
func (l *Redis) Look(
	ctx context.Context, key string, w ratelimit.Window, limit *ratelimit.Limit,
) (*ratelimit.AccountLook, error) {
	client := l.people
	if client == nil {
		return nil, fmt.Errorf("%w: no state was requested", ErrAnswer)
	}
	pipe := client.Pipeline()
	name := l.nameOf(key, w)
	fields, at := pipe.HGetAll(ctx, name), TimeOf(ctx, pipe, name)
	before := pipe.HGet(ctx, l.nameOf(key, w-1), "sum")
	_, _ = pipe.Exec(ctx) // each has its own error
	if err := fields.Err(); err != nil {
		return nil, fmt.Errorf("redis: %w", err)
	}
	now, err := TimeIn(at)
	if err != nil {
		return nil, err
	}
	var v *ratelimit.AccountLook
	if len(fields.Val()) > 0 {
		k, err := keptIn(fields.Val())
		if err != nil {
			return nil, err
		}
		v = k.look(now, limit)
	}
	was, err := before.Int64()
	return withBefore(v, w, now, limit, tokens(was), err == nil), nil
}

// withBefore adds the counting part of the previous window to an account, like the next claim. was is that window's
// sum, if it is known. There may be no account, also afterwards. A window without an account has no usage of its own,
// and a sliding one still counts the previous one's.
func withBefore(
	v *ratelimit.AccountLook, w ratelimit.Window, now instant, limit *ratelimit.Limit, was tokens, known bool,
) *ratelimit.AccountLook {
	if v == nil && known && looksBack(limit) {
		v = &ratelimit.AccountLook{Limit: limit.Capacity()}
	}
	if v == nil {
		return nil
	}
	s := spanOf(limit, w)
	v.Window, v.Charged = w, v.Charged+s.before(now, limit, was)
	v.Free = v.Limit - v.Charged
	return v
}

// keptIn is the account in the fields of a hash, as far as views show it. A field of another form is left out, except
// the sum: the view then shows fewer holders.
func keptIn(fields map[string]string) (*kept, error) {
	// unpacked reads as many doubles as its slice has places: 6 of a bucket, 3 of a holder's claim.
	k, n := &kept{}, [6]int64{}
	if unpacked(fields["b"], n[:]) { // level, ...
		k.bucket = &bucket{level: n[0], carry: n[1], at: instant(n[2]), hand: tokens(n[3]), old: tokens(n[4])}
	} else if sum, err := strconv.ParseInt(fields["sum"], 10, 64); err == nil {
		k.sum = tokens(sum)
	} else {
		return nil, fmt.Errorf("%w: the account's sum is %.40q", ErrAnswer, fields["sum"])
	}
	for name, text := range fields {
		// "sum", "a" and the claims ("c:") are no totals of holders.
		of, ours := strings.CutPrefix(name, "h:")
		h, err := strconv.ParseUint(of, 16, 64)
		taken, err2 := strconv.ParseInt(text, 10, 64)
		if !ours || err != nil || err2 != nil {
			continue
		}
		r := record{holder: ratelimit.Holder(h), taken: tokens(taken)}
		if unpacked(fields["c:"+of], n[:3]) {
			r.seq = uint64(n[0])
			r.spent = tokens(n[1])
			r.fence = ratelimit.Fence(n[2])
		}
		k.records = append(k.records, r)
	}
	return k, nil
}
