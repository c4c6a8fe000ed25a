package routing

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

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

// sleep implements driver.
func (r *Router) sleep(ctx context.Context, b bell, until instant) {
	timer := time.NewTimer(max(0, until.Sub(r.clock())))
	defer timer.Stop()
	select {
	case <-b:
	case <-timer.C:
	case <-ctx.Done():
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
	look := func() {
		// A name server that does not answer must not keep this node from the next look for longer.
		bounded, cancel := context.WithTimeout(ctx, findEvery)
		defer cancel()
		addrs, err := r.options.Discovery.Find(bounded)
		r.report("", err)
		// After an error, too, it has looked: a node whose name server is away at the start joins
		// with whom it has met by then.
		r.discovered(r.clock(), r.usable(addrs))
	}
	look()
	upkeep.Every(ctx, findEvery, look)
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

// hangUp implements driver.
func (r *Router) hangUp(m *member) { m.stop() }

// redial implements driver.
func (r *Router) redial(m *member) { m.again.ring() }

// wake implements driver.
func (r *Router) wake() { r.work.ring() }

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
					"by their new owners in time: %w", left, ErrLost))
			}
			return
		}
	}
}

// SyncClock is for the budgets of this node alone; see [local.Limiter.SyncClock]. With a store, they are the base's,
// which follows the store's clock.
func (c *core) SyncClock(now ratelimit.Instant, wall time.Time) {
	if !c.inStore() {
		c.fallback.SyncClock(now, wall)
	}
}

// Fallbacks counts decisions made because an owner did not answer.
func (c *core) Fallbacks() uint64 { return c.stats.fallbacks.Load() }

// Stats returns the counts so far.
func (c *core) Stats() ratelimit.RoutingStats {
	s, v := &c.stats, c.view.Load()
	rejected := make(map[string]uint64, rejections)
	for kind, name := range rejectionNames {
		rejected[name] = s.rejected[kind].Load()
	}
	readable := func(keys []string) []string {
		for i := range keys {
			keys[i] = ratelimit.KeyName([]byte(keys[i]))
		}
		slices.Sort(keys)
		return keys
	}
	return ratelimit.RoutingStats{
		Forwarded: s.forwarded.Load(), Received: s.received.Load(), NotOwner: s.notOwner.Load(),
		Refused:   s.refused.Load(),
		Malformed: s.malformed.Load(), RejectedBy: rejected, Handed: s.handed.Load(), Hot: s.hot.Load(),
		Instead: s.instead.Load(),
		Members: v.ring.Members(), Ring: v.digest,
		HotKeys: readable(c.hot.Names(c.clock())), HotHere: readable(c.hotHere.Names(c.clock())),
	}
}
