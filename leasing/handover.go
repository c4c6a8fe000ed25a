package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/keytable"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Account is what a ledger in this process knows of a key: enough to go on in
// another process, to the token (docs/protocol.md, sections 4.15 and 6.5).
type Account struct {
	Now      ratelimit.LedgerTime // the account's clock
	Fence    ratelimit.Fence
	Born     ratelimit.Fence // the first of this life of the account
	Folded   ratelimit.Fence // the highest of a holder that is no longer recorded
	Window   ratelimit.Window
	Charged  ratelimit.Tokens // in this window, by holders that are not recorded
	Previous ratelimit.Tokens // of a sliding_window: in the one before
	Level    int64            // of a token_bucket, in micro-tokens
	Carry    int64
	Dead     ratelimit.LedgerTime // from here on it means the same as none
	Lag      ratelimit.LedgerTime // by which its clock runs behind the sender's

	Most, Over, Left, Late ratelimit.Tokens // of drift; see account
	Relearn                ratelimit.LedgerTime
	Relearned              ratelimit.Tokens

	Holders []Holding // others' leases
}

// Holding is what a ledger knows of one holder: see record.
type Holding struct {
	Holder  ratelimit.Holder
	Seq     uint64
	Window  ratelimit.Window
	Expires ratelimit.LedgerTime
	Fence   ratelimit.Fence

	Granted, InFlight, Spent, Returned, Over ratelimit.Tokens
	Direct, Closed, Void, Eager, Last        bool
}

// LedgerNow is what this process's ledger clock shows at an instant.
func (l *Local) LedgerNow(now ratelimit.Instant) ratelimit.LedgerTime { return l.ledgerNow(now) }

// Predictable makes a limiter that was not used yet do the same in every run,
// for simulations: its keys' places are then no secret.
func (l *Local) Predictable() *Local {
	l.predictable()
	return l
}

// Parts is in how many parts keys are kept, each under a lock of its own.
func (l *Local) Parts() int { return len(l.tracked.shards) }

// Part is the part that a key is kept in.
func (l *Local) Part(key []byte) int { return int(l.tracked.shardOf(l.tracked.hash.id(key))) }

// Visit is a walk through one part. Its zero value, with Part set, begins it.
type Visit struct {
	Part int
	at   keytable.Cursor
}

// Visit shows the next few keys of a part, which see must not keep, and must
// not ask the Local about: it is called under the part's lock. It reports
// whether every key that has been in the part since the visit began was shown.
func (l *Local) Visit(v *Visit, see func(key []byte)) (done bool) {
	s := &l.tracked.shards[v.Part]
	s.mu.Lock()
	defer s.mu.Unlock()
	v.at = s.keys.Walk(v.at, func(c *counterCell) { see(s.keys.Key(c)) })
	if v.at.Done {
		*v = Visit{Part: v.Part}
		return true
	}
	return false
}

// Has tells whether the key has an account here.
func (l *Local) Has(key []byte) bool {
	s, _, c := l.tracked.locked(key)
	defer s.mu.Unlock()
	return c != nil
}

// TakeOut takes a key's account away, for another process: from here on the key
// is unknown here. ok is false where there is none, or one that means nothing.
func (l *Local) TakeOut(now ratelimit.Instant, key []byte) (a Account, ok bool) {
	return l.tracked.takeOut(l.at(now), key)
}

// export writes an account down. This process's own holder has given back what
// it had not spent; what it spent is the account's, for the next process has a
// holder of the same name.
func (a *account) export() Account {
	x := Account{
		Now: a.now, Fence: a.fence, Born: a.born, Folded: a.folded, Window: a.window, Charged: a.base, Previous: a.prev, Level: a.level, Carry: a.carry,
		Dead: a.dead, Lag: a.lag, Most: a.most, Over: a.over, Left: a.left, Late: a.late, Relearn: a.relearn, Relearned: a.relearned,
	}
	a.each(func(r *record) {
		if r.holder == localHolder {
			if r.window == a.window {
				x.Charged += r.charged()
			}
			return
		}
		x.Holders = append(x.Holders, Holding{
			Holder: r.holder, Seq: r.seq, Window: r.window, Expires: r.expires, Fence: r.fence, Granted: r.granted, InFlight: r.inflight,
			Spent: r.spent, Returned: r.returned, Over: r.over, Direct: r.direct, Closed: r.closed, Void: r.void, Eager: r.eager, Last: r.last,
		})
	})
	return x
}

