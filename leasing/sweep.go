package leasing

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// sweepParts is the number of sweeps for a whole large table, so that no request waits for long.
const (
	sweepParts = 10
	largeShard = 1000 // keys
)

// sweep looks after keys without requests: ended windows, idle leases, and reports. In a young epoch, each sweep visits
// the whole table: all totals must be stated within its two seconds.
func (f *Fleet) sweep(now instant) {
	f.restateIfDue(now)
	for i := range f.lanes {
		_, is := f.lanes[i].read()
		f.lives[i] = is.life
	}
	for i := range f.shards {
		s := &f.shards[i]
		s.mu.Lock()
		n := s.keys.Len()
		s.mu.Unlock()
		f.gauged.on = i%sweepParts == f.part // each key once in a round, for any number of visits
		if n > 0 && (n <= largeShard || f.gauged.on || f.Young()) {
			f.sweepShard(now, s)
		}
	}
	f.part = (f.part + 1) % sweepParts
	if f.part == 0 {
		f.gauged.publish()
	}
}

// sweepShard walks through a shard, a bounded number of keys under one lock. Keys are removed after the walk of a step:
// a removal moves others of the same segment.
func (f *Fleet) sweepShard(now instant, s *shard) {
	var over []keytable.ID
	for at := (keytable.Cursor{}); !at.Done; {
		s.mu.Lock()
		over = over[:0]
		at = s.keys.Walk(at, func(c *cell) {
			if f.sweepLocked(now, s, c) {
				over = append(over, c.ID())
			}
		})
		// mayGoLocked looks again: it also decides whether the key has usage that counts.
		for _, id := range over {
			if f.mayGoLocked(s, now, s.keys.Get(id)) {
				s.keys.Remove(id)
			}
		}
		s.mu.Unlock()
	}
}

// view is the state of a cell. Without a use, the scratch stands for it, so that the key does not become busy.
func (s *shard) view(c *cell, scratch *use) entry {
	if c.Val.use != 0 {
		scratch = s.uses[c.Val.use-1]
	} else {
		*scratch = use{id: c.ID()}
	}
	return s.with(c, scratch)
}

// sweepLocked looks after one key. It reports whether the key can be dropped. A key with a message in flight is left to
// its answer. Otherwise the first of these reasons causes a message: a loss of data, a renewal or a report that is due,
// usage that is unreported for long, an idle lease.
func (f *Fleet) sweepLocked(now instant, s *shard, c *cell) (over bool) {
	if c.Val.rests(now, f.lives[c.Val.lane]) {
		return false
	}
	// A sweep must not make all keys busy: s.entry follows only if there is something to send.
	k := s.view(c, &f.resting)
	rule := k.rule()
	f.gauged.add(rule, &k, now)
	if k.use.flight != nil {
		return false
	}
	there, is := f.lane(k).read()
	life := is.life
	unused := now.Sub(k.Demand.LastUse)
	if k.Full(now, &rule.Limit) {
		k.Refilled()
	}
	if now >= k.CurrentUntil || k.Full(now, &rule.Limit) || k.CurrentUntil == lease.Never && k.Unanswered() {
		// Ended windows are reported, and keys without requests are dropped.
		return f.enterLocked(now, &there, k) && unused > rule.Limit.Period()
	}
	_, due := k.Due(now, f.sizing(rule, f.lane(k)))
	switch {
	case c.Val.reportedLife != life && is.epoch.ID != 0:
		// After a loss the key's total is stated again, until an answer arrives. A new key has none. A total of 0 is,
		// too: an older copy of the ledger's data may have one from before a return of tokens.
		early, _ := there.Between(now)
		switch young := is.epoch.Young(early); {
		case !f.restateBeforeLocked(k): // the next sweep tries again
		case k.LastAnswer == 0:
			c.Val.reportedLife = life
		case !young || max(k.Taken, k.Spent) >= 0: // what credits charges of others is stated after these
			f.restatedKeys++
			k = s.entry(now, c.ID(), c)
			k.Restate()
			f.launchLocked(k, lease.Batch)
		}
	// The key may have had no use until here, so renewLocked asks Due again.
	case due:
		f.renewLocked(now, s.entry(now, c.ID(), c))
	case c.Val.owes() && unused > restAfter:
		k = s.entry(now, c.ID(), c)
		k.Restate()
		f.launchLocked(k, lease.Batch)
	case k.Idle(now) && !f.keptIdle(k):
		k = s.entry(now, c.ID(), c)
		k.Resign(now.Add(SweepEvery)) // the answer must not return its tokens
		f.launchLocked(k, lease.Batch)
	case c.Val.use != 0 && unused > restAfter && !k.Kept():
		s.leave(c.Val.use - 1)
	}
	return false
}

