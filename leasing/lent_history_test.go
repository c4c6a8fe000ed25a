package leasing

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// lentWorld is a key, two nodes of which one owns it, and three lessees. Messages are lost, late and doubled, the
// owner changes with a handover or crashes, and so do lessees. It counts the usage of each window.
type lentWorld struct {
	*rand.Rand
	rule    *ratelimit.Rule
	now     instant
	owners  [2]*Local
	at      int // who owns the key
	lessees [3]lentNode
	names   ratelimit.Holder
	wire    []lentMessage
	newest  map[ratelimit.Holder]uint64 // the last message of each lessee that an owner has taken in
	taken   []lentTake                  // that may be taken back
	spent   map[window]tokens
	beyond  map[window]tokens // charges and admissions without a lease, or lost in a crash
	level   float64           // of a bucket, without leases
	filled  instant
	exact   bool // nothing has happened that loses tokens
	wild    bool // nodes end without a word, or answer in place of the owner, and messages come twice
	clocks  bool // the owners' clocks are set, and differ by less than a period
}

type lentNode struct {
	name ratelimit.Holder
	held Held
	seq  uint64
}

// lentTake is a request that a lessee answered.
type lentTake struct {
	by     *lentNode
	name   ratelimit.Holder
	at, in window
	cost   tokens
}

type lentMessage struct {
	holder  ratelimit.Holder
	m       Totals
	x       Lease
	answers bool
}

func newLentWorld(seed uint64) *lentWorld {
	w := &lentWorld{Rand: rand.New(rand.NewPCG(seed, 1)), now: 1, exact: true, names: 3, wild: seed%4 > 0}
	l := ratelimit.Limit{Algorithm: ratelimit.Algorithm(seed % 3), Unit: ratelimit.Minute, Requests: tokens(1 + w.IntN(60))}
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = tokens(1 + w.IntN(60))
	}
	w.clocks = seed%8 == 0 && l.Algorithm != ratelimit.TokenBucket
	w.rule = testRule(l)
	w.rule.Coordination.OnDeny = ratelimit.OnDeny(w.IntN(2))
	w.spent, w.beyond, w.newest = map[window]tokens{}, map[window]tokens{}, map[ratelimit.Holder]uint64{}
	w.level, w.filled = float64(l.Burst), w.now
	for i := range w.owners {
		w.owners[i] = NewLocal(64, w.now, testWall).Predictable()
	}
	for i := range w.lessees {
		w.lessees[i].name = ratelimit.Holder(1 + i)
	}
	return w
}

func (w *lentWorld) owner() *Local { return w.owners[w.at] }

func (w *lentWorld) bucket() bool { return w.rule.Limit.Algorithm == ratelimit.TokenBucket }

// goesOn is the window of now; a bucket has one only.
func (w *lentWorld) goesOn() window {
	if w.bucket() {
		return bucketWindow
	}
	return w.rule.Limit.WindowAt(w.owner().LedgerNow(w.now))
}

// counts counts what is spent, or given back, in a window.
func (w *lentWorld) counts(at window, n tokens) { w.spent[at] = max(0, w.spent[at]+n); w.drains(n) }

func (w *lentWorld) drains(n tokens) {
	l := &w.rule.Limit
	w.level += float64(w.now-w.filled) * float64(l.Requests) / float64(l.Period())
	w.level = min(float64(l.Burst), w.level) - float64(n)
	w.filled = w.now
}

// over says by how much more is spent than the limit and what was charged beyond it.
func (w *lentWorld) over() string {
	l := &w.rule.Limit
	if at := w.goesOn(); w.bucket() {
		if w.drains(0); w.level < -float64(w.beyond[at])-1.001 {
			return fmt.Sprintf("the level is %.2f, and %d were charged beyond it", w.level, w.beyond[at])
		}
		_, v := w.ask(ratelimit.Peek, 0)
		all := v.Remaining
		for i := range w.lessees {
			all += w.lessees[i].held.InHand(w.now)
		}
		if w.exact && all > l.Burst {
			return fmt.Sprintf("%d are left at the owner and in hand, of a bucket of %d", all, l.Burst)
		}
		return ""
	}
	for in, n := range w.spent {
		if n > l.Requests+w.beyond[in] {
			return fmt.Sprintf("%d of %d are spent in window %d, and %d beyond were declared", n, l.Requests, in, w.beyond[in])
		}
	}
	return ""
}

