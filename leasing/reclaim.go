package leasing

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// Crash reclaim. Leases of keys whose rules reclaim end with their node's registration: others take them back when that
// is over. For that, a holder's name says that it lapses (ratelimit.Holder), and nothing else differs at the ledger.
//
// Guarantee: a node never spends a lease that others may have taken back, unless it stands still in the middle of a
// decision, or the store lost its last registrations. What it spent after its last claim is then granted once more.

// reclaimer is a ledger with registrations. [account.Redis] is one.
type reclaimer interface {
	account.Ledger
	account.Registrations
	books
}

// reclaim is this node's registration, and its accounts in which others may have ended.
type reclaim struct {
	// ends is the instant from which the registration may be over, by this node's clock.
	ends   atomic.Int64
	wanted chan struct{} // has an element if a key needs a registration
	needed atomic.Bool   // a key has needed one
	failed atomic.Bool   // the last attempt has: requests do not wait for the next

	// Of the goroutine that registers.
	asked      instant // of the last attempt; 0: there was none
	recoveries uint64  // new lives of the ledger, at that time

	mu    sync.Mutex
	short map[accountOf]shortage // guarded by mu
}

// accountOf names an account.
type accountOf struct {
	key string
	w   window
}

// shortage is an account in which this node got less than it wanted, and others may have tokens in hand. It is noted by
// a claim that fell short (noteShort), looked at once in the next beat (takeBack), and noted again if nodes are left
// that may end later.
type shortage struct {
	rule  *ratelimit.Rule
	claim account.Claim // the key, the window and the limit
}

const (
	// unregistered is the end of a registration that there is not.
	unregistered = 1
	// registered is the time for which a node counts on its registration, from when it sent it. It renews it each
	// renewEvery, so that a store that lost the last renewal still has an earlier one. The last quarter is as long as
	// renewEvery: so the earlier one lasts for as long as the node counts on the lost one.
	registered = ratelimit.RegisteredFor * 3 / 4
	renewEvery = ratelimit.RegisteredFor / 4
	// registerAgain is the least time between two attempts.
	registerAgain = 50 * time.Millisecond
	// mostShort bounds the accounts that are looked at in a beat. Each costs a read of the account, and of the
	// registrations of its holders.
	mostShort = 1024
	// looksAtOnce bounds the connections of these looks: other messages need some, too.
	looksAtOnce = 8
)

// open makes a node that is not registered. No key needs that yet, so it does not register either.
func (r *reclaim) open() {
	r.ends.Store(unregistered)
	r.wanted, r.short = make(chan struct{}, 1), map[accountOf]shortage{}
}

// lapses reports whether the leases of a key end with this node's registration. The bit is in the name (alias), and so
// at the ledger: a rule that changes its reclaim changes the name.
func (k *key) lapses() bool { return ratelimit.Holder(k.alias).Lapses() }

// owes reports whether the ledger lacks usage of a key: of one that lapses, others would take it back.
func (k *key) owes() bool { return k.Unreported() || k.lapses() && k.Recent() > 0 }

// aliasOf is a number of this node's names as one for a rule.
func aliasOf(r *ratelimit.Rule, n uint64) uint32 {
	name := ratelimit.Holder(n % ratelimit.NamesOfANode)
	if r.Reclaims() {
		name = name.Lapsing()
	}
	return uint32(name)
}

// mayAsk reports whether a key may be decided by the ledger: one that lapses only while this node is registered.
// Otherwise it could be granted tokens that others take back while it spends them.
func (f *Fleet) mayAsk(now instant, k entry) bool { return !k.cell.Val.lapses() || f.Registered(now) }

// mayAskLocked is like mayAsk. It has the node registered if it is not.
func (f *Fleet) mayAskLocked(now instant, k entry) bool {
	if f.mayAsk(now, k) {
		return true
	}
	f.reclaim.needed.Store(true)
	select {
	case f.reclaim.wanted <- struct{}{}:
	default:
	}
	return false
}

// Registered reports whether this node is certainly registered. ends is atomic, because each decision reads it through
// shard.endLocked.
func (f *Fleet) Registered(now instant) bool { return now < instant(f.reclaim.ends.Load()) }

// trimLocked gives back tokens of a key that lapses, beyond its waiting requests and a lease: others count on it that a
// silent node has no more in hand.
func (k *entry) trimLocked() {
	if k.cell.Val.lapses() {
		k.GiveBack(k.Waiting + k.rule().LeaseAhead())
	}
}

// RegisterDue reports whether to register this node now, and drops the leases of a registration that may be over.
// RegisterAnswered takes the answer. One goroutine calls both. The node's leases are dropped before it registers again:
// others may have taken them back, and the new registration would make them valid again.
func (f *Fleet) RegisterDue(now instant) bool {
	r := &f.reclaim
	ends := instant(r.ends.Load())
	if ends != unregistered && now >= ends {
		f.lapse()
		ends = unregistered
	}
	if !r.needed.Load() || r.asked != 0 && now.Sub(r.asked) < registerAgain {
		return false
	}
	// After a loss, the store may have an older registration.
	due := ends == unregistered || now.Sub(r.asked) >= renewEvery || r.recoveries != f.Recoveries()
	if due {
		r.asked, r.recoveries = now, f.Recoveries()
	}
	return due
}

// RegisterAnswered takes the answer to a registration. One that was sent before a lapse counts for later claims. An
// answer after its own three quarters says nothing: the registration may be over.
func (f *Fleet) RegisterAnswered(sent instant, err error) {
	now := f.clock()
	if ends := instant(f.reclaim.ends.Load()); ends != unregistered && now >= ends {
		f.lapse()
	}
	f.reclaim.failed.Store(err != nil)
	if err == nil && now < sent.Add(registered) {
		f.reclaim.ends.Store(int64(sent.Add(registered)))
	}
}

