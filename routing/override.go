package routing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// With a store, overrides are there, and any node sets and reads them: the owner reads them with its next message.
// Without one, the owner of a key keeps its override with the account, and hands both over together. Changes go to the
// owner as requests for the key do. A list combines those of all nodes of the ring.

const (
	// changeTime is how long a change waits for the owner of its key, and a list for all nodes.
	changeTime = time.Second
	// mostListed bounds a list of overrides: each has two texts.
	mostListed = 1000
)

var (
	errOwner = errors.New("the key's owner did not answer: read the override to see whether it has changed")
	errAway  = errors.New("the key's account is on its way between nodes: try again")
	errLists = errors.New("nodes are joining or leaving, and not all overrides can be listed: try again")
)

// atOwner has the owner of a key change or read its override.
func (c *core) atOwner(ctx context.Context, now instant, a *ask, x *setting) (ratelimit.Override, error) {
	own := ask{Rule: a.Rule, Key: a.Key, Kind: ratelimit.Peek}
	w := c.newWaiting(ctx, now, []ask{own}, make([]verdict, 1))
	w.states[0].errand, w.until = x, now.Add(changeTime)
	for ; w.advance(now); now = c.clock() {
		c.hands.sleep(w)
	}
	if !x.done {
		return ratelimit.Override{}, errOwner
	}
	return x.is, x.err
}

// Reset clears the usage of a key of this node's own, without a store. The account may be on its way here.
func (c *core) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	if _, err := c.atOwner(ctx, now, a, &setting{look: true}); errors.Is(err, errOwner) {
		return errAway
	}
	return c.local.Reset(ctx, now, a)
}

// listFor sends a peer a list of overrides.
func (c *core) listFor(now instant, id uint64, m *wire.List) *wire.Reply {
	r := &wire.Reply{Id: id}
	if c.inStore() || m.GetMost() > mostListed {
		c.malformed(rejectedAsk)
		r.Status = malformed
		return r
	}
	if c.view.Load().digest != m.GetRing() {
		r.Status = notOwner
		return r
	}
	all, _ := c.local.Overrides(context.Background(), now, m.GetPrefix(), m.GetAfter(), int(m.GetMost()))
	for i := range all {
		r.Listed = append(r.Listed, &wire.Listed{Key: all[i].Key, Record: recordOf(&all[i].Override)})
	}
	return r
}

// listedBy reads a peer's list, which may hold anything.
func listedBy(m *wire.List, r *wire.Reply) (all []ratelimit.NamedOverride, ok bool) {
	for _, l := range r.GetListed() {
		o, err := overrideOf(l.GetRecord())
		if err != nil || o.Set == 0 || !strings.HasPrefix(l.GetKey(), m.GetPrefix()) || l.GetKey() <= m.GetAfter() {
			return nil, false
		}
		all = append(all, ratelimit.NamedOverride{Key: l.GetKey(), Override: o})
	}
	return all, len(all) <= int(m.GetMost())
}

// list asks all nodes of a ring at once. It is errLists where accounts may be on their way.
func (r *Router) list(ctx context.Context, now instant, m *wire.List) ([]ratelimit.NamedOverride, error) {
	r.mu.Lock()
	v, clean := r.view.Load(), r.clean()
	r.mu.Unlock()
	if !clean || !v.stable.Load() {
		return nil, errLists
	}
	m.Ring = v.digest
	var calls []*call
	for addr := range v.peers {
		if !v.ring.Has(addr) {
			continue
		}
		call := newCall(func(f *wire.Frame, id uint64) { f.Asks = append(f.Asks, &wire.Ask{Id: id, List: m}) })
		v.peers[addr].post(call)
		calls = append(calls, call)
	}
	all, err := r.local.Overrides(ctx, now, m.GetPrefix(), m.GetAfter(), int(m.GetMost()))
	for _, call := range calls {
		select {
		case <-call.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if call.status() != answered {
			return nil, errors.Join(errLists, call.err)
		}
		found, ok := listedBy(m, call.reply)
		if !ok {
			r.malformed(rejectedReply)
			return nil, errMessage
		}
		all = append(all, found...)
	}
	slices.SortFunc(all, func(a, b ratelimit.NamedOverride) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(b.Set, a.Set))
	})
	all = slices.CompactFunc(all, func(a, b ratelimit.NamedOverride) bool { return a.Key == b.Key })
	return all[:min(len(all), int(m.GetMost()))], err
}

// stored is who keeps overrides in the store, if there is one.
func (r *Router) stored() (ratelimit.Overrider, bool) {
	if !r.inStore() {
		return nil, false
	}
	return r.base.(baseOf).Limiter.(ratelimit.Overrider), true
}

// Override implements [ratelimit.Overrider].
func (r *Router) Override(
	ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask,
) (is ratelimit.Override, ok bool, err error) {
	if o, ok := r.stored(); ok {
		return o.Override(ctx, now, a)
	}
	is, err = r.atOwner(ctx, now, a, &setting{look: true})
	return is, is.Set > 0, err
}

// SetOverride implements [ratelimit.Overrider].
func (r *Router) SetOverride(
	ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask, is *ratelimit.Override, match ratelimit.Match,
) (ratelimit.Override, error) {
	if o, ok := r.stored(); ok {
		return o.SetOverride(ctx, now, a, is, match)
	}
	c := account.OverrideChange{Key: string(a.Key), Limit: a.Rule.Limit, Override: is}
	if err := c.Check(); err != nil {
		return ratelimit.Override{}, err
	}
	return r.atOwner(ctx, now, a, &setting{set: is, match: match})
}

// Overrides implements [ratelimit.Overrider]. It lists mostListed at most, and all of the ring or none: it waits for
// a moment in which all nodes see one ring, and have handed over.
func (r *Router) Overrides(
	ctx context.Context, now ratelimit.Instant, prefix, after string, n int,
) (all []ratelimit.NamedOverride, err error) {
	if o, ok := r.stored(); ok {
		return o.Overrides(ctx, now, prefix, after, n)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	again := time.NewTicker(10 * askAgain)
	defer again.Stop()
	for {
		m := &wire.List{Prefix: prefix, After: after, Most: uint32(min(n, mostListed))}
		if all, err = r.list(ctx, now, m); !errors.Is(err, errLists) {
			return all, err
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, err
		}
	}
}

var _ ratelimit.Overrider = (*Router)(nil)
