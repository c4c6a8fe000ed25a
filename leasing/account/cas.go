package account

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

// CAS is the ledger on any store that changes a record only if it is unchanged (compare and set). An account is one
// record. The claims of one message on an account are one change. If another node was faster, CAS reads the account
// again after a random pause, until ctx is done or triesMost is reached. It is safe for concurrent use, and
// allocates.
//
// Guarantee: that of the package. A change is computed from the account as it was read, at the store's time of the
// read. It is made only if the account and the life of the data are unchanged.
type CAS struct {
	store  Store
	prefix string
	// known is what this process has read of the epoch; nil: nothing yet. It is replaced, never changed.
	known atomic.Pointer[known]
	// lastBeat is the version of the epoch's record at the last read without claims. If that is still the version, no
	// node has advanced it since, and this one does (advance).
	lastBeat atomic.Uint64
	// OnRecall, if set before the first claim, is called for each recall, which then is not sent to its node.
	OnRecall func(holder ratelimit.Holder, key string, window ratelimit.Window)
	recalls  chan recalled // on their way to the store
}

// NewCAS makes a ledger whose records' names begin with prefix.
func NewCAS(store Store, prefix string) *CAS {
	return &CAS{store: store, prefix: prefix, recalls: make(chan recalled, recallsMost)}
}

const (
	// triesMost bounds the attempts of one message to change an account.
	triesMost = 16
	// contended is the longest pause before the second try. It doubles up to contendedMost.
	contended, contendedMost = time.Millisecond, 16 * time.Millisecond
)

// ErrContended answers claims on an account that others have changed each time. Nothing was settled.
var ErrContended = errors.New("other nodes changed the account at each try")

// Settle implements [Ledger]. The epoch and the time are those of the last try. If the epochs of two tries differ,
// earlier settlements are lost, and all claims have ErrLife. If a later try fails in another way, the settled claims
// keep their grants.
func (l *CAS) Settle(
	ctx context.Context, claims []Claim, grants []Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	var left []int
	for i := range claims {
		if err := check(&claims[i]); err != nil {
			grants[i] = Grant{Err: err}
		} else {
			left = append(left, i)
		}
	}
	var e ratelimit.Epoch
	var at instant
	left, err := retried(ctx, left, func(left []int) ([]int, error) {
		again, epoch, now, err := l.round(ctx, claims, grants, left)
		if err == nil && e.ID != 0 && e.ID != epoch.ID {
			err = ErrLife // earlier settlements no longer count
		} else if err == nil {
			e, at = epoch, now
		}
		return again, err
	})
	if err != nil && (e.ID == 0 || errors.Is(err, ErrLife)) {
		for i := range grants {
			grants[i] = Grant{Err: err}
		}
		return ratelimit.Epoch{}, 0, err
	}
	for _, i := range left {
		grants[i] = Grant{Err: err}
	}
	return e, at, nil
}

// retried calls f with the indexes that are left, which returns those where another node was faster, until there are
// none. It returns the rest, and why there is one.
func retried(ctx context.Context, left []int, f func(left []int) (again []int, err error)) ([]int, error) {
	for try := 1; ; try++ {
		again, err := f(left)
		switch left = again; {
		case err != nil || len(left) == 0:
			return left, err
		case try == triesMost:
			return left, ErrContended
		}
		if err := pause(ctx, try); err != nil {
			return left, err
		}
	}
}

