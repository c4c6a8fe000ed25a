package ledger

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// twins are the two ledgers that must do the same, on one clock.
type twins struct {
	testing.TB
	now    ledgerTime
	memory *Memory
	redis  *movedRedis
}

func newTwins(t testing.TB) *twins {
	w := &twins{TB: t, now: ledgertest.Epoch}
	w.memory = NewMemory(10, func() ledgerTime { return w.now })
	w.redis = newMovedRedis(t, redistest.Shared(t))
	w.redis.at = func() ledgerTime { return w.now }
	return w
}

// claim has both settle a claim on one key, and fails when they differ.
func (w *twins) claim(c ratelimit.Claim) ratelimit.Grant {
	w.Helper()
	c.Key = "k"
	if c.TTL == 0 {
		c.TTL = 10 * time.Second
	}
	c.Want = max(c.Want, c.Waiting)
	var g [2]ratelimit.Grant
	w.memory.Settle(context.Background(), []ratelimit.Claim{c}, g[:1])
	w.redis.Settle(context.Background(), []ratelimit.Claim{c}, g[1:])
	if memory, redis := fmt.Sprintf("%+v", g[0]), fmt.Sprintf("%+v", g[1]); memory != redis {
		w.Fatalf("claim %+v (-memory +redis):\n%s", c, cmp.Diff(memory, redis))
	}
	return g[0]
}

// A ledger whose clock goes an hour ahead and comes back refuses a key for no
// longer than one window, not for the hour; and the time that it showed twice
// brings no tokens a second time.
func TestLedgerClockThatStepsBack(t *testing.T) {
	for _, step := range []time.Duration{time.Hour, 1500 * time.Millisecond, 300 * time.Millisecond} {
		for algorithm := range ratelimit.Algorithms {
			t.Run(fmt.Sprint(ratelimit.Algorithms[algorithm], " ", step), func(t *testing.T) {
				w := newTwins(t)
				limit := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Second, Requests: 10, Burst: 10}
				seq, spent := uint64(0), tokens(0)
				ask := func() tokens { // a new holder each time, so that nothing is known but by the ledger
					seq++
					g := w.claim(ratelimit.Claim{Limit: limit, Holder: ratelimit.Holder(10 + seq), Seq: 1, Waiting: 10, TTL: time.Second})
					w.claim(ratelimit.Claim{Limit: limit, Holder: ratelimit.Holder(10 + seq), Seq: 2, Window: g.Window, Fence: g.Fence, Granted: g.Granted, Spent: g.Granted, TTL: time.Second})
					spent += g.Granted
					return g.Granted
				}
				w.now = w.now.Add(900 * time.Millisecond)
				ask()
				w.now = w.now.Add(step)
				ask()
				w.now = w.now.Add(-step)
				spent = 0
				if got := ask(); got > 0 {
					t.Fatalf("%d tokens were granted right after the clock went back, all of which had been spent", got)
				}
				waited := time.Duration(0)
				for spent < 10 {
					w.now = w.now.Add(10 * time.Millisecond)
					waited += 10 * time.Millisecond
					if ask(); waited > 2100*time.Millisecond {
						t.Fatalf("%v after the clock went back by %v, %d tokens had been granted of 10 a second", waited, step, spent)
					}
				}
			})
		}
	}
}

// A rule that becomes eager node by node reclaims only what was claimed as
// eager: the holders of other leases report seldom, and have spent more than
// they have said.
func TestReclaimChangesNodeByNode(t *testing.T) {
	w := newTwins(t)
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	safe := w.claim(ratelimit.Claim{Limit: limit, Holder: 1, Seq: 1, Waiting: 50, TTL: time.Second})
	eager := w.claim(ratelimit.Claim{Limit: limit, Holder: 2, Seq: 1, Waiting: 20, TTL: time.Second, Reclaim: ratelimit.ReclaimEager})
	if safe.Granted < 50 || eager.Granted < 20 {
		t.Fatalf("granted %d and %d, want at least 50 and 20", safe.Granted, eager.Granted)
	}
	w.now = w.now.Add(2 * time.Second)
	g := w.claim(ratelimit.Claim{Limit: limit, Holder: 3, Seq: 1, Waiting: 100, TTL: time.Second, Reclaim: ratelimit.ReclaimEager})
	if most := 100 - safe.Granted; g.Granted != most {
		t.Errorf("%d were granted of 100, of which a holder under reclaim: safe has %d: want %d, all but those", g.Granted, safe.Granted, most)
	}
}