// lapse drops the leases that end with the registration, and answers to claims of before. ends comes first, so that no
// decision spends from a key that it has not reached yet.
func (f *Fleet) lapse() {
	f.reclaim.ends.Store(unregistered)
	f.any(func(k *entry) bool {
		if k.cell.Val.lapses() {
			k.Lapse()
		}
		return false
	})
}

// noteShort notes that a claim brought less than it wanted. It does so before requests are refused, because refusals
// can charge what is left.
func (f *Fleet) noteShort(r *ratelimit.Rule, c *account.Claim) {
	if !r.Reclaims() {
		return
	}
	of := shortage{r, account.Claim{Key: c.Key, Window: c.Window, Limit: c.Limit}}
	f.note(of)
	if c.Limit.Algorithm == ratelimit.SlidingWindow { // what ended nodes had in hand of the previous window counts, too
		of.claim.Window--
		f.note(of)
	}
}

// note keeps a shortage for the next beat. One that has no room is noted again with its next claim that falls short.
func (f *Fleet) note(s shortage) {
	f.reclaim.mu.Lock()
	defer f.reclaim.mu.Unlock()
	for of := range f.reclaim.short {
		if len(f.reclaim.short) < mostShort {
			break
		}
		delete(f.reclaim.short, of) // any: it is noted again
	}
	f.reclaim.short[accountOf{s.claim.Key, s.claim.Window}] = s
}

// takeShort returns the accounts to look at, once. While an epoch is young, totals are stated again, and there is none.
// Nor is there one of a part that does not answer: its looks would wait for a second each, and so would those at other
// parts.
func (f *Fleet) takeShort(now instant) (all []shortage) {
	f.reclaim.mu.Lock()
	defer f.reclaim.mu.Unlock()
	for of, s := range f.reclaim.short {
		l := f.laneOf(of.key)
		if _, young := l.young(now); !young && !l.Open() {
			all = append(all, s)
			delete(f.reclaim.short, of)
		}
	}
	slices.SortFunc(all, func(a, b shortage) int { // each run of a simulation is the same
		return cmp.Or(strings.Compare(a.claim.Key, b.claim.Key), cmp.Compare(a.claim.Window, b.claim.Window))
	})
	return all
}

// looked notes the result of a look at an account: it was closed for some of the nodes with tokens in hand. Those that
// are left may end later. After a close, requests ask the ledger again. A refusal would otherwise hold until the window
// ends, although tokens are free again.
func (f *Fleet) looked(s shortage, nodes, closed int) {
	if nodes > closed {
		f.note(s)
	}
	name := []byte(s.claim.Key)
	if !f.RawNames {
		name, _ = ratelimit.KeyOfName(s.claim.Key)
	}
	if closed > 0 {
		f.visit(f.clock(), name, func(k entry) { k.Freed() })
	}
}

// registers keeps this node registered until ctx is done, once a key needs it. It runs in one goroutine, which alone
// calls RegisterDue. wanted shortens the wait for a node's first such key.
func (f *Fleet) registers(ctx context.Context, s reclaimer) {
	tick := time.NewTicker(SweepEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
		case <-f.reclaim.wanted:
		}
		sent := f.clock()
		if !f.RegisterDue(sent) {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, lane.TimeLimit)
		// The time counts from before it was sent, so this node's end comes before the store's.
		err := s.Register(bounded, f.name)
		cancel()
		f.RegisterAnswered(sent, err)
		if err != nil && ctx.Err() == nil {
			f.OnFailure(err)
		}
	}
}

// reclaims takes back what ended nodes have in hand of accounts that are short, until ctx is done. It looks at some at
// a time: a node that ends has leases of many keys, and each look takes three round trips.
func (f *Fleet) reclaims(ctx context.Context, s reclaimer) {
	upkeep.Every(ctx, beatEvery, func() {
		var looks sync.WaitGroup
		room := make(chan struct{}, looksAtOnce)
		for _, of := range f.takeShort(f.clock()) {
			room <- struct{}{}
			looks.Go(func() {
				defer func() { <-room }()
				if err := f.takeBack(ctx, s, of); err != nil && ctx.Err() == nil {
					f.OnFailure(err)
				}
			})
		}
		looks.Wait()
	})
}

// takeBack takes back what ended nodes have in hand of an account. It reads its holders before their registrations: one
// that registers in between has claimed nothing since. Its steps: read the holders, the registrations of those that
// lapse, and close the ended ones by claims in their names. After an error the account is noted again.
func (f *Fleet) takeBack(ctx context.Context, s reclaimer, of shortage) (err error) {
	defer func() {
		if err != nil {
			f.note(of)
		}
	}()
	ctx, cancel := context.WithTimeout(ctx, lane.TimeLimit)
	defer cancel()
	is, err := s.Look(ctx, of.claim.Key, of.claim.Window, &of.rule.Limit)
	if err != nil || is == nil {
		return err
	}
	nodes := account.Lapsing(is.Holders, f.name)
	if len(nodes) == 0 {
		return nil
	}
	over, err := s.Over(ctx, nodes)
	if err != nil {
		return err
	}
	// If others have tokens in hand but are alive, there is nothing to close, and the account is noted again by looked.
	closes := account.Closes(of.claim, is.Holders, over)
	defer f.looked(of, len(nodes), len(over))
	if len(closes) == 0 {
		return nil
	}
	grants := make([]account.Grant, len(closes))
	_, _, err = s.Settle(ctx, closes, grants)
	for i := range closes {
		f.audit(of.rule, &closes[i], &grants[i])
	}
	return err
}
