package table

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Store keeps a table for all nodes. It is safe for concurrent use, and blocks at most until ctx is done.
type Store interface {
	// Since reads up to n records behind a place of the feed, in its order; in another life than the named one, from
	// the beginning. A place that this life has not reached is of a later copy of the data, and another life begins. If
	// nothing changed, it costs the store one cheap command.
	Since(ctx context.Context, life string, after int64, n int) (Page, error)
	// Merge takes records in, in one step: of two of a key, the greater one counts. In another life it does nothing,
	// and the error is [ErrLife]. Keys of a call differ.
	Merge(ctx context.Context, life string, records []Record) error
	// Set sets a record with a version of its own, as [Table.Set] does. In another life it does nothing, and the error
	// is [ErrLife]. With another error than that and [ErrChanged], it may have set it.
	Set(ctx context.Context, life string, r Record, expected Expected) (Record, error)
	// Drop drops records that still have these versions. In another life it does nothing, and the error is [ErrLife].
	Drop(ctx context.Context, life string, records []Record) error
}

// Page is what a store reads.
type Page struct {
	// Life names the life of the store's data. It changes when a change that was reported may be lost: with a loss of
	// data, a failover, a restore, or another run of the server.
	Life    string
	Now     instant // by the store's clock
	Records []Record
	Place   int64 // to go on from
	More    bool  // there may be more
}

const (
	// Beat is the time between two reads.
	Beat = 500 * time.Millisecond
	// chunk is the number of records that are read or written at once: at most 2.2 MB.
	chunk = 500
	// sweeps is the time between two looks for records to drop.
	sweeps = time.Minute
)

// Node is a node's table, in step with a store. Set may be called at any time, Step by one goroutine.
type Node struct {
	*Table
	store Store
	clock func() instant // this node's: it never goes back
	rnd   *rand.Rand
	ahead atomic.Int64 // what the store's clock is ahead of this node's, in microseconds

	// What Step alone uses.
	place int64
	// doubtful says that this node did not read for so long that its table may lack removals (rule 6).
	doubtful bool
	looked   bool     // the store was read as a whole, in this life
	missing  []string // keys of records that the store lacks: to be written back
	heard    instant  // when all was last read, or a read of all began without a table; 0: never
	heardAt  instant  // the same, by the store's clock
	gone     []Record // that were here for their time, to be dropped by the store
	forgot   instant

	mu   sync.Mutex
	life string // guarded by mu; "": not known
	told bool   // guarded by mu: what the store lacked is written back, in this life
}

// NewNode makes a node whose table is in step with a store, once it steps. clock must not go back. The seed says in
// which order it writes back.
func NewNode(t *Table, s Store, clock func() instant, seed uint64) *Node {
	return &Node{Table: t, store: s, clock: clock, rnd: rand.New(rand.NewPCG(seed, 1))}
}

// Time is the store's time at an instant of this node's clock. Without an answer yet, it is this node's.
func (n *Node) Time(now instant) instant { return now + instant(n.ahead.Load()) }

// Run steps with each beat, until ctx is done. failed gets the error of each beat that failed.
func (n *Node) Run(ctx context.Context, failed func(error)) {
	beat := func() {
		if err := n.beat(ctx); err != nil && ctx.Err() == nil {
			failed(err)
		}
	}
	beat()
	upkeep.Every(ctx, Beat, beat)
}

// stepTime bounds a step: other nodes' requests for the store may be in front.
const stepTime = 2 * time.Second

// beat steps until nothing is due.
func (n *Node) beat(ctx context.Context) error {
	for {
		bounded, cancel := context.WithTimeout(ctx, stepTime)
		more, err := n.Step(bounded)
		cancel()
		if err != nil || !more {
			return err
		}
	}
}

// Step reads what is new, up to a chunk; or in a new life, when all is read, it writes back a chunk of what the store
// lacks. more reports whether another step is due at once. It blocks until ctx is done at most. A step that fails
// changes nothing but what it has read, and the next one goes on there.
func (n *Node) Step(ctx context.Context) (more bool, err error) {
	page, err := n.store.Since(ctx, n.lives(), n.place, chunk)
	if err != nil {
		return false, err
	}
	now := n.clock()
	n.ahead.Store(int64(page.Now - now))
	// Silence counts from the first answer: a node that has just begun has nothing to doubt.
	if n.heard == 0 {
		n.heard, n.heardAt = now, page.Now
	}
	if now.Sub(n.heard) > Silence || n.stood(&page) { // rule 6: all is read anew, also if half of it was read before
		n.heard, n.heardAt = now, page.Now
		n.doubtful = true
		n.begin("")
		return true, nil
	}
	// The page is from the beginning of the other life (Since).
	if page.Life != n.lives() {
		n.begin(page.Life)
	}
	n.take(page.Records, now, n.doubtful)
	n.place = page.Place
	if page.More {
		return true, nil
	}
	if n.forgot == 0 || now.Sub(n.forgot) >= sweeps {
		n.gone, n.forgot = append(n.gone, n.Forget(now, n.Time(now))...), now
	}
	n.whole(now)
	return n.tell(ctx)
}

