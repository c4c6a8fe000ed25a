package leasing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A process that has read no epoch claims nothing before the others have said that data was lost: of a bucket, too.
func TestNewProcessAfterALoss(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket} {
		limit := bucketOf(100, 100, ratelimit.Hour)
		limit.Algorithm = algorithm
		x := newArena(t, limit, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		x.start(1)
		x.goOn(2 * time.Second)
		used := x.takes(0, "k", 1)
		x.goOn(time.Second)
		x.flush()
		x.start(1)
		again := tokens(0)
		for range 400 {
			again += x.takes(1, "k", 1)
			x.goOn(10 * time.Millisecond)
		}
		if used != 100 || again > 100/20 {
			t.Errorf("%v: %d of 100 passed before the loss, and %d after it", algorithm, used, again)
		}
	}
}

// Requests of one key may bring limits of their own. In a young epoch, all of them together have one part.
func TestPartOfTwoLimitsInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_deny": "refund"})
	x.start(1)
	x.goOn(2 * time.Second)
	x.ask(0, "k", 950)
	x.goOn(10 * time.Second)
	x.flush()
	x.goOn(600 * time.Millisecond)
	lower := *x.rule
	lower.Limit.Requests = 900
	passed := tokens(0)
	for i := range 200 {
		rule := []*ratelimit.Rule{x.rule, &lower}[i%2]
		if v := x.decide(0, ask{Rule: rule, Key: []byte("k"), Cost: 40}); !v.OverLimit {
			passed += 40
		}
	}
	if passed > 1000/20 {
		t.Errorf("%d of 1000 passed in a young epoch", passed)
	}
}

// The first process on an empty store refuses nothing for longer than its wait, whenever its first request comes.
func TestFirstStartWaitsForABeat(t *testing.T) {
	for _, first := range []int{10, 100, 250, 400} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_store_failure": "closed"})
		x.start(1)
		x.goOn(time.Duration(first) * time.Millisecond)
		began := x.now
		for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < 3*time.Second {
			x.goOn(time.Millisecond)
		}
		if after := x.now.Sub(began); after > firstWait+2*firstPause {
			t.Errorf("first request after %d ms: requests are refused for %v", first, after)
		}
	}
}

// A store restarts empty, and a process starts with it. Nodes whose breakers are open say that they have read another
// epoch, before that process is granted their tokens.
func TestNewProcessAfterAnOutage(t *testing.T) {
	for _, outage := range []int{2, 5, 10} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		old := x.start(2)
		x.goOn(2 * time.Second)
		used := x.takes(old, "k", 1)
		x.goOn(time.Second)
		x.nodes[old].down = true
		for end := x.now.Add(time.Duration(outage) * time.Second); x.now < end; x.goOn(10 * time.Millisecond) {
			x.ask(old, "k", 1)
		}
		x.nodes[old].down = false
		x.flush()
		fresh, again := x.start(2), tokens(0)
		for range 400 {
			for _, node := range []int{fresh, old} {
				again += x.takes(node, "k", 1)
			}
			x.goOn(10 * time.Millisecond)
		}
		if used != 100 || again > 100/20 {
			t.Errorf("after %d s: %d of 100 passed before the loss, and %d after it", outage, used, again)
		}
	}
}

// An account that the store cannot read does not hold up other keys for good.
func TestUnreadableAccountInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 10}, map[string]string{"on_deny": "refund"})
	x.start(1)
	x.goOn(2 * time.Second)
	x.ask(0, "broken", 1)
	x.ask(0, "k", 1)
	x.goOn(3 * time.Second)
	x.flush()
	broken := account.StoreKey{Name: account.NameOf("", "broken", x.rule.Limit.WindowAt(x.time()))}
	_, err := x.store.Write(t.Context(), "1", []account.Change{{StoreKey: broken, Data: []byte("foreign"), Until: 1 << 60}})
	if err != nil {
		t.Fatal(err)
	}
	began := x.now
	x.goOn(600 * time.Millisecond)
	for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < time.Minute {
		x.goOn(10 * time.Millisecond)
	}
	if after := x.now.Sub(began); after > ratelimit.YoungMost+ratelimit.YoungFor+beatEvery {
		t.Errorf("a key is refused for %v after a loss", after)
	}
}

