package account

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// servers are the servers with accounts.
//
// A Cluster has 16384 slots, divided among its masters. The ledger divides the slots into 16 contiguous parts, and a
// part fails with any of its servers. An epoch of a part is a sum of the losses that this process has noticed there, so
// slots that move with their data change no epoch.
//
// Layouts are read in the background (known), and mended by redirections (join). Losses come from epoch.lua (lost), and
// from servers that are gone (enter).
type servers struct {
	one *server // without a Cluster; nil in one
	// losses are those that this process has noticed at servers of each part. Invariant: they only rise, so each loss
	// makes another epoch of the part.
	losses [partitions]atomic.Uint64

	current atomic.Pointer[layout] // nil: not yet read
	stale   atomic.Bool            // the servers of the Cluster, or their slots, have changed
	doubts  atomic.Uint64          // number of times that all servers were to be looked at
	reading sync.Mutex             // of the one that reads the layout
	// tags has a number for each slot of a Cluster, whose text is in that slot: slot 5 has the epoch's name with
	// {tags[5]}. With a {tag} in the prefix, it has one element.
	tags   []uint32
	readAt time.Time // guarded by reading
	// met are all servers that this process has known, guarded by reading: one may be missing from a layout, because
	// servers learn of moves one after the other.
	met     map[*redis.Client]*server
	joining sync.Mutex // guards changes of current
}

// layout is the servers of each slot, as last read. It is immutable, except for slots that have moved since.
type layout struct {
	all   []*server
	parts [][]*server // the servers of each part
	slots []atomic.Pointer[server]
}

// server is a server with accounts. In a Cluster it is the master of a shard.
type server struct {
	client *redis.Client
	// first means that the server existed when this process began. Invariant: it is not written after.
	first bool
	// instead means that it has slots of a server that did not answer any more: they came without their data.
	instead atomic.Bool
	// names are the names of its epoch's key. In a Cluster they are in the lowest and the highest of its slots of each
	// part. When some move away, the others show whether the server has lost its data.
	names atomic.Pointer[[]string]
	// kept are the names under which this process has seen an epoch here, or at a server that its slots came from; nil:
	// none.
	kept     atomic.Pointer[keptNames]
	life     atomic.Pointer[life] // last read; nil: not yet
	looked   atomic.Uint64        // the doubts before the last look
	lostAt   atomic.Int64         // the last loss that this process has noticed: nanoseconds since began; 0: none
	failures atomic.Int32         // trips in a row without an answer: any answer resets them
}

// began is before all losses.
var began = time.Now()

// lately bounds the time for which a slot's move can be unknown here. The servers of a Cluster learn of moves from each
// other, within half of their cluster-node-timeout, which is 15 s by default.
const lately = time.Minute

// lostLately reports whether the server has lost data, perhaps after slots moved to it that are still unknown here.
func (s *server) lostLately() bool {
	at := time.Duration(s.lostAt.Load())
	return at != 0 && time.Since(began)-at < lately
}

// keptNames are names of an epoch's key. They are immutable.
type keptNames struct {
	// of was the value of server.names when they were written; nil for names that came with slots from other servers.
	of  *[]string
	all []string
}

func (l *Redis) single(c *redis.Client) {
	l.one = &server{client: c, first: true}
	l.one.names.Store(&[]string{l.prefix + EpochName})
	all := []*server{l.one}
	l.current.Store(&layout{all: all, parts: [][]*server{all}})
}