// pause waits for a random time before another attempt, so that nodes do not collide again. Half of contended is the
// mean of the first wait. The waits double, because the more nodes collide, the longer each of their changes takes.
func pause(ctx context.Context, try int) error {
	most := min(contended<<(try-1), contendedMost)
	t := time.NewTimer(time.Duration(rand.Int64N(int64(most))))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// keyOf names the account of a window. The time from which a store may drop the record is a part of the name, so all
// nodes must compute the same one. A bucket has none: its end changes with its level.
func (l *CAS) keyOf(c *Claim, w ratelimit.Window) StoreKey {
	k := StoreKey{Name: NameOf(l.prefix, c.Key, w)}
	if w != 0 {
		// By its window alone: rules change, and their accounts keep their records.
		s := spanOf(&c.Limit, w)
		k.Over = s.ends.Add(s.ends.Sub(s.begins))
	}
	return k
}

// subject is the records of a claim in a round: its account, and if it needs that, the previous window's account.
type subject struct{ own, was *state }

// round tries to settle claims, in their order, as if each was sent alone: a claim on a window sees the effect of
// earlier ones on the previous window. It returns the claims on accounts that others have changed in the meantime; with
// an error, those that may not be settled. Without claims it reads the epoch. Its steps: collect the records of all
// claims, each once; read them with the epoch, as of one instant; settle the claims in memory; write the changed
// accounts. No lock is held: a faster node shows by the version of a record.
func (l *CAS) round(
	ctx context.Context, claims []Claim, grants []Grant, left []int,
) (again []int, e ratelimit.Epoch, now instant, err error) {
	keys, states := []StoreKey{l.life()}, map[string]*state{}
	stateOf := func(k StoreKey) *state {
		if states[k.Name] == nil {
			states[k.Name], keys = &state{change: Change{StoreKey: k}}, append(keys, k)
		}
		return states[k.Name]
	}
	all := make([]subject, len(left))
	for n, i := range left {
		c := &claims[i]
		// An empty state stands for the previous account where none counts.
		all[n] = subject{own: stateOf(l.keyOf(c, c.account())), was: &state{}}
		if c.Window > 1 && looksBack(&c.Limit) {
			all[n].was = stateOf(l.keyOf(c, c.Window-1))
		}
	}
	before := l.known.Load()
	// The epoch's record is the first of keys, so that one read has it and the accounts.
	s, err := l.read(ctx, keys)
	if err == nil {
		e, err = l.epochOf(ctx, &s, before, 0)
	}
	if err != nil {
		return left, e, 0, err
	}
	if len(claims) == 0 {
		return nil, e, s.Now, l.advance(ctx, &s)
	}
	for i, r := range s.Records[1:] {
		states[keys[1+i].Name].read(r)
	}
	for n, i := range left {
		grants[i] = all[n].settle(s.Now, &claims[i])
	}
	err = l.commit(ctx, s.Life, states)
	for n, i := range left {
		if a := all[n].own; a.settled && !a.made {
			again = append(again, i)
		}
	}
	return again, e, s.Now, err
}

// commit makes the changes of accounts.
func (l *CAS) commit(ctx context.Context, life string, states map[string]*state) error {
	var changes []Change
	var changing []*state
	// All nodes write in the same order, so that they do not wait for each other in a circle. In a circle, PostgreSQL
	// ends one of the transactions.
	for _, name := range slices.Sorted(maps.Keys(states)) {
		a := states[name]
		if a.settled {
			a.change.Version = a.version
			a.change.Data = a.encode()
			a.change.Until = a.over
			changes, changing = append(changes, a.change), append(changing, a)
		}
	}
	if len(changes) == 0 {
		return nil
	}
	made, err := l.write(ctx, life, changes)
	if err != nil { // any may have been made
		return err
	}
	for i, a := range changing {
		a.made = made[i]
		if a.made {
			// A recall for a grant that was not made would take tokens from others without a reason.
			l.recall(a.change.Name, a.asked)
		}
	}
	return nil
}

func (l *CAS) read(ctx context.Context, keys []StoreKey) (Snapshot, error) {
	s, err := l.store.Read(ctx, keys)
	switch {
	case err != nil:
		return s, fmt.Errorf("the store: %w", err)
	case len(s.Records) != len(keys) || s.Now <= 0 || s.Now >= lastTime || s.Life == "":
		return s, fmt.Errorf("%w: %d records of %d, the time %d and the life %q", ErrAnswer, len(s.Records), len(keys),
			s.Now, s.Life)
	}
	return s, nil
}

func (l *CAS) write(ctx context.Context, life string, changes []Change) ([]bool, error) {
	made, err := l.store.Write(ctx, life, changes)
	if err == nil && len(made) != len(changes) {
		err = fmt.Errorf("%w: %d answers to %d changes", ErrAnswer, len(made), len(changes))
	}
	if err != nil {
		return nil, fmt.Errorf("the store: %w", err)
	}
	return made, nil
}

// edit changes records, each until no other node is faster. next is called with each of them as it was read, and
// returns its change, or nil. edit returns the indexes of the records that it could not change. Registrations and slots
// use it. A write that fails may have been made, so its indexes are among the rest.
func (l *CAS) edit(
	ctx context.Context, keys []StoreKey, next func(now instant, i int, r *Record) *Change,
) (left []int, err error) {
	for i := range keys {
		left = append(left, i)
	}
	return retried(ctx, left, func(left []int) (again []int, err error) {
		read := make([]StoreKey, len(left))
		for n, i := range left {
			read[n] = keys[i]
		}
		s, err := l.read(ctx, read)
		if err != nil {
			return left, err
		}
		var changes []Change
		var changing []int
		for n, i := range left {
			if c := next(s.Now, i, &s.Records[n]); c != nil {
				c.StoreKey, c.Version = keys[i], s.Records[n].Version
				changes, changing = append(changes, *c), append(changing, i)
			}
		}
		if len(changes) == 0 {
			return nil, nil
		}
		made, err := l.write(ctx, s.Life, changes)
		if err != nil {
			return changing, err
		}
		for n, ok := range made {
			if !ok {
				again = append(again, changing[n])
			}
		}
		return again, nil
	})
}

// state is an account in a round: as it was read, then as settled. The zero state is an account that is missing. A
// state is of one round: the next try reads again.
type state struct {
	kept
	version uint64
	err     error
	settled bool
	change  Change
	asked   []ratelimit.Holder // recalled by the change
	made    bool
}

func (s *state) read(r Record) {
	s.version, s.err = r.Version, s.decode(r.Data)
}

// settle settles one claim. There is no change if none was kept. A change is computed from the previous account as it
// was read, which a late report may change meanwhile. That is as if the report came after this claim.
func (x *subject) settle(now instant, claim *Claim) Grant {
	a := x.own
	if err := errors.Join(a.err, x.was.err); err != nil {
		return Grant{Err: err}
	}
	var was *kept
	if x.was.version != 0 || x.was.settled {
		was = &x.was.kept
	}
	g, span := Grant{Err: ErrOver}, spanOf(&claim.Limit, claim.Window)
	if span.kept(now) {
		ask := func(h ratelimit.Holder) { a.asked = append(a.asked, h) }
		g = a.settle(now, claim, &span, was, ask)
	}
	a.settled = a.settled || g.Err == nil
	return g
}

// A store's data has an epoch, in a separate record. It names the life of the data. If the store reports another
// life, or the record is missing, a new epoch begins. It also begins if the record has an earlier version than before.
// Nodes advance the version, and it goes back when an older copy of the data is restored in the same place.

// known is what a process has read of the epoch's record last. Invariant: of one epoch, the version only rises.
type known struct {
	ratelimit.Epoch
	version uint64
}

// older reports whether a record is of an older copy than the one that was read before. Another node may have begun a
// new epoch in that copy. Then it began after the one that this process has read.
func (k *known) older(own *Record, is *ratelimit.Epoch) bool {
	return k != nil && own.Version < k.version && is.Began <= k.Began
}

// advance gives the epoch's record another version, unless another node has done so since the last read without claims.
// So with any number of nodes, it is written about once in a beat. Otherwise a restored copy of a moment ago would have
// the same version, and its loss would not show.
func (l *CAS) advance(ctx context.Context, s *Snapshot) error {
	own := s.Records[0]
	if own.Version == 0 || l.lastBeat.Swap(own.Version) != own.Version {
		return nil
	}
	same := Change{StoreKey: l.life(), Version: own.Version, Data: own.Data, Until: lastTime}
	_, err := l.write(ctx, s.Life, []Change{same})
	return err
}

// life is the record of the epoch. It has no end.
func (l *CAS) life() StoreKey { return StoreKey{Name: l.prefix + EpochName} }

// epochOf is the epoch of a read, whose first record it is, or a new one if the life has changed. before was known
// before the read: if that is another epoch, this one is young. Its id is a hash of the life and the time: nodes need
// no common source of random numbers. The data of the record is "id began ends life", with the id in hexadecimal and
// times in microseconds.
func (l *CAS) epochOf(ctx context.Context, s *Snapshot, before *known, flags int) (ratelimit.Epoch, error) {
	own := s.Records[0]
	was, life, ok := parseEpoch(string(own.Data))
	is := was
	if !ok || life != s.Life || before.older(&own, &was) {
		// If several nodes begin one at once, one of them counts.
		is = ratelimit.Epoch{ID: xxhash.Sum64String(fmt.Sprint(s.Life, " ", s.Now)) | 1, Began: s.Now}
	}
	another := before != nil && before.ID != is.ID && s.Now < is.Began.Add(ratelimit.YoungFor)
	if another || flags&unstated != 0 && is.Prolongs(s.Now) {
		is.Ends = max(is.Ends, s.Now.Add(ratelimit.YoungFor)) // clocks differ
	}
	if is != was {
		data := fmt.Sprintf("%x %d %d %s", is.ID, is.Began, is.Ends, s.Life)
		made, err := l.write(ctx, s.Life, []Change{{
			StoreKey: l.life(), Version: own.Version, Data: []byte(data),
			Until: lastTime,
		}})
		if err != nil {
			return ratelimit.Epoch{}, err
		}
		switch {
		case !made[0] && is.ID != was.ID:
			return ratelimit.Epoch{}, ErrLife // another node has begun one
		case !made[0]:
			return is, nil // another node was faster: before stays known, so that the next read writes again
		}
	}
	// Reads run at the same time, and an earlier one may end later. It must not take the version back, or a copy that
	// is older by less than that would not show.
	if last := l.known.Load(); last == before || last.ID != is.ID || last.version < own.Version {
		l.known.Store(&known{is, own.Version})
	}
	return is, nil
}

// Verify reads the life of the data. It blocks at most until ctx is done.
func (l *CAS) Verify(ctx context.Context) (ratelimit.Epoch, error) { return l.look(ctx, 0) }

// Prolong prolongs a young epoch, like [Redis.Prolong].
func (l *CAS) Prolong(ctx context.Context) (ratelimit.Epoch, error) { return l.look(ctx, unstated) }

func (l *CAS) look(ctx context.Context, flags int) (ratelimit.Epoch, error) {
	before := l.known.Load()
	s, err := l.read(ctx, []StoreKey{l.life()})
	if err != nil {
		return ratelimit.Epoch{}, err
	}
	return l.epochOf(ctx, &s, before, flags)
}

// Look reads an account for a view; nil: there is none. It blocks at most until ctx is done. It changes nothing, and
// reads neither the epoch nor the registrations.
func (l *CAS) Look(
	ctx context.Context, key string, w ratelimit.Window, limit *ratelimit.Limit,
) (*ratelimit.AccountLook, error) {
	c := Claim{Key: key, Limit: *limit}
	s, err := l.read(ctx, []StoreKey{l.keyOf(&c, w), l.keyOf(&c, max(0, w-1))})
	if err != nil {
		return nil, err
	}
	var k, was kept
	if err := errors.Join(k.decode(s.Records[0].Data), was.decode(s.Records[1].Data)); err != nil {
		return nil, err
	}
	var v *ratelimit.AccountLook
	if s.Records[0].Version != 0 {
		v = k.look(s.Now, limit)
	}
	return withBefore(v, w, s.Now, limit, was.sum, s.Records[1].Version != 0), nil
}

// Sweep drops ended records in the store. Each node calls it periodically. It blocks at most until ctx is done. The
// store bounds each drop, so that no transaction takes long.
func (l *CAS) Sweep(ctx context.Context) error {
	for more := true; more; {
		// The store's clock decides, and not this node's: a clock that is ahead would drop accounts in use.
		s, err := l.read(ctx, nil)
		if err == nil {
			_, more, err = l.store.Drop(ctx, s.Now)
		}
		if err != nil {
			return fmt.Errorf("the store: %w", err)
		}
	}
	return nil
}

var _ Ledger = (*CAS)(nil)