// After a loss, nodes that all answer admit at most a twentieth of a limit beyond it.
// That holds whatever comes before and meanwhile: refunds, undone requests, limits that a request brings.
func TestLossesAtRandom(t *testing.T) {
	for seed := range *arenaSeeds {
		r := rand.New(rand.NewPCG(seed, 78)) //nolint:gosec // the same run each time
		nodes, limit := 1+r.IntN(4), []tokens{40, 100, 1000}[r.IntN(3)]
		of := bucketOf(limit, limit, ratelimit.Year)
		of.Algorithm = ratelimit.Algorithm(r.IntN(3))
		fields := map[string]string{
			"on_deny": "refund", "on_store_failure": "closed", "store_deadline": []string{"15ms", "500ms"}[r.IntN(2)],
			"reclaim": ratelimit.Reclaims[r.IntN(2)],
		}
		if r.IntN(4) == 0 {
			fields["lease.size"] = fmt.Sprint(1 + limit/8)
		}
		x := newArena(t, of, fields)
		if r.IntN(3) == 0 {
			x.rule.Hold = &ratelimit.Hold{}
		}
		for range nodes {
			x.start(nodes)
			p := x.nodes[len(x.nodes)-1]
			p.oneWay = time.Duration([]int{0, 0, 1, 5, 60}[r.IntN(5)])*time.Millisecond + time.Millisecond/2
			x.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
		}
		x.goOn(2 * time.Second)
		net, losses, w, lossAt := tokens(0), 0, window(0), r.IntN(150)
		var older *account.MemoryStore
		var did []string
		for i := range 150 {
			if i == lossAt/2 && r.IntN(2) == 0 {
				older = x.store.Copy()
			}
			if i == lossAt {
				x.store.Lose(older, "2")
				losses++
				did = append(did, fmt.Sprintf("%v LOSS, older %v", time.Duration(x.now), older != nil))
			}
			for _, p := range x.nodes {
				p.mute = r.IntN(12) == 0
			}
			node := r.IntN(nodes)
			cost := 1 + tokens(r.Int64N(int64([]tokens{1, limit / 10, limit / 3}[r.IntN(3)])))
			a := ask{Rule: x.rule, Key: []byte("k"), Cost: cost, Window: w}
			undone := r.IntN(6) == 0
			if r.IntN(5) == 0 && net >= cost && w != 0 {
				a.Kind = []ratelimit.Kind{ratelimit.Refund, ratelimit.Release}[r.IntN(2)]
				net -= cost
				undone = false
			}
			x.begin(node, a, func(v *verdict) {
				switch {
				case a.Kind != ratelimit.Spend:
				case undone:
					x.nodes[node].Undo(x.now, []ask{a}, []verdict{*v})
				case !v.OverLimit && v.Source != ratelimit.FromFallback:
					net, w = net+cost, v.Window
					did = append(did, fmt.Sprintf("%v node %d admits %d: %d (%v)", time.Duration(x.now), node, cost, net, v.Source))
				}
			})
			x.goOn(time.Duration([]int{1, 1, 5, 30, 100, 700}[r.IntN(6)]) * time.Millisecond)
		}
		for _, p := range x.nodes {
			p.mute = false
		}
		x.goOn(20 * time.Second)
		for range 20 {
			for node := range nodes {
				net += x.takes(node, "k", 1)
			}
			x.goOn(200 * time.Millisecond)
		}
		if net > limit+tokens(losses)*limit/20 {
			t.Errorf("seed %d: %d nodes, %v, %v: %d after %d losses", seed, nodes, x.rule.Limit, fields, net, losses)
			if testing.Verbose() {
				for _, d := range did {
					t.Log(d)
				}
				t.FailNow()
			}
		}
	}
}