func (w *lentWorld) ask(kind ratelimit.Kind, cost tokens) (ask, verdict) {
	a := ask{Rule: w.rule, Key: keyOf(1), Kind: kind, Cost: cost}
	return a, decideOne(w.owner(), w.now, a)
}

// spends asks the owner: refusals that charge are debt.
func (w *lentWorld) spends() {
	a, v := w.ask(ratelimit.Spend, tokens(1+w.IntN(12)))
	booked := v.Charged + v.Debt
	if v.OverLimit {
		w.beyond[v.Window] += booked
	}
	w.counts(v.Window, booked)
	switch {
	case booked == 0:
	case w.IntN(5) == 0:
		w.owner().Undo(w.now, []ask{a}, []verdict{v})
		w.counts(v.Window, -booked)
	case w.IntN(3) == 0:
		w.ask(ratelimit.Refund, booked)
		w.counts(v.Window, -booked)
	}
}

// takes spends what a lessee has in hand.
func (w *lentWorld) takes() {
	n := &w.lessees[w.IntN(3)]
	cost := min(n.held.InHand(w.now), tokens(1+w.IntN(12)))
	if at, ok := n.held.Take(w.now, cost); ok && cost > 0 {
		in := w.goesOn() // its window goes on at the owner, too, unless a clock was set
		if w.clocks {
			in = at
		}
		w.counts(in, cost)
		switch w.IntN(10) {
		case 0:
			if n.held.Untake(at, cost) {
				w.counts(in, -cost)
			}
		case 1:
			w.taken = append(w.taken, lentTake{n, n.name, at, in, cost})
		}
	}
}

// untakes has a lessee take back a request of some time ago. Tokens that another life has spent are the owner's.
func (w *lentWorld) untakes() {
	for _, t := range w.taken {
		if t.by.name != t.name || !t.by.held.Untake(t.at, t.cost) {
			continue
		}
		if w.counts(t.in, -t.cost); w.bucket() {
			w.beyond[t.in] += t.cost // the owner credits it later, when the bucket may be less full
		}
	}
	w.taken = nil
}

// admits makes a lessee answer in place of the owner. It cannot tell whether its window is current.
func (w *lentWorld) admits() {
	n, cost := &w.lessees[w.IntN(3)], tokens(1+w.IntN(5))
	at := w.goesOn()
	n.held.Admit(cost)
	w.beyond[at] += cost
	w.counts(at, cost)
	w.exact = w.exact && n.held.totals.Window == at && !n.held.Reporting()
	if w.IntN(2) == 0 {
		n.held.Credit(0, cost)
		w.counts(at, -cost)
	}
}

// tells has a lessee send a message, if none is under way; else that may be given up.
func (w *lentWorld) tells() {
	n := &w.lessees[w.IntN(3)]
	if n.held.Reporting() {
		if w.IntN(4) == 0 {
			n.held.Lost(n.held.inFlight.Seq, true)
		}
		return
	}
	n.seq++
	w.wire = append(w.wire, lentMessage{holder: n.name, m: n.held.Report(w.now, n.seq, tokens(w.IntN(30)))})
	for w.clocks && len(w.wire) > 0 { // no clock is set while it is under way
		w.travels()
	}
}

// travels has any message arrive, which may be one that was sent long ago, or that has come before.
func (w *lentWorld) travels() {
	if len(w.wire) == 0 {
		return
	}
	i := w.IntN(len(w.wire))
	m := w.wire[i]
	if w.IntN(8) > 0 || !w.wild {
		w.wire = append(w.wire[:i], w.wire[i+1:]...)
	}
	switch {
	case w.IntN(10) == 0: // it is lost
	case m.answers:
		for k := range w.lessees {
			if n := &w.lessees[k]; n.name == m.holder {
				n.held.Apply(m.m.Seq, m.x)
			}
		}
	default:
		w.answered(m)
	}
}

func (w *lentWorld) answered(m lentMessage) {
	a := ask{Rule: w.rule, Key: keyOf(1), Kind: ratelimit.Peek}
	m.x, m.answers = w.owner().DecideFor(w.now, m.holder, m.m, &a, new(verdict)), true
	// A message that was overtaken in the window before is new in this one. The lessee ignores the answer, and its
	// tokens are lost.
	w.exact = w.exact && (m.x.Granted == 0 || m.m.Seq >= w.newest[m.holder])
	w.newest[m.holder] = max(w.newest[m.holder], m.m.Seq)
	if m.x.Window != 0 {
		w.wire = append(w.wire, m)
	}
}