// rests reports whether a key needs nothing before its window ends. It is not busy, nothing is in hand, and the ledger
// has its total in this life of the epoch. Most keys of a large table rest, and a sweep only passes them by.
func (k *key) rests(now instant, life uint8) bool {
	return k.use == 0 && now < k.CurrentUntil && k.CurrentUntil != lease.Never &&
		k.reportedLife == life && k.Taken == k.Spent && !k.owes() && !k.InFlight()
}

// unreported reports whether the ledger lacks some usage of the key, or tokens are in hand. The lease of a bucket ends
// by itself, so only its tokens before that count.
func (k *key) unreported(now instant) bool {
	windowed := k.CurrentUntil != lease.Never && k.Unspent() > 0
	return k.InFlight() || k.owes() || windowed || k.InHand(now) > 0 || k.Drift() > 0 || k.Drifting(now, 0)
}

// restAfter is the time for which a key is busy after its last request.
const restAfter = 2 * SweepEvery * sweepParts

// keptIdle reports whether a node keeps the lease of an idle key: if there is plenty, and the lease has no end. Others
// recall it when they need it. In a nearly full table, other keys need its place.
func (f *Fleet) keptIdle(k entry) bool {
	t := k.shard.keys
	return t.Len() <= t.Limit()*3/4 && k.Deadline == lease.Never && k.Sum <= k.rule().Limit.Capacity()*7/8
}

// Young reports whether a part of the ledger may have lost its data a moment ago.
func (f *Fleet) Young() bool {
	now := f.clock()
	for i := range f.lanes {
		if _, young := f.lanes[i].young(now); young {
			return true
		}
	}
	return false
}

// Ready reports whether each part of the ledger has answered, and has the totals of all nodes.
func (f *Fleet) Ready() bool {
	answered, all := f.PartsAnswered()
	return answered == all && !f.Young()
}

// PartsAnswered is the number of parts of the ledger that have answered, and of all parts.
func (f *Fleet) PartsAnswered() (answered, all int) {
	for i := range f.lanes {
		if f.lanes[i].time().At != 0 {
			answered++
		}
	}
	return answered, len(f.lanes)
}

const (
	// evictionRest is the minimum time between two restatements because single accounts were lost.
	evictionRest = time.Minute
	// missedRest bounds the cost of restatements because recalls were missed: the next one waits for as long for each
	// key of the last. So some thousand keys are stated after each break of a subscription, and those of a large table
	// less often.
	missedRest = 500 * time.Microsecond
)

// RestateEvicted states all totals again, because the ledger has evicted keys. It does not block. Sweeps send the
// claims, at most once in evictionRest.
func (f *Fleet) RestateEvicted() { f.evicted.Store(true) }

// restateIfDue states all totals again, if accounts may have been evicted, or recalls missed, since the last time. It
// counts as another life of each lane, without another epoch: then each key's total is of an earlier life.
func (f *Fleet) restateIfDue(now instant) {
	due := func(asked *atomic.Bool, rest time.Duration) bool {
		return (f.restated == 0 || now.Sub(f.restated) >= rest) && asked.Swap(false)
	}
	missed := due(&f.missedRecalls, time.Duration(f.restatedKeys)*missedRest)
	if !due(&f.evicted, evictionRest) && !missed {
		return
	}
	f.restated, f.restatedKeys = now, 0
	for i := range f.lanes {
		l := &f.lanes[i]
		l.mu.Lock()
		l.life++
		// Otherwise the epoch would seem to begin now, and hide that an account was lost in it.
		if l.life == l.began { // it wraps around
			l.began++
		}
		l.mu.Unlock()
	}
}

// Epoch is the combined state of the epochs of all parts.
func (f *Fleet) Epoch() ratelimit.EpochKnown {
	known := ratelimit.EpochKnown{Young: f.Young(), Asked: lease.Never}
	for i := range f.lanes {
		_, is := f.lanes[i].read()
		if is.epoch.ID == 0 {
			return ratelimit.EpochKnown{Young: true}
		}
		known.ID, known.Asked = known.ID*31+is.epoch.ID, min(known.Asked, is.asked)
	}
	known.ID |= 1
	return known
}