// A live node's usage of an eager lease is not credited after a loss: in a young epoch it must be reported, too.
func TestEagerLeaseInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Second, Multiplier: 4, Requests: 1000}, map[string]string{
		"on_deny": "refund", "reclaim": "eager", "lease.size": "400",
	})
	x.start(2)
	x.start(2)
	x.goOn(4*time.Second - time.Duration(x.time()%4_000_000)*time.Microsecond + 20*time.Millisecond)
	for node := range 2 {
		x.ask(node, "other", 1)
	}
	admitted, w := tokens(0), x.rule.Limit.WindowAt(x.time())
	try := func(node int, cost tokens) {
		if v := x.ask(node, "k", cost); !v.OverLimit && v.Window == w {
			admitted += cost
		}
	}
	try(0, 1)
	try(1, 800)
	x.flush()
	for x.rule.Limit.WindowAt(x.time()) == w {
		try(0, 1)
		if x.goOn(10 * time.Millisecond); x.time()%4_000_000 > 1_800_000 {
			try(1, 10)
		}
	}
	if admitted > 1000+50 {
		t.Errorf("%d of 1000 were admitted", admitted)
	}
}

// On etcd each node has its own clock. A node that is behind does not claim before others have stated their totals.
func TestYoungEpochBetweenTwoClocks(t *testing.T) {
	for _, ahead := range []time.Duration{0, 100 * time.Millisecond, 400 * time.Millisecond} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
		x.skew = ahead
		x.start(2)
		x.skew = 0
		x.start(2)
		x.goOn(2 * time.Second)
		used, again := tokens(0), tokens(0)
		for !x.ask(0, "k", 50).OverLimit {
			used += 50
		}
		x.goOn(time.Second)
		x.flush()
		for range 400 {
			if !x.ask(1, "k", 20).OverLimit {
				again += 20
			}
			x.goOn(5 * time.Millisecond)
		}
		if used != 1000 || again > 1000/20 {
			t.Errorf("a node is ahead by %v: %d of 1000 passed before the loss, and %d after it", ahead, used, again)
		}
	}
}

// skewed is a store as a node with another clock reads it.
type skewed struct {
	account.Store
	by time.Duration
}

func (s skewed) Read(ctx context.Context, keys []account.StoreKey) (account.Snapshot, error) {
	x, err := s.Store.Read(ctx, keys)
	x.Now = x.Now.Add(s.by)
	return x, err
}

// A new process that asks in the first half second of a young epoch makes no loop of claims.
func TestClaimsOfANewProcessInAYoungEpoch(t *testing.T) {
	for _, algorithm := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.TokenBucket} {
		limit := bucketOf(100, 100, ratelimit.Hour)
		limit.Algorithm = algorithm
		x := newArena(t, limit, map[string]string{"on_deny": "refund", "on_store_failure": "closed", "store_deadline": "200ms"})
		x.start(1)
		x.goOn(2 * time.Second)
		x.ask(0, "k", 1)
		x.flush()
		x.goOn(beatEvery + 10*time.Millisecond) // it says so
		x.flush()
		x.goOn(beatEvery + 10*time.Millisecond)
		fresh := x.start(1)
		v := x.ask(fresh, "k", 1)
		if n := x.nodes[fresh].claims; n > 3 {
			t.Errorf("%v: %d claims for one request, which is decided %+v", algorithm, n, v)
		}
	}
}

// twoParts divides accounts: those of keys that begin with "2" are in the second part.
type twoParts struct{ account.Ledger }

func (twoParts) Partitions() int { return 2 }
func (twoParts) Partition(key string) int {
	if key[0] == '2' {
		return 1
	}
	return 0
}

func (twoParts) Ask(context.Context, int) (e ratelimit.Epoch, from, to ledgerTime, err error) {
	return e, 0, 0, errors.New("not asked")
}

// Two masters of a Cluster lose their data, and one of them does not come back. That does not hold up keys of the other
// for good.
func TestDeadPartInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(1)
	p, other := x.nodes[0], account.NewMemoryStore(x.time)
	p.second = account.NewCAS(other, "")
	p.Divide(twoParts{})
	x.goOn(2 * time.Second)
	x.ask(0, "k", 1)
	x.ask(0, "2", 1)
	x.goOn(3 * time.Second)
	x.flush()
	other.Lose(nil, "1")
	p.Beat()
	x.goOn(10 * time.Millisecond) // it has read both epochs
	p.dead = true
	began := x.now
	x.goOn(600 * time.Millisecond)
	for x.ask(0, "k", 1).OverLimit && x.now.Sub(began) < time.Minute {
		x.goOn(10 * time.Millisecond)
	}
	if after := x.now.Sub(began); after > ratelimit.YoungMost+ratelimit.YoungFor+beatEvery {
		t.Errorf("a key of the part that is back is refused for %v", after)
	}
}

