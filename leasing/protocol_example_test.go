package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The worked examples of docs/protocol.md are played here: by nodes that run the
// code which serves (Stepped), against both ledgers, which must answer alike. What
// they print is what the page shows. After a change of the protocol,
//
//	go test ./leasing -run TestProtocol -rewrite-page
//
// writes what they print into the page; the sentences beside it then want to be read
// again.

func TestProtocolExamples(t *testing.T) {
	server := redistest.Start(t)
	page := readPage(t)
	defer func() { page.rewrite(t) }()
	for _, example := range []struct {
		name string
		play func(*play)
	}{
		{"a plain lease", playPlainLease},
		{"a lost reply", playLostReply},
		{"a crash, reclaim safe", playCrash},
		{"a pause, reclaim eager", playPause},
		{"amnesia", playAmnesia},
		{"the turn of a window", playTurn},
		{"drift", playDrift},
		{"plenty and recall", playRecall},
		{"a hand-over", playHandOver},
	} {
		t.Run(example.name, func(t *testing.T) {
			server.Do("FLUSHALL")
			p := newPlay(t, server)
			example.play(p)
			page.shows(t, "example: "+example.name, "```text\n"+p.out.String()+"```\n")
		})
	}
}

// A node leases, spends, fills its lease up, and gives back what it does not need.
func playPlainLease(p *play) {
	p.begin(perMinute100, fixedSize(20, 10*time.Second))
	a, b := p.node("A"), p.node("B")
	a.asks(1)
	a.exchange()
	a.maySpend()
	p.until(500 * time.Millisecond)
	b.asks(1)
	b.exchange()
	p.until(time.Second)
	a.asks(10)
	a.exchange()
	p.until(3500 * time.Millisecond)
	a.sweeps()
	a.exchange()
}

// What was granted and not received is taken back.
func playLostReply(p *play) {
	p.begin(perMinute100, fixedSize(20, 10*time.Second))
	a := p.node("A")
	a.asks(1)
	a.exchange()
	p.until(time.Second)
	a.asks(10)
	second := a.sends().arrives()
	p.says("", "the answer is lost")
	p.until(2 * time.Second)
	second.lost()
	a.asks(1)
	third := a.sends().arrives()
	again := third.grants[0]
	third.grants = make([]ratelimit.Grant, 1)
	p.says("", "the network delivers the same claim again")
	third.arrives()
	if same := third.grants[0]; same.Granted != again.Granted || same.Fence != again.Fence {
		p.Errorf("the same claim was answered %+v, and then %+v", again, same)
	}
	third.answered()
	p.says("", "the network delivers seq %d once more", second.Claims()[0].Seq)
	second.arrives()
}

// Under reclaim: safe, what a crashed node held stays charged until the window ends.
func playCrash(p *play) {
	p.begin(perMinute100, fixedSize(20, 10*time.Second))
	a, b := p.node("A"), p.node("B")
	a.asks(1)
	a.exchange()
	a.asks(4)
	a.crashes()
	p.until(11 * time.Second)
	b.asks(80)
	b.exchange()
	b.asks(1)
	b.exchange()
	p.total(0)
	p.until(46 * time.Second)
	b.asks(1)
	b.exchange()
}

// Under reclaim: eager, it is credited when the lease expires; the node that comes
// back is told that its lease is void.
func playPause(p *play) {
	p.begin(perMinute100, func(c *ratelimit.Coordination) {
		fixedSize(20, 10*time.Second)(c)
		c.Reclaim = ratelimit.ReclaimEager
	})
	a, b := p.node("A"), p.node("B")
	a.asks(1)
	a.exchange()
	a.maySpend()
	a.asks(4)
	p.says("A", "is stopped, and says nothing")
	a.stopped = true
	p.until(11 * time.Second)
	b.asks(50)
	b.exchange()
	b.asks(50)
	b.exchange()
	p.until(12 * time.Second)
	a.stopped = false
	p.says("A", "goes on")
	p.passes(0)
	a.exchange()
	p.total(0)
}

// The ledger loses its data when a node has spent the whole limit.
func playAmnesia(p *play) {
	p.begin(perMinute100, fixedSize(20, 10*time.Second))
	a, b := p.node("A"), p.node("B")
	for _, n := range []*actor{a, b} {
		n.Hears()
		n.sweeps()
		n.exchange()
	}
	a.asks(100)
	a.exchange()
	p.until(time.Second)
	p.ledger.Forget()
	p.server.Do("FLUSHALL")
	p.says("ledger", "loses its data")
	p.until(1100 * time.Millisecond)
	b.asks(5)
	b.exchange()
	b.exchange()
	a.sweeps()
	a.exchange()
	a.sweeps()
	a.exchange()
	p.until(4 * time.Second)
	b.asks(1)
	b.exchange()
	p.total(1)
}

