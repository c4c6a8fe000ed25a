package leasing

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

// keyPlay is a random history of one key: two nodes between which it moves, and two holders that lease it from its
// current owner.
type keyPlay struct {
	*rapid.T
	rule    *ratelimit.Rule
	nodes   [2]*Local
	at      int // which node has the key
	now     instant
	holders [2]playHolder
	names   ratelimit.Holder
	spent   func(w window, n tokens) // checks the usage
	undone  func(w window, n tokens)
}

type playHolder struct {
	name ratelimit.Holder
	held Held
	seq  uint64
}

func newKeyPlay(t *rapid.T, l ratelimit.Limit) *keyPlay {
	p := &keyPlay{T: t, rule: testRule(l), now: 1, names: 10}
	p.rule.Coordination.OnDeny = ratelimit.OnDeny(p.upTo(1, "on_deny"))
	for i := range p.nodes {
		p.nodes[i] = NewLocal(64, 1, testWall)
		p.holders[i].name = ratelimit.Holder(2 + i)
	}
	return p
}

func (p *keyPlay) upTo(n int, what string) int { return rapid.IntRange(0, n).Draw(p.T, what) }

func (p *keyPlay) holder() *playHolder { return &p.holders[p.upTo(1, "holder")] }

// asks spends, and perhaps undoes it.
func (p *keyPlay) asks() {
	a := ask{Rule: p.rule, Key: keyOf(1), Cost: tokens(1 + p.upTo(11, "cost"))}
	v := decideOne(p.nodes[p.at], p.now, a)
	if v.Charged < 0 || v.Remaining < 0 || v.Remaining > p.rule.Limit.Capacity() || v.ResetAfter < 0 {
		p.Fatalf("%+v", v)
	}
	p.spent(v.Window, v.Charged)
	if p.upTo(4, "undo") == 0 {
		p.nodes[p.at].Undo(p.now, []ask{a}, []verdict{v})
		p.undone(v.Window, v.Charged)
	}
}

func (p *keyPlay) peeks() {
	decideOne(p.nodes[p.at], p.now, ask{Rule: p.rule, Key: keyOf(1), Kind: ratelimit.Peek})
}

// tells has a holder tell its totals; the answer may be lost.
func (p *keyPlay) tells() {
	h := p.holder()
	h.seq++
	m := h.held.Tell(p.now, h.seq, tokens(p.upTo(24, "want")))
	a := ask{Rule: p.rule, Key: keyOf(1), Kind: ratelimit.Peek}
	x := p.nodes[p.at].DecideFor(p.now, h.name, m, &a, new(verdict))
	if p.upTo(5, "lost") > 0 {
		h.held.Hear(m.Seq, x)
	} else {
		h.held.Lost(m.Seq)
	}
}

// spends has a holder spend from its lease.
func (p *keyPlay) spends() {
	h := p.holder()
	n := min(h.held.InHand(p.now), tokens(1+p.upTo(11, "cost")))
	if w, ok := h.held.Take(p.now, n); ok && n > 0 {
		p.spent(w, n)
		if p.upTo(4, "undo") == 0 && h.held.Untake(w, n) {
			p.undone(w, n)
		}
	}
}

// ends has a holder end in good order, and another take its place.
func (p *keyPlay) ends() {
	h := p.holder()
	h.held.GiveBack()
	h.seq++
	m := h.held.Tell(p.now, h.seq, 0)
	a := ask{Rule: p.rule, Key: keyOf(1), Kind: ratelimit.Peek}
	p.nodes[p.at].DecideFor(p.now, h.name, m, &a, new(verdict))
	if p.names++; p.upTo(1, "life") == 0 { // it has dropped the key
		h.held = Held{}
		return
	}
	*h = playHolder{name: p.names}
}