// moves hands the key over.
func (w *lentWorld) moves() {
	x, ok := w.owner().TakeOut(w.now, keyOf(1))
	sent := w.owner().LedgerNow(w.now)
	if w.clocks && !ok {
		return // its window is over here, and may go on by the other clock
	}
	w.at = 1 - w.at
	if ok {
		w.owner().Adopt(w.now, keyOf(1), x, sent)
	}
}

// crashes ends the owner, or a lessee, without a word. What the owner had admitted is lost with it.
func (w *lentWorld) crashes() {
	w.exact = false
	if w.IntN(3) == 0 {
		w.names++
		w.lessees[w.IntN(3)] = lentNode{name: w.names}
		return
	}
	at := w.goesOn()
	w.owners[w.at] = NewLocal(64, 1, testWall).Predictable()
	w.beyond[at] += w.rule.Limit.Capacity()
	if !w.bucket() {
		w.beyond[at-1] += w.rule.Limit.Capacity()
	}
}

// sets sets the clock of a node that owns the key, or may.
func (w *lentWorld) sets() {
	// The ledger's clock has microseconds: what differs by a nanosecond less than a period may be a period there.
	most := int64(w.rule.Limit.Period())/2 - int64(time.Microsecond)
	w.exact = false
	w.owners[w.IntN(2)].SyncClock(w.now, testWall.Add(time.Duration(int64(w.now-1)+w.Int64N(2*most)-most)))
}

// This begins another life of a lessee without a report. A grant to a message of the earlier life that arrives
// later is lost.
func (w *lentWorld) forgets() {
	n := &w.lessees[w.IntN(3)]
	if !w.wild && slices.ContainsFunc(w.wire, func(m lentMessage) bool { return m.holder == n.name }) {
		return
	}
	if n.held.GiveBack(); !n.held.Open() && !n.held.Reporting() {
		n.held = Held{}
	}
}

// settles lets all report their totals, and give back their tokens, without losses. Then the owner has the usage to
// the token.
func (w *lentWorld) settles() string {
	w.wire = nil
	for range 4 {
		for i := range w.lessees {
			n := &w.lessees[i]
			n.held.Lost(n.held.inFlight.Seq, true)
			n.held.GiveBack()
			n.seq++
			w.answered(lentMessage{holder: n.name, m: n.held.Report(w.now, n.seq, 0)})
			last := w.wire[len(w.wire)-1]
			n.held.Apply(last.m.Seq, last.x)
			if n.held.Open() {
				n.held.GiveBack()
			}
		}
	}
	if !w.exact || w.rule.Limit.Algorithm != ratelimit.FixedWindow {
		return ""
	}
	_, v := w.ask(ratelimit.Peek, 0)
	if want := max(0, w.rule.Limit.Requests-w.spent[w.goesOn()]); v.Remaining != want {
		return fmt.Sprintf("%d are left, and the owner says %d", want, v.Remaining)
	}
	return ""
}

// play goes on until something is wrong.
func (w *lentWorld) play(steps int) string {
	all := []func(){
		w.spends, w.spends, w.takes, w.takes, w.takes, w.tells, w.tells, w.tells, w.travels, w.travels, w.travels, w.travels, w.moves,
		w.forgets, w.untakes,
	}
	for range steps {
		switch n := w.IntN(1000); {
		case n < 8 && w.wild:
			w.crashes()
		case n < 30 && w.wild:
			w.admits()
		case n < 60 && w.clocks:
			w.sets()
		case n < 180:
			w.now = w.now.Add(time.Duration(w.Int64N([]int64{2e6, 4e8, 8e8, 4e9, 5e10}[w.IntN(5)])))
		default:
			all[w.IntN(len(all))]()
		}
		if bad := w.over(); bad != "" {
			return bad
		}
	}
	return w.settles()
}

// With lost, late and doubled messages, and any owner, all together spend at most the limit and the charges beyond
// it. In the end the owner has the usage.
func TestLentHistories(t *testing.T) {
	histories := uint64(30_000)
	if testing.Short() {
		histories = 3000
	}
	exact := 0
	for seed := range histories {
		w := newLentWorld(seed)
		if bad := w.play(60 + int(seed%200)); bad != "" {
			t.Fatalf("history %d, %v: %s", seed, w.rule.Limit, bad)
		}
		if w.exact {
			exact++
		}
	}
	if exact < int(histories)/20 {
		t.Errorf("only %d of %d were exact", exact, histories)
	}
}
