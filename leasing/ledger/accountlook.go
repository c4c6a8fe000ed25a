package ledger

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Look is the account as of now, for people. own tells which holders are this
// node's names.
func (a *Account) Look(now ledgerTime, l *ratelimit.Limit, own func(ratelimit.Holder) bool) *ratelimit.AccountLook {
	// The account is brought to now on a copy: a look must not roll a window or fold records, for
	// it would then change what claims are answered.
	c := &ratelimit.Claim{Limit: *l}
	copied := *a
	// Records are changed in place: the copy needs its own.
	copied.others, copied.tills = slices.Clone(a.others), cloned(a.tills)
	copied.advance(now, c)
	if drawable(l) {
		copied.place(copied.window, c)
	}
	v := &ratelimit.AccountLook{Window: copied.window, Limit: l.Capacity(), Relearning: copied.now < copied.relearn}
	// Below 0 shows by how much a window is beyond its limit. A bucket has its level instead.
	if v.Free = copied.free(c, copied.window); l.Algorithm == ratelimit.TokenBucket {
		v.Free = copied.available(c, copied.window)
	}
	v.Charged = v.Limit - v.Free
	copied.each(func(r *record) {
		// Records of the window before are kept for corrections, and charge nothing in this one.
		if r.window != copied.window {
			return
		}
		v.Holders = append(v.Holders, ratelimit.HolderLook{
			Holder: r.holder, Here: own(r.holder), Fence: r.fence, Granted: r.granted + r.inflight, Spent: r.spent,
			Returned:    r.returned,
			Outstanding: r.outstanding(), Expires: r.expires.Sub(copied.now), Closed: r.closed,
		})
	})
	// Records come in no order that means anything; two looks should be comparable.
	slices.SortFunc(v.Holders, func(a, b ratelimit.HolderLook) int { return cmp.Compare(a.Holder, b.Holder) })
	return v
}

//go:embed look.lua
var lookSource string

var lookScript = redis.NewScript(lookSource)

// Account reads the account of a key under that limit, with what was drawn of the window; nil if there
// is neither.
func (l *Redis) Account(ctx context.Context, name string, limit *ratelimit.Limit) (*Account, ledgerTime, error) {
	var there ledgerTime
	// A simulation has a clock of its own. Otherwise times are shown by Redis' clock, as the
	// account has them.
	if there = l.at(); there == 0 {
		t, err := l.looks.Time(ctx).Result()
		if err != nil {
			return nil, 0, fmt.Errorf("redis: %w", err)
		}
		there = ledgerTime(t.UnixMicro())
	}
	rows, err := lookScript.Run(ctx, l.looks, []string{l.prefix + name}).Slice()
	if err != nil {
		return nil, there, fmt.Errorf("redis: %w", err)
	}
	a := new(Account)
	if drawable(limit) {
		w := limit.WindowAt(there)
		// What is no till is none for people either.
		if t, ok := readTill(l.looks.Get(ctx, TillName(l.prefix+name, w)).Val()); ok {
			t.window = w
			a.tills = []till{t}
		}
	}
	// No rows are no account: the key has not been used, or nothing of it counts any more.
	if len(rows) == 0 && len(a.tills) == 0 {
		return nil, there, nil
	}
	for _, row := range rows {
		if err := a.readRow(row); err != nil {
			return nil, there, err
		}
	}
	// A hash has no order, so that readRow could not tell which record is the first.
	if a.first.seq == 0 && len(a.others) > 0 {
		a.first, a.others = a.others[0], a.others[1:]
	}
	a.each(func(r *record) {
		// A bucket's records have 0 for its only window (docs/protocol.md, section 6.3).
		if r.window == 0 {
			r.window = a.window
		}
	})
	return a, there, nil
}

// accountFields is how many numbers settle.lua keeps of an account at most. There are fewer where there
// is nothing to say at the end, and in accounts that releases before have written.
const accountFields = 30

// readRow takes in one field of an account's hash, as look.lua writes it.
func (a *Account) readRow(row any) error {
	cells, ok := row.([]any)
	n := make([]int64, 0, accountFields)
	name := ""
	for i, cell := range cells {
		text, isText := cell.(string)
		// Lua gives numbers back without their fractions and beyond 2^53 inexactly: look.lua writes
		// them as text.
		if ok = ok && isText; i == 0 {
			name = text
			continue
		}
		v, err := strconv.ParseInt(text, 10, 64)
		ok = ok && err == nil
		n = append(n, v)
	}
	switch {
	case ok && name == "a" && slices.Contains([]int{13, 17, 25, 26, accountFields}, len(n)):
		// Shorter ones were written by releases before: what they lack counts as 0.
		// Holders' fields may come before this one, and stay.
		others, tills := a.others, a.tills
		n = append(n, make([]int64, accountFields-len(n))...)
		*a = Account{
			clockwork: clockwork{now: ledgerTime(n[0])},
			fences: fences{
				fence: ratelimit.Fence(n[1]), born: ratelimit.Fence(n[13]), folded: ratelimit.Fence(n[14]),
				renamed: ratelimit.Fence(n[15]), moved: window(n[16]),
			},
			window: window(n[2]), base: tokens(n[3]), prev: tokens(n[4]), recalled: ledgerTime(n[17]),
			overAdmission: overAdmission{
				over: tokens(n[5]), most: tokens(n[10]), left: tokens(n[11]),
				late: tokens(n[12]),
			},
			learning:  learning{relearn: ledgerTime(n[8]), relearned: tokens(n[9])},
			fillLevel: fillLevel{level: n[6], carry: n[7]},
			holders:   holders{others: others},
			unbooked:  unbooked{tills: tills},
		}
		// One number stands for what only a bucket has, and for what only a window has.
		if IsBucket(a.window) {
			a.level += n[25] * Micro
		} else {
			a.shut = window(n[25])
		}
		return nil
	case ok && len(name) > 1 && len(n) == 10:
		holder, err := strconv.ParseUint(name[1:], 36, 64)
		if err != nil {
			break
		}
		a.others = append(a.others, record{
			holder: ratelimit.Holder(holder), seq: uint64(n[0]), window: window(n[1]), expires: ledgerTime(n[2]),
			fence: ratelimit.Fence(n[3]),
			totals: totals{
				granted: tokens(n[4]), inflight: tokens(n[5]), spent: tokens(n[6]), returned: tokens(n[7]),
				over: tokens(n[8]),
			},
			marks: marks{
				closed: n[9]&1 != 0, void: n[9]&2 != 0, direct: n[9]&4 != 0, eager: n[9]&8 != 0, last: n[9]&16 != 0,
				missing: n[9]&32 != 0, recalled: recalled(n[9] / 64 % 4), plenty: n[9]&256 != 0,
			},
		})
		return nil
	}
	return fmt.Errorf("%w: %s", ErrLedgerAnswer, shortened(row))
}