// moves hands the key over to the other node.
func (p *keyPlay) moves() {
	x, ok := p.nodes[p.at].TakeOut(p.now, keyOf(1))
	if !ok {
		return
	}
	sent := p.nodes[p.at].LedgerNow(p.now)
	p.at = 1 - p.at
	if !p.nodes[p.at].Adopt(p.now, keyOf(1), x, sent) {
		p.Fatal("there is no room")
	}
}

func (p *keyPlay) steps(more ...func()) {
	all := append([]func(){p.asks, p.asks, p.asks, p.peeks, p.tells, p.tells, p.spends, p.spends, p.ends, p.moves}, more...)
	for range 1 + p.upTo(59, "steps") {
		all[p.upTo(len(all)-1, "step")]()
	}
}

// A key that is asked about, leased to others, given back and handed over admits what
// its limit says, under each algorithm.
func TestKeyThatIsLeasedAndMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ratelimit.Limit{
			Algorithm: ratelimit.Algorithm(rapid.IntRange(0, 2).Draw(t, "algorithm")), Requests: tokens(rapid.IntRange(1, 30).Draw(t, "limit")),
			Unit: rapid.SampledFrom([]ratelimit.Unit{ratelimit.Minute, ratelimit.Hour}).Draw(t, "unit"),
		}
		if l.Algorithm == ratelimit.TokenBucket {
			l.Burst = tokens(rapid.IntRange(1, 30).Draw(t, "burst"))
		}
		p := newKeyPlay(t, l)
		in, level, last := map[window]tokens{}, float64(l.Burst), p.now
		count := func(n tokens) {
			w := l.WindowAt(p.nodes[0].LedgerNow(p.now))
			in[w] += n
			level = min(float64(l.Burst), level+float64(p.now-last)*float64(l.Requests)/float64(l.Period())) - float64(n)
			last = p.now
			switch {
			case l.Algorithm == ratelimit.TokenBucket && level < -1.01:
				t.Fatalf("%v: the bucket's level is %f", l, level)
			case l.Algorithm != ratelimit.TokenBucket && in[w] > l.Requests:
				t.Fatalf("%v: %d spent in window %d", l, in[w], w)
			}
		}
		p.spent = func(_ window, n tokens) { count(n) }
		p.undone = func(_ window, n tokens) { count(-n) }
		p.steps(func() {
			ms := []int{1, 300, 900, 5_000, 12_000, 35_000, 65_000, 3_000_000}[p.upTo(7, "wait")]
			p.now = p.now.Add(time.Duration(ms) * time.Millisecond)
		})
	})
}

// The same with clocks that are set, and differ by less than a period: in each window,
// as the nodes call it, at most the limit is spent.
func TestKeyThatMovesBetweenClocks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := ratelimit.Limit{
			Algorithm: ratelimit.Algorithm(rapid.IntRange(0, 1).Draw(t, "algorithm")), Requests: tokens(rapid.IntRange(1, 10).Draw(t, "limit")),
			Unit: rapid.SampledFrom([]ratelimit.Unit{ratelimit.Second, ratelimit.Minute}).Draw(t, "unit"),
		}
		p := newKeyPlay(t, l)
		in, period := map[window]tokens{}, int64(l.Period())
		p.spent = func(w window, n tokens) {
			if in[w] += n; in[w] > l.Requests {
				t.Fatalf("%v: %d spent in window %d", l, in[w], w)
			}
		}
		p.undone = func(w window, n tokens) { in[w] -= n }
		p.steps(func() {
			// The ledger's clock has microseconds: what differs by a nanosecond less than a period may be
			// a period there.
			most := period/2 - int64(time.Microsecond)
			set := time.Duration(rapid.Int64Range(-most, most).Draw(t, "set"))
			p.nodes[p.upTo(1, "node")].SyncClock(p.now, testWall.Add(time.Duration(p.now-1)+set))
		}, func() { p.now = p.now.Add(time.Duration(rapid.Int64Range(0, period).Draw(t, "wait"))) })
	})
}