func importAccount(x *Account, lag ledgerTime) account {
	a := account{
		now: x.Now, lag: lag, fence: x.Fence, born: x.Born, folded: x.Folded, window: x.Window, base: x.Charged, prev: x.Previous, level: x.Level, carry: x.Carry,
		dead: x.Dead, most: x.Most, over: x.Over, left: x.Left, late: x.Late, relearn: x.Relearn, relearned: x.Relearned,
	}
	if a.dead < 1<<62 { // others look at it by this process's clock
		a.dead += lag
	}
	for i := range x.Holders {
		if h := &x.Holders[i]; h.Holder != localHolder && h.Seq > 0 && a.find(h.Holder) == nil {
			*a.add(h.Holder) = h.record()
		}
	}
	return a
}

func (h *Holding) record() record {
	return record{
		holder: h.Holder, seq: h.Seq, window: h.Window, expires: h.Expires, fence: h.Fence, granted: h.Granted, inflight: h.InFlight,
		spent: h.Spent, returned: h.Returned, over: h.Over, direct: h.Direct, closed: h.Closed, void: h.Void, eager: h.Eager, last: h.Last,
	}
}

// Adopt goes on with an account from another process, whose ledger's clock
// showed sent a moment ago. If the key is known here already, what was charged
// there is charged here too; of two buckets the emptier one counts, for how large
// they are only a rule says. It reports false when there is no room: then the
// key shares a budget, as any beyond the most that may be tracked.
//
// Where the sender's clock is behind this one's, the account goes on by the
// sender's until its window ends: otherwise what is left of the window would be
// granted once there, and the next window too early here. Where it is ahead,
// the account waits (see account.clock).
func (l *Local) Adopt(now ratelimit.Instant, key []byte, x Account, sent ratelimit.LedgerTime) bool {
	at := l.at(now)
	return l.tracked.adopt(at, key, &x, max(0, at.ledger-(sent-x.Lag)))
}

// merge takes in another account of the same key: both were charged.
func (a *account) merge(x *Account, lag ledgerTime) {
	other := importAccount(x, lag)
	if a.window == 0 { // nothing was charged yet
		other.fence = max(a.fence, other.fence)
		*a = other
		return
	}
	a.fence, a.born, a.folded = max(a.fence, other.fence), min(a.born, other.born), max(a.folded, other.folded)
	a.dead, a.relearn = max(a.dead, other.dead), max(a.relearn, other.relearn)
	if isBucket(a.window) || isBucket(other.window) {
		a.level, a.carry = min(a.level, other.level), 0 // what either has left
		a.now, a.lag = max(a.now+a.lag, other.now+other.lag), 0
	} else {
		a.mergeWindows(&other)
	}
	other.each(func(r *record) {
		switch known := a.find(r.holder); {
		case known == nil:
			*a.add(r.holder) = *r
		case known.seq < r.seq: // the same holder's truth, as it was later
			*known = *r
		}
	})
}

// isBucket tells a bucket's window, which is the time at which it began, from
// the number of a window: there are less than 2^40 seconds.
func isBucket(w window) bool { return w > 1<<40 }

// mergeWindows adds what was charged in the other account's windows to those
// that are the same here. An older window than the other's ends first: it is
// over on one of the clocks, and otherwise what is charged in the newer one
// would be lost.
func (a *account) mergeWindows(other *account) {
	if a.window < other.window {
		before := tokens(0)
		if a.window == other.window-1 {
			before = a.charged(a.window)
		}
		a.window, a.now, a.lag, a.prev = other.window, max(a.now, other.now), other.lag, before
		a.base, a.over, a.most = 0, 0, 0
		a.left, a.late = other.left, other.late
	}
	switch a.window {
	case other.window:
		a.base, a.prev = a.base+other.base, a.prev+other.prev
		a.over, a.most, a.lag = a.over+other.over, max(a.most, other.most), max(a.lag, other.lag)
	case other.window + 1:
		a.prev += other.charged(other.window)
	}
}

// Settle settles claims of other holders, whose Key is the key as it is. What
// this process has leased of such a key goes back first. Grants have an Err
// where there is no room. It never blocks.
func (l *Local) Settle(now ratelimit.Instant, claims []ratelimit.Claim, grants []ratelimit.Grant) {
	at := l.at(now)
	for i := range claims {
		grants[i] = l.tracked.settleFor(at, []byte(claims[i].Key), &claims[i])
	}
}