// Restating reports whether the ledger may have lost its data, and this node has not restated all of its totals. While
// it is true, beats prolong the youth. Totals of 0 or less need not be stated in it.
func (f *Fleet) Restating() bool {
	return f.Young() && f.any(func(k *entry) bool {
		_, is := f.lane(*k).read()
		_, before := k.Before()
		return k.cell.Val.reportedLife != is.life && (before || k.LastAnswer != 0 && max(k.Taken, k.Spent) > 0)
	})
}

// Drifting reports whether this node has unconfirmed drift, in current windows.
func (f *Fleet) Drifting() bool {
	now := f.clock()
	return f.any(func(k *entry) bool { return k.Drifting(now, k.rule().Limit.Period()) })
}

// any reports whether a condition holds for a key. It takes one lock at a time, for a bounded number of keys. The
// scratch stands for the uses of keys without one.
func (f *Fleet) any(is func(*entry) bool) (found bool) {
	var scratch use
	for i := range f.shards {
		s := &f.shards[i]
		for at := (keytable.Cursor{}); !at.Done && !found; {
			s.mu.Lock()
			at = s.keys.Walk(at, func(c *cell) {
				k := s.view(c, &scratch)
				found = found || is(&k)
			})
			s.mu.Unlock()
		}
	}
	return found
}

// leave gives back all tokens in hand, at the node's end, in a few rounds: a message may be in flight, or its answer
// may bring tokens. It waits for answers now and again, to bound the messages in flight.
func (f *Fleet) leave() {
	f.leaving.Store(true)
	for more, round := true, 0; more && round < leaveRounds; round++ {
		var last []*keyMessage
		more = false
		answered := func() {
			for _, fl := range last {
				<-fl.done
			}
			more, last = more || len(last) > 0, last[:0]
		}
		for i := range f.shards {
			for at := (keytable.Cursor{}); !at.Done; {
				var some []*keyMessage
				at, some = f.leaveSome(&f.shards[i], at)
				last = append(last, some...)
				if len(last) >= leaveAtOnce {
					answered()
				}
			}
		}
		answered()
	}
}

// leaveAtOnce is the number of messages that are worth to wait for: a quarter of the queues' room.
const leaveRounds, leaveAtOnce = 3, queueSize / 4

// leaveSome gives back the tokens in hand of the next few keys of a shard.
func (f *Fleet) leaveSome(s *shard, at keytable.Cursor) (next keytable.Cursor, last []*keyMessage) {
	now := f.clock()
	s.mu.Lock()
	defer s.mu.Unlock()
	var scratch use
	next = s.keys.Walk(at, func(c *cell) {
		k := s.view(c, &scratch)
		// There is nothing to give back, nothing to report, and no answer to come.
		if k.Taken <= k.Spent && !c.Val.owes() && !k.InFlight() && !k.Returns() {
			return
		}
		k = s.entry(now, c.ID(), c)
		k.Resign(lease.Never)
		if fl, _ := f.joinLocked(k); fl != nil {
			last = append(last, fl)
		}
	})
	return next, last
}

// server is a ledger that can lose its data, and that recalls tokens. [account.Redis] is one.
type server interface {
	account.Ledger
	// Recalls calls recalled with each account whose tokens other nodes need. It returns when ctx is done.
	Recalls(ctx context.Context, node ratelimit.Holder, recalled func(key string, w ratelimit.Window))
	// After a loss of data, Prolong prolongs the youth of the epoch, in which nodes state their totals.
	Prolong(ctx context.Context) (ratelimit.Epoch, error)
}

// beatEvery is the time between two beats. It bounds the time between two answers of a server, and so the time until a
// loss is noticed.
const beatEvery = 500 * time.Millisecond

// attend follows a server's recalls and epochs until ctx is done.
func (f *Fleet) attend(ctx context.Context, s server) {
	var all sync.WaitGroup
	all.Go(func() { s.Recalls(ctx, f.name, f.Recalled) })
	all.Go(func() { f.beats(ctx, s) })
	if r, ok := s.(reclaimer); ok {
		all.Go(func() { f.registers(ctx, r) })
		all.Go(func() { f.reclaims(ctx, r) })
	}
	all.Wait()
}

// beats reads the server's epoch, and prolongs its youth while this node has more to state. Prolong reads the epoch by
// itself: the lanes learn of it with the next message or beat.
func (f *Fleet) beats(ctx context.Context, s server) {
	upkeep.Every(ctx, beatEvery, func() {
		if !f.Restating() {
			f.Beat()
			return
		}
		bounded, cancel := context.WithTimeout(ctx, lane.TimeLimit)
		defer cancel()
		_, err := s.Prolong(bounded)
		if err != nil && ctx.Err() == nil {
			f.OnFailure(err)
		}
	})
}
