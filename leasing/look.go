package leasing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// books is a ledger with a view of accounts. account.Redis and account.CAS are books. Look returns nil if there is no
// account.
type books interface {
	Look(ctx context.Context, key string, w window, limit *ratelimit.Limit) (*ratelimit.AccountLook, error)
}

// Look implements [ratelimit.Inspector]. If the ledger has no view of accounts, it shows this node's last answer. It
// reads the store for a view, with the caller's deadline, and changes nothing.
func (f *Fleet) Look(ctx context.Context, now instant, a *ask) ratelimit.Look {
	rule := a.Rule
	v := ratelimit.Look{Account: f.keyName(a.Key)}
	w, part := f.lookHere(now, a, &v)
	of, ok := f.ledger.(books)
	if !ok {
		return v
	}
	// This node has no window of the key: it takes the current one by the ledger's time.
	if w == 0 && rule.Limit.Algorithm != ratelimit.TokenBucket {
		there := f.laneOf(v.Account).time()
		early, _ := there.Between(now)
		w = rule.Limit.WindowAt(early)
	}
	alone := f.alone.DecideShare(now, &ask{Rule: rule, Key: a.Key, Kind: ratelimit.Peek}, f.Nodes()).Remaining
	// In an outage, this node admits the smaller of its own budget and its part of the rest.
	v.Alone = max(0, min(alone, part))
	is, err := of.Look(ctx, v.Account, w, &rule.Limit)
	if err != nil {
		v.LedgerError = err.Error()
	}
	v.Ledger = is
	if is != nil {
		for i := range is.Holders {
			is.Holders[i].Here = account.NodeOf(is.Holders[i].Holder) == f.name
		}
	}
	return v
}

// lookHere shows this node's state of a key, and returns its window and its own part in an outage. 0 and no bound: this
// node has no part of an account.
func (f *Fleet) lookHere(now instant, a *ask, v *ratelimit.Look) (w window, part tokens) {
	s, _, c := f.find(a.Key)
	defer s.mu.Unlock()
	if c == nil || c.Val.Deadline == 0 {
		return 0, ratelimit.MaxLimit
	}
	var scratch use
	k := s.view(c, &scratch)
	w = k.Window
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		w = 0
	}
	limit := k.rule().Limit.Capacity()
	v.Lease = &ratelimit.LeaseLook{
		Window: w, Granted: k.Taken, Spent: k.Spent, Unspent: k.InHand(now), Drifted: k.Drift(),
		Elsewhere: max(0, limit-k.Sum), Expires: k.Deadline.Sub(now), Resets: k.CurrentUntil.Sub(now),
		Answered: now.Sub(k.LastAnswer),
		Refuses:  k.Refuses(now), PerSecond: k.Demand.PerSec, Asking: k.use.flight != nil,
		Reported: k.Reported(), Failing: f.lane(k).Refuses(now),
	}
	if k.LastAnswer != 0 {
		v.Ledger = &ratelimit.AccountLook{Window: w, Limit: limit, Free: limit - k.Sum, Charged: k.Sum}
	}
	return w, f.ownPart(now, &k, k.rule())
}

// Hottest implements [ratelimit.Inspector]. It looks at busy keys, one lock at a time.
func (f *Fleet) Hottest(now instant, n int) []ratelimit.HotKey {
	var all local.Hottest
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		for _, u := range s.uses {
			c := s.keys.Get(u.id)
			if c == nil || now.Sub(u.Demand.LastUse) > restAfter { // nil: no key has it
				continue
			}
			k := s.with(c, u)
			rate := u.Demand.Rate(now)
			all.Add(n, rate, func() ratelimit.HotKey {
				rule := k.rule()
				return ratelimit.HotKey{
					Account: f.keyName(k.key()), Rule: rule.FullName(), PerSecond: rate,
					Spent: k.Spent, Unspent: k.InHand(now), Limit: rule.Limit.Capacity(),
				}
			})
		}
		s.mu.Unlock()
	}
	return all.Keys()
}

// Drop implements [ratelimit.Inspector]. It waits until the ledger has what this node reports of the key, and until
// nothing earlier is under way, or until ctx is done. An answer to a message that was written before this call may be
// older than a reset at the ledger, so another message follows.
func (f *Fleet) Drop(ctx context.Context, _ instant, key []byte) (had bool, err error) {
	for {
		m, had, earlier := f.drop(f.clock(), key)
		switch {
		case !had:
			return false, nil
		case m == nil:
			return true, errReset
		}
		select {
		case <-m.done:
		case <-ctx.Done():
			return true, errReset
		}
		if !earlier && m.err == nil {
			return true, nil
		}
		pause(ctx, dropAgain)
	}
}

// dropAgain is the pause after an answer that did not count.
const dropAgain = 10 * time.Millisecond

// pause blocks for a time, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// drop returns the message that gives the tokens back; nil: none can be sent now. earlier: it was written before, and
// another one must follow.
func (f *Fleet) drop(now instant, key []byte) (m *keyMessage, had, earlier bool) {
	had = f.visit(now, key, func(k entry) {
		k.Recalled(now)
		underWay := tokens(0)
		if sent := k.use.flight; sent != nil && sent.written {
			underWay = sent.beyond.Charged
		}
		k.Forgive(underWay)
		m, _ = f.joinLocked(k)
		earlier = m != nil && m.written
	})
	return m, had, earlier
}

var errReset = errors.New("the store did not answer")

// Reset implements [ratelimit.Inspector]: it refunds the whole account, and the previous one where that counts. Nodes
// can still spend their tokens in hand of that moment. Both drops forgive this node's own refusals: the second one,
// those since the first.
func (f *Fleet) Reset(ctx context.Context, now instant, a *ask) error {
	rule, name := a.Rule, f.keyName(a.Key)
	w := window(0)
	if rule.Limit.Algorithm != ratelimit.TokenBucket {
		there := f.laneOf(name).time()
		early, late := there.Between(now)
		w = rule.Limit.WindowAt(early)
		if there.At == 0 || w != rule.Limit.WindowAt(late) {
			return errReset
		}
	}
	f.drop(now, a.Key)
	// A holder that refunds the charges of others. Its name is used once, and is no node's. Otherwise the ledger would
	// drop this node's own record as one of an earlier name, and the next statement of its total would charge it again.
	c := account.Claim{Key: name, Window: w, Limit: rule.Limit, Holder: account.NewHolder(), Seq: 1}
	var err error
	if rule.Limit.Algorithm == ratelimit.SlidingWindow {
		was := c
		was.Window--
		err = f.refundAll(ctx, rule, was)
	}
	err = errors.Join(err, f.refundAll(ctx, rule, c))
	f.drop(now, a.Key)
	return err
}

// refundAll refunds the sum that the first claim shows. The first claim states nothing, and shows the sum. The second
// states a total below 0 by as much, and shows whether it counted. Claims in between by others only change the rest.
func (f *Fleet) refundAll(ctx context.Context, rule *ratelimit.Rule, c account.Claim) error {
	for refunded := tokens(0); ; c.Seq++ {
		var g [1]account.Grant
		_, _, err := f.ledger.Settle(ctx, []account.Claim{c}, g[:])
		f.audit(rule, &c, &g[0])
		if err != nil || g[0].Err != nil {
			return errors.Join(errReset, err, g[0].Err)
		}
		if refunded > 0 || g[0].Sum <= 0 {
			return nil
		}
		refunded = g[0].Sum
		c.Taken, c.Spent = c.Taken-refunded, c.Spent-refunded
	}
}