// begin reads all, in another life of the store's data.
func (n *Node) begin(life string) {
	n.place = 0
	n.looked = false
	n.missing = nil
	n.gone = nil
	n.mu.Lock()
	defer n.mu.Unlock()
	n.again()
	n.life, n.told = life, false
}

// lives is the life that this node reads.
func (n *Node) lives() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.life
}

// whole notes that all was read.
func (n *Node) whole(now instant) {
	if !n.looked {
		n.looked, n.missing = true, n.Table.missing()
		if n.doubtful {
			n.drop(n.missing, n.silent)
			n.missing = nil
		}
		// Nodes that write back at the same time read each other's records between: the order differs, so that they
		// divide the work.
		n.rnd.Shuffle(len(n.missing), func(i, j int) { n.missing[i], n.missing[j] = n.missing[j], n.missing[i] })
	}
	n.heard, n.heardAt = now, n.Time(now)
	n.doubtful = false
}

// stood reports whether this node's clock may have stood still for too long, as on a suspended host. The store's clock
// may also have been set: so it counts only while the store lacks nothing that this node has.
func (n *Node) stood(page *Page) bool {
	return page.Life == n.lives() && n.Ready() && page.Now.Sub(n.heardAt) > Silence
}

// tell writes back a chunk of what the store lacks (rule 5). Then the store drops what this node has had for an hour in
// this life (rule 3). By then, all copies of the data that may return have it, and all nodes that may write back.
func (n *Node) tell(ctx context.Context) (more bool, err error) {
	for len(n.missing) > 0 {
		some := n.missing[:min(chunk, len(n.missing))]
		n.missing = n.missing[len(some):]
		records := n.stillMissing(some)
		if len(records) == 0 {
			continue
		}
		if err := n.store.Merge(ctx, n.lives(), records); err != nil {
			n.missing = append(n.missing, some...)
			return false, err
		}
		return true, nil
	}
	if some := n.gone[:min(chunk, len(n.gone))]; len(some) > 0 {
		err := n.store.Drop(ctx, n.lives(), some)
		if err == nil {
			n.gone = n.gone[len(some):]
		}
		return err == nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = true
	return false, nil
}

// Ready reports whether the table was read, and Set may succeed.
func (n *Node) Ready() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told
}

// Set sets a record at the store, and then here. It returns the key's record afterwards; with [ErrChanged], the one
// that there is. The version of r is not read.
func (n *Node) Set(ctx context.Context, r Record, expected Expected) (Record, error) {
	n.mu.Lock()
	life, told := n.life, n.told
	n.mu.Unlock()
	if !told {
		return Record{}, ErrNotYet
	}
	if n.full(&r) {
		return Record{}, ErrFull
	}
	is, err := n.store.Set(ctx, life, r, expected)
	if err != nil {
		return is, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.life != life { // the store may have lost it, and this node has written back all
		return Record{}, ErrLife
	}
	n.Merge([]Record{is}, n.clock())
	return is, nil
}

// Alone is a table of a process without a store, or of one among peers. It is safe for concurrent use.
type Alone struct {
	*Table
	// Wall is the clock of versions and ends, which may be set at any time. Clock never goes back and is never set
	// ahead: by it, removals are kept (rule 3). Records of peers arrive by it, too ([At]).
	Wall  func() time.Time
	Clock ratelimit.Clock
}

// At is an instant as a time of a place's clock.
func At(now ratelimit.Instant) instant { return instant(int64(now) / int64(time.Microsecond)) }

// Set sets a record here.
func (a *Alone) Set(_ context.Context, r Record, expected Expected) (Record, error) {
	if a.full(&r) {
		return Record{}, ErrFull
	}
	return a.Table.Set(r, expected, At(a.Clock()), instant(a.Wall().UnixMicro()))
}

// Forget drops records after their time ([Table.Forget]). Call it once a minute.
func (a *Alone) Forget() { a.Table.Forget(At(a.Clock()), instant(a.Wall().UnixMicro())) }
