package routing

import (
	"context"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// ownersLedger is the ratelimit.Ledger of hot keys where there is no store:
// each claim goes to its key's owner, whose memory is the ledger.
type ownersLedger struct{ *Router }

// hotParts is how many owners fail each by itself (leasing.Partitioned).
const hotParts = 16

// Partitions implements [leasing.Partitioned].
func (ownersLedger) Partitions() int { return hotParts }

// Partition implements [leasing.Partitioned]: claims of one owner go together.
func (l ownersLedger) Partition(key string) int {
	owner := l.view.Load().ring.Owner(HashOf([]byte(key)))
	part := 0
	for i := range len(owner) {
		part = (31*part + int(owner[i])) % hotParts
	}
	return part
}

// Settle implements [ratelimit.Ledger].
func (l ownersLedger) Settle(ctx context.Context, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	v := l.view.Load()
	calls := make([]*call, len(claims))
	for i := range claims {
		c := &claims[i]
		m := claimMessage(c)
		calls[i] = newCall(func(f *wire.Frame, id uint64) {
			m.Id = id
			f.Claims = append(f.Claims, m)
		})
		owner := v.ring.Owner(HashOf(m.GetKey()))
		if owner == l.options.Addr || owner == "" {
			l.settleOwn(c, &grants[i])
			calls[i] = nil
		} else if p := v.peers[owner]; p == nil || !p.post(calls[i]) {
			grants[i] = ratelimit.Grant{Seq: c.Seq, Err: errPeerGone}
			calls[i] = nil
		}
	}
	for i, c := range calls {
		if c == nil {
			continue
		}
		select {
		case <-c.done:
			grants[i] = grantOf(&claims[i], c)
		case <-ctx.Done():
			grants[i] = ratelimit.Grant{Seq: claims[i].Seq, Err: ctx.Err()}
		}
	}
}

// settleOwn settles a claim on a key that is this node's; it reports false when
// it is not.
func (r *Router) settleOwn(c *ratelimit.Claim, g *ratelimit.Grant) bool {
	hash := HashOf([]byte(c.Key))
	r.gate.RLock()
	defer r.gate.RUnlock()
	v := r.view.Load()
	if owner := v.ring.Owner(hash); owner != r.options.Addr && owner != "" {
		return false
	}
	if v.heirOf(hash, "", r.options.Addr) != "" { // not handed over yet: ask again
		*g = ratelimit.Grant{Seq: c.Seq, Err: errLate}
		return true
	}
	one := make([]ratelimit.Grant, 1)
	r.local.Settle(r.clock(), []ratelimit.Claim{*c}, one)
	*g = one[0]
	return true
}

func claimMessage(c *ratelimit.Claim) *wire.Claim {
	rule := ratelimit.Rule{Limit: c.Limit}
	rule.Coordination.Reclaim, rule.Coordination.Lease.TTL = c.Reclaim, max(c.TTL, ratelimit.MinLeaseTTL)
	return &wire.Claim{
		Key: []byte(c.Key), Rule: ruleMessage(&rule), Holder: uint64(c.Holder), Seq: c.Seq, Fence: int64(c.Fence), Window: int64(c.Window),
		Granted: int64(c.Granted), Spent: int64(c.Spent), Returned: int64(c.Returned), Waiting: int64(c.Waiting), Want: int64(c.Want),
		TtlUs: c.TTL.Microseconds(), Ahead: c.Ahead, Refilled: c.Refilled,
	}
}

// claimOf reads a claim, which may hold anything.
func (r *Router) claimOf(m *wire.Claim) (ratelimit.Claim, error) {
	rule, err := r.rules.get(m.GetRule())
	if err != nil {
		return ratelimit.Claim{}, err
	}
	const most = 1 << 40
	for _, n := range []int64{m.GetGranted(), m.GetSpent(), m.GetReturned(), m.GetWaiting(), m.GetWant()} {
		if n < 0 || n > most {
			return ratelimit.Claim{}, errMessage
		}
	}
	if len(m.GetKey()) == 0 || len(m.GetKey()) > ratelimit.MaxKeyLen || m.GetHolder() < 2 || m.GetSeq() == 0 || m.GetWindow() < 0 || m.GetFence() < 0 ||
		m.GetTtlUs() < 0 || m.GetTtlUs() > ratelimit.MaxLeaseTTL.Microseconds() {
		return ratelimit.Claim{}, errMessage
	}
	return ratelimit.Claim{
		Key: string(m.GetKey()), Limit: rule.Limit, Reclaim: rule.Coordination.Reclaim, Holder: ratelimit.Holder(m.GetHolder()), Seq: m.GetSeq(),
		Fence: ratelimit.Fence(m.GetFence()), Window: ratelimit.Window(m.GetWindow()),
		Granted: ratelimit.Tokens(m.GetGranted()), Spent: ratelimit.Tokens(m.GetSpent()), Returned: ratelimit.Tokens(m.GetReturned()),
		Waiting: ratelimit.Tokens(m.GetWaiting()), Want: max(ratelimit.Tokens(m.GetWant()), ratelimit.Tokens(m.GetWaiting())),
		TTL: time.Duration(m.GetTtlUs()) * time.Microsecond, Ahead: m.GetAhead(), Refilled: m.GetRefilled(),
	}, nil
}

// settleFor settles what a peer claims.
func (r *Router) settleFor(msgs []*wire.Claim) []*wire.Reply {
	replies := make([]*wire.Reply, len(msgs))
	for i, m := range msgs {
		replies[i] = &wire.Reply{Id: m.GetId()}
		c, err := r.claimOf(m)
		if err != nil || r.local == nil {
			r.stats.malformed.Add(1)
			replies[i].Status = malformed
			continue
		}
		var g ratelimit.Grant
		switch ok := r.settleOwn(&c, &g); {
		case !ok:
			r.stats.notOwner.Add(1)
			replies[i].Status = notOwner
		case g.Err != nil && g.Err != ratelimit.ErrStaleClaim: //nolint:errorlint // it is never wrapped
			replies[i].Status = notInTime
		default:
			r.stats.received.Add(1)
			replies[i].Grant = &wire.Grant{
				Granted: int64(g.Granted), Fence: int64(g.Fence), Window: int64(g.Window), Void: g.Void, Available: int64(g.Available),
				Outstanding: int64(g.Outstanding), ResetUs: g.ResetAfter.Microseconds(), RetryUs: g.RetryAfter.Microseconds(), At: int64(g.At),
				Holders: uint32(g.Holders), Relearning: g.Relearning, Stale: g.Err != nil,
			}
		}
	}
	return replies
}

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
	case m.GetGranted() < int64(c.Granted) && m.GetWindow() == int64(c.Window) && !m.GetVoid() || m.GetAvailable() < 0 || m.GetResetUs() < 0 || m.GetRetryUs() < 0:
		g.Err = errMessage
	}
	if g.Err != nil {
		return g
	}
	us := func(n int64) time.Duration { return time.Duration(min(n, 1<<52)) * time.Microsecond }
	g.Carried = m.GetWindow() == int64(c.Window) || c.Limit.Algorithm == ratelimit.TokenBucket && c.Window != 0
	g.Granted, g.Fence, g.Window, g.Void = ratelimit.Tokens(m.GetGranted()), ratelimit.Fence(m.GetFence()), ratelimit.Window(m.GetWindow()), m.GetVoid()
	g.Available, g.Outstanding = ratelimit.Tokens(m.GetAvailable()), ratelimit.Tokens(m.GetOutstanding())
	g.ResetAfter, g.RetryAfter, g.At = us(m.GetResetUs()), us(m.GetRetryUs()), ratelimit.LedgerTime(m.GetAt())
	g.Holders, g.Relearning = int(m.GetHolders()), m.GetRelearning()
	return g
}

// newHotFleet is the limiter of hot keys of other owners: leases from a store
// that there is anyway, or from the owners.
func (r *Router) newHotFleet(wall time.Time) *leasing.Fleet {
	f := leasing.NewFleet(ownersLedger{r}, leasing.NewHolder(), hotMost, r.clock, wall)
	f.RawNames = true
	return f
}
