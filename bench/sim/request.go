package sim

import (
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// request is one decision in progress: of one descriptor, or of two together. Each descriptor is counted once, at the
// instant of its own decision: counted says so. The request as a whole is over when the caller has its answer, or has
// given up.
type request struct {
	asks     [2]ratelimit.Ask
	verdicts [2]ratelimit.Verdict
	keys     [2]*key
	counted  [2]bool
	n        int                     // of them
	at       int64                   // arrival
	admitted [2]ratelimit.LedgerTime // when each descriptor was admitted, by the ledger's clock
	wait     *leasing.Wait
	over     bool // decided, or the caller has given up
}

// arrive sends a request to a node, or to an Envoy. A request to a node that is paused counts as unanswered, not as
// refused: its caller's deadline passes.
func (w *world) arrive(l load.Request) {
	if w.envoys != nil {
		w.envoys.arrive(w.keys[l.Key])
		return
	}
	n := w.ask(l.Node)
	cost := ratelimit.Tokens(l.Cost)
	w.result.Requests++
	if n == nil || n.paused {
		w.offer(&ratelimit.Ask{Cost: cost})
		w.result.Unanswered += cost
		return
	}
	k := w.key(n.rule, l.Key)
	q := w.take(k, w.wanted(n.rule, k, cost))
	w.offer(&q.asks[0])
	if n.rule.Coordination.Mode.Spec().Owned {
		w.route(n, q)
		return
	}
	if n.Second != nil {
		q.keys[1] = w.key(n.Second, 0)
		q.asks[1] = w.wanted(n.Second, q.keys[1], cost)
		w.offer(&q.asks[1])
		q.n = 2
	}
	w.decide(n, q)
}

// offer counts demand.
func (w *world) offer(a *ratelimit.Ask) {
	if a.Kind == ratelimit.Spend {
		w.result.Offered += a.Cost
		w.point.Offered += a.Cost
	}
}

// wanted is the charge of a request, usually its cost. One random number chooses among the kinds, by adjacent ranges of
// [0, 1). A run without special requests draws none.
func (w *world) wanted(rule *ratelimit.Rule, k *key, cost ratelimit.Tokens) ratelimit.Ask {
	a := ratelimit.Ask{Rule: rule, Key: k.name, Cost: cost}
	if w.Mix == (Mix{}) {
		return a
	}
	if w.Mix.Settles > 0 && len(k.held) > 0 && w.rnd.Float64() < w.Mix.Settles {
		return k.settles(rule, w.rnd.IntN(len(k.held)))
	}
	switch chance := w.rnd.Float64(); {
	case chance < w.Mix.Peeks:
		a.Kind, a.Cost = ratelimit.Peek, 0
	case chance < w.Mix.Peeks+w.Mix.Refunds:
		a.Kind = ratelimit.Refund
		// An honest client returns at most what the key has spent. A refund beyond that would be cut by the ledger, and
		// the books could not compare the rest exactly.
		if l := &rule.Limit; w.Mix.Honest && l.Algorithm != ratelimit.TokenBucket {
			a.Cost = min(a.Cost, k.judge.Spent(k.part.time()))
			if a.Cost == 0 {
				a.Kind = ratelimit.Peek
			}
		}
	case chance < w.Mix.Peeks+w.Mix.Refunds+w.Mix.Large:
		limit := max(1, int64(rule.Limit.Capacity()))
		a.Cost = ratelimit.Tokens(1 + limit/10 + w.rnd.Int64N(3*limit))
	}
	return a
}

// mostHeld bounds the history of a key.
const mostHeld = 64

// holds notes a request that has taken more than it costs, and will be settled. A request that may be refunded because
// another descriptor refuses is left out. A charge without a window came from no lease, and one by on_store_failure may
// never reach the ledger: neither is released.
func (w *world) holds(q *request, k *key, v *ratelimit.Verdict) {
	if w.Mix.Settles == 0 || q.n > 1 || v.Charged < 2 || v.Window == 0 || v.Source == ratelimit.FromFallback ||
		len(k.held) >= mostHeld {
		return
	}
	k.held = append(k.held, ratelimit.Ask{
		Key: k.name, Kind: ratelimit.Release, Cost: 1 + ratelimit.Tokens(w.rnd.Int64N(int64(v.Charged))), Window: v.Window,
	})
}

// settles is a release that is due.
func (k *key) settles(rule *ratelimit.Rule, i int) ratelimit.Ask {
	a := k.held[i]
	k.held = append(k.held[:i], k.held[i+1:]...)
	a.Rule = rule
	return a
}

// released makes the judge credit a release, in the current window. The judge credits at the decision, and the ledger
// when the node reports it. The difference may be admitted once more, so it is added to the bound.
func (w *world) released(k *key, a *ratelimit.Ask, n ratelimit.Tokens) {
	unspent := k.judge.Credit(k.part.time(), n)
	switch {
	case a.Rule.Limit.Algorithm == ratelimit.TokenBucket: // the ledger applies it later, when it may be less full
		k.extra = append(k.extra, extra{at: w.now, n: n})
	case unspent > 0: // tokens in hand of nodes count as taken at the ledger, which credits it
		k.extra = append(k.extra, extra{at: w.now, n: unspent})
	}
}

// retract takes an admission back. If refunds have credited it already, the ledger credits it once more: its order of
// charges and credits is another one. The point of the timeline is the one in which the admission was counted. Without
// that, a point could have fewer admissions than 0.
func (w *world) retract(k *key, admitted ratelimit.LedgerTime, n ratelimit.Tokens) {
	if unspent := k.judge.Retract(admitted, k.part.time(), n); unspent > 0 {
		k.extra = append(k.extra, extra{at: w.now, n: unspent})
	}
	w.result.Admitted -= n
	point, before := &w.point, len(w.result.Timeline)-1
	if at := w.now - int64(k.part.time().Sub(admitted)); before >= 0 && at < int64(w.result.Timeline[before].At) {
		point = &w.result.Timeline[before]
	}
	point.Admitted -= n
}

// inTime keeps a release that was booked against the current window: it must be that of its request. Tokens of a window
// that has ended are gone. A release that is booked in another window would let its key admit that much more there.
func (w *world) inTime(k *key, a *ratelimit.Ask) {
	l := &a.Rule.Limit
	if now := l.WindowAt(k.part.time()); !w.Storeless && l.Algorithm != ratelimit.TokenBucket && a.Window != now &&
		!w.books.stepped(k.part) {
		w.violate(-1, k.index, "%d of window %d are given back in window %d", a.Cost, a.Window, now)
	}
}

// ask chooses the node for a request, or nil. A recorded load may name a node that the run does not have; then any node
// is asked.
func (w *world) ask(wanted int) *node {
	i := wanted
	if i < 0 || i >= len(w.nodes) {
		i = w.rnd.IntN(len(w.nodes))
	}
	for range w.nodes { // a balancer leaves out nodes that are away
		if w.nodes[i].ready() {
			return w.nodes[i]
		}
		i = (i + 1) % len(w.nodes)
	}
	return nil
}

func (w *world) take(k *key, a ratelimit.Ask) *request {
	q := &request{n: 1, at: w.now}
	q.keys[0], q.asks[0] = k, a
	return q
}

// decide lets a node decide, at once or after the ledger's answer. Every path ends with send: also a decision at once
// can make a claim due, for the next requests.
func (w *world) decide(n *node, q *request) {
	q.wait = n.stepped.Ask(n.clock(), q.asks[:q.n], q.verdicts[:q.n])
	if q.wait == nil {
		w.decided(n, q)
		n.send()
		return
	}
	w.counts(n, q)
	n.waits = append(n.waits, q)
	n.in(q.wait.Patience(), func() { n.impatient(q) })
	n.send()
}

// decided counts a decision at its node.
func (w *world) decided(n *node, q *request) {
	q.over = true
	w.counts(n, q)
	w.refundDenied(n, q)
	w.waited(q)
}

// counts makes the judge count the decision for one descriptor: its tokens are spent then, also while another
// descriptor still waits. A request without a Wait was decided at once, as a whole.
func (w *world) counts(n *node, q *request) {
	for i := range q.n {
		if q.counted[i] || q.wait != nil && !q.wait.Decided(i) {
			continue
		}
		q.counted[i] = true
		w.count(n, q, i)
	}
}

// refundDenied returns the charges of descriptors of a request that another descriptor refused, if their rule says so.
// The ledger's view is that nothing was charged, so the judge retracts the admission of its instant. The result counts
// it as refused.
func (w *world) refundDenied(n *node, q *request) {
	if q.n < 2 || !q.verdicts[0].OverLimit && !q.verdicts[1].OverLimit {
		return
	}
	for i := range q.n {
		a, v := &q.asks[i], &q.verdicts[i]
		if a.Rule.Coordination.OnDeny != ratelimit.DenyRefunds || v.OverLimit || a.Kind != ratelimit.Spend {
			continue
		}
		w.books.undo(n, q.keys[i], a, v)
		n.stepped.Undo(n.clock(), q.asks[i:i+1], q.verdicts[i:i+1])
		w.retract(q.keys[i], q.admitted[i], a.Cost)
		w.result.Refused += a.Cost
		if w.Decisions {
			w.trace("key %d: %d are given back, for the other descriptor was refused", q.keys[i].index, a.Cost)
		}
	}
}

// count makes the judge count a decision, at its instant. count is the one place at which decisions of nodes reach the
// judge and the books.
func (w *world) count(n *node, q *request, i int) {
	v, a, k := &q.verdicts[i], &q.asks[i], q.keys[i]
	w.judges(k)
	if w.watch != nil {
		w.watch.asked(n, k, a, v)
	}
	if w.Check && !w.Storeless {
		w.books.decided(n, k, a, v)
	}
	switch {
	case a.Kind == ratelimit.Peek:
	case a.Kind == ratelimit.Refund:
		w.released(k, a, a.Cost)
	case a.Kind == ratelimit.Release:
		// Charged is the part that the node has credited.
		n := v.Charged
		if v.Source == ratelimit.FromFallback { // its owner may have booked it, or learns of it later
			n = a.Cost
		} else if n > 0 {
			w.inTime(k, a)
		}
		w.released(k, a, n)
		w.result.Released += n
	case v.OverLimit:
		w.refuse(k, a.Cost)
	default:
		if a.Rule.Limit.Capacity() == 0 {
			w.violate(n.slot, k.index, "%d are admitted of a limit of 0", a.Cost)
		}
		q.admitted[i] = k.part.time()
		w.bound.admitted(n, k, a.Cost)
		w.admit(k, a.Cost)
		w.holds(q, k, v)
	}
	if w.Decisions {
		w.trace("node %d: key %d kind %d cost %d: over limit %v by %s, %d left", n.slot, k.index, a.Kind, a.Cost, v.OverLimit, ratelimit.Sources[v.Source], v.Remaining)
	}
}

// admit makes the judge count an admission now. The bound is computed only for an admission beyond the limit, because
// it walks over all faults.
func (w *world) admit(k *key, cost ratelimit.Tokens) {
	over := k.judge.Admit(k.part.time(), cost)
	w.result.Admitted += cost
	w.point.Admitted += cost
	if over > 0 {
		w.bound.check(k, over)
	}
}

func (w *world) refuse(k *key, cost ratelimit.Tokens) {
	k.judge.Refuse(k.part.time(), cost)
	w.result.Refused += cost
}

// waited counts the wait of the caller, and the source of the decision. Of two descriptors, the source of the first
// counts.
func (w *world) waited(q *request) {
	w.result.Sources[ratelimit.Sources[q.verdicts[0].Source]]++
	took := w.now - q.at
	if took > 0 {
		w.result.Waited++
		_ = w.waits.RecordValue(max(1, took/int64(time.Microsecond)))
	}
}
