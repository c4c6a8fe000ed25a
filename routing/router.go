package routing

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
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

func (r *Router) hello() *wire.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &wire.Hello{Version: version, Addr: r.options.Addr, Weight: r.options.Weight, Nonce: newNonce(), Absent: !r.present}
}

// Run finds peers and talks to them until ctx is done. It blocks.
func (r *Router) Run(ctx context.Context) {
	var wg sync.WaitGroup
	r.mu.Lock()
	r.ctx, r.running = ctx, &wg
	r.mu.Unlock()
	if r.hotFleet != nil {
		leases, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		released := make(chan struct{})
		go func() { defer close(released); r.hotFleet.Run(leases) }()
		defer func() { end(); <-released }()
	}
	tick := time.NewTicker(pingEvery / 2)
	defer tick.Stop()
	var found instant
	for {
		if now := r.clock(); found == 0 || now.Sub(found) >= findEvery {
			found = now
			r.find(ctx)
		}
		r.bury()
		r.join(ctx)
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
		}
	}
}

// find adds the nodes that there may be.
func (r *Router) find(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, findEvery)
	defer cancel()
	addrs, err := r.options.Discovery.Find(bounded)
	if err != nil {
		r.tell("", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = true
	for _, a := range addrs {
		if m := r.know(a); m != nil {
			m.found = r.clock()
		}
	}
}

// know starts the way to a node that was not known; the caller holds mu.
func (r *Router) know(addr string) *member {
	m := r.members[addr]
	if m == nil && addr != r.options.Addr && len(r.members) < maxPeers && r.running != nil {
		m = &member{peer: &peer{addr: addr, creds: r.options.TLS, queue: make(chan *call, peerQueue), kick: make(chan struct{}, 1), pending: map[uint64]*call{}}}
		r.members[addr] = m
		ctx, cancel := context.WithCancel(r.ctx)
		m.stop = cancel
		r.running.Go(func() { m.run(ctx, r) })
	}
	return m
}

// greeted takes in that a node has introduced itself: this one dials back.
func (r *Router) greeted(h *wire.Hello) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.know(h.GetAddr())
	if m == nil {
		return
	}
	m.found = r.clock()
	if !m.ready.Load() {
		select {
		case m.kick <- struct{}{}:
		default:
		}
	}
}

// met takes in that the way to a node is open.
func (r *Router) met(h *wire.Hello) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[h.GetAddr()]
	if m == nil {
		return
	}
	if alive := !h.GetAbsent(); alive != m.alive || m.weight != h.GetWeight() {
		m.alive, m.weight = alive, h.GetWeight()
		r.turn()
	}
}

// presence takes in that a node owns keys from now on, or none any more. It
// reports false when the way to it is not open.
func (r *Router) presence(addr string, here bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[addr]
	if m == nil || here && !m.ready.Load() {
		return false
	}
	if m.alive != here {
		m.alive = here
		r.turn()
	}
	return true
}

// announce tells all others whether this node owns keys.
func (r *Router) announce(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range r.view.Load().peers {
		wg.Go(func() { r.announceTo(ctx, p) })
	}
	wg.Wait()
}

func (r *Router) announceTo(ctx context.Context, p *peer) {
	for {
		reply, err := p.ask(ctx, func(f *wire.Frame, id uint64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			f.Presences = append(f.Presences, &wire.Presence{Id: id, Here: r.present})
		})
		if err != nil || reply.GetStatus() == answered {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond): // it dials back
		case <-ctx.Done():
			return
		}
	}
}

// join enters the ring once every node that was found has been met, or could
// not be.
func (r *Router) join(ctx context.Context) {
	r.mu.Lock()
	if r.present || r.left || !r.looked {
		r.mu.Unlock()
		return
	}
	for _, m := range r.members {
		if !m.ready.Load() && !m.tried.Load() {
			r.mu.Unlock()
			return
		}
	}
	r.present = true
	r.turn()
	r.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, TakeOver)
	defer cancel()
	r.announce(bounded)
}

// bury takes nodes out of the ring that were not heard of for too long.
func (r *Router) bury() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, changed := r.clock(), false
	for addr, m := range r.members {
		if m.alive && now.Sub(instant(m.heard.Load())) > TakeOver {
			m.alive, changed = false, true
		}
		if !m.alive && now.Sub(max(m.found, instant(m.heard.Load()))) > forgetAfter {
			m.stop()
			delete(r.members, addr)
		}
	}
	if changed {
		r.turn()
	}
}

// build makes the view of those who are alive; the caller holds mu, if others
// may look.
func (r *Router) build(old *view) *view {
	var nodes []Member
	v := &view{peers: map[string]*peer{}, handed: map[string][]chan struct{}{}, pulls: map[string]chan struct{}{}}
	if r.present {
		nodes = append(nodes, Member{r.options.Addr, r.options.Weight})
	}
	for addr, m := range r.members {
		v.peers[addr] = m.peer
		if m.alive {
			nodes = append(nodes, Member{addr, m.weight})
		}
	}
	v.joined = r.present
	v.ring = NewRing(nodes)
	if old != nil {
		v.before = old.ring
	}
	for _, m := range v.ring.Members() {
		v.print += xxhash.Sum64String(m.Addr) * uint64(max(1, m.Weight))
	}
	return v
}

