package routing

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	instant = ratelimit.Instant
	verdict = ratelimit.Verdict
)

// Options are a node's settings as one of a ring.
type Options struct {
	Addr      string // this node's, for peers
	Weight    uint32 // 0 means 1
	Discovery Discovery
	Secret    string                           // what all peers know
	TLS       credentials.TransportCredentials // for dialling; nil: none
	HotRate   float64                          // hits a second from which on a key is hot; 0: ten times the mean
	// OnPeer, if set, is told what went wrong with a peer. It must not block.
	OnPeer func(addr string, err error)
}

// Router is the ratelimit.Limiter of a node in a ring: rules of mode routing
// are decided by their key's owner, all others by this node. It is safe for
// concurrent use. Run must be running for peers to be met.
type Router struct {
	options  Options
	base     ratelimit.Limiter // decides what is this node's
	local    *leasing.Local    // base, where budgets are in this process; else nil
	fallback *leasing.Local    // when an owner does not answer
	hotFleet *leasing.Fleet    // leases of hot keys of other owners, where there is no store; else nil
	clock    ratelimit.Clock
	random   func() float64

	// gate is held for reading while a key is looked up and decided here, and
	// for writing while keys change hands; without a store only.
	gate sync.RWMutex
	view atomic.Pointer[view]

	mu      sync.Mutex
	members map[string]*member // guarded by mu
	present bool               // guarded by mu: in the ring
	left    bool               // guarded by mu: for good
	looked  bool               // guarded by mu: for others
	// wasStable says that after joining all had handed over; guarded by mu.
	wasStable bool
	ctx       context.Context // guarded by mu: Run's
	running   *sync.WaitGroup // guarded by mu

	hot     *hot
	hotHere hotLeases
	rules   ruleCache
	stats   struct{ forwarded, received, notOwner, refused, malformed, handed, hot, fallbacks atomic.Uint64 }
}

// member is another node, as this one knows it.
type member struct {
	*peer
	weight uint32
	alive  bool    // in the ring
	found  instant // when it was last discovered, or introduced itself
	stop   context.CancelFunc
}

// view is the ring at a time. Only its handed and pulls change.
type view struct {
	ring   *Ring
	before *Ring            // until others had handed over what changed with ring
	peers  map[string]*peer // in ring or before
	print  uint64
	joined bool        // this node has met all others
	stable atomic.Bool // all have handed over

	mu     sync.Mutex
	handed map[string][]chan struct{} // guarded by mu: closed when all was handed over to that node
	pulls  map[string]chan struct{}   // guarded by mu: closed when that node has handed over all, or cannot
}

// New makes a router over the node's own limiter.
func New(base ratelimit.Limiter, o Options, clock ratelimit.Clock, wall time.Time) *Router {
	if o.TLS == nil {
		o.TLS = insecure.NewCredentials()
	}
	r := &Router{
		options: o, base: base, fallback: leasing.NewLocal(10_000, clock(), wall), clock: clock, random: rand.Float64,
		members: map[string]*member{}, hot: newHot(o.HotRate),
	}
	if r.local, _ = base.(*leasing.Local); r.local != nil {
		r.hotFleet = r.newHotFleet(wall)
	}
	r.view.Store(r.build(nil))
	return r
}

func (r *Router) tell(addr string, err error) {
	if r.options.OnPeer != nil && err != nil {
		r.options.OnPeer(addr, err)
	}
}

// Stats returns the counts so far.
func (r *Router) Stats() ratelimit.RoutingStats {
	s, v := &r.stats, r.view.Load()
	readable := func(keys []string) []string {
		for i := range keys {
			keys[i] = leasing.KeyName([]byte(keys[i]))
		}
		slices.Sort(keys)
		return keys
	}
	addrs := make([]string, 0, len(v.ring.Members()))
	for _, m := range v.ring.Members() {
		addrs = append(addrs, m.Addr)
	}
	return ratelimit.RoutingStats{
		Forwarded: s.forwarded.Load(), Received: s.received.Load(), NotOwner: s.notOwner.Load(), Refused: s.refused.Load(),
		Malformed: s.malformed.Load(), Handed: s.handed.Load(), Hot: s.hot.Load(),
		Members: addrs, Ring: v.print, HotKeys: readable(r.hot.names(r.clock())), HotHere: readable(r.hotHere.names()),
	}
}

// Fallbacks counts decisions made because an owner did not answer.
func (r *Router) Fallbacks() uint64 { return r.stats.fallbacks.Load() }
