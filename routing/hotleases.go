package routing

import (
	"errors"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// A hot key of another owner is leased where there is no store: this node claims from the
// owner's ledger in memory, as a fleet's node claims from Redis, and pays the hop once a
// lease instead of once a request.

// claim sends a claim to the owner of its key. What is returned has ended
// already where there is no way, or where the owner is this node: then grant is
// its answer.
func (c *core) claim(claim *ratelimit.Claim, b bell) *claiming {
	x := &claiming{claim: claim, call: newCall(nil)}
	x.call.bell = b
	key := []byte(claim.Key)
	v := c.view.Load()
	owner := v.ring.Owner(ring.HashOf(key))
	if owner == c.options.Addr {
		// The ring has turned since the key was hot elsewhere. The lease goes on, from this
		// node's own account: it was handed over with what the lease is charged.
		x.own = &ratelimit.Grant{}
		if !c.settleOwn(claim, x.own) {
			*x.own = ratelimit.Grant{Seq: claim.Seq, Err: errMoved}
		}
		x.call.finish(nil, nil)
		return x
	}
	m := claimMessage(claim)
	x.call.put = func(f *wire.Frame, id uint64) {
		m.Id = id
		f.Claims = append(f.Claims, m)
	}
	// Where there is no way to the owner the call has failed already when post returns, and
	// on_store_failure decides.
	v.peers[owner].post(x.call)
	return x
}

// claiming is a claim on its way to an owner.
type claiming struct {
	claim *ratelimit.Claim
	own   *ratelimit.Grant // of this node's own ledger
	call  *call
}

// grant is the answer, once the call has ended.
func (x *claiming) grant() ratelimit.Grant {
	if x.own != nil {
		return *x.own
	}
	return grantOf(x.claim, x.call)
}

// settleOwn settles a claim on a key that is this node's; it reports false when
// it is not.
func (c *core) settleOwn(claim *ratelimit.Claim, g *ratelimit.Grant) bool {
	key := []byte(claim.Key)
	hash, now := ring.HashOf(key), c.clock()
	c.gate.RLock()
	v := c.view.Load()
	mine := v.ring.Owner(hash) == c.options.Addr && !c.lapsed(now)
	// An account that is not here may be on its way from the owner before. To begin a new one
	// would grant the limit once more, so it is settled only if it is here, or if nobody else
	// can have it: all have handed over (stable), or the key was this node's before the ring turned.
	sure := mine && (v.stable.Load() || c.local.Has(key) || v.kept(hash, c.options.Addr))
	if sure {
		one := make([]ratelimit.Grant, 1)
		c.local.Settle(now, []ratelimit.Claim{*claim}, one)
		*g = one[0]
	}
	c.gate.RUnlock()
	// The claim is not kept waiting: the holder repeats it, and by then the account is here, or
	// known to be nowhere.
	if mine && !sure { // its account is looked for meanwhile: ask again
		c.fetch(key, nil)
		*g = ratelimit.Grant{Seq: claim.Seq, Err: errLate}
	}
	return mine
}

var (
	errMoved = errors.New("the key is another node's")
	errLate  = errors.New("the key was not handed over in time")
)

// claimMessage writes a claim. Of its rule it has what an account goes by: the limit, how
// expiry is taken, and for how long a lease lasts.
func claimMessage(c *ratelimit.Claim) *wire.Claim {
	rule := ratelimit.Rule{Limit: c.Limit}
	rule.Coordination.Mode, rule.Coordination.Reclaim, rule.Coordination.Lease.TTL = ratelimit.Routing, c.Reclaim,
		max(c.TTL, ratelimit.MinLeaseTTL)
	return &wire.Claim{
		Key: []byte(c.Key), Rule: ruleMessage(&rule), Holder: uint64(c.Holder), Seq: c.Seq, Fence: int64(c.Fence),
		Window:  int64(c.Window),
		Granted: int64(c.Granted), Spent: int64(c.Spent), Returned: int64(c.Returned), Waiting: int64(c.Waiting),
		Want:  int64(c.Want),
		TtlUs: c.TTL.Microseconds(), Ahead: c.Ahead, Refilled: c.Refilled,
	}
}

// claimOf reads a claim, which may hold anything.
func (c *core) claimOf(m *wire.Claim) (ratelimit.Claim, error) {
	rule, err := c.rules.get(m.GetRule())
	if err != nil {
		return ratelimit.Claim{}, err
	}
	// Sums of two of them, and of these over an account's holders, must not overflow.
	const most = 1 << 40
	for _, n := range []int64{m.GetGranted(), m.GetSpent(), m.GetReturned(), m.GetWaiting(), m.GetWant()} {
		if n < 0 || n > most {
			return ratelimit.Claim{}, errMessage
		}
	}
	if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || m.GetHolder() < 2 || m.GetSeq() == 0 ||
		m.GetWindow() < 0 || m.GetWindow() > moved.MostTime || !moved.PossibleFence(ratelimit.Fence(m.GetFence())) ||
		m.GetTtlUs() < 0 || m.GetTtlUs() > ratelimit.MaxLeaseTTL.Microseconds() {
		return ratelimit.Claim{}, errMessage
	}
	reclaim := ratelimit.ReclaimSafe
	if rule.Coordination.Eager() {
		reclaim = ratelimit.ReclaimEager
	}
	return ratelimit.Claim{
		Key: string(m.GetKey()), Limit: rule.Limit, Reclaim: reclaim, Holder: ratelimit.Holder(m.GetHolder()),
		Seq:   m.GetSeq(),
		Fence: ratelimit.Fence(m.GetFence()), Window: ratelimit.Window(m.GetWindow()),
		Granted: ratelimit.Tokens(m.GetGranted()), Spent: ratelimit.Tokens(m.GetSpent()),
		Returned: ratelimit.Tokens(m.GetReturned()),
		Waiting:  ratelimit.Tokens(m.GetWaiting()),
		Want:     max(ratelimit.Tokens(m.GetWant()), ratelimit.Tokens(m.GetWaiting())),
		TTL:      time.Duration(m.GetTtlUs()) * time.Microsecond, Ahead: m.GetAhead(), Refilled: m.GetRefilled(),
	}, nil
}

// settleFor settles what a peer claims.
func (c *core) settleFor(msgs []*wire.Claim) []*wire.Reply {
	replies := make([]*wire.Reply, len(msgs))
	for i, m := range msgs {
		replies[i] = &wire.Reply{Id: m.GetId()}
		claim, err := c.claimOf(m)
		if err != nil || c.inStore() {
			c.malformed(rejectedClaim)
			replies[i].Status = malformed
			continue
		}
		var g ratelimit.Grant
		switch ok := c.settleOwn(&claim, &g); {
		case !ok:
			c.stats.notOwner.Add(1)
			replies[i].Status = notOwner
		// A stale claim is an answer: its holder begins anew. Other errors mean that there is none
		// yet.
		case g.Err != nil && g.Err != ratelimit.ErrStaleClaim: //nolint:errorlint // it is never wrapped
			replies[i].Status = notInTime
		default:
			c.stats.received.Add(1)
			replies[i].Grant = &wire.Grant{
				Granted: int64(g.Granted), Fence: int64(g.Fence), Window: int64(g.Window), Void: g.Void,
				Available:   int64(g.Available),
				Outstanding: int64(g.Outstanding), ResetUs: g.ResetAfter.Microseconds(),
				RetryUs: g.RetryAfter.Microseconds(), At: int64(g.At),
				Holders: uint32(g.Holders), Relearning: g.Relearning, Stale: g.Err != nil,
			}
		}
	}
	return replies
}

// meant tells whether a grant can be the answer to a claim. What is granted is a
// sum since the window began: at most all that was asked for is new in it.
func meant(c *ratelimit.Claim, m *wire.Grant) bool {
	least, most := int64(0), int64(c.Granted)+int64(max(c.Want, c.Waiting))
	// In the same window a total cannot have become less, unless the lease was void.
	if m.GetWindow() == int64(c.Window) && !m.GetVoid() {
		least = int64(c.Granted)
	}
	for _, n := range [...]int64{
		m.GetAvailable(), m.GetOutstanding(), m.GetResetUs(), m.GetRetryUs(), m.GetAt(),
		m.GetWindow(), m.GetFence(),
	} {
		if n < 0 {
			return false
		}
	}
	return m.GetGranted() >= least && m.GetGranted() <= most && m.GetAvailable() <= moved.MostTokens &&
		m.GetOutstanding() <= moved.MostTokens &&
		m.GetFence() <= moved.MostTime && m.GetAt() <= moved.MostTime && m.GetWindow() <= moved.MostTime &&
		m.GetHolders() <= mostGrantHolders
}

// mostGrantHolders is how many holders an account can be said to have.
const mostGrantHolders = 1 << 20

// grantOf is what a claim came to. An owner is believed as far as a store is: what cannot
// be the answer to this claim is an error, and then on_store_failure decides. Times are
// cut to the longest that the limit can mean, so that no answer has a key rest for ever.
func grantOf(c *ratelimit.Claim, done *call) ratelimit.Grant {
	g := ratelimit.Grant{Seq: c.Seq, TTL: c.TTL}
	m := done.reply.GetGrant()
	switch {
	case done.err != nil:
		g.Err = done.err
	case m == nil:
		g.Err = errMoved
	case m.GetStale():
		g.Err = ratelimit.ErrStaleClaim
	case !meant(c, m):
		g.Err = errMessage
	}
	if g.Err != nil {
		return g
	}
	most := longest(&c.Limit)
	us := func(n int64) time.Duration { return min(time.Duration(min(n, 1<<52))*time.Microsecond, most) }
	g.Carried = m.GetWindow() == int64(c.Window) || c.Limit.Algorithm == ratelimit.TokenBucket && c.Window != 0
	g.Granted, g.Fence, g.Window, g.Void = ratelimit.Tokens(m.GetGranted()), ratelimit.Fence(m.GetFence()),
		ratelimit.Window(m.GetWindow()), m.GetVoid()
	g.Available, g.Outstanding = ratelimit.Tokens(m.GetAvailable()), ratelimit.Tokens(m.GetOutstanding())
	g.ResetAfter, g.RetryAfter, g.At = us(m.GetResetUs()), us(m.GetRetryUs()), ratelimit.LedgerTime(m.GetAt())
	g.Holders, g.Relearning = int(m.GetHolders()), m.GetRelearning()
	return g
}
