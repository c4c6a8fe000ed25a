package lease

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Held is all that a node knows of one key: the lease, what the key was asked for, the
// lease of the next window, what the ledger said last, and what is to be told to it. The
// zero Held knows nothing; Begin gives it a name.
//
// It is told what happens: a request (Take, Join, Drift), a claim that leaves (Write), its
// answer (Answer), time that passes (Sweep), a recall. What it wants done then, such as a
// claim to be sent, Ready says. It knows no lock, no queue, no clock and no goroutine, and
// is not safe for concurrent use.
//
// Its rule's counters and gauges are all that it touches of the world.
type Held struct {
	Lease    Lease
	Demand   Demand
	Rule     *ratelimit.Rule  // as last asked for
	Name     ratelimit.Holder // under which the lease is held
	underWay *Flight          // the claim, or nil
	Next     *NextLease       // of the window to come, or nil
	todo     *Todo            // that Ready has not returned yet
	schedule
	lastHeard
	recall
	DriftKept
	unbooked
}

// Todo is what a Held wants done, in this order, at once.
type Todo struct {
	// LastWords are claims for which nobody waits. When one cannot be sent it is dropped:
	// the ledger's count of what was over-admitted is then too low.
	LastWords []*Flight
	// Claim is to be sent, if not nil; Queued says that it was. When it cannot be, for the
	// queue is full, the next request or sweep that finds it due tries again.
	Claim *Flight
	// Then, if At is not 0, ReportDue tells whether a report is to be sent.
	Report Report
}

// Report is when to ask whether one is due, and of which lease: by its last claim's number.
type Report struct {
	At  instant
	Seq uint64
}

// Ready is what is to be done since it was last asked; nil if there is nothing.
func (h *Held) Ready() *Todo {
	t := h.todo
	if t != nil {
		h.todo = nil
	}
	return t
}

func (h *Held) todoNow() *Todo {
	if h.todo == nil {
		h.todo = new(Todo)
	}
	return h.todo
}

// send has a claim sent, for which nobody waits, or in place of those who do.
func (h *Held) send(fl Flight) { h.todoNow().Claim = &fl }

// Begin begins what is known of a key, under the node's even name.
func (h *Held) Begin(name ratelimit.Holder) {
	// Nothing is claimed ahead before a first answer has said which window it is there.
	h.Name, h.AheadAt = name, Never
}

// Flies takes in that a claim is under way: one at a time (docs/protocol.md, section 4.2).
func (h *Held) Flies(fl *Flight) { h.underWay = fl }

// Lands takes in that none is under way any more, or that it was never sent.
func (h *Held) Lands() { h.underWay = nil }

// Patience is how long a claim may wait for others to travel with; 0 where that could cost anything: where
// others wait for it, here or at other nodes; where expiry may undo what it tells, or the ledger has lost
// it; where something was spent unasked, for a node may have only so much of that; and where the window ends
// soon, or what is left does not last.
func (h *Held) Patience(now instant, fl *Flight) time.Duration {
	l := &h.Lease
	switch {
	case fl.Waiting > 0 && !fl.again, fl.recall, fl.Tells, fl.Reset, fl.Last, h.eager:
		return 0
	case fl.calm && l.Algorithm == ratelimit.FixedWindow && now.Add(LongCompany+mustLast) < l.Reset:
		return LongCompany
	case l.Drifted() > 0:
		return 0
	case fl.GiveUp:
		return Company
	case fl.goesOn:
		return LongCompany
	case l.Algorithm != ratelimit.FixedWindow, now.Add(mustLast) >= l.Reset:
		return 0
	case fl.again:
		return Company
	case fl.Errand == Errand{} && h.seldom():
		return LongCompany
	case now.Add(mustLast) >= l.Deadline, float64(l.Unspent()) < mustLast.Seconds()*h.Demand.Rate(now):
		return 0
	}
	return Company
}

// rides tells whether the only reason to claim is that the claim may travel with others.
func (h *Held) rides(now instant) bool { return h.seldom() && now < h.After && now < h.AheadAt }

