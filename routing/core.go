package routing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/hot"
	"github.com/sluice-gate/sluice/routing/ring"
)

type (
	instant = ratelimit.Instant
	verdict = ratelimit.Verdict
	ask     = ratelimit.Ask
)

// core is a node in a ring without goroutines, sockets, timers or clocks of its own. Instants and messages
// are arguments, and its own messages wait in its links. [Router] and [Stepped] drive it. It is safe for
// concurrent use.
//
// Locks are taken in this order, and none is held while something waits (docs/internals/peers.md has those of
// other packages too):
//
//	inbox.mu, mu, gate, link.mu; fetches' and tables' own locks last
type core struct {
	identity
	deciders
	driven

	// gate is used without a store only. It is held for reading while a key is looked up and
	// decided here, or its account is taken out, and for writing while the view changes. A decision
	// that began under the old ring has therefore ended before the new ring is in force: no account
	// is charged here after the mover has taken it out.
	gate sync.RWMutex
	view atomic.Pointer[view]
	awareness

	mu       sync.Mutex
	standing // guarded by mu
	transit  // guarded by mu
	heat
	rules ruleCache
	stats counted
}

// identity is who a node is, in this life.
type identity struct {
	options Options
	// incarnation names this life of the process. Each numbers its parcels
	// anew, so that one of an earlier life must not be taken for one of this (docs/internals/peers.md).
	incarnation uint64
	began       instant
}

// awareness is how far a node may decide.
type awareness struct {
	// ticked is the instant of the node's last tick.
	ticked atomic.Int64
	// unconfirmed means that others may decide on this node's keys. Some have not acknowledged yet that it has
	// joined: two nodes that join at once would otherwise each decide in a ring without the other. Or it has not
	// run for so long that others may have taken over.
	unconfirmed atomic.Bool
}

// heat is which keys are hot: hot is what others ask this node for as the owner, hotHere
// what this node leases from other owners.
type heat struct {
	hot     *hot.Finder
	hotHere hot.Leases
}

// deciders are the limiters behind a node of the ring. They are set before it is used,
// and not changed.
type deciders struct {
	base limiter // decides on this node's own keys
	// local has the budgets of the keys that this node owns. With a store it is nil: the store has them, all nodes
	// share it, and nothing moves when the ring changes. The owner is only the node that leases, and a node that
	// cannot reach it leases from the store itself. Without a store, accounts are handed over, and until all have
	// been, an owner fetches those that may be elsewhere.
	local *leasing.Local
	// fallback decides under on_store_failure: local when an owner does not answer.
	fallback *leasing.Local
}

// inStore tells whether a store has the remainder of each key.
func (d *deciders) inStore() bool { return d.local == nil }

// driven has the driver's means: time, chance and actions.
type driven struct {
	clock   ratelimit.Clock
	random  func() float64
	hands   hands
	observe observer // nil: no observer
}

// standing has the other nodes, and whether this node is in the ring. The zero standing, with a map, has no
// other nodes and is in no ring.
type standing struct {
	members map[string]*member
	present bool    // in the ring
	changes uint64  // counts the changes of present, from 1: announcements have this number
	joined  instant // when it entered
	left    instant // when it left, for good; 0: it has not
	// looked means that discovery has named others at least once, or failed to: before that, a node
	// would join alone.
	looked bool
	// wasStable means that, at least once after this node joined, all had handed over: it has its
	// keys, and is ready.
	wasStable bool
}

// transit is the accounts that are on their way from node to node, without a store.
type transit struct {
	// posts are queued when mu is free, because a call that cannot be sent ends at once, and what
	// goes on then needs mu. They are guarded by mu.
	posts   []post
	mover   mover
	fetches map[string]*fetch // by key
	inboxes map[uint64]*inbox // by the sender's incarnation
	// parcels is the number of the last parcel to any node. A node that was dropped and comes back still has this one's
	// parcels by their numbers, and would take those of numbers that begin anew for repetitions.
	parcels atomic.Uint64
}

