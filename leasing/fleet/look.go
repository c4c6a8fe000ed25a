package fleet

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Look implements [ratelimit.Inspector]. Of the ledger it shows what was last heard.
func (f *Fleet) Look(_ context.Context, now instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: leasing.KeyName(a.Key)}
	s, _, k := f.find(a)
	defer s.mu.Unlock()
	if k == nil || k.Heard == 0 {
		return v
	}
	v.Lease = &ratelimit.LeaseLook{
		Window: k.Window, Granted: k.Taken, Spent: k.Spent, Unspent: k.InHand(now), Drifted: k.Drift(),
		Elsewhere: max(0, k.rule.Limit.Capacity()-k.Sum), Expires: k.Deadline.Sub(now), Resets: k.Till.Sub(now),
		Heard: now.Sub(k.Heard), Refuses: k.Refuses(now), PerSecond: k.Demand.PerSec, Asking: k.flight != nil,
		Failing: f.lane.refuses(now),
	}
	v.Ledger = &ratelimit.AccountLook{
		Window: k.Window, Limit: k.rule.Limit.Capacity(), Free: k.rule.Limit.Capacity() - k.Sum, Charged: k.Sum,
	}
	return v
}

// Hottest implements [ratelimit.Inspector].
func (f *Fleet) Hottest(now instant, n int) []ratelimit.HotKey {
	var all []ratelimit.HotKey
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for _, k := range s.keys {
			if k.Heard != 0 && !k.Idle(now) {
				all = append(all, ratelimit.HotKey{
					Account: k.name, Rule: k.rule.Domain + "." + k.rule.Path,
					PerSecond: k.Demand.PerSec, Spent: k.Spent, Unspent: k.InHand(now), Limit: k.rule.Limit.Capacity(),
				})
			}
		}
		s.mu.Unlock()
		slices.SortFunc(all, func(x, y ratelimit.HotKey) int { return cmp.Compare(y.PerSecond, x.PerSecond) })
		all = all[:min(n, len(all))]
	}
	return all
}

// Drop implements [ratelimit.Inspector].
func (f *Fleet) Drop(now instant, key []byte) bool {
	s, id, k := f.find(&ratelimit.Ask{Key: key})
	defer s.mu.Unlock()
	if k == nil {
		return false
	}
	k.Recalled(now)
	f.launchLocked(s, id, k)
	return true
}

var errReset = errors.New("the ledger could not be asked")

// Reset implements [ratelimit.Inspector]: it refunds all that the account has. Tokens that nodes have in hand at that
// moment are spent besides.
func (f *Fleet) Reset(ctx context.Context, now instant, a *ratelimit.Ask) error {
	there := f.lane.time()
	early, late := there.Between(now)
	w, ttl := a.Rule.Limit.WindowAt(early), time.Duration(0)
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		w, ttl = 0, hold.Slot(&a.Rule.Limit)
	} else if there.At == 0 || w != a.Rule.Limit.WindowAt(late) {
		return errReset
	}
	// Under a name of its own, which is used once: a holder that refunds what others were charged.
	by := f.nextName()
	c := account.Claim{
		Key: leasing.KeyName(a.Key), Window: w, Limit: a.Rule.Limit, Holder: by, Seq: 1, Share: 1,
		TTL: ttl, Audit: account.AuditOf(a.Rule),
	}
	for refunded := tokens(0); ; c.Seq++ {
		var g [1]account.Grant
		_, _, err := f.ledger.Settle(ctx, []account.Claim{c}, g[:])
		if f.audit(&c, &g[0]); err != nil || g[0].Err != nil {
			return errors.Join(errReset, err, g[0].Err)
		}
		if refunded > 0 || g[0].Sum <= 0 {
			return nil
		}
		refunded = g[0].Sum
		c.Taken, c.Spent = c.Taken-refunded, c.Spent-refunded
	}
}