// turn puts a new ring in force, and hands over what is no longer this node's.
// The caller holds mu.
func (r *Router) turn() {
	old := r.view.Load()
	next := r.build(old)
	if r.local == nil {
		r.view.Store(next) // the store knows of all that is leased
		return
	}
	moving := map[string][]*wire.Transfer{}
	r.gate.Lock()
	r.local.HandOver(r.clock(), func(key []byte) bool {
		owner := next.ring.Owner(HashOf(key))
		return owner != "" && owner != r.options.Addr
	}, func(key []byte, a leasing.Account) {
		owner := next.ring.Owner(HashOf(key))
		moving[owner] = append(moving[owner], &wire.Transfer{
			Key: slices.Clone(key), Now: int64(a.Now), Fence: int64(a.Fence), Window: int64(a.Window), Charged: int64(a.Charged),
			Previous: int64(a.Previous), Level: a.Level, Carry: a.Carry, Dead: int64(a.Dead),
		})
	})
	old.mu.Lock()
	for owner, doing := range old.handed { // what is still on its way
		next.handed[owner] = slices.DeleteFunc(slices.Clone(doing), isClosed)
	}
	old.mu.Unlock()
	for owner, accounts := range moving {
		done := make(chan struct{})
		next.handed[owner] = append(next.handed[owner], done)
		r.hand(next.peers[owner], accounts, done)
	}
	r.view.Store(next)
	r.gate.Unlock()
	r.running.Go(func() { r.settle(next) })
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settle asks all others to hand over what is this node's now, and then has no
// more doubts.
func (r *Router) settle(v *view) {
	for addr, p := range v.peers {
		if p.ready.Load() {
			r.pull(r.ctx, v, addr)
		}
	}
	v.stable.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wasStable = r.wasStable || r.present
}

// forgetAfter is how long a node that is gone is still looked for.
const forgetAfter = time.Minute

// transferBatch is how many accounts travel in one message.
const transferBatch = 256

// hand queues accounts for a peer, before anything that is asked of it from
// here on; what it does not acknowledge is taken back.
func (r *Router) hand(p *peer, accounts []*wire.Transfer, done chan struct{}) {
	var calls []*call
	for batch := range slices.Chunk(accounts, transferBatch) {
		c := newCall(func(f *wire.Frame, id uint64) {
			batch[0].Id = id
			f.Transfers = append(f.Transfers, batch...)
		})
		if p == nil || !p.post(c) {
			close(c.done)
			if c.err == nil {
				c.err = errPeerGone
			}
		}
		calls = append(calls, c)
	}
	r.running.Go(func() {
		defer close(done)
		for i, c := range calls {
			select {
			case <-c.done:
			case <-time.After(opening):
				continue // it may have them: then its word counts
			}
			batch := accounts[i*transferBatch : min(len(accounts), (i+1)*transferBatch)]
			if c.err == nil {
				r.stats.handed.Add(uint64(len(batch)))
				continue
			}
			for _, t := range batch {
				r.local.Adopt(r.clock(), t.GetKey(), accountOf(t))
			}
		}
	})
}

func accountOf(t *wire.Transfer) leasing.Account {
	return leasing.Account{
		Now: ratelimit.LedgerTime(t.GetNow()), Fence: ratelimit.Fence(t.GetFence()), Window: ratelimit.Window(t.GetWindow()),
		Charged: ratelimit.Tokens(t.GetCharged()), Previous: ratelimit.Tokens(t.GetPrevious()), Level: t.GetLevel(), Carry: t.GetCarry(),
		Dead: ratelimit.LedgerTime(t.GetDead()),
	}
}

// pull waits until a node has handed over what is this one's, once a view.
func (r *Router) pull(ctx context.Context, v *view, from string) {
	p := v.peers[from]
	if p == nil || !p.ready.Load() && !p.tried.Load() { // not met yet
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
		return
	}
	v.mu.Lock()
	done := v.pulls[from]
	if done == nil {
		done = make(chan struct{})
		v.pulls[from] = done
		c := newCall(func(f *wire.Frame, id uint64) { f.Pulls = append(f.Pulls, &wire.Pull{Id: id}) })
		if !p.post(c) {
			close(done)
		} else {
			go func() { <-c.done; close(done) }() // done when the peer answers, or breaks off
		}
	}
	v.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// Leave hands all keys over to the others. They are told first, and then wait
// for it; until all have heard, this node still decides. It goes on to forward.
// It blocks at most until ctx is done.
func (r *Router) Leave(ctx context.Context) {
	r.mu.Lock()
	if r.left || r.running == nil {
		r.mu.Unlock()
		return
	}
	r.present, r.left = false, true
	r.mu.Unlock()
	r.announce(ctx)
	r.mu.Lock()
	r.turn()
	v := r.view.Load()
	r.mu.Unlock()
	for addr := range v.peers {
		v.awaitHanded(ctx, addr)
	}
}

// awaitHanded waits until all that was to be handed to a node has been.
func (v *view) awaitHanded(ctx context.Context, to string) {
	v.mu.Lock()
	doing := slices.Clone(v.handed[to])
	v.mu.Unlock()
	for _, done := range doing {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}

// Ready tells whether this node has joined the ring, and has its keys.
func (r *Router) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.present && !r.left {
		return false
	}
	return r.wasStable || r.local == nil
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
