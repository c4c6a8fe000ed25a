package sim

import (
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// request is one decision on its way. Those decided at once are used again.
type request struct {
	asks     [1]ratelimit.Ask
	verdicts [1]ratelimit.Verdict
	key      int
	at       int64 // when it came
	wait     *leasing.Wait
	over     bool // decided, or nobody waits any more
	from     *forward
}

// arrive asks a node.
func (w *world) arrive(l load.Request) {
	n := w.ask(l.Node)
	k := w.key(l.Key)
	cost := ratelimit.Tokens(l.Cost)
	w.result.Requests++
	w.result.Offered += cost
	w.point.Offered += cost
	if n == nil || n.paused {
		w.unanswered(cost)
		return
	}
	q := w.take(l.Key, ratelimit.Ask{Rule: w.Rule, Key: k.name, Cost: cost})
	if w.Rule.Coordination.Mode == ratelimit.Routing {
		w.route(n, q)
		return
	}
	w.decide(n, q)
}

// ask chooses the node that is asked; nil if there is none.
func (w *world) ask(wanted int) *node {
	i := wanted
	if i < 0 || i >= len(w.nodes) {
		i = w.rnd.IntN(len(w.nodes))
	}
	for range w.nodes { // a balancer knows who is away
		if w.nodes[i].alive {
			return w.nodes[i]
		}
		i = (i + 1) % len(w.nodes)
	}
	return nil
}

func (w *world) take(key int, a ratelimit.Ask) *request {
	var q *request
	if last := len(w.free) - 1; last >= 0 {
		q, w.free = w.free[last], w.free[:last]
	} else {
		q = &request{}
	}
	*q = request{key: key, at: w.now}
	q.asks[0] = a
	return q
}

// decide has a node decide, at once or when the ledger has answered.
func (w *world) decide(n *node, q *request) {
	q.wait = n.stepped.Ask(n.clock(), q.asks[:], q.verdicts[:])
	if q.wait == nil {
		w.decided(n, q)
		w.free = append(w.free, q)
		n.send()
		return
	}
	n.waits = append(n.waits, q)
	n.in(q.wait.Patience(), func() { n.impatient(q) })
	n.send()
}

// decided counts a decision where it was made.
func (w *world) decided(n *node, q *request) {
	q.over = true
	if w.Check {
		n.check(q.key)
	}
	w.count(q)
	if q.from != nil {
		w.reply(n, q)
		return
	}
	w.waited(q)
}

// count has the judge count a decision, at the instant at which it was made.
func (w *world) count(q *request) {
	v, cost := &q.verdicts[0], q.asks[0].Cost
	j := w.keys[q.key].judge
	code := uint64(q.key)<<8 | uint64(v.Source)<<1
	if v.OverLimit {
		j.Refuse(w.ledgerTime(), cost)
		w.result.Refused += cost
	} else {
		code |= 1
		over := j.Admit(w.ledgerTime(), cost)
		w.result.Admitted += cost
		w.point.Admitted += cost
		if over > 0 {
			w.bound.check(q.key, over)
		}
	}
	w.print = (w.print ^ code ^ uint64(w.now)<<20) * 1099511628211
	if w.Decisions {
		w.trace("key %d cost %d: over limit %v by %s, %d left", q.key, cost, v.OverLimit, ratelimit.Sources[v.Source], v.Remaining)
	}
}

// waited counts how long the one who asked has waited, and what decided.
func (w *world) waited(q *request) {
	w.result.Sources[ratelimit.Sources[q.verdicts[0].Source]]++
	took := w.now - q.at
	if took > 0 {
		w.result.Waited++
		w.point.Waited++
		_ = w.waits.RecordValue(max(1, took/int64(time.Microsecond)))
	}
}

func (w *world) unanswered(cost ratelimit.Tokens) { w.result.Unanswered += cost }