// seldom tells whether a lease is used up that is drawn, of a key that is not asked for often.
func (h *Held) seldom() bool {
	return h.Lease.Unspent() <= 0 && h.drawn() && h.Demand.PerSec < often
}

// drawn tells whether the key's leases may be drawn, as far as is known.
func (h *Held) drawn() bool {
	return h.Stretched && !h.crowded && !h.vain && !h.Rule.Coordination.Audit &&
		h.Lease.Algorithm == ratelimit.FixedWindow && !h.Rule.Limit.Unit.OfCalendar()
}

// Lingers tells whether the claim under way waits for others to travel with.
func (h *Held) Lingers() bool { return h.underWay != nil && h.underWay.Lingers && !h.underWay.written }

// Queued takes in that what Todo had as its claim has been sent.
func (h *Held) Queued(fl *Flight) {
	// Each next window is claimed once. When that claim is lost, the first request after the turn
	// claims; a second one ahead would come too late anyway.
	if h.underWay = fl; fl.Ahead {
		h.AheadAt, h.triedAhead = Never, h.Lease.Window+1
	}
}

// schedule says when what is claimed.
type schedule struct {
	Renewal
	// From AheadAt on a request has the next window claimed. triedAhead is the latest window
	// for which that was done: each is claimed ahead once.
	AheadAt    instant
	triedAhead window
	// Fruits is how many answers in a row were fruitless. From MostFruitless on, the key is not
	// claimed until Pause (docs/protocol.md, section 4.16).
	Fruits uint8
	Pause  instant
	again  instant // from here on a refusal is asked for again
	holds  uint8   // how often RefusalHold is doubled then
}

// lastHeard is what the ledger last said of the lease.
type lastHeard struct {
	undrawn
	Heard     instant // when that was
	Told      instant // when the claim was sent that it settled then
	eager     bool    // the lease was claimed under reclaim: eager
	expires   instant // when its time is over for this node, also where its window ends before
	elsewhere tokens  // unspent at other nodes then, less what was refused here since
	stranded  tokens  // in expired leases of other nodes then
	Reported  tokens  // of what was spent in this window, what the ledger knows
	// Settled says that the ledger knows all that was spent, and that nothing
	// is left to spend: the key can be forgotten.
	Settled bool
	Gauges  gauges // what the rule's gauges have of it
}

// undrawn is why a claim may be no draw.
type undrawn struct {
	crowded  bool   // the key had more holders, when last heard, than draw
	shut     bool   // nothing could be drawn of the lease's window any more then
	vain     bool   // a draw was not answered, and no other claim has been since
	returned tokens // of what was given back in this window, what the ledger knows
}

// DriftKept is what a node must remember of drift when its window ends, or when the tenancy of
// a seat does (docs/protocol.md, section 4.13).
type DriftKept struct {
	Carried  tokens // unconfirmed in the window before, and counting in this one
	Before   tokens // charged in the window before, and counting in this one
	used     tokens // of the drift share until usedTill, though it was confirmed; see keepUsed
	usedTill instant
	heir     ratelimit.Fence // the tenancy for which a share of a bucket was taken as spent; see Drift
}

// unbooked is what was admitted without the ledger.
type unbooked struct {
	// Unplaced was admitted from UnplacedAt on, while no lease said of which window it was. The
	// next grant books it, if its window had begun by UnplacedAt.
	Unplaced   tokens
	UnplacedAt instant
	// Unasked is what on_store_failure admitted here in this window, unplaced included,
	// less what has been told as over the limit since.
	Unasked tokens
}

