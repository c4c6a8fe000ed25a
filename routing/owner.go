package routing

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// errand is what an owner does for an ask instead of a decision alone. reply adds what came of it to the answer.
type errand interface {
	do(now instant, l *leasing.Local, a *ask, v *verdict)
	reply(r *wire.Reply)
}

// owned is what came of an ask for a key that may be this node's own.
type owned uint8

const (
	ownDecided owned = iota
	another          // node decides, perhaps
	unsure           // whether others have the account
)

// own decides on one key of this node's, if it can: where it has the account, where no other node can have
// it, or where a search found none.
func (c *core) own(
	ctx context.Context, now instant, asks []ask, verdicts []verdict, found *fetch, x errand,
) owned {
	hash := ring.HashOf(asks[0].Key)
	c.gate.RLock()
	defer c.gate.RUnlock()
	v := c.view.Load()
	owner := v.ring.Owner(hash)
	switch {
	// This comes before the look at the account. A node that has slept still has its accounts, but others may
	// own their keys by now and count anew. Before all have acknowledged this node, another may decide as
	// well.
	case owner != "" && owner != c.options.Addr, c.lapsed(now), c.unconfirmed.Load():
		return another
	// Possession decides (docs/internals/peers.md). Each of these excludes that another node has the account.
	// All have handed over; it is here; the key has always been this node's own; or all nodes have stated, for
	// this ring, that they do not have it. In an empty ring, so decides the node that has left as the last one.
	case owner != "" && v.stable.Load(), c.local.Has(asks[0].Key), v.kept(hash, c.options.Addr),
		found != nil && found.view == v && found.state == fetchAbsent:
		if x == nil {
			c.local.Decide(ctx, now, asks, verdicts)
		} else {
			x.do(now, c.local, &asks[0], &verdicts[0])
		}
		return ownDecided
	case owner == "":
		return another
	}
	return unsure
}

// elsewhere is the other node that decides, "" if it is this one.
func (c *core) elsewhere(a *ask) string {
	// A settlement that an owner books late, or that its answer is lost of, would be booked twice or never. Where the
	// account is in a store, any node can book it.
	if a.Kind.Settles() && c.inStore() {
		return ""
	}
	// An empty ring has no owner, which reads as "this node" here. With a store that is right, for
	// the store decides. Without one, own looks at the ring itself and decides nothing.
	if owner := c.ownerOf(a.Key); owner != c.options.Addr {
		return owner
	}
	return ""
}

func (c *core) ownerOf(key []byte) string { return c.view.Load().ring.Owner(ring.HashOf(key)) }

// askAgain is the wait before another attempt at a node that is not the owner in its own view. Nodes do not see
// a change of the ring at the same time.
const askAgain = time.Millisecond

// resetTime is the time for which a reset waits for the account of its key.
const resetTime = time.Second

var errAway = errors.New("the key's account is on its way between nodes: try again")

// Reset clears the usage of a key of this node's own, without a store. The account may be on its way here.
func (c *core) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	peek, v := []ask{{Rule: a.Rule, Key: a.Key, Kind: ratelimit.Peek}}, make([]verdict, 1)
	w := c.newWaiting(ctx, now, peek, v)
	for w.until = now.Add(resetTime); w.advance(now); now = c.clock() {
		c.hands.sleep(w)
	}
	if v[0].Source == ratelimit.FromFallback {
		return errAway
	}
	return c.local.Reset(ctx, now, a)
}