// counted is what a node counts for its metrics.
type counted struct {
	forwarded, received, notOwner, refused, malformed, handed, hot, instead, fallbacks atomic.Uint64

	rejected [rejections]atomic.Uint64
}

// hands are the driver's actions for a core. No method but sleep may block, and none may call the core.
type hands interface {
	bell() bell       // for a request that waits
	sleep(w *waiting) // until something has happened to it, or its time is over
	dial(m *member)   // keep a way open to a node
	hangUp(m *member) // and no longer
	redial(m *member) // on a new stream
	wake()            // there is something to do for tick or step
	yield()           // goroutines that wait for a processor go first
}

// observer sees what an owner decides for its peers, for simulations. asked has it see a verdict with its place as
// soon as it is made, though others of the same message still wait.
type observer interface {
	asked(ctx context.Context, verdicts []verdict, see func(i int))
	decided(a *ask, v *verdict)
	undone(a *ask, v *verdict)
}

// limiter decides on this node. decide blocks for at most within, where it is not 0, else for the rules' time.
type limiter interface {
	decide(ctx context.Context, now instant, within time.Duration, asks []ask, verdicts []verdict)
	Undo(now instant, asks []ask, verdicts []verdict)
}

// baseOf is a limiter that can be given less time than its own.
type baseOf struct{ ratelimit.Limiter }

func (b baseOf) decide(ctx context.Context, now instant, within time.Duration, asks []ask, verdicts []verdict) {
	if within > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	b.Decide(ctx, now, asks, verdicts)
}

// view is the ring at one time. It is replaced as a whole, and only stable changes: requests read it by one
// pointer, without a lock.
type view struct {
	ring   *ring.Ring
	digest uint64
	// since has the rings that were in force since all had last handed over, the newest first. nil means
	// unknown, and then no key counts as kept.
	since  []*ring.Ring
	peers  map[string]*link // of all members, in the ring or not
	mine   bool             // this node is in the ring
	began  instant
	stable atomic.Bool // no other node has accounts of this node
}

// mostSince bounds how many rings a view remembers. Rings that change more often than that before
// all have handed over make the node ask others for accounts that it may have had all along.
const mostSince = 8

// kept tells whether a key was this node's own ever since all had handed over: then no other node has its
// account.
func (v *view) kept(hash uint64, self string) bool {
	if len(v.since) == 0 {
		return false
	}
	// If another node owned the key under any of these rings, it may have begun an account, and
	// that may still be there or on its way.
	for _, r := range v.since {
		if r.Owner(hash) != self {
			return false
		}
	}
	return true
}

func newCore(o Options, clock ratelimit.Clock, wall time.Time) *core {
	return coreWith(o, clock, leasing.NewLocal(10_000, clock(), wall))
}

// coreWith makes a core that decides by fallback when an owner does not answer.
func coreWith(o Options, clock ratelimit.Clock, fallback *leasing.Local) *core {
	c := &core{
		identity: identity{options: o, began: clock()}, driven: driven{clock: clock},
		deciders: deciders{fallback: fallback},
		standing: standing{members: map[string]*member{}, changes: 1},
		heat:     heat{hot: hot.New(o.HotRate)},
		transit:  transit{fetches: map[string]*fetch{}, inboxes: map[uint64]*inbox{}},
	}
	v := c.build(nil)
	c.view.Store(v)
	return c
}

// storeless has budgets in this process, which move with their keys.
func (c *core) storeless(l *leasing.Local) {
	c.local = l
	c.mover.underway = map[uint64]string{}
}

type post struct {
	to   *link
	call *call
}

// post queues a call when mu is free: one that cannot be sent has ended at once,
// and what goes on then needs mu. The caller holds mu.
func (c *core) post(to *link, call *call) { c.posts = append(c.posts, post{to, call}) }

// unlock releases mu.
func (c *core) unlock() {
	posts := c.posts
	c.posts = nil
	c.mu.Unlock()
	for _, p := range posts {
		p.to.post(p.call)
	}
}

