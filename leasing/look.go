package leasing

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// accounts is a ledger that can be looked into.
type accounts interface {
	Account(ctx context.Context, name string, limit *ratelimit.Limit) (*ledger.Account, ledgerTime, error)
}

// Look implements [ratelimit.Inspector].
func (f *Fleet) Look(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) ratelimit.Look {
	v := ratelimit.Look{Account: f.keyName(a.Key)}
	s, _, h := f.locked(a.Key)
	// A window of 0 is a lease before its first answer: there is nothing to show.
	if h != nil && h.Lease.Window != 0 {
		v.Lease = h.Lease.Look(now)
		v.Lease.Heard, v.Lease.PerSecond, v.Lease.Asking, v.Lease.Reported = now.Sub(h.Heard), h.Demand.PerSec,
			h.flight != nil, h.Reported
	}
	s.mu.Unlock()
	if v.Lease != nil {
		v.Lease.Failing = f.laneOf(v.Account).refused(now)
	}
	// Where another node has the ledger (mode routing), this node can show only its lease.
	books, ok := f.ledger.(accounts)
	if !ok {
		return v
	}
	limit := &f.ruleAtLedger(a.Rule).Limit
	account, there, err := books.Account(ctx, v.Account, limit)
	switch {
	case err != nil:
		v.LedgerError = err.Error()
	case account != nil:
		v.Ledger = account.Look(there, limit,
			func(h ratelimit.Holder) bool { return h == f.name || h == f.name^1 })
	}
	return v
}

// Hottest implements [ratelimit.Inspector]. It looks at busy keys: a cold one is busy again
// when it has been asked for often enough.
func (f *Fleet) Hottest(now ratelimit.Instant, n int) []ratelimit.HotKey {
	// One chunk of keys at a time is under its shard's lock: requests do not wait for the whole
	// search.
	var all hottest
	for i := range f.shards {
		s := &f.shards[i]
		for first := 0; first >= 0; first = s.eachBusy(first, func(h *busyKey) {
			// Keys that nobody asks for any more still have the rate that was measured last.
			if h.Rule != nil && now.Sub(h.Demand.LastUse) < lease.IdleAfter {
				rate := h.Demand.Rate(now)
				all.add(n, rate, func() ratelimit.HotKey { return h.Hot(f.keyName(h.key()), rate) })
			}
		}) {
		}
	}
	return all.keys()
}

// hottest are keys by falling rate.
type hottest []ratedKey

type ratedKey struct {
	rate float64
	key  ratelimit.HotKey
}

func (all hottest) keys() []ratelimit.HotKey {
	keys := make([]ratelimit.HotKey, len(all))
	for i := range all {
		keys[i] = all[i].key
	}
	return keys
}

func (all *hottest) add(n int, rate float64, key func() ratelimit.HotKey) {
	keys := *all
	// Most keys are not among the n hottest. They end here, before a name is made for them.
	if len(keys) == n && (n == 0 || keys[n-1].rate >= rate) {
		return
	}
	at, _ := slices.BinarySearchFunc(keys, rate,
		func(k ratedKey, rate float64) int { return cmp.Compare(rate, k.rate) })
	// Sorted at any time, so that the last one is the one to beat.
	keys = slices.Insert(keys, at, ratedKey{rate, key()})
	*all = keys[:min(n, len(keys))]
}

// Drop implements [ratelimit.Inspector].
func (f *Fleet) Drop(_ ratelimit.Instant, key []byte) bool {
	s, _, h := f.locked(key)
	defer s.mu.Unlock()
	if h == nil {
		return false
	}
	// An operator who drops a lease wants the ledger to be asked again, also where the node refuses
	// by itself.
	h.Lease.Retry = 0
	// A claim that is under way fetches the ledger's answer anyway.
	if h.flight == nil && h.Lease.Window != 0 {
		f.launch(f.clock(), h, f.newFlight(h, &lease.Flight{Errand: lease.Errand{GiveUp: true}}))
		f.hurry(h)
	}
	return true
}

// ErrBusy says that the ledger could not be asked.
var ErrBusy = errors.New("the ledger could not be asked: it does not answer, or too many claims wait")

// resetMost is how long a reset waits: a claim is answered within a second, or given up, and another may be under way
// before it. The claims of a node that has ended are never answered.
const resetMost = 3 * time.Second

// Reset implements [ratelimit.Inspector]. It waits for resetMost at most.
func (f *Fleet) Reset(ctx context.Context, now ratelimit.Instant, a *ratelimit.Ask) error {
	ctx, cancel := context.WithTimeout(ctx, resetMost)
	defer cancel()
	rule := f.ruleAtLedger(a.Rule)
	for ctx.Err() == nil {
		// A peek needs a claim and spends nothing. Where one is under way already, the reset waits
		// for its end, and makes a claim of its own.
		fl, launch, _ := f.join(now, &ratelimit.Ask{Rule: rule, Key: a.Key, Kind: ratelimit.Peek})
		// The table is full, or the store counts as dead.
		if fl == nil {
			return ErrBusy
		}
		if launch {
			fl.Reset = true
			f.enqueue(fl)
		}
		select {
		case <-fl.done:
		// The claim stays under way and may still reset the account; nobody waits for it any more.
		case <-ctx.Done():
			return ErrBusy
		}
		if !launch {
			continue // it was another's claim
		}
		s, _, h := f.locked(a.Key)
		if h != nil {
			// What this node had concluded from the state before the reset holds no more: neither
			// its refusals, nor what denials charged.
			h.Lease.Retry, h.Lease.Debt = 0, 0
		}
		s.mu.Unlock()
		return fl.err
	}
	return ErrBusy
}
