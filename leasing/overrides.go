package leasing

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/hold"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The override of a key is at the ledger, whose answers contain it. A node keeps it while it tracks the key, in its
// shard's table of rules: a key points to the rule of its requests, and to the one in force.

// judged makes the rule in force answer a waiter, if its rule is still that of the key's requests.
func (w *waiter) judged(is *ruleUse) {
	if is.asked == w.rule && w.ask.Rule != is.rule {
		own := *w.ask
		own.Rule = is.rule
		w.ask = &own
	}
}

// inForce is the limit of an override, for the verdict; nil: the rule's own applies.
func inForce(asked, in *ratelimit.Rule) *ratelimit.Limit {
	if asked == in {
		return nil
	}
	return &in.Limit
}

// overriddenLocked applies the override of an answer to the key, or none. If the ledger has lost an override with its
// data, it queues a restatement. It returns false if the queue is full.
func (f *Fleet) overriddenLocked(now instant, k entry, m *hold.Message, g *account.Grant, lost bool) bool {
	was, over, is := k.shard.rules.uses[k.cell.Val.rule], k.shard.over(k.cell), ratelimit.Override{}
	if !m.Claim.Limit.Overridable() || !was.asked.Limit.Overridable() {
		return true
	}
	if g.Override != nil {
		is = *g.Override
	}
	if is == over {
		return true
	}
	if lost && over.Set > is.Set && (over.Removed || over.In(g.At)) {
		again := over
		select {
		case f.lost <- account.OverrideChange{
			Key: f.keyName(k.key()), Limit: was.asked.Limit, Override: &again, Again: true,
		}:
		default:
			return false
		}
	}
	k.shard.move(k.cell, was.asked, is)
	k.Limited(now, k.rule().Limit.Capacity() < was.rule.Limit.Capacity())
	there := f.lane(k).time()
	k.endsWith(now, &there)
	return true
}

// endsWith makes the node look at the key again when its override may have ended.
func (k entry) endsWith(now instant, there *hold.LedgerClock) {
	if o := k.shard.over(k.cell); o.Expires != 0 {
		k.Till = min(k.Till, there.NotBefore(now, o.Expires))
	}
}

// overLocked claims again if the key's override may have ended.
func (f *Fleet) overLocked(now instant, there *hold.LedgerClock, k entry) {
	over := k.shard.over(k.cell)
	if over.Expires == 0 || now < there.NotBefore(now, over.Expires) {
		return
	}
	k.shard.move(k.cell, k.shard.rules.of(k.cell).asked, ratelimit.Override{})
	const lower = true // in either direction
	k.Limited(now, lower)
}

// recallLocked gives back the tokens in hand, and claims again: the answer to a message in flight may be older.
func (f *Fleet) recallLocked(now instant, k entry) {
	k.Recalled(now)
	if fl, _ := f.joinLocked(k); fl != nil && fl.written {
		fl.again = true
	}
}

const (
	mostLost  = 1 << 12 // overrides to restate
	lostTries = 50      // each, while the ledger answers
)

// restateOverrides restates overrides that the ledger has lost, until ctx is done.
func (f *Fleet) restateOverrides(ctx context.Context, l account.Overrider) {
	pause := time.NewTicker(SweepEvery)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case c := <-f.lost:
			for try := 0; try < lostTries; try++ {
				if f.laneOf(c.Key).dead() { // this node alone may have the override: it waits
					try = -1
				} else if f.tellOverride(ctx, l, &c) == nil {
					break
				}
				select {
				case <-ctx.Done():
					return
				case <-pause.C:
				}
			}
		}
	}
}

func (f *Fleet) tellOverride(ctx context.Context, l account.Overrider, c *account.OverrideChange) error {
	ctx, cancel := context.WithTimeout(ctx, TimeLimit)
	defer cancel()
	_, err := l.SetOverride(ctx, c)
	if err != nil && ctx.Err() == nil {
		f.OnFailure(err)
	}
	return err
}

// overrider is the ledger, if it can override the limit of the ask's key.
func (f *Fleet) overrider(l *ratelimit.Limit) (account.Overrider, error) {
	o, ok := f.ledger.(account.Overrider)
	if !ok || !l.Overridable() {
		return nil, ratelimit.ErrOverrides
	}
	return o, nil
}

// Override implements [ratelimit.Overrider].
func (f *Fleet) Override(ctx context.Context, _ instant, a *ask) (o ratelimit.Override, ok bool, err error) {
	l, err := f.overrider(&a.Rule.Limit)
	if err != nil {
		return o, false, err
	}
	o, err = l.Override(ctx, f.keyName(a.Key))
	return o, o.Set != 0, err
}

// SetOverride implements [ratelimit.Overrider].
func (f *Fleet) SetOverride(
	ctx context.Context, now instant, a *ask, o *ratelimit.Override, match ratelimit.Match,
) (ratelimit.Override, error) {
	l, err := f.overrider(&a.Rule.Limit)
	if err != nil {
		return ratelimit.Override{}, err
	}
	c := account.OverrideChange{
		Key: f.keyName(a.Key), Limit: a.Rule.Limit, Override: o, Match: match,
	}
	is, err := l.SetOverride(ctx, &c)
	if err == nil { // recalls reach the others
		f.visit(now, a.Key, func(k entry) { f.recallLocked(now, k) })
	}
	return is, err
}

// Overrides implements [ratelimit.Overrider].
func (f *Fleet) Overrides(
	ctx context.Context, _ instant, prefix, after string, n int,
) ([]ratelimit.NamedOverride, error) {
	l, ok := f.ledger.(account.Overrider)
	if !ok {
		return nil, ratelimit.ErrOverrides
	}
	return l.Overrides(ctx, prefix, after, n)
}