// A key that is busy shortly before its window ends has a lease of the next one
// when that begins.
func playTurn(p *play) {
	p.begin(perMinute100, fixedSize(20, time.Minute))
	a := p.node("A")
	a.asks(1)
	a.exchange()
	p.until(44100 * time.Millisecond)
	a.asks(1)
	a.exchange()
	a.turns()
	p.until(44990 * time.Millisecond)
	a.asks(1)
	p.until(45 * time.Second)
	a.asks(1)
	p.passes(2 * time.Millisecond)
	a.looks()
	a.asks(9)
	p.until(46 * time.Second)
	a.asks(1)
	a.exchange()
}

// Two nodes with a seat each may spend a share before the ledger has answered.
func playDrift(p *play) {
	p.begin(perMinute100, func(c *ratelimit.Coordination) {
		fixedSize(1, 10*time.Second)(c)
		c.Mode, c.MaxNodes, c.DriftBudget = ratelimit.Approx, 2, ratelimit.Share{Tokens: 10}
	})
	a, b := p.node("A"), p.node("B")
	seats := approx.NewMemory(p.clock)
	for _, n := range []*actor{a, b} {
		n.sits(seats)
	}
	a.asks(1)
	a.exchange()
	a.asks(5)
	a.asks(1)
	a.exchange()
	p.until(100 * time.Millisecond)
	b.asks(93)
	b.exchange()
	a.asks(5)
	a.asks(1)
	a.exchange()
	p.until(45200 * time.Millisecond)
	b.sweeps()
	b.exchange()
	p.total(0)
}

// A lease of plenty is recalled when another node needs what it holds.
func playRecall(p *play) {
	p.begin(perMinute100, func(*ratelimit.Coordination) {})
	a, b := p.node("A"), p.node("B")
	a.Recalls()
	b.Recalls()
	a.asks(1)
	a.exchange()
	p.until(time.Second)
	b.asks(95)
	b.exchange()
	p.until(2 * time.Second)
	b.asks(3)
	b.exchange()
	a.isRecalled()
	a.exchange()
	b.looks()
	b.exchange()
	p.total(0)
}

// The key's owner leaves the ring, and another node goes on with its account.
func playHandOver(p *play) {
	p.begin(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10}, func(c *ratelimit.Coordination) { c.Mode = ratelimit.Routing })
	const ahead = 3 * time.Second
	wall := time.UnixMicro(int64(p.clock()))
	one, two := NewLocal(10, p.now, wall), NewLocal(10, p.now, wall.Add(ahead))
	p.says("two", "has a clock that is %v ahead of one's", ahead)
	p.decides("one", one, 6)
	var c Held
	x := tell(one, p.now, p.rule, 6, &c, 1, 2)
	p.says("one", "leases %d to node C, for which the key is hot", x.Granted)
	c.Take(p.now, 1)
	p.passes(time.Second)
	account, ok := one.TakeOut(p.now, keyOf(1))
	if !ok || len(account.Lessees) != 1 {
		p.Fatalf("one has %+v", account)
	}
	p.says("one", "sends   the account: window %d, sum %d; of it C has taken %d", account.State, account.Sum, account.Lessees[0].Taken)
	sent := one.LedgerNow(p.now)
	p.passes(wire)
	if !two.Adopt(p.now, keyOf(1), account, sent) {
		p.Fatal("no room")
	}
	p.says("two", "adopts it")
	p.decides("two", two, 2)
	p.decides("two", two, 1)
	if x = tell(two, p.now, p.rule, 6, &c, 2, 2); x.Keep {
		p.Fatal("it is used up")
	}
	p.says("two", "is told by C of 2 taken, grants %d, and asks for what C has in hand", x.Granted)
	tell(two, p.now, p.rule, 6, &c, 3, 0)
	p.says("two", "is told by C of 1 taken")
	p.decides("two", two, 1)
	p.until(42500 * time.Millisecond)
	p.decides("two", two, 1)
	p.until(45500 * time.Millisecond)
	p.decides("two", two, 1)
}
