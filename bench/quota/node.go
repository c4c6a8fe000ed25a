package quota

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// node is one incarnation of a node.
type node struct {
	*world
	slot    int
	name    ratelimit.Holder
	born    int64
	alive   bool
	stepped *leasing.Stepped // nil: its ledger is its own
	core    *rlqs.Node
	limiter ratelimit.Limiter
}

func (n *node) start() {
	w := n.world
	w.names++
	n.name, n.born, n.alive = w.names, w.now, true
	wall := time.UnixMicro(int64(w.ledgerTime()))
	n.limiter = local.New(1<<10, n.clock(), wall)
	if w.ledger != nil {
		rnd := rand.New(rand.NewPCG(w.Seed, 0x2000+uint64(n.name)))
		n.stepped = leasing.NewStepped(n.name<<nameBits, 1<<10, n.clock, wall, n.after, rnd.Float64)
		n.stepped.Nodes, n.stepped.Peers = w.alive, w.alive
		n.limiter = prompt{n}
		n.in(time.Duration(w.rnd.Int64N(int64(leasing.SweepEvery))), n.sweep)
		n.in(time.Duration(w.rnd.Int64N(int64(verifyEvery))), n.verify)
	}
	n.core = rlqs.NewNode(rlqs.Source{
		Rules: func() *config.Rules { return w.rules }, Limiter: n.limiter,
		Wall: func() time.Time { return time.UnixMicro(int64(w.ledgerTime())) },
	}, rlqs.DefaultOptions())
}

// clock is the node's own, and never 0.
func (n *node) clock() ratelimit.Instant {
	return ratelimit.Instant(n.now-n.born) + ratelimit.Instant(time.Second)
}

// run does something at this incarnation of the node, if it is still there.
func (n *node) run(do func()) {
	if n.alive {
		do()
	}
}

func (n *node) after(d time.Duration, do func()) {
	n.in(d, func() { n.run(func() { do(); n.pump() }) })
}

func (n *node) sweep() {
	n.run(func() {
		n.stepped.Sweep(n.clock())
		n.pump()
		n.in(leasing.SweepEvery, n.sweep)
	})
}

// verifyEvery is how often a node looks whose data the ledger has.
const verifyEvery = 500 * time.Millisecond

// verify has the ledger's epoch read, as each process does now and again, and prolongs its youth while
// totals are unstated.
func (n *node) verify() {
	n.run(func() {
		n.stepped.Beat()
		n.pump()
		if n.stepped.Restating() && n.hung == 0 {
			_, _ = n.ledger.Prolong(context.Background()) // it never fails
		}
		n.in(verifyEvery, n.verify)
	})
}

// pump has the ledger settle the pending messages.
func (n *node) pump() (sent bool) {
	for b := n.stepped.Batch(); b != nil; b = n.stepped.Batch() {
		sent = true
		if n.hung > 0 {
			b.Fail(context.DeadlineExceeded)
			continue
		}
		grants := make([]account.Grant, len(b.Claims()))
		epoch, at, err := n.ledger.Settle(context.Background(), b.Claims(), grants)
		if err != nil {
			b.Fail(err)
			continue
		}
		b.Answer(epoch, at, grants)
	}
	return sent
}

// nameBits are those of a holder's name that a node counts by: see account.NewHolder.
const nameBits = 28

// recall carries the ledger's request to give tokens back.
func (w *world) recall(h ratelimit.Holder, account string, window ratelimit.Window) {
	for _, n := range w.nodes {
		if n.name == h>>nameBits && n.alive && w.hung == 0 {
			n.after(time.Millisecond, func() { n.stepped.Recalled(account, window) })
		}
	}
}

// alive is how many nodes there are.
func (w *world) alive() int {
	all := 0
	for _, n := range w.nodes {
		if n.alive {
			all++
		}
	}
	return all
}

// prompt is a limiter whose ledger answers in no time, or never.
type prompt struct{ *node }

// Decide implements [ratelimit.Limiter].
func (p prompt) Decide(_ context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	wait := p.stepped.Ask(now, asks, verdicts)
	p.pump()
	for wait != nil && wait.Advance(now) {
		if !p.pump() {
			wait.TimeOver()
		}
	}
	p.pump()
}

// Undo implements [ratelimit.Limiter].
func (p prompt) Undo(now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	p.stepped.Undo(now, asks, verdicts)
}
