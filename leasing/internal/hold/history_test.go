package hold

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var histories = flag.Int("histories", 400, "of each kind, that TestHistories plays")

// kind is what a history mixes.
type kind struct {
	costs, drift, eager, rollout, loss, evict, forget, turns, steps, sliding bool
}

var kinds = map[string]kind{
	"plain":                      {},
	"costs":                      {costs: true},
	"drift":                      {drift: true},
	"eager":                      {eager: true},
	"rollout":                    {rollout: true},
	"loss":                       {loss: true},
	"loss, drift":                {loss: true, drift: true},
	"costs, loss":                {costs: true, loss: true},
	"evict":                      {evict: true},
	"forget":                     {forget: true},
	"turns":                      {turns: true},
	"turns, steps":               {turns: true, steps: true},
	"sliding":                    {sliding: true},
	"costs, drift, roll, forget": {costs: true, drift: true, rollout: true, forget: true},
}

// node is a holder: its parts by window.
type node struct {
	name   ratelimit.Holder
	parts  map[window]*Part
	under  map[window]*Message
	clock  LedgerClock
	epoch  ratelimit.Epoch
	share  tokens
	eager  bool
	paused instant
	seq    uint64
	number uint32
}

func (n *node) part(w window) *Part {
	if n.parts[w] == nil {
		n.parts[w] = &Part{Window: w, Deadline: Never}
	}
	return n.parts[w]
}

type play struct {
	*rand.Rand
	kind
	t       testing.TB
	ledger  *model
	nodes   []*node
	now     instant
	net     []delivery
	ttl     time.Duration
	next    ratelimit.Holder
	lossy   float64
	doubled float64
	late    float64

	spent, charged, refunds, untold, gone map[window]tokens
	evicted                               map[window]int
	losses                                int
	shares                                tokens // of drift, of all nodes
	all                                   tokens // spent
	seen                                  map[string]int
}

type delivery struct {
	at instant
	do func()
}

