package lease

import (
	"cmp"
	"flag"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

var bucketSeeds = flag.Uint64("bucket-histories", 5000, "how many histories TestBucketHistories plays")

// drinkers are nodes that use one bucket of a ledger: messages are lost, late and overtaken, nodes pause and crash,
// and costs are charged and refunded after the fact.
type drinkers struct {
	*testing.T
	*rand.Rand
	limit  ratelimit.Limit
	ledger *account.Memory
	now    instant
	nodes  []*drinker
	late   []letter // messages and answers under way
	// level is that of the bucket in truth, which spends at the instant of each admission. Invariant: what is admitted
	// never takes it below 0.
	level, credit float64 // credit is refunds, which may take effect at any time
	calm          bool    // no refunds, losses, pauses nor crashes: they hide an excess
	at            instant
	admitted      tokens
}

type letter struct {
	at instant
	do func()
}

type drinker struct {
	Entry
	number, seq uint64
	paused      instant
	last        Message
}

func newDrinkers(t *testing.T, seed uint64) *drinkers {
	d := &drinkers{T: t, Rand: rand.New(rand.NewPCG(seed, 63)), now: instant(time.Hour)}
	d.limit = ratelimit.Limit{
		Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Multiplier: uint32(1 + d.IntN(3)),
		Requests: []tokens{1, 10, 100, 1000}[d.IntN(4)], Burst: []tokens{1, 3, 10, 100}[d.IntN(4)],
	}
	d.ledger = account.NewMemory(d.time)
	d.level, d.at, d.calm = float64(d.limit.Burst), d.now, d.IntN(2) == 0
	for range 1 + d.IntN(5) {
		d.nodes = append(d.nodes, d.node())
	}
	return d
}

func (d *drinkers) time() ledgerTime { return ledgerTime(d.now / instant(time.Microsecond)) }

func (d *drinkers) node() *drinker {
	n := &drinker{Entry: Entry{&Key{}, &Use{}}, number: d.Uint64N(1 << 40)}
	n.Enter(d.now, &LedgerClock{At: 1}, &d.limit)
	return n
}

// rate is tokens a nanosecond.
func (d *drinkers) rate() float64 { return float64(d.limit.Requests) / float64(d.limit.Period()) }

// refill is what returns in the meantime. A microsecond is the resolution of the ledger.
func (d *drinkers) refill() {
	d.level = min(float64(d.limit.Burst), d.level+d.rate()*float64(d.now.Sub(d.at)))
	d.at = d.now
}

func (d *drinkers) spend(n tokens, admits bool) {
	d.refill()
	credit := min(d.credit, max(0, float64(n)-max(0, d.level)))
	d.level += credit - float64(n)
	d.credit -= credit
	if admits {
		d.admitted += n
	}
	slack := 1e-6 * (1 + float64(d.limit.Requests))
	if admits && d.level < -slack {
		d.Fatalf("%d are admitted at %v, and the bucket has %g too few, of %v",
			n, time.Duration(d.now), -d.level, d.limit)
	}
}

// claim sends a claim. Its need counts when the ledger grants it, if the answer comes in time.
func (d *drinkers) claim(n *drinker) {
	need, stays := tokens(d.IntN(4)), d.IntN(3) > 0
	n.Waits(need)
	spent := n.Spent
	n.ReturnVain(d.now, &d.limit)
	n.Wants(d.now, need, Sizing{Rule: &ratelimit.Rule{Limit: d.limit}, Nodes: 1})
	returned := float64(spent - n.Spent) // of requests that left
	written := d.now
	n.seq++
	q := Asking{Now: d.now, Epoch: ratelimit.Epoch{ID: 1}}
	c := account.Claim{
		Key: "k", Limit: d.limit, Holder: ratelimit.Holder(1 + n.number), Seq: n.seq, Need: need,
		Want: need + tokens(d.IntN(20)),
	}
	n.Write(&n.last, uint32(n.seq), c, &q)
	m := n.last
	trip := []time.Duration{time.Millisecond, 10 * time.Millisecond, 300 * time.Millisecond}[d.IntN(3)]
	if d.lost() {
		return
	}
	d.in(time.Duration(d.Int64N(int64(trip))), func() {
		// What refills while a message travels is returned once more.
		d.credit += min(returned, d.rate()*float64(d.now.Sub(written)))
		g := make([]account.Grant, 1)
		epoch, _, err := d.ledger.Settle(d.Context(), []account.Claim{m.Claim}, g)
		if err != nil || g[0].Err != nil {
			d.Fatal(err, g[0].Err)
		}
		arrives := d.now.Add(time.Duration(d.Int64N(int64(trip))))
		if d.lost() {
			return
		}
		if n.Awaits(&m) && arrives >= n.paused && stays { // a request waits for it
			d.spend(min(g[0].Granted, m.Claim.Need), true)
		}
		d.in(arrives.Sub(d.now), func() {
			m.epoch = epoch.ID
			if !n.Apply(&m, &g[0], &Answer{Now: d.now, Epoch: epoch}) {
				return
			}
			if stays {
				n.Granted = 0 // spent
			}
			n.Waits(0)
		})
	})
}

func (d *drinkers) lost() bool { return !d.calm && d.IntN(5) == 0 }

func (d *drinkers) in(after time.Duration, do func()) {
	d.late = append(d.late, letter{d.now.Add(after), do})
}

// deliver delivers what is due, in the order of its time.
func (d *drinkers) deliver() {
	first := func(a, b letter) int { return cmp.Compare(a.at, b.at) }
	for len(d.late) > 0 {
		l := slices.MinFunc(d.late, first)
		if l.at > d.now {
			return
		}
		i := slices.IndexFunc(d.late, func(x letter) bool { return x.at == l.at })
		d.late = slices.Delete(d.late, i, i+1)
		l.do()
	}
}

func (d *drinkers) step() {
	d.now = d.now.Add(time.Duration(d.Int64N(int64([]time.Duration{1, 1000, 1e6, 2e7, 1e8}[d.IntN(5)]) + 1)))
	d.deliver()
	i := d.IntN(len(d.nodes))
	n := d.nodes[i]
	if d.now < n.paused {
		return
	}
	switch event := d.IntN(100); {
	case event < 60:
		if n.InHand(d.now) > 0 {
			n.record(1)
			d.spend(1, true)
		}
	case event < 85:
		d.claim(n)
	case event < 90:
		n.Settle(&ratelimit.Ask{Rule: &ratelimit.Rule{Limit: d.limit}, Cost: tokens(1 + d.IntN(3))}, &ratelimit.Verdict{})
	case d.calm:
	case event < 95:
		refund := tokens(1 + d.IntN(3))
		n.Refund(refund)
		d.credit += float64(refund)
	case event < 98:
		n.paused = d.now.Add(time.Duration(d.Int64N(int64(time.Second))))
	default:
		d.nodes[i] = d.node() // it crashed
	}
}

// In any time t, nodes admit at most burst + rate x t of a bucket, and the refunds.
func TestBucketHistories(t *testing.T) {
	admitted := tokens(0)
	for seed := range *bucketSeeds {
		d := newDrinkers(t, seed)
		for range 300 {
			d.step()
		}
		if admitted += d.admitted; t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
	if admitted < tokens(*bucketSeeds) || admitted == math.MaxInt64 {
		t.Errorf("%d were admitted: what was played?", admitted)
	}
}

// lessee is one node's bucket, on a ledger in memory.
type lessee struct {
	*testing.T
	Entry
	limit  ratelimit.Limit
	ledger *account.Memory
	now    instant
	seq    uint64
}

func newLessee(t *testing.T, unit ratelimit.Unit, n tokens) *lessee {
	l := &lessee{T: t, Entry: Entry{&Key{}, &Use{}}, now: instant(time.Hour)}
	l.limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: unit, Multiplier: 1, Requests: n, Burst: n}
	l.ledger = account.NewMemory(func() ledgerTime { return 1e15 + ledgerTime(l.now/instant(time.Microsecond)) })
	l.Enter(l.now, &LedgerClock{At: 1}, &l.limit)
	return l
}

// claims writes a claim, and settles it. answer applies its answer.
func (l *lessee) claims(need tokens, q Asking) (c account.Claim, answer func() bool) {
	var m Message
	l.seq++
	q.Now = l.now
	l.ReturnVain(l.now, &l.limit)
	l.Wants(l.now, need, Sizing{Rule: testRule(l.limit), Nodes: 1})
	c = account.Claim{Key: "k", Limit: l.limit, Holder: 7, Seq: l.seq, Need: need}
	l.Write(&m, uint32(l.seq), c, &q)
	g := make([]account.Grant, 1)
	if _, _, err := l.ledger.Settle(l.Context(), []account.Claim{m.Claim}, g); err != nil || g[0].Err != nil {
		l.Fatal(err, g[0].Err)
	}
	return m.Claim, func() bool { return l.Apply(&m, &g[0], &Answer{Now: l.now, Epoch: q.Epoch}) }
}

// A claim that was written just before the node's clock called the epoch young is answered in the young epoch. It
// stated no level: that the bucket was empty is not lost with it.
func TestClaimThatIsOvertakenByAYoungEpoch(t *testing.T) {
	l := newLessee(t, ratelimit.Year, 100)
	l.Waits(100)
	_, answer := l.claims(100, Asking{Epoch: ratelimit.Epoch{ID: 1}})
	answer() // all of the bucket
	l.Granted = 0
	l.ledger.Lose(nil, "2")
	young := ratelimit.Epoch{ID: 2, Began: 1e15, Ends: 1e16}
	l.Waits(1)
	if _, answer = l.claims(1, Asking{Epoch: young}); answer() {
		t.Fatal("a grant in a young epoch counts")
	}
	l.Waits(0)
	if c, _ := l.claims(0, Asking{Epoch: young, Young: true}); c.Taken > 1 {
		t.Errorf("the node states a level of at most %d, and the bucket was empty", c.Taken)
	}
}

// A request leaves while a later claim is under way. What was granted for it has refilled since its own claim.
func TestReturnOfAnEarlierGrant(t *testing.T) {
	l, known := newLessee(t, ratelimit.Second, 10), Asking{Epoch: ratelimit.Epoch{ID: 1}}
	l.Waits(5)
	_, answer := l.claims(5, known)
	answer()
	l.now = l.now.Add(200 * time.Millisecond)
	_, answer = l.claims(0, known)
	l.Waits(0)
	answer()
	l.now = l.now.Add(10 * time.Millisecond)
	spent := l.Spent
	l.ReturnVain(l.now, &l.limit)
	if returned := spent - l.Spent; returned != 2 { // in 210 ms, 2.1 tokens have refilled
		t.Errorf("%d of 5 are returned, and 3 may have refilled", returned)
	}
}