// Take answers from the lease, and has it renewed in time; or says that the ledger must be
// asked. waited says that the request has waited for a claim. The verdict is written where it
// is needed, for copies of it cost more than the rest.
func (h *Held) Take(now instant, a *ask, waited bool, v *verdict) (ok bool) {
	*v, ok = h.Lease.Take(now, a, Keeps)
	// The lease may have nothing to say because its window is over. Where the lease of the next
	// window is here, and that window has certainly begun, it takes over and is asked.
	if !ok && h.Turn(now) {
		*v, ok = h.Lease.Take(now, a, Keeps)
	}
	if !ok {
		*v, ok = h.inDoubt(now, a)
	}
	if !ok {
		if *v, ok = h.peekFull(now, a); !ok {
			return false
		}
	}
	h.Rule = a.Rule
	h.Demand.LastUse = now
	h.Demand.Used = ratelimit.AddTokens(h.Demand.Used, v.Charged)
	// Refused tokens count as demand, so that the next claim wants them too. While other holders
	// have unspent tokens, they are also under-admission: refused while tokens were left elsewhere.
	if v.OverLimit {
		h.Demand.Refused = ratelimit.AddTokens(h.Demand.Refused, a.Cost)
		if a.Rule.Whole() == nil { // otherwise the reserve may have it
			h.CountRefused(a)
		}
	}
	// A full table drops a key only while the ledger knows all that was spent of it
	// (docs/protocol.md, section 4.4). After a charge or a refund the ledger does not know any
	// more.
	h.Settled = h.Settled && v.Charged == 0 && a.Kind != ratelimit.Refund
	if waited {
		v.Source = ratelimit.FromClaim
	}
	switch {
	// A holder has one claim of a key under way (docs/protocol.md, section 4.2), and none during a
	// pause after fruitless answers (section 4.16).
	case h.underWay != nil || now < h.Pause:
	// Of a key of which each claim brings what waits for it, and no more, nobody knows that it will be asked for
	// again; nor of one whose window may end while the claim waits for company.
	case h.rides(now) && (waited || now.Add(LongCompany+mustLast) >= h.Lease.Reset):
	// A lease that is due is renewed; but not before retry, until when the ledger would grant
	// nothing either. Spending that the ledger may reclaim (reclaim: eager) is reported even then.
	case now >= h.AheadAt || h.Due(now, h.Lease.Unspent()) && (now >= h.Lease.Retry || h.mustReport()):
		h.renew(now)
	// The ledger's refusal is believed for RefusalHold. Then it is asked again in the background,
	// so that no request waits for what is probably the same answer.
	case v.OverLimit && now >= h.again && now < h.Lease.Retry:
		h.askAgain(now, a)
	}
	return true
}

// peekFull answers a peek at a bucket that the last answer said was full. Such a bucket has
// nothing to wait for, so that its lease is never current; what is known of it holds as long as
// the lease does. Otherwise each peek would claim.
func (h *Held) peekFull(now instant, a *ask) (verdict, bool) {
	l := &h.Lease
	if a.Kind != ratelimit.Peek || l.Algorithm != ratelimit.TokenBucket || !l.under(&a.Rule.Limit) ||
		l.Reset > h.Told || now >= l.Deadline {
		return verdict{}, false
	}
	v := l.peek(now)
	v.ResetAfter = 0
	return v, true
}

// CountRefused counts what was refused here, as far as others held it.
func (h *Held) CountRefused(a *ask) {
	if h.elsewhere > 0 {
		h.countUnder(min(a.Cost, h.elsewhere))
	}
}

// Spared takes back what a verdict of Take has refused, for it was admitted from the reserve.
func (h *Held) Spared(a *ask, refused *verdict) {
	h.Undo(a, refused) // what the denial has charged beyond the limit
	h.Demand.Refused = max(0, h.Demand.Refused-a.Cost)
}

// countUnder counts tokens that were refused here while others held them.
func (h *Held) countUnder(n tokens) {
	h.elsewhere -= n
	if h.Rule.Counters != nil {
		h.Rule.Counters.UnderAdmitted.Add(uint64(n))
	}
}

// MayGo tells whether the table may drop the key: full says that it has no more room.
func (h *Held) MayGo(now instant, full bool) bool {
	over := now >= h.countsTill().Add(ClaimTimeout)
	// A key stays while an answer is under way, or while it has the next window's lease. While
	// its totals count, it goes only if the table is full and the ledger knows them all:
	// otherwise what it spent would be granted again. When they count no more, it goes if the
	// table is full, or if it has not been used for ForgottenAfter, before the table takes more
	// memory.
	switch {
	case h.underWay != nil || h.Next != nil:
		return false
	case !over:
		return full && h.Settled
	}
	return full || now.Sub(h.Demand.LastUse) >= ForgottenAfter
}