// build makes the view of those who are alive; the caller holds mu, if others
// may look.
func (c *core) build(old *view) *view {
	var nodes []string
	v := &view{peers: make(map[string]*link, len(c.members)), mine: c.present, began: c.clock()}
	if c.present {
		nodes = append(nodes, c.options.Addr)
	}
	for addr, m := range c.members {
		v.peers[addr] = m.link
		if m.alive {
			nodes = append(nodes, addr)
		}
	}
	v.ring = ring.Of(nodes)
	// digest is a sum, and so the same on every node that sees the same members. Two nodes compare
	// it to tell whether they speak of the same ring.
	for _, addr := range v.ring.Members() {
		v.digest += xxhash.Sum64String(addr)
	}
	// A node that was in no ring before owned nothing, so that it cannot claim of any key that it has
	// had it since. Where all had handed over under the old ring, that ring is enough to remember.
	// Beyond mostSince rings nothing is remembered.
	switch {
	case old == nil || !old.mine:
	case old.stable.Load():
		v.since = []*ring.Ring{old.ring}
	case len(old.since) > 0 && len(old.since) < mostSince:
		v.since = append([]*ring.Ring{old.ring}, old.since...)
	}
	return v
}

// turn puts a new ring in force. Keys that this node loses move from here on, and are decided elsewhere. The
// caller holds mu.
func (c *core) turn() {
	old := c.view.Load()
	next := c.build(old)
	if c.inStore() {
		next.stable.Store(true)
		c.view.Store(next) // the store has all leases
		return
	}
	// Where other nodes have only gone, no key of this node's went to another, and no table needs
	// to be walked through.
	if !lessOnly(old, next) {
		c.mover.begin()
	}
	// The swap is all that requests wait for. Accounts move afterwards, a few keys at a time.
	c.gate.Lock()
	c.view.Store(next)
	c.gate.Unlock()
	c.settle()
	c.announceClean() // done, under the new ring, where nothing moves
	c.hands.wake()
}

// lessOnly tells whether other nodes have gone, without any other change: then this node keeps its keys.
func lessOnly(old, next *view) bool {
	for _, addr := range next.ring.Members() {
		if !old.ring.Has(addr) {
			return false
		}
	}
	return old.mine == next.mine
}

// settle takes in that others have handed over, or are gone; the caller holds
// mu.
func (c *core) settle() {
	v := c.view.Load()
	if c.inStore() || v.stable.Load() {
		return
	}
	// What this node has sent away, and has no receipt for, may be its own again under this ring, and come back.
	if len(c.mover.underway) > 0 {
		return
	}
	for _, m := range c.members {
		if m.mayHave(v) {
			return
		}
	}
	// From here on a key without an account is a new key, without a search.
	v.stable.Store(true)
	c.wasStable = c.wasStable || v.mine
}

// mayHave tells whether the member may have accounts that are this node's own
// under a view.
func (m *member) mayHave(v *view) bool {
	// A node that has left may still have accounts to send. Its done counts only for this ring.
	return m.holds && m.done != v.digest
}

// lapsed tells whether the node did not run for so long that others may own its
// keys. The first decision after that notices.
func (c *core) lapsed(now instant) bool {
	ticked := instant(c.ticked.Load())
	// A node before its first tick has not joined either, so that no other can have taken its keys over.
	if ticked == 0 || now.Sub(ticked) <= lapseAfter {
		return false
	}
	c.unconfirmed.Store(true)
	c.hands.wake()
	return true
}

// report reports what went wrong with a peer.
func (c *core) report(addr string, err error) {
	if c.options.OnPeer != nil && err != nil {
		c.options.OnPeer(addr, err)
	}
}

// stamp is the ledger's time here, for messages.
func (c *core) stamp() int64 {
	// With a store no peer compares clocks, and 0 means that there is nothing to compare.
	if c.inStore() {
		return 0
	}
	return int64(c.local.LedgerNow(c.clock()))
}
