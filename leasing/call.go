package leasing

import (
	"bytes"
	"errors"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// call is a list of asks that wait for the ledger together. Events drive it: it has no goroutine and no clock.
//
//	patient --check has passed--> drifting --the deadline has passed--> overdue
//
// Rules that drift are patient for their check_timeout, then drift up to their share. When a call is overdue,
// on_store_failure decides.
type call struct {
	*Fleet
	waits    []waiter
	check    time.Duration // the longest of the rules that drift
	deadline time.Duration // the longest of the rules
	drifts   bool          // one of the rules drifts
	// drifting means that the first deadline is over, and overdue that the last one is.
	drifting bool
	overdue  bool
}

// waiter is one ask that needs the ledger.
type waiter struct {
	ask      *ask
	verdict  *verdict
	flight   *flight     // it waits for this one; nil: none yet
	counted  *keyMessage // of that flight, if it includes its need; nil: it does not
	final    bool        // the verdict is final, and waits to be booked
	answered instant     // when the ledger answered it first, perhaps in an earlier window; 0: it has not
	done     bool
	// waits is its part of the key's Waiting, 0 if it waits for no tokens.
	waits tokens
}

// add adds an ask that has to wait. The longest deadlines of the rules count, because one caller waits for all asks.
func (c *call) add(a *ask, v *verdict) {
	c.waits = append(c.waits, waiter{ask: a, verdict: v})
	of := &a.Rule.Coordination
	c.deadline = max(c.deadline, of.Deadline())
	if a.Rule.Drifts() {
		c.check, c.drifts = max(c.check, of.CheckTimeout), true
	}
}

// patience is the time to the first deadline.
func (c *call) patience() time.Duration {
	if c.drifts {
		return min(c.check, c.deadline)
	}
	return c.deadline
}

// waitsFor reports whether one of the first n asks has this key, and still waits.
func (c *call) waitsFor(key []byte, n int) bool {
	return slices.ContainsFunc(c.waits[:n], func(w waiter) bool { return !w.done && bytes.Equal(w.ask.Key, key) })
}

// advance decides all asks that can be decided now, and claims for the others. It reports whether any still waits.
// Without a new answer, an ask is looked at again only once its call drifts: its state would be the same.
func (c *call) advance(now instant) (open bool) {
	for i := range c.waits {
		w := &c.waits[i]
		if c.waitsFor(w.ask.Key, i) { // asks of one key are answered in their order, with or without a new answer
			open = true
			continue
		}
		if !w.done && (c.drifting || w.flight == nil || w.flight.ended()) {
			c.decide(now, w)
		}
		open = open || !w.done
	}
	return open
}

// timeOver notes that the current deadline has passed, or that the caller has given up. It returns the time to the next
// deadline. A call without rules that drift has one deadline, after which it is overdue at once.
func (c *call) timeOver(gone bool) time.Duration {
	c.overdue = c.drifting || gone || c.patience() == c.deadline
	c.drifting = true
	if c.overdue {
		return 0
	}
	return c.deadline - c.patience()
}

// next is closed at the end of the flight of the first undecided ask. Waiting for the flights one after the other takes
// no longer than waiting for all. nil blocks for ever in a select: then only the deadline ends the wait.
func (c *call) next() <-chan struct{} {
	for i := range c.waits {
		if w := &c.waits[i]; !w.done && w.flight != nil {
			return w.flight.done
		}
	}
	return nil
}

// decide answers an ask, or lets it wait for a flight. It holds the shard's lock throughout, and never waits under it.
// Its steps:
//
//  1. Find or make the key, under the ask's rule, in the current window.
//  2. An undecided ask looks at the key's state, if it has no flight or an answer has come (lookLocked).
//  3. Later than its check_timeout, an ask of a rule that drifts takes from the node's share.
//  4. A decided ask waits only for the answer to its report (bookedLocked).
//  5. After the deadline, on_store_failure or the last answer decides.
func (c *call) decide(now instant, w *waiter) {
	s, id, at := c.find(w.ask.Key)
	defer s.mu.Unlock()
	if at == nil {
		// The table is full, and of the keys that it tried, none may be dropped (mayGoLocked).
		at = c.trackLocked(s, now, id, w.ask)
		if at == nil {
			c.failLocked(now, w, nil, ratelimit.FallbackTableFull)
			return
		}
	}
	if s.rules.of(at) != w.ask.Rule {
		// A reload, or an override of the limit, has brought another rule for this key.
		s.move(at, w.ask.Rule)
	}
	k := s.entry(now, id, at)
	looks := w.flight == nil || w.flight.ended()
	switch {
	case !w.final:
		there := c.lane(k).time()
		certain := c.enterLocked(now, &there, k)
		if looks {
			c.lookLocked(now, &there, k, w, certain)
		}
		if c.drifting && certain && !w.done && !w.final && w.ask.Rule.Drifts() {
			c.driftCheckedLocked(now, &there, k, w)
		}
	case looks:
		c.bookedLocked(now, k, w)
	}
	if c.overdue && !w.done {
		c.decideOverdueLocked(now, k, w)
	}
}

// lookLocked answers an ask by the key's state, or lets it wait for a flight.
func (c *call) lookLocked(now instant, there *lease.LedgerClock, k entry, w *waiter, certain bool) {
	if !certain {
		c.uncertainLocked(k, w, there)
		return
	}
	reply := c.replyLocked(now, k, w)
	next := k.Take(now, w.ask, reply, w.verdict)
	if next == lease.Asks {
		// Neither the tokens in hand nor the last answer decide.
		c.doubtLocked(now, there, k, w)
		return
	}
	w.decided(k)
	if next == lease.Booked {
		// The flight until now was that of the decision. The report is another one.
		w.final, w.counted = true, nil
		w.waitsLocked(k, 0)
		c.bookedLocked(now, k, w)
		return
	}
	w.finish(k)
	// The ask may have used up the lease.
	c.renewLocked(now, k)
}

// replyLocked tells Take what the claim of an ask brought; the zero Reply: nothing yet.
//
//   - Granted: tokens, under a limit that is at most the ask's. They are the ask's own, whatever is refused since.
//   - Last: another claim would change nothing.
//
// Requests of one key can have different limits: they bring their own, or the rules change. A claim is judged by one of
// them.
func (c *call) replyLocked(now instant, k entry, w *waiter) (reply lease.Reply) {
	// The claim included this ask. Otherwise its answer says nothing about it.
	fl := w.counted
	if fl == nil || fl.err != nil {
		return reply
	}
	if w.answered == 0 {
		w.answered = now
	}
	// Of a window that has ended, an answer decides nothing.
	reply.Waited = k.Asked(&fl.message)
	if !reply.Waited {
		return reply
	}
	judged, limit := fl.message.Claim.Limit.Capacity(), w.ask.Rule.Limit.Capacity()
	reply.Granted = fl.granted && judged <= limit
	reply.Last = judged >= limit && c.lastLocked(now, k, w, judged)
	return reply
}

// lastLocked reports whether another claim would change nothing, after one that was judged by that limit. Requests that
// waited together take what was granted in their order. The rest is refused, and claims no more.
func (c *call) lastLocked(now instant, k entry, w *waiter, judged tokens) bool {
	fl := w.counted
	// left is what the answer leaves for this ask: of the limit, with this node's own tokens and refunds, and tokens in
	// hand of others.
	left := judged - k.Sum + k.Unspent() + k.Returned() + fl.elsewhere
	switch {
	case fl.refused:
		return w.ask.Cost > left
	case fl.recalling:
		// Of a small limit, others give back all that they have. Half of the time is enough for it. The other half is
		// left for the charge of the refusal.
		late := now.Sub(w.answered) >= c.patience()/2
		return w.ask.Cost > left || late && !c.sizing(k.rule(), c.lane(k)).Ahead()
	}
	return false
}

// doubtLocked answers an ask that needs the ledger from this node's share or, in a young epoch, from its part.
// Otherwise it claims.
func (c *call) doubtLocked(now instant, there *lease.LedgerClock, k entry, w *waiter) {
	const waited = false
	if c.driftLocked(now, there, k, w, waited) {
		return
	}
	is, young := c.lane(k).young(now)
	if !young {
		c.askLocked(now, k, w)
		return
	}
	// In a young epoch, claims bring nothing, so that waiting would be in vain.
	k.TakePart(now, w.ask, is.part(&w.ask.Rule.Limit), w.verdict)
	w.decided(k)
	w.finish(k)
}

// finish marks a waiter as answered.
func (w *waiter) finish(k entry) {
	w.done = true
	w.waitsLocked(k, 0)
}

// decided marks a verdict as final, though it may still wait to be booked. The verdict names the account that it was
// charged to, for Undo.
func (w *waiter) decided(k entry) {
	w.verdict.Window = k.account(&w.ask.Rule.Limit)
	w.countUnder(k)
}

// countUnder counts a request that is refused while others have tokens in hand.
func (w *waiter) countUnder(k entry) {
	if c := w.ask.Rule.Counters; w.verdict.OverLimit && w.ask.Kind == ratelimit.Spend && k.Elsewhere() && c != nil {
		c.UnderAdmitted.Add(uint64(w.ask.Cost))
	}
}

// waitsLocked sets the tokens that a waiter waits for; 0: it no longer waits. The sum of all waiters is the key's next
// need, so each takes its part out as it leaves.
func (w *waiter) waitsLocked(k entry, n tokens) {
	k.Waits(k.Waiting + n - w.waits)
	k.trimLocked()
	w.waits = n
}

// enterLocked moves the key to the current window. It returns false if that is not certain.
func (f *Fleet) enterLocked(now instant, there *lease.LedgerClock, k entry) bool {
	beyond, rule := k.Excess, k.rule()
	ended, certain := k.Enter(now, there, &rule.Limit)
	f.reportLocked(k, ended, beyond)
	// After the ledger's clock was set back, a window can return whose usage this node has dropped. Under the old
	// name, its first claim would take that usage back. A rule that reclaims, or no longer does, needs another name: in
	// the next window, or as long as the ledger has no record of this one.
	back := ended.Deadline != 0 && k.Window < ended.Window
	nameless := ended.Deadline != 0 || k.NeverSent()
	if certain && (back || nameless && k.cell.Val.lapses() != rule.Reclaims()) {
		k.cell.Val.alias = f.newAlias(rule)
	}
	k.shard.endLocked(k.cell)
	return certain && (f.mayAskLocked(now, k) || f.leaving.Load())
}

// askLocked sends a claim for a waiter's need, or fails the waiter. A claim that was answered a moment ago may call for
// a pause first, or show that the store fails. An error counts only if the message included the waiter.
func (c *call) askLocked(now instant, k entry, w *waiter) {
	switch {
	case w.counted != nil && w.counted.err != nil && !retried(w.counted.err):
		c.failLocked(now, w, &k, lane.Reason(w.counted.err))
		return
	case w.counted != nil && errors.Is(w.counted.err, account.ErrOver):
		w.flight, w.counted = c.rest(time.Millisecond), nil // read the current window again, without a loop of claims
		return
	case w.counted != nil && w.counted.recalling:
		// Others were recalled. This claim and their answers take a round trip each, and theirs must arrive first.
		w.flight, w.counted = c.rest(max(recallPause, c.lane(k).roundTrip()/4)), nil
		return
	}
	m, why := c.joinLocked(k)
	if m == nil {
		c.failLocked(now, w, &k, why)
		return
	}
	w.join(m)
	w.waitsLocked(k, w.ask.Cost)
}

// recallPause is the minimum wait before another claim while recalled nodes give their tokens back. For a far ledger, a
// quarter of its round trip is longer.
const recallPause = 2 * time.Millisecond

// retried reports whether an error is no failure of the store: the claim is made again. A claim that was overtaken, or
// that came too late for its window, was answered. Slots that move have their data.
func retried(err error) bool {
	return errors.Is(err, errNoAnswer) || errors.Is(err, account.ErrOvertaken) || errors.Is(err, account.ErrOver) ||
		errors.Is(err, account.ErrMoved)
}

// bookedLocked reports a charge or a refund, and lets the waiter wait for the answer: from then on, all nodes refuse.
// It ends the wait if a message with the charge was answered, or if the ledger has all of the key's usage for other
// reasons.
func (c *call) bookedLocked(now instant, k entry, w *waiter) {
	// In a young epoch, sweeps state all that there is.
	_, young := c.lane(k).young(now)
	if young || w.counted != nil && w.counted.err == nil || !k.Unreported() && !k.InFlight() {
		w.finish(k)
		return
	}
	m, why := c.joinLocked(k)
	if m == nil { // it is reported when the store is back
		c.chargeAlone(now, w.ask, why)
		w.finish(k)
		return
	}
	w.join(m)
}

// join lets a waiter wait for a message. If that is not yet written, it will include the waiter's need. Otherwise the
// waiter looks again at its answer, which may leave enough for it, and then claims.
func (w *waiter) join(m *keyMessage) {
	w.flight, w.counted = &m.flight, nil
	if !m.written {
		w.counted = m
	}
}

// uncertainLocked lets a waiter wait until the window is certain: for a first answer of the ledger, or for a moment.
func (c *call) uncertainLocked(k entry, w *waiter, there *lease.LedgerClock) {
	w.counted = nil
	if now := c.clock(); !c.mayAsk(now, k) && c.reclaim.failed.Load() {
		c.failLocked(now, w, &k, ratelimit.FallbackError)
		return
	}
	l := c.lane(k)
	_, is := l.read()
	// With a clock, it waits for the turn of a window, or for the registration: both take a moment. A new process at a
	// new epoch asks again each firstPause, until the epoch is old enough (epochs.waits).
	if there.At != 0 || is.first && c.clock().Sub(is.asked) < firstPause {
		w.flight = c.rest(time.Millisecond)
		return
	}
	fl, why := c.beat(l)
	w.flight = fl
	if fl == nil {
		c.failLocked(c.clock(), w, &k, why)
	}
}

// firstPause is the time between a new process's looks at a store that is new, too.
const firstPause = 50 * time.Millisecond

// driftLocked admits an ask from this node's share, if possible. waited means that its check_timeout is over.
func (c *call) driftLocked(now instant, there *lease.LedgerClock, k entry, w *waiter, waited bool) bool {
	// Drift after the node's last report is never reported.
	if c.Drift == nil || c.ended.Load() {
		return false
	}
	begins, ok := k.Drifts(now, there, w.ask, waited)
	if !ok {
		return false
	}
	share := c.Drift.Share(now, w.ask.Rule, begins)
	unanswered := k.Unanswered()
	if share <= 0 || !k.SpendShare(now, w.ask, share, w.verdict) {
		// Before its check_timeout, a request that the share cannot serve still waits for the ledger, and does not
		// count.
		if share > 0 && waited && w.ask.Rule.Counters != nil {
			w.ask.Rule.Counters.ShareUsedUp.Add(1)
		}
		return false
	}
	w.decided(k)
	w.finish(k)
	// Only an answer frees the share, so the report leaves at once. After a first request, it waits for a batch. A
	// request with no tokens left frees nothing. The settlement of a hold may come to another node: before the report,
	// it would find nothing to credit.
	switch {
	case !unanswered:
		_, _ = c.joinLocked(k)
	case w.ask.Rule.Hold != nil:
		c.launchLocked(k, lease.Batch)
	default:
		c.launchLocked(k, k.Patience(now))
	}
	return true
}

// driftCheckedLocked decides an ask after its rule's check_timeout. A recall that is under way comes first: with too
// little left by a recent answer, the request is refused at once, and does not use the share.
func (c *call) driftCheckedLocked(now instant, there *lease.LedgerClock, k entry, w *waiter) {
	const cautious = true
	if w.counted != nil && w.counted.recalling && k.Overdue(now, w.ask, c.lane(k).alive(now), cautious) == lease.Short {
		k.Deny(now, w.ask, w.verdict)
		w.decided(k)
		w.finish(k)
		return
	}
	const waited = true
	c.driftLocked(now, there, k, w, waited)
}

// decideOverdueLocked decides an ask without an answer in time. A charge or refund is booked later. A spend is decided
// by the last answer, if that is recent enough (Overdue), and else by on_store_failure.
func (c *call) decideOverdueLocked(now instant, k entry, w *waiter) {
	if w.final {
		if !c.lane(k).alive(now) { // a late answer is no outage
			c.chargeAlone(now, w.ask, ratelimit.FallbackDeadline)
		}
		w.finish(k)
		return
	}
	if w.ask.Kind == ratelimit.Spend {
		alive, cautious := c.lane(k).alive(now), w.ask.Rule.Coordination.OnStoreFailure != ratelimit.FailOpen
		overdue := k.Overdue(now, w.ask, alive, cautious)
		if overdue == lease.Undecided && alive && cautious && w.answered != 0 { // its window has ended while it waited
			overdue = lease.Doubtful
		}
		switch overdue {
		case lease.Short:
			k.Take(now, w.ask, lease.Reply{Waited: true, Last: true}, w.verdict)
		case lease.Doubtful:
			k.Deny(now, w.ask, w.verdict)
		case lease.Undecided:
		}
		if overdue != lease.Undecided {
			w.decided(k)
			w.finish(k)
			return
		}
	}
	c.failLocked(now, w, &k, ratelimit.FallbackDeadline)
}
