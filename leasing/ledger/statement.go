package ledger

import "github.com/sluice-gate/sluice/ratelimit"

// Statement is an account written down: all that a ledger in a process knows of a key,
// enough to go on in another process, to the token (docs/protocol.md, sections 4.15 and 6.5).
type Statement struct {
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

// LocalHolder is this node's name in accounts of its own.
const LocalHolder ratelimit.Holder = 1

// Statement writes an account down. This process's own holder has given back what
// it had not spent; what it spent is the account's, for the next process has a
// holder of the same name.
func (a *Account) Statement() Statement {
	x := Statement{
		Now: a.now, Fence: a.fence, Born: a.born, Folded: a.folded, Window: a.window, Charged: a.base, Previous: a.prev,
		Level: a.level, Carry: a.carry,
		Dead: a.dead, Lag: a.lag, Most: a.most, Over: a.over, Left: a.left, Late: a.late, Relearn: a.relearn,
		Relearned: a.relearned,
	}
	a.each(func(r *record) {
		if r.holder == LocalHolder {
			if r.window == a.window {
				x.Charged += r.charged()
			}
			return
		}
		x.Holders = append(x.Holders, Holding{
			Holder: r.holder, Seq: r.seq, Window: r.window, Expires: r.expires, Fence: r.fence, Granted: r.granted,
			InFlight: r.inflight,
			Spent:    r.spent, Returned: r.returned, Over: r.over, Direct: r.direct, Closed: r.closed, Void: r.void,
			Eager: r.eager, Last: r.last,
		})
	})
	return x
}

// FromStatement goes on with an account that was written down, whose clock runs behind this
// ledger's by lag.
func FromStatement(x *Statement, lag ledgerTime) Account {
	a := Account{
		clockwork: clockwork{now: x.Now, lag: lag}, fences: fences{fence: x.Fence, born: x.Born, folded: x.Folded},
		window: x.Window, base: x.Charged, prev: x.Previous, dead: x.Dead,
		overAdmission: overAdmission{most: x.Most, over: x.Over, left: x.Left, late: x.Late},
		learning:      learning{relearn: x.Relearn, relearned: x.Relearned},
		fillLevel:     fillLevel{level: x.Level, carry: x.Carry},
	}
	if a.dead < 1<<62 { // others look at it by this process's clock
		a.dead += lag
	}
	for i := range x.Holders {
		if h := &x.Holders[i]; h.Holder != LocalHolder && h.Seq > 0 && a.find(h.Holder) == nil {
			*a.add(h.Holder) = h.record()
		}
	}
	return a
}

func (h *Holding) record() record {
	return record{
		holder: h.Holder, seq: h.Seq, window: h.Window, expires: h.Expires, fence: h.Fence,
		totals: totals{granted: h.Granted, inflight: h.InFlight, spent: h.Spent, returned: h.Returned, over: h.Over},
		marks:  marks{direct: h.Direct, closed: h.Closed, void: h.Void, eager: h.Eager, last: h.Last},
	}
}

// Sole tells whether the own holder and nobody else has, or may still tell of, tokens of
// the account: then its statement without holders is all there is to know. The limit may
// be nil where it is not known; then any other holder may be heard of. While the account
// learns, or has credited more than was charged (a reset), it is not.
func (a *Account) Sole(now ledgerTime, l *ratelimit.Limit) bool {
	sole := now >= a.relearn && a.base >= 0
	a.each(func(r *record) {
		// A holder that has said that it ends is waited for a while longer: a claim of it may still
		// be on its way.
		over := l != nil && (a.obsolete(r, l, 0) || r.last && a.now >= r.expires.Add(FoldAfter))
		sole = sole && (r.holder == LocalHolder || over)
	})
	return sole
}

// Dead is from when on, by the ledger's clock, the account may be deleted: a new one
// would answer alike, but for its fences.
func (a *Account) Dead() ledgerTime { return a.dead }

// Fence is the highest that the account has given out.
func (a *Account) Fence() ratelimit.Fence { return a.fence }

// RaiseFence has the account give out only fences above f.
func (a *Account) RaiseFence(f ratelimit.Fence) { a.fence = max(a.fence, f) }

// Charged is what all holders together cost the budget in the account's window.
func (a *Account) Charged() tokens { return a.charged(a.window) }

// Merge takes in another account of the same key: both were charged.
func (a *Account) Merge(x *Statement, lag ledgerTime) {
	other := FromStatement(x, lag)
	if a.window == 0 { // nothing was charged yet
		other.fence = max(a.fence, other.fence)
		*a = other
		return
	}
	a.fence, a.born, a.folded = max(a.fence, other.fence), min(a.born, other.born), max(a.folded, other.folded)
	a.dead, a.relearn = max(a.dead, other.dead), max(a.relearn, other.relearn)
	if IsBucket(a.window) || IsBucket(other.window) {
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

// IsBucket tells a bucket's window, which is the time at which it began, from
// the number of a window: there are less than 2^40 seconds.
func IsBucket(w window) bool { return w > 1<<40 }

// mergeWindows adds what was charged in the other account's windows to those
// that are the same here. An older window than the other's ends first: it is
// over on one of the clocks, and otherwise what is charged in the newer one
// would be lost.
func (a *Account) mergeWindows(other *Account) {
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