// Undo takes back what a verdict of Take or Drift charged.
func (h *Held) Undo(a *ask, v *verdict) {
	// What the ledger was told as spent may not be spent any more: the key is not settled
	// before another claim has said so.
	h.Lease.Undo(a, v, refundsTo(a.Rule.Limit.Algorithm))
	h.Settled = false
	h.Gauge()
}

// Sweep looks after a key for which nothing is under way: it ends its window, and gives
// back what is idle. roomy says that the table has room for idle keys, which then keep a lease
// of plenty. It returns whether the window is over.
func (h *Held) Sweep(now instant, roomy bool) (ended bool) {
	h.Turn(now)
	ended = h.Lease.Window == 0 || now >= h.Lease.Reset
	switch {
	// What is over is no longer leased: the gauges forget it, and mode approx has its last word.
	case ended:
		h.Gauges.Set(nil, 0, 0, 0)
		h.Finish()
		h.goOn(now)
	case roomy && h.KeptIdle():
		// A table that is nearly full needs the place.
	case now.Sub(h.Demand.LastUse) > IdleAfter && h.Untold():
		h.send(Flight{Errand: Errand{GiveUp: true}})
	}
	return ended
}

// KeptIdle tells whether the lease is kept when idle, while the table has room: one of plenty, which is recalled
// if others come to need it (docs/protocol.md, section 4.11). Drift of which the ledger was not told, because that
// claim was lost, is told when the key is idle.
func (h *Held) KeptIdle() bool { return h.Stretched && h.Lease.Drifted() == 0 }

// Unsaid tells whether the ledger does not know all of what still counts.
func (h *Held) Unsaid(now instant) bool {
	return !h.Settled && h.Lease.Window != 0 && now < h.Lease.Counts()
}

// Retelling is what is told again after the ledger has lost its data, or its clock was set.
type Retelling struct {
	Doubt  instant // what was told before is told again
	Lapsed instant // leases that were told of before are over there
	UsedUp bool    // only what is used up, for its holders ask for nothing
}

// Telling is how far a key has been told again.
type Telling uint8

// How far.
const (
	AllTold   Telling = iota // all of it, or there is nothing to tell
	TellLater                // an answer has to come first, or others are more urgent
	TellNow                  // by a claim that wants nothing
)

// Tell tells what is to be told again of the key.
func (h *Held) Tell(now instant, t Retelling) Telling {
	h.Turn(now)
	if n := h.Next; n != nil && n.Told < t.Doubt && now < n.Over {
		// The ledger may not know this lease: if it were spent, the same tokens could be granted once
		// more. Nothing of it is spent yet, so that it can be forgotten, and is claimed anew.
		h.Next, h.triedAhead, h.AheadAt = nil, 0, now
	}
	if h.IsTold(now, t.Doubt) {
		return AllTold
	}
	// The ledger's clock has gone ahead, and leases from before that are expired there: this node
	// must not spend what others may have.
	if h.Told < t.Lapsed {
		h.Lease.Deadline = min(h.Lease.Deadline, now)
	}
	// First those that are used up. A lease with tokens left is renewed soon anyway; a key that
	// refuses by itself sends no claim, and the ledger would grant its whole limit again.
	usedUp := h.Lease.Unspent() <= 0 || now < h.Lease.Retry
	if h.underWay != nil || now < h.Pause || t.UsedUp && !usedUp {
		return TellLater
	}
	return TellNow
}

// IsTold tells whether the ledger need not be told of a key again: it was, or there is
// nothing to tell.
func (h *Held) IsTold(now, doubt instant) bool {
	return h.Lease.Window == 0 || now >= h.Lease.Counts() || h.Told >= doubt
}

// countsTill is until when anything that is known of the key counts, whoever asks for it.
func (h *Held) countsTill() instant {
	till := max(h.Lease.Counts(), h.usedTill)
	if h.Unplaced > 0 { // it is of a window that no lease is of
		till = max(till, h.UnplacedAt.Add(h.Rule.Limit.Period()))
	}
	return till
}
