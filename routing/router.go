package routing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options are a node's settings as one of a ring.
type Options struct {
	Addr      string // this node's, for peers
	Discovery Discovery
	Secret    string // the shared secret of all peers; see CheckSecret
	// for dialling, TLS 1.3; nil: with certificates that prove nothing, so that the secret is needed
	TLS     credentials.TransportCredentials
	HotRate float64 // hits a second from which on a key is hot; 0: ten times the mean
	// OnPeer, if set, is called with each failure of a peer. It must not block.
	OnPeer func(addr string, err error)
}

// Validate returns every fault of the settings that admit peers.
func (o *Options) Validate() error {
	var errs []error
	// With certificates of the operator's authority the secret is not needed; but one that is set
	// is used, and must not be one that can be guessed.
	if o.TLS == nil || o.Secret != "" {
		errs = append(errs, CheckSecret(o.Secret))
	}
	if checkAddr(o.Addr) != nil {
		errs = append(errs, fmt.Errorf("PEER_ADDR is %q: %w", o.Addr, errAddr))
	}
	return errors.Join(errs...)
}

// Router is the ratelimit.Limiter of a node in a ring: the owner of a key decides. Without a store, accounts move for
// rules of modes with owners only. It is safe for concurrent use. Run must be running for peers to be met.
type Router struct {
	*core
	work bell

	served credentials.TransportCredentials // for serving without certificates

	// runs is closed when Run has begun, and has set ctx and running.
	runs    chan struct{}
	ctx     context.Context
	running sync.WaitGroup
}

// New makes a router over the node's own limiter.
func New(base ratelimit.Limiter, o Options, clock ratelimit.Clock, wall time.Time) *Router {
	dialled, served := anonymous()
	r := &Router{work: make(bell, 1), served: served, runs: make(chan struct{})}
	if o.TLS == nil {
		o.TLS = dialled
	}
	// The core's options are those with the credentials that are dialled with.
	r.core = newCore(o, clock, wall)
	// Gossip began before there was a router to count its refusals.
	if g, ok := o.Discovery.(*Gossip); ok {
		refused := func(from string, err error) { r.turnedAway(from, rejectedGossip, err) }
		g.reports.Store(&refused)
	}
	r.hands, r.random, r.incarnation = r, rand.Float64, incarnation()
	r.base = baseOf{base}
	// A key has one budget for outages on each node, whether its store or its owner cannot be
	// asked. With two of them, a node would admit twice what the rule declares.
	if f, ok := base.(interface{ Alone() *leasing.Local }); ok {
		r.fallback = f.Alone()
	}
	if local, ok := base.(*leasing.Local); ok {
		r.storeless(local)
	}
	return r
}

// incarnation is a name for this life of the process.
func incarnation() (n uint64) {
	for n == 0 {
		n = rand.Uint64()
	}
	return n
}

// bell implements hands.
func (r *Router) bell() bell { return make(bell, 1) }

// sleep implements hands.
func (r *Router) sleep(w *waiting) {
	timer := time.NewTimer(max(0, w.due().Sub(w.clock())))
	defer timer.Stop()
	select {
	case <-w.bell:
	case <-timer.C:
	case <-w.ctx.Done():
		// The next advance abandons messages under way.
		w.until = 0 // no request waits any more
	}
}

// Owner is the other node that decides, "" if it is this one.
func (r *Router) Owner(a *ratelimit.Ask) string { return r.elsewhere(a) }

// Run finds peers and talks to them until ctx is done. It blocks. It is called once.
func (r *Router) Run(ctx context.Context) {
	r.ctx = ctx
	close(r.runs)
	r.running.Go(func() { r.find(ctx) })
	r.loop(ctx)
	r.running.Wait()
}

// The part of a node's processor time for moving accounts: requests go on meanwhile, and each waits for the
// step before it.
const (
	workAtOnce  = 250 * time.Microsecond
	restBetween = 14 * workAtOnce
)

// loop has the core look after itself, and accounts move.
func (r *Router) loop(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		began := r.clock()
		due, more := r.tick(began), true
		for now := began; more && now.Sub(began) < workAtOnce; now = r.clock() {
			more = r.step(now)
			// A request that has come meanwhile goes first.
			runtime.Gosched()
		}
		// The mover has worked for as long as it may, and rests.
		if more {
			due = r.clock().Add(restBetween)
		}
		timer.Reset(max(0, due.Sub(r.clock())))
		work := r.work
		// A nil channel never has a value: while the mover rests, no bell ends its rest early.
		if more {
			work = nil
		}
		select {
		case <-ctx.Done():
		case <-work:
		case <-timer.C:
		}
	}
}