// An account keeps its records within bounds through any number of deploys in a
// long window, loses none of what was charged, and goes on being claimed on.
func TestManyHoldersInOneWindow(t *testing.T) {
	w := newTwins(t)
	limit := ratelimit.Limit{Unit: ratelimit.Year, Requests: 1 << 30}
	charged := tokens(0)
	for h := range ratelimit.Holder(1000) {
		w.now = w.now.Add(time.Second)
		g := w.claim(ratelimit.Claim{Limit: limit, Holder: 10 + h, Seq: 1, Waiting: 10, TTL: 10 * time.Second})
		charged += 10
		switch h % 3 {
		case 0: // it says goodbye, the others crash with what they were granted
			w.claim(ratelimit.Claim{
				Limit: limit, Holder: 10 + h, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: g.Granted, Spent: 4, Returned: g.Granted - 4, Last: true,
			})
			charged -= 6
		case 1: // tells what it has spent before it crashes
			w.claim(ratelimit.Claim{Limit: limit, Holder: 10 + h, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: g.Granted, Spent: g.Granted})
		}
	}
	a, _, err := w.redis.Account(context.Background(), "k", &perMinute100)
	if err != nil {
		t.Fatal(err)
	}
	_, cell := w.memory.locked([]byte("k"))
	if got, want := a.charged(a.window), cell.val.charged(cell.val.window); got != want || got < charged {
		t.Errorf("Redis has charged %d, the memory %d, and at least %d were", got, want, charged)
	}
	if n := a.records(); n > MostRecords+1 {
		t.Errorf("the account has %d records, want at most %d", n, MostRecords+1)
	}
}

// Nodes that live, and whose key was idle for so long that their records were
// folded, are charged once and not again when the key is asked for.
func TestFoldedHolderComesBack(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		t.Run(ratelimit.Algorithms[algorithm], func(t *testing.T) {
			w := newTwins(t)
			limit := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Year, Requests: 100_000, Burst: 100_000}
			nodes := make([]ratelimit.Claim, 2*MostRecords)
			for round := range 3 {
				for i := range nodes {
					w.now = w.now.Add(time.Second)
					c := &nodes[i]
					c.Limit, c.Holder, c.Seq, c.TTL, c.Waiting = limit, ratelimit.Holder(10+i), c.Seq+1, 10*time.Second, 10
					g := w.claim(*c)
					if g.Relearning || g.Granted != c.Granted+10 {
						t.Fatalf("round %d, node %d: granted %d more, relearning %v; want 10, for the ledger has lost nothing", round, i, g.Granted-c.Granted, g.Relearning)
					}
					c.Window, c.Fence, c.Granted, c.Spent = g.Window, g.Fence, g.Granted, g.Granted
				}
			}
			_, cell := w.memory.locked([]byte("k"))
			if got, want := cell.val.charged(cell.val.window), tokens(3*10*len(nodes)); limit.Algorithm != ratelimit.TokenBucket && got != want {
				t.Errorf("%d were charged, want %d: what was granted", got, want)
			}
		})
	}
}

func (a *Account) records() (n int) {
	a.each(func(*record) { n++ })
	return n
}

// One record more than Lua's unpack takes is dropped when the window turns.
func TestManyRecordsAreDropped(t *testing.T) {
	if testing.Short() {
		t.Skip("settles some thousand claims of as many holders")
	}
	w := newTwins(t)
	limit := ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Hour, Requests: 1 << 30}
	for h := range ratelimit.Holder(600) { // live ones, which no fold may touch
		w.claim(ratelimit.Claim{Limit: limit, Holder: 10 + h, Seq: 1, Waiting: 1, TTL: time.Hour})
	}
	w.now = w.now.Add(3 * time.Hour)
	w.claim(ratelimit.Claim{Limit: limit, Holder: 1, Seq: 1, Waiting: 1})
	a, _, err := w.redis.Account(context.Background(), "k", &perMinute100)
	if err != nil {
		t.Fatal(err)
	}
	if n := a.records(); n != 1 {
		t.Errorf("after two windows there are records of %d holders, want 1", n)
	}
}
