package routing

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/credentials"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/table"
	"github.com/sluice-gate/sluice/routing/internal/hot"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// core is a node in a ring without goroutines, sockets, timers or clocks of its own. Instants and messages
// are arguments, and its own messages wait in its links. [Router] and [Stepped] drive it. It is safe for
// concurrent use.
//
// Locks are taken in this order, and none is held while something waits, sends or receives:
//
//	inbox.mu, mu, gate, link.mu, those of local.Limiter; last the mu of hot, hotHere, arrears, ruleCache and rings
//
// In package leasing the order is shard.mu, lane.mu, and in Local counterShard.mu, then limitNotes.mu or Arena.mu.
type core struct {
	identity
	deciders
	env

	// gate is used without a store only. It is held for reading while a key is looked up and
	// decided here, or its account is taken out, and for writing while the view changes. A decision
	// that began under the old ring has therefore ended before the new ring is in force: no account
	// is charged here after the mover has taken it out.
	gate sync.RWMutex
	view atomic.Pointer[view]
	standby

	mu         sync.Mutex
	membership // guarded by mu
	moving     // guarded by mu
	hotKeys
	rules ruleCache
	stats counted
}

// identity is who a node is, in this life.
type identity struct {
	options Options
	// incarnation names this life of the process. Each numbers its parcels
	// anew, so that one of an earlier life must not be taken for one of this (see the package's documentation).
	incarnation uint64
	began       instant
}

// standby is how far a node may decide.
type standby struct {
	// ticked is the instant of the node's last tick; 0: there was none. It is atomic, because each decision reads it
	// without mu (lapsed).
	ticked atomic.Int64
	// unconfirmed means that others may decide on this node's keys. Some have not acknowledged yet that it has
	// joined: two nodes that join at once would otherwise each decide in a ring without the other. Or it has not
	// run for so long that others may have taken over.
	unconfirmed atomic.Bool
}

// hotKeys is which keys are hot: hot is what others ask this node for as the owner, hotHere
// what this node leases from the store in place of other owners.
type hotKeys struct {
	hot     *hot.Finder
	hotHere hot.Here
}

// deciders are the limiters behind a node of the ring. They are set before it is used,
// and not changed.
type deciders struct {
	base limiter // decides on this node's own keys
	// local has the budgets of the keys that this node owns. With a store it is nil: the store has them, all nodes
	// share it, and nothing moves when the ring changes. The owner is only the node that leases, and a node that
	// cannot reach it leases from the store itself. Without a store, accounts are handed over, and until all have
	// been, an owner fetches those that may be elsewhere.
	local *local.Limiter
	// fallback decides under on_store_failure: local when an owner does not answer.
	fallback *local.Limiter
}

// inStore reports whether a store has the remainder of each key.
func (d *deciders) inStore() bool { return d.local == nil }

// env has the driver's means: time, chance and actions.
type env struct {
	clock   ratelimit.Clock
	random  func() float64
	driver  driver
	observe *observer // nil: no observer
}