// allNames are the kept names, and their number, and then the others. For epoch.lua, one of the first that is missing
// is a sign of a loss, and one of the others may be new.
func (s *server) allNames(current []string) (names []string, kept int) {
	if was := s.kept.Load(); was != nil {
		names = slices.Clone(was.all)
	}
	kept = len(names)
	for _, name := range current {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, kept
}

func (x *layout) allParts() []int {
	all := make([]int, len(x.parts))
	for i := range all {
		all[i] = i
	}
	return all
}

// readRest is the least time between two reads of a Cluster's layout: meanwhile, servers say where a slot is.
const readRest = 100 * time.Millisecond

// known returns the layout. For a Cluster it is read at first. After each hint of a change, it is read again in the
// background, because a server that hangs must not delay messages to others.
func (l *Redis) known(ctx context.Context) (*layout, error) {
	x := l.current.Load()
	if x == nil {
		l.reading.Lock()
		defer l.reading.Unlock()
		// Another goroutine may have read it meanwhile.
		x = l.current.Load()
		if x != nil {
			return x, nil
		}
		err := l.readLocked(ctx)
		return l.current.Load(), err
	}
	if l.cluster != nil && l.stale.Load() && l.reading.TryLock() {
		// It stays stale, and a later message starts the read.
		if time.Since(l.readAt) < readRest {
			l.reading.Unlock()
			return x, nil
		}
		go func() {
			defer l.reading.Unlock()
			// Before the read, so that a hint that arrives meanwhile counts for the next one.
			l.stale.Store(false)
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			if l.readLocked(ctx) != nil {
				l.stale.Store(true)
			}
			l.readAt = time.Now()
		}()
	}
	return x, nil
}

// readLocked finds the masters of all slots. It keeps the state of known masters. The name of an epoch's key in each
// slot finds the master of the slot. A slot without a master does not keep others from use.
func (l *Redis) readLocked(ctx context.Context) error {
	// The client reads the slots again at that.
	_ = l.cluster.ForEachMaster(ctx, func(context.Context, *redis.Client) error { return nil })
	if l.met == nil {
		l.met = map[*redis.Client]*server{}
	}
	was := l.current.Load()
	x := &layout{parts: make([][]*server, l.Partitions()), slots: make([]atomic.Pointer[server], clusterSlots)}
	names := map[*server][]string{}
	var failed error
	for i, tag := range l.tags {
		name := l.epochKey(tag)
		c, err := l.cluster.MasterForKey(ctx, name)
		if err != nil { // a slot without a master: its claims fail
			failed = err
			if ctx.Err() != nil {
				return ctx.Err()
			}
			continue
		}
		s := l.met[c]
		if s == nil {
			s = &server{client: c, first: was == nil}
			l.met[c] = s
		}
		part := i * len(x.parts) / clusterSlots
		if names[s] == nil {
			x.all = append(x.all, s)
		}
		if !slices.Contains(x.parts[part], s) {
			x.parts[part] = append(x.parts[part], s)
			// Two names for each part: the lowest slot, and the highest so far, which the next line replaces.
			names[s] = append(names[s], name, name)
		}
		names[s][len(names[s])-1] = name
		x.slots[slotOfName(name)].Store(s)
	}
	if len(x.all) == 0 {
		return fmt.Errorf("redis: no server of the Cluster was found: %w", failed)
	}
	for s, all := range names {
		// The first name is in each trip, so it should be the last to move.
		slices.Reverse(all) // most tools move the lowest slots first
		all = slices.Compact(all)
		s.names.Store(&all)
	}
	l.enter(x)
	return nil
}

// at is the server at an address, or nil.
func (x *layout) at(addr string) *server {
	for _, s := range x.all {
		if s.client.Options().Addr == addr {
			return s
		}
	}
	return nil
}

// silent is the number of trips in a row without an answer after which a server that is replaced counts as lost.
const silent = 3

// enter makes a layout the current one. A part that gets slots of a server counts a loss if the server lost data
// lately: that may have been after the slots moved. It also counts one if a server that did not answer is gone: its
// slots came without their data. The slots of a server that answered until then have moved with their data. A server
// that is new may lose them before it is read: then names are missing that came with its slots.
func (l *Redis) enter(x *layout) {
	l.joining.Lock()
	defer l.joining.Unlock()
	was := l.current.Load()
	if was == nil {
		l.current.Store(x)
		return
	}
	// A trip may look at a server as soon as the layout is current.
	for _, s := range x.all {
		if s.life.Load() == nil && !slices.Contains(was.all, s) {
			s.kept.Store(&keptNames{all: x.carriedTo(s, was.all)})
		}
	}
	l.current.Store(x) // before it looks for losses, so that none is missed
	for part := range x.parts {
		for _, s := range x.parts[part] {
			if !slices.Contains(was.parts[part], s) && s.lostLately() {
				l.losses[part].Add(1)
			}
		}
		for _, s := range was.parts[part] {
			if slices.Contains(x.all, s) || s.failures.Load() < silent {
				continue
			}
			l.losses[part].Add(1)
			for _, to := range x.parts[part] {
				to.instead.Store(true)
			}
		}
	}
}

// carriedTo are the names that other servers kept, and whose slots are now at this one.
func (x *layout) carriedTo(s *server, others []*server) (names []string) {
	for _, other := range others {
		kept := other.kept.Load()
		if kept == nil {
			continue
		}
		for _, name := range kept.all {
			if x.slots[slotOfName(name)].Load() == s {
				names = append(names, name)
			}
		}
	}
	return names
}

// join notes that a slot moves to a known server, or has moved there. It replaces the layout by a copy, because layouts
// are read without a lock. Like enter, the part counts a loss of the server.
func (l *Redis) join(slot, part int, s *server, moved bool) {
	l.joining.Lock()
	defer l.joining.Unlock()
	x := l.current.Load()
	if moved {
		x.slots[slot].Store(s)
	}
	if !slices.Contains(x.all, s) || slices.Contains(x.parts[part], s) {
		return
	}
	joined := *x
	joined.parts = slices.Clone(x.parts)
	joined.parts[part] = append(slices.Clone(x.parts[part]), s)
	l.current.Store(&joined)
	if s.lostLately() {
		l.losses[part].Add(1)
	}
}

// lost notes a loss at a server, for the parts of its slots. A part may count one loss twice, if its slots move at this
// moment. That costs restatements, and no token.
func (l *Redis) lost(s *server) {
	s.lostAt.Store(int64(time.Since(began)))
	l.stale.Store(true) // it may have more slots by now
	x := l.current.Load()
	for part := range x.parts {
		if slices.Contains(x.parts[part], s) {
			l.losses[part].Add(1)
		}
	}
}

// partitions is the number of parts of a Cluster's slots.
const partitions = 16

// Partitions is the number of parts that fail separately: one, except in a Cluster. A part's slots are contiguous,
// and so mostly at one or two servers. A prefix with a brace may put all accounts into one slot.
func (l *Redis) Partitions() int {
	if l.cluster == nil || strings.Contains(l.prefix, "{") {
		return 1
	}
	return partitions
}

// Partition is the part of a key's accounts, below Partitions. The hash tag of an account's name ends with the first
// brace of its key.
func (l *Redis) Partition(key string) int {
	n := l.Partitions()
	if n == 1 {
		return 0
	}
	tag, _, _ := strings.Cut(key, "}")
	return int(slotOf(tag)) * n / clusterSlots
}

func (l *Redis) epochKey(tag uint32) string {
	return l.prefix + EpochName + "{" + strconv.FormatUint(uint64(tag), 36) + "}"
}

// clusterSlots is the number of slots of a Cluster.
const clusterSlots = 16384

// slotTags finds for each slot, by trial, a number whose name is in it. A prefix with a {tag} has all accounts in one
// slot; then one name is enough. It takes some milliseconds. All slots are found among the first 90,000 numbers, which
// have at most four digits to the base of 36.
func slotTags(prefix string) []uint32 {
	if open := strings.IndexByte(prefix, '{'); open >= 0 && strings.IndexByte(prefix[open:], '}') > 1 {
		return []uint32{1}
	}
	tags, found := make([]uint32, clusterSlots), 0
	for n := uint32(1); found < clusterSlots; n++ {
		if at := slotOf(strconv.FormatUint(uint64(n), 36)); tags[at] == 0 {
			tags[at] = n
			found++
		}
	}
	return tags
}

// slotOf is the slot of a {tag}: CRC-16 as in XMODEM, from the Cluster's specification.
func slotOf(tag string) uint16 {
	crc := uint16(0)
	for i := range len(tag) {
		crc ^= uint16(tag[i]) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			crc <<= 1
			if carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % clusterSlots
}

// slotOfName is the slot of a name, by its {tag}.
func slotOfName(name string) int {
	if _, after, found := strings.Cut(name, "{"); found {
		if tag, _, ends := strings.Cut(after, "}"); ends && tag != "" {
			return int(slotOf(tag))
		}
	}
	return int(slotOf(name))
}

// ErrMoved means that the slot of a message's account moves to another server.
var ErrMoved = errors.New("the slots of the Cluster have moved")

// errAway means that a server has given its slots away, and so its epoch. It may have settled messages before.
var errAway = fmt.Errorf("%w: the server has none left", ErrMoved)

// isMoved reports whether a server answers where a slot is, or that it moves. That says nothing of the server's data.
// MOVED names the new server, ASK the one that takes the slot key by key, and TRYAGAIN means that a message's two
// accounts are at both.
func isMoved(err error) bool {
	return slices.ContainsFunc([]string{"MOVED ", "ASK ", "TRYAGAIN"}, func(p string) bool {
		return redis.HasErrorPrefix(err, p)
	})
}

// redirects bounds the servers that a message is sent to, because its slot moves.
const redirects = 4

// follow sends messages whose slots move to the servers that the answers name. It returns an error for each trip. The
// first try follows at once, and later ones after a pause: the servers learn of a move one after the other.
func (l *Redis) follow(ctx context.Context, claims []Claim, grants []Grant) (errs []error) {
	for try := 1; try < redirects; try++ {
		trips, wait := l.redirected(claims, grants)
		if len(trips) == 0 {
			return errs
		}
		if (wait || try > 1) && pause(ctx, try) != nil {
			return errs
		}
		errs = append(errs, settleAll(ctx, trips)...)
		for _, t := range trips {
			if t.stranger {
				_ = t.server.client.Close()
			}
		}
	}
	return errs
}

// redirected are the trips for messages whose slots move. wait means that some of them need a moment. A message whose
// server may have settled it (errAway) is not sent again: a draw would count twice.
func (l *Redis) redirected(claims []Claim, grants []Grant) (trips []*trip, wait bool) {
	for i := range claims {
		if err := grants[i].Err; !errors.Is(err, ErrMoved) || errors.Is(err, errAway) {
			continue
		}
		l.stale.Store(true)
		x, part, slot := l.current.Load(), l.Partition(claims[i].Key), slotOfName(l.nameOf(claims[i].Key, 0))
		to := trip{Redis: l, server: x.slots[slot].Load(), claims: claims, grants: grants, eval: evalSha}
		addr, moved := redis.IsMovedError(grants[i].Err)
		if asked, asks := redis.IsAskError(grants[i].Err); asks {
			addr, to.asking = asked, true
		}
		switch known := x.at(addr); {
		case known != nil:
			to.server = known
			l.join(slot, part, known, moved)
		// An ASK may name a server that has no slots yet. The layout lacks it: it gets a client for this trip.
		case to.asking:
			o := *x.all[0].client.Options()
			o.Addr, o.MaxRetries = addr, -1
			to.server, to.stranger = &server{client: redis.NewClient(&o)}, true
		default: // it is new to the Cluster, or it has only some of the names
			wait = true
		}
		if to.server == nil {
			continue
		}
		// Messages to one server share a trip. ASKING counts for one command, so they are apart from others.
		n := slices.IndexFunc(trips, func(t *trip) bool {
			return t.asking == to.asking && t.server.client.Options().Addr == to.server.client.Options().Addr
		})
		if n < 0 {
			n, trips = len(trips), append(trips, &to)
		} else if to.stranger {
			_ = to.server.client.Close()
		}
		trips[n].left = append(trips[n].left, i)
	}
	return trips, wait
}