// In the half second of a first start, a node spends its own budget under on_store_failure: local.
func TestFirstStartIsDecidedLocally(t *testing.T) {
	for policy, want := range map[string]int{"open": 20, "local": 10, "closed": 0} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": policy})
		x.start(1)
		passed := 0
		for range 20 {
			if !x.ask(0, "k", 1).OverLimit {
				passed++
			}
		}
		if passed != want {
			t.Errorf("%s: %d of 20 pass in the first %v, with a limit of 10", policy, passed, time.Duration(x.now-instant(time.Hour)))
		}
	}
}

// A message that hangs when the store comes back, empty: within the bound of FoundWithin, its node states its totals
// before others are granted them.
func TestNodeIsFoundWhileTheEpochIsYoung(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(2)
	x.start(2)
	p := x.nodes[0]
	p.Random = func() float64 { return 0.9 }
	x.goOn(2 * time.Second)
	used, again := x.takes(0, "k", 1), tokens(0)
	x.goOn(time.Second)
	p.down, p.hangs = true, lane.TimeLimit
	sent := p.Stats().RoundTrips
	for end := x.now.Add(20 * time.Second); x.now < end || p.Stats().RoundTrips == sent; x.goOn(time.Millisecond) {
		if x.now < end {
			sent = p.Stats().RoundTrips
		}
	}
	x.goOn(1700 * time.Millisecond) // the next message hangs
	p.down = false
	x.flush()
	for back := x.now; x.now.Sub(back) < FoundWithin; x.goOn(10 * time.Millisecond) {
		again += x.takes(1, "k", 1)
	}
	if used != 100 || again > 100/20 {
		t.Errorf("%d of 100 passed before the loss, and %d after it", used, again)
	}
}

// A beat and a slower trip: the node that has read another epoch says so before a new process claims.
func TestNewProcessBeforeALateBeat(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	p := x.nodes[x.start(1)]
	x.goOn(2 * time.Second)
	used := x.takes(0, "k", 1)
	x.goOn(time.Second)
	x.goOn(p.beat.Sub(x.now) + 5*time.Millisecond)
	fresh := x.start(1)
	x.goOn(beatEvery - 3*time.Millisecond) // the one has just greeted, and the other greets next
	x.flush()
	p.oneWay = 50 * time.Millisecond
	again, end := tokens(0), x.now.Add(4*time.Second)
	for x.goOn(100 * time.Millisecond); x.now < end; x.goOn(time.Millisecond) {
		again += x.takes(fresh, "k", 1)
	}
	if used != 100 || again > 100/20 {
		t.Errorf("%d of 100 passed before the loss, and %d after it", used, again)
	}
}

// A full table drops no key of which the store has lost the total.
func TestFullTableInAYoungEpoch(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 10}, map[string]string{"on_deny": "refund", "on_store_failure": "closed"})
	x.start(1)
	x.goOn(2 * time.Second)
	for i := range 100 {
		x.ask(0, fmt.Sprint("old", i), 10)
	}
	x.goOn(10 * time.Second)
	x.flush()
	x.nodes[0].Beat()
	x.goOn(5 * time.Millisecond) // it has read the epoch
	tracked := 0
	for i := range 100 {
		of, _, c := x.nodes[0].find(fmt.Append(nil, "old", i))
		if of.mu.Unlock(); c != nil {
			tracked++
		}
	}
	for i := range 60 {
		x.ask(0, fmt.Sprint("new", i), 1)
	}
	x.goOn(10 * time.Second)
	again := 0
	for i := range 100 {
		if !x.ask(0, fmt.Sprint("old", i), 10).OverLimit {
			again++
		}
	}
	if again > 100-tracked {
		t.Errorf("%d of 100 keys were tracked at the loss, and %d pass again", tracked, again)
	}
}