// membership has the other nodes, and whether this node is in the ring. The zero membership, with a map, has no
// other nodes and is in no ring.
type membership struct {
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

// moving is the accounts that are on their way from node to node, without a store.
type moving struct {
	mover   mover
	arrears arrears
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

// driver is the driver's actions for a core. No method but sleep may block, and none may call the core. The core calls
// it under its locks, except sleep.
type driver interface {
	// sleep ends at that instant, or when the bell rings or ctx is done.
	sleep(ctx context.Context, b bell, until instant)
	dial(m *member)   // keep a way open to a node
	hangUp(m *member) // and no longer
	redial(m *member) // on a new stream
	wake()            // there is something to do for tick or step
}

// observer sees what an owner decides for its peers, for simulations. asked has it see a verdict with its place as
// soon as it is made, though others of the same message still wait.
type observer struct {
	asked           func(ctx context.Context, verdicts []verdict, see func(i int))
	decided, undone func(a *ask, v *verdict)
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
	// since has the rings before, the newest first, back to the last one under which all had handed over. Without
	// it, no key counts as kept.
	since  []*ring.Ring
	peers  map[string]*link // of all members, in the ring or not
	mine   bool             // this node is in the ring
	began  instant
	stable atomic.Bool // no other node has accounts of this node
}

// mostSince bounds how many rings a view remembers. If the ring changes more often before all have handed over, the
// node asks others for accounts that it may have had all along. A silent one does not answer.
const mostSince = 8

// kept reports whether a key was this node's own ever since all had handed over: then no other node has its account.
// Another owner meanwhile may have begun one, which may be there or on its way.
func (v *view) kept(hash uint64, self string) bool {
	return len(v.since) > 0 &&
		!slices.ContainsFunc(v.since, func(r *ring.Ring) bool { return r.Owner(hash) != self })
}

// Options are a node's settings as one of a ring.
type Options struct {
	Addr      string // this node's, for peers
	Region    string // this node's; nodes of others are refused
	Discovery Discovery
	Secret    string // the shared secret of all peers; see CheckSecret
	// for dialling, TLS 1.3; nil: with certificates that prove nothing, so that the secret is needed
	TLS     credentials.TransportCredentials
	HotRate float64 // hits a second from which on a key is hot; 0: ten times the mean
	// Table, if set, is one that all nodes of a ring without a store have.
	Table *table.Table
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
	if len(o.Region) > maxRegion || !utf8.ValidString(o.Region) {
		errs = append(errs, fmt.Errorf("REGION is %q, must be UTF-8 and at most %d bytes", o.Region, maxRegion))
	}
	if checkAddr(o.Addr) != nil {
		errs = append(errs, fmt.Errorf("PEER_ADDR is %q: %w", o.Addr, errAddr))
	}
	return errors.Join(errs...)
}

// member is another node, as this one sees it.
//
//	discovered, or applyHello --> dialled --opened--> ready --closed--> dialled
//
//	out --applyPresence, or its welcome--> alive, holds --applyPresence--> holds --applyDone--> out
//	out --the welcome of a node that has left------------------------------> holds
//	 ^------------------------ bury: silent for TakeOver, or another incarnation ---------------'
type member struct {
	*link
	announced
	wakeups

	// The node's own announcements.
	incarnation uint64
	alive       bool // in the ring
	// holds states that the node has been in the ring, and has not announced since that it has no accounts of
	// others: it may have some of this node's. Invariant: a node that is alive holds.
	holds   bool
	changes uint64 // the number of its latest announcement: each time it joins or leaves, it counts up
	// done is the ring under which it has nothing of others, since it last joined or left; 0: none.
	done uint64
}

// announced is the progress of this node's announcements to another.
type announced struct {
	found   instant
	helloAt instant // when it last introduced itself
	// failures counts dials in a row. A node without a way to it and without failures may be there or not.
	failures   int
	acked      uint64  // the number of the announcement that the node has acknowledged last; 0: none
	announcing bool    // one is on its way
	repeat     instant // of the next announcement, at the earliest
	// Before paused, the node gets no parcels: it has refused some, and still sees another ring.
	paused instant
}

// wakeups wake the Router's goroutines of one way; Stepped has none of them.
type wakeups struct {
	stop     context.CancelFunc
	kick     bell // dial at once
	again    bell // end this conversation
	outgoing bell // a message is ready
}

// mover is the walk through this node's tables. It goes round until a round has left nothing of others behind.
type mover struct {
	state walk
	// next is the state after this round.
	next  walk
	visit local.Visit
	// full is the node whose room the walk waits for; nil: none.
	full  *member
	retry instant // of a walk that is stuck, at the earliest
	// underway has the receivers of accounts that are on their way, by the hashes of their whole keys. A key
	// in it has no account here and is not new: it must not start anew.
	underway map[uint64]string
}

// walk is the state of a mover, the last one before others. All but walked mean that there may be accounts of others:
// this node must not announce done.
type walk uint8

// inlet is the other end of a peer's link: its stream to this node. Its frames are handled one after the
// other.
type inlet struct {
	// addr and incarnation are what the introduction has proved: later frames do not name their
	// sender.
	addr        string
	incarnation uint64

	turns int // presences accepted since
	since instant
}

// inbox has the parcels of one incarnation of a node.
type inbox struct {
	lastSeen instant // guarded by core.mu

	mu   sync.Mutex // held while a parcel is accepted: streams of one node may overlap
	last uint64     // guarded by mu: the number of the last parcel
	// answers are the receipts of the last parcels, by number: if one is lost, the parcel comes again, and the same
	// receipt answers it. Guarded by mu, like the rest.
	answers map[uint64]*wire.Receipt
	// How much later it was here than there when a message came, at least: in the
	// last stretch of time, and the one before. The least of many messages is what
	// the clocks differ by, and the shortest way.
	behind [2]time.Duration
	since  instant
}

// fetch finds out where a key's account is, that is not here although the key is
// this node's own, while others may still have it. It asks each of them:
//
//	asking --all answer none, under this ring--> absent: it is a new key
//	   '-----it is on its way, or the ring is another's--> again, in a moment: it may be here by then
//
// A node that answers none will have none as long as it sees the same ring: it accepts
// only what is its own.
// It is guarded by core.mu. A fetch that has ended does not change any more.
type fetch struct {
	key   string
	view  *view
	open  int // answers that are missing
	began instant
	state fetchState
	soon  bool // some answers ask for another attempt
	bells []bell
}

type fetchState uint8

// How long things take.
const (
	// TakeOver is how long a node may be out of reach before others own its keys.
	TakeOver = 2 * time.Second
	// lapseAfter is the time without running after which a node assumes that others own its keys: its last
	// message to them may be a ping older.
	lapseAfter = TakeOver - pingEvery
	// forgetAfter is how long a node that is gone is still looked for.
	forgetAfter = time.Minute
	// grace is the time after its start in which a node does not count an unreachable one as absent: nodes
	// that start together open their ports one after the other.
	grace = time.Second
	// readyAfter is when a node takes traffic although others have not confirmed their handover: they see
	// another ring, or cannot send.
	readyAfter = 5 * TakeOver

	// Four pings fit into TakeOver: a node counts as silent only when several in a row are lost or
	// late.
	pingEvery = 500 * time.Millisecond
	tickEvery = pingEvery / 2
	tickSoon  = 5 * time.Millisecond // while something is to be repeated
	// leaveWait is how long a leaving node waits for all acknowledgements: one that does not answer must not
	// keep it.
	leaveWait = 500 * time.Millisecond
)