// find looks for the nodes that there may be. It may wait for a name server;
// the loop may not.
func (r *Router) find(ctx context.Context) {
	tick := time.NewTicker(findEvery)
	defer tick.Stop()
	for {
		// A name server that does not answer must not keep this node from the next look for longer.
		bounded, cancel := context.WithTimeout(ctx, findEvery)
		addrs, err := r.options.Discovery.Find(bounded)
		cancel()
		r.report("", err)
		// After an error, too, it has looked: a node whose name server is away at the start joins
		// with whom it has met by then.
		r.discovered(r.clock(), r.usable(addrs))
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// usable are the addresses that can be dialled, and at most as many as there may be nodes: a server that
// answers for a name could send any.
func (r *Router) usable(found []string) []string {
	addrs := make([]string, 0, min(len(found), maxPeers))
	wrong := ""
	for _, a := range found {
		if checkAddr(a) != nil || len(addrs) >= maxPeers {
			r.reject(rejectedAddress)
			// Only the last is reported, and cut: the server that answers for the name chooses them.
			wrong = a[:min(len(a), maxAddr)]
			continue
		}
		addrs = append(addrs, a)
	}
	if wrong != "" {
		r.report("", fmt.Errorf("PEERS: of %d addresses found, %d are used; of those that are not, the last "+
			"is %q: at most %d, each host:port", len(found), len(addrs), wrong, maxPeers))
	}
	return addrs
}

// dial implements hands. Nodes are known from Run on (find, exchange).
func (r *Router) dial(m *member) {
	work := make(bell, 1)
	m.wake, m.outgoing, m.again = work.ring, work, make(bell, 1)
	ctx, cancel := context.WithCancel(r.ctx)
	m.stop = cancel
	r.running.Go(func() { r.converse(ctx, m) })
}

// hangUp implements hands.
func (r *Router) hangUp(m *member) {
	m.stop()
}

// redial implements hands.
func (r *Router) redial(m *member) { m.again.ring() }

// wake implements hands.
func (r *Router) wake() { r.work.ring() }

func (r *Router) yield() { runtime.Gosched() }

// Leave announces the departure, and hands all keys over. Until all peers have acknowledged the announcement,
// this node decides. It keeps forwarding. It blocks until all is acknowledged, or ctx is done. Then OnPeer
// gets the losses.
func (r *Router) Leave(ctx context.Context) {
	select {
	case <-r.runs:
	default: // a router that never ran has met no node, and no loop would move its accounts
		return
	}
	r.leave(r.clock())
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		if r.gone() {
			return
		}
		select {
		case <-tick.C:
		// The accounts are counted only now, because to count them all tables are walked through.
		case <-ctx.Done():
			if left := r.rest(); left > 0 {
				r.report("", fmt.Errorf("this node left the ring, and %d accounts were not acknowledged "+
					"by their new owners in time: their usage in this window may be admitted again", left))
			}
			return
		}
	}
}

// Ready tells whether this node has joined the ring, and has its keys.
func (r *Router) Ready() bool { return r.isReady(r.clock()) }

// Stats returns the counts so far.
func (r *Router) Stats() ratelimit.RoutingStats { return r.routingStats() }

// SyncClock is for the budgets of this node alone; see [leasing.Local.SyncClock].
func (r *Router) SyncClock(now ratelimit.Instant, wall time.Time) { r.fallback.SyncClock(now, wall) }

// Fallbacks counts decisions made because an owner did not answer.
func (r *Router) Fallbacks() uint64 { return r.stats.fallbacks.Load() }

func (c *core) routingStats() ratelimit.RoutingStats {
	s, v := &c.stats, c.view.Load()
	readable := func(keys []string) []string {
		for i := range keys {
			keys[i] = leasing.KeyName([]byte(keys[i]))
		}
		slices.Sort(keys)
		return keys
	}
	return ratelimit.RoutingStats{
		Forwarded: s.forwarded.Load(), Received: s.received.Load(), NotOwner: s.notOwner.Load(),
		Refused:   s.refused.Load(),
		Malformed: s.malformed.Load(), RejectedBy: c.rejected(), Handed: s.handed.Load(), Hot: s.hot.Load(),
		Instead: s.instead.Load(),
		Members: v.ring.Members(), Ring: v.digest,
		HotKeys: readable(c.hot.Names(c.clock())), HotHere: readable(c.hotHere.Names()),
	}
}