func (p *play) send(do func()) {
	for range 1 + btoi(p.Float64() < p.doubled) {
		if p.Float64() >= p.lossy {
			p.net = append(p.net, delivery{p.now.Add(time.Duration(p.Float64() * p.late * 1e9)), do})
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func (p *play) windows(n *node) (early, late window) {
	e, l := n.clock.Between(p.now)
	return p.ledger.limit.WindowAt(e), p.ledger.limit.WindowAt(l)
}

// ask has a node say something of a window, unless it has just done so.
func (p *play) ask(n *node, w window, again time.Duration) {
	part := n.part(w)
	if m := n.under[w]; m != nil && part.Asked() {
		if p.now.Sub(m.At) <= again {
			return
		}
		part.Lost(m)
	}
	if part.Taken > part.Spent && p.Float64() < 0.1 {
		part.GiveBack(tokens(p.IntN(int(part.Taken - part.Spent))))
	}
	early, _ := n.clock.Between(p.now)
	n.seq++
	n.number++
	m := new(Message)
	q := Asking{Now: p.now, There: early, Epoch: n.epoch, Young: n.clock.At == 0 || n.epoch.Young(early), Eager: n.eager, Share: 2 * len(p.nodes)}
	if n.eager {
		q.TTL = p.ttl
	}
	need := tokens(1)
	part.Write(m, n.number, account.Claim{
		Limit: p.ledger.limit, Holder: n.name, Seq: n.seq, Need: need, Want: tokens(1 + p.IntN(50)),
	}, &q)
	p.seen["claims"] += btoi(m.Claim.Kind == account.States)
	p.seen["draws"] += btoi(m.Claim.Kind == account.Draws)
	n.under[w] = m
	p.send(func() { p.settle(n, w, m) })
}

func (p *play) settle(n *node, w window, m *Message) {
	g := p.ledger.settle(&m.Claim, p.now)
	a, at := Answer{Epoch: p.ledger.epoch}, p.ledger.time(p.now)
	p.send(func() {
		if !slices.Contains(p.nodes, n) || p.now < n.paused {
			return
		}
		a.Now = p.now
		n.clock.Heard(m.At, p.now, at, at)
		n.epoch = a.Epoch
		if part := n.parts[w]; part != nil {
			part.Hear(m, &g, &a)
		}
	})
}

func (p *play) bound(w window) tokens {
	b := p.ledger.limit.Capacity()*tokens(1+p.evicted[w]+p.ledger.expired[w]) + p.refunds[w] + p.ledger.credited[w] + p.untold[w]
	for range p.losses {
		b += max(1, p.ledger.limit.Capacity()/account.LearnPart)
	}
	return b + p.shares
}

// spend admits one request where the node may.
func (p *play) spend(n *node) {
	if n.clock.At == 0 {
		p.ask(n, p.firstGuess(), 15*time.Millisecond)
		return
	}
	w, last := p.windows(n)
	if w != last {
		return
	}
	part := n.part(w)
	held := part.Taken - part.Spent
	if part.InHand(p.now) == 0 && (held > 0 || -held >= n.share) {
		p.ask(n, w, 15*time.Millisecond)
		return
	}
	part.Spent++
	p.spent[w]++
	p.all++
	p.ledger.really[modelHolder{w, n.name}] = part.Spent
	old := tokens(0)
	if p.sliding {
		begins, length := p.ledger.limit.WindowEnd(w-1), p.ledger.limit.WindowEnd(w)-p.ledger.limit.WindowEnd(w-1)
		old = p.spent[w-1] * tokens(max(0, begins+length-p.ledger.time(p.now))) / tokens(length)
	}
	if p.spent[w]+old > p.bound(w) {
		p.t.Fatalf("at %v window %d has %d spent, %d count of the one before; at most %d are declared", time.Duration(p.now), w, p.spent[w], old, p.bound(w))
	}
	if really := p.ledger.limit.WindowAt(p.ledger.time(p.now)); p.turns && !p.steps && really != w {
		p.t.Fatalf("at %v a token of window %d is spent in window %d", time.Duration(p.now), w, really)
	}
}

func (p *play) firstGuess() window { return p.ledger.limit.WindowAt(p.ledger.time(p.now)) }

// cost charges after the fact, or refunds, at any node.
func (p *play) cost(n *node) {
	if n.clock.At == 0 {
		return
	}
	w, _ := p.windows(n)
	part, k := n.part(w), tokens(1+p.IntN(20))
	if p.IntN(2) == 0 {
		part.Spent += k
	} else {
		k = min(k, max(0, p.charged[w]))
		part.Refund(k)
		p.refunds[w] += k
		k = -k
	}
	p.charged[w] += k
	p.ledger.really[modelHolder{w, n.name}] = part.Spent
}

// leave is a crash of a node: its total cannot be restated.
func (p *play) leave(n *node) {
	for w := range n.parts {
		p.forget(n, w)
	}
	i := slices.Index(p.nodes, n)
	p.nodes[i] = p.node(0, n.eager) // a new incarnation has no share of what has begun
}

func (p *play) forget(n *node, w window) {
	p.gone[w] += max(n.parts[w].Spent, n.parts[w].Taken, 0)
}

func (p *play) node(share tokens, eager bool) *node {
	p.next++
	return &node{name: p.next, parts: map[window]*Part{}, under: map[window]*Message{}, share: share, eager: eager}
}

// tell makes nodes restate their totals at a ledger that has lost its data; unstated ones are counted.
func (p *play) tell() {
	young := p.ledger.epoch.Young(p.ledger.time(p.now))
	each := func(do func(n *node, w window, part *Part, told modelTold)) {
		for _, n := range p.nodes {
			for w, part := range n.parts {
				told := modelTold{modelHolder{w, n.name}, p.ledger.epoch.ID}
				if !p.ledger.told[told] && max(part.Spent, part.Taken) > 0 {
					do(n, w, part, told)
				}
			}
		}
	}
	each(func(n *node, _ window, _ *Part, _ modelTold) {
		if p.now >= n.paused && n.epoch.ID == p.ledger.epoch.ID { // who has something to tell has it prolonged
			p.ledger.epoch.Learning = max(p.ledger.epoch.Learning, p.ledger.time(p.now)+50_000)
			young = true
		}
	})
	each(func(n *node, w window, part *Part, told modelTold) {
		switch {
		case young && p.now >= n.paused && (n.epoch.ID == p.ledger.epoch.ID || p.Float64() < 0.03):
			p.ask(n, w, 15*time.Millisecond)
		case !young:
			p.ledger.told[told] = true
			p.untold[w] += max(part.Spent, part.Taken)
		}
	})
}

func (p *play) step() {
	p.now = p.now.Add(time.Duration(p.Float64() * 1e7))
	n, event := p.nodes[p.IntN(len(p.nodes))], p.Float64()
	awake := p.now >= n.paused
	switch {
	case event < 0.6:
		if awake {
			p.spend(n)
		}
	case event < 0.7:
		if awake && p.costs {
			p.cost(n)
		} else if awake && n.clock.At > 0 {
			w, last := p.windows(n)
			p.ask(n, w+window(p.IntN(int(last-w)+1)), 15*time.Millisecond)
		}
	case event < 0.72:
		d := 0.4
		if p.eager || p.rollout {
			d = 3 * p.ttl.Seconds()
		}
		n.paused = p.now.Add(time.Duration(p.Float64() * d * 1e9))
	case event < 0.725 && !p.loss:
		p.leave(n)
	case event < 0.74 && p.kind.forget:
		for w, part := range n.parts {
			if part.Taken == part.booked && part.booked == part.Spent && !part.Asked() && !part.doubt {
				p.forget(n, w)
				delete(n.parts, w)
				p.next++
				n.name = p.next // under the old name it would be overtaken, or take back what it has spent
				p.rename(n)
			}
		}
	case event < 0.75:
		p.ledger.kept = copied(p.ledger.accounts)
	case event < 0.76 && p.rollout:
		n.eager = !n.eager
	case event < 0.765 && p.steps:
		width := p.ledger.limit.Period().Seconds()
		p.ledger.offset = max(p.ledger.offset+time.Duration((p.Float64()-0.5)*3*width*1e9), -time.Duration(p.now)+time.Hour)
	case event < 0.77 && p.evict && len(p.ledger.accounts) > 0:
		for w := range p.ledger.accounts {
			delete(p.ledger.accounts, w)
			p.evicted[w]++
			break
		}
	case event < 0.7715 && p.loss && p.losses < 2:
		p.ledger.lose(p.IntN(2) == 0, p.now)
		p.losses++
		for w, x := range p.gone {
			p.untold[w] += x
		}
	}
	if p.loss {
		p.tell()
	}
	for i := 0; i < len(p.net); i++ {
		if d := p.net[i]; d.at <= p.now {
			p.net = slices.Delete(p.net, i, i+1)
			d.do()
			i--
		}
	}
}

// rename continues a node's other accounts under the old name, without a holder: they are dropped only if that is
// allowed.
func (p *play) rename(n *node) {
	for w, part := range n.parts {
		if part.Untold() || part.Taken != part.Spent || part.Asked() {
			continue
		}
		p.forget(n, w)
		delete(n.parts, w)
	}
}

func newPlay(t testing.TB, seed uint64, k kind) *play {
	p := &play{
		Rand: rand.New(rand.NewPCG(seed, 7)), kind: k, t: t, now: instant(time.Hour),
		spent: map[window]tokens{}, charged: map[window]tokens{}, refunds: map[window]tokens{}, untold: map[window]tokens{},
		gone: map[window]tokens{}, evicted: map[window]int{}, seen: map[string]int{},
	}
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: []tokens{1, 3, 5, 20, 100, 1000}[p.IntN(6)]}
	if k.turns || k.sliding {
		limit.Unit, limit.Multiplier = ratelimit.Second, uint32(1+p.IntN(3))
	}
	if k.sliding {
		limit.Algorithm = ratelimit.SlidingWindow
	}
	p.ttl = []time.Duration{50 * time.Millisecond, 500 * time.Millisecond, 5 * time.Second}[p.IntN(3)]
	p.ledger = newModel(limit)
	p.lossy, p.doubled, p.late = p.Float64()*0.4, p.Float64()*0.3, []float64{0.03, 0.03, 0.2}[p.IntN(3)]
	share := tokens(0)
	if k.drift {
		share = tokens(p.IntN(6))
	}
	for range 1 + p.IntN(8) {
		p.nodes = append(p.nodes, p.node(share, k.eager))
		p.shares += share
	}
	return p
}

// end delivers all messages in flight, and makes each node claim: then the sum is that of the nodes' totals.
func (p *play) end() {
	p.lossy, p.doubled, p.late = 0, 0, 0
	for _, d := range p.net {
		d.do()
	}
	p.net = nil
	p.now = p.now.Add(time.Second)
	for range 3 {
		for _, n := range p.nodes {
			n.paused = 0
			for w, part := range n.parts {
				if p.ledger.accounts[w] == nil {
					continue
				}
				p.now = p.now.Add(time.Millisecond)
				part.doubt = true
				p.ask(n, w, -1)
				for len(p.net) > 0 {
					d := p.net[0]
					p.net = p.net[1:]
					d.do()
				}
			}
		}
	}
	for w, a := range p.ledger.accounts {
		sum := tokens(0)
		for _, r := range a.records {
			sum += r.taken
		}
		for _, n := range p.nodes {
			part, r := n.parts[w], a.records[n.name]
			if part != nil && r != nil && !p.loss && r.expires != -1 && r.taken != max(part.Taken, part.Spent) {
				p.t.Errorf("window %d: the ledger has %d of node %d, which has %d, and has spent %d", w, r.taken, n.name, part.Taken, part.Spent)
			}
		}
		if !p.loss && !p.evict && a.sum != sum {
			p.t.Errorf("window %d: the sum is %d, of records %d", w, a.sum, sum)
		}
	}
}

// Histories of one key: nodes admit at most the declared maximum, with lost, repeated, late and missing messages. In
// the end, the sum is that of the nodes' totals.
func TestHistories(t *testing.T) {
	for name, k := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, seen := tokens(0), map[string]int{}
			for seed := range uint64(*histories) {
				if t.Failed() {
					return
				}
				p := newPlay(&seeded{t, seed}, seed, k)
				for range 50 + p.IntN(1450) {
					p.step()
				}
				p.end()
				all += p.all
				for what, n := range p.seen {
					seen[what] += n
				}
			}
			t.Logf("%d histories, %d tokens spent, %v", *histories, all, seen)
			if all == 0 || seen["claims"] == 0 || seen["draws"] == 0 && !k.eager {
				t.Error("too little happened")
			}
		})
	}
}

// seeded says the seed with what fails.
type seeded struct {
	*testing.T
	seed uint64
}

func (s *seeded) Fatalf(format string, args ...any) {
	s.Helper()
	s.T.Fatalf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}

func (s *seeded) Errorf(format string, args ...any) {
	s.Helper()
	s.T.Errorf("seed %d: %s", s.seed, fmt.Sprintf(format, args...))
}
