package leasing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Which of a ledger's records count, and for how long: those of other windows, of
// holders that have ended, and of leases that were reclaimed. Both ledgers must say
// the same.

// A holder whose lease was reclaimed in the window before tells of tokens of this
// one which no record knows: then data was lost, whatever happened before.
func TestReclaimedBeforeTheLoss(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Reclaim, b.c.Reclaim = ratelimit.ReclaimEager, ratelimit.ReclaimEager
	a.gets(20, 20, 20)
	w.passes(11 * time.Second)
	b.gets(1, 1, 1) // which has what is unspent of it reclaimed
	w.passes(40 * time.Second)
	a.c.Window, a.c.Granted, a.c.Spent, a.c.Fence = a.c.Window+1, 7, 7, a.c.Fence+1
	g := a.asks(0, 0)
	w.expect("true true false", g.Missing, g.Relearning, g.Void)
}

// A holder that has ended, and whose record was folded, may still say what it spent
// in the window that is over: the next one is not charged for that.
func TestFoldedHolderOfTheWindowBefore(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(50, 50, 50)
	a.c.Spent = 50
	a.hears(a.says(func(c *ratelimit.Claim) { c.Last = true }))
	w.passes(20 * time.Second)
	b.gets(1, 1, 1) // which folds the other
	w.passes(30 * time.Second)
	a.c.Spent = 57
	g := a.asks(0, 0)
	w.expect("false 0 100", g.Carried, g.Granted, g.Available)
}

// A bucket's record is kept for as long as the bucket may take to fill: until then
// its holder goes on where it was, and the ledger has lost nothing.
func TestBucketRemembersUntilItIsFull(t *testing.T) {
	tenMinutes := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: 600}
	w := newTwins(t)
	a, b := w.tenant(1, tenMinutes), w.tenant(2, tenMinutes)
	a.gets(600, 600, 600)
	a.c.Spent = 600
	a.gets(0, 0, 0)
	w.passes(5 * time.Minute)
	b.gets(1, 1, 1)
	g := a.gets(1, 1, 1)
	w.expect("false false", g.Missing, g.Relearning)
	w.passes(12*time.Minute + 10*time.Second - time.Microsecond)
	w.tenant(3, tenMinutes).gets(1, 1, 1)
	w.records(3)
	w.passes(time.Microsecond)
	w.tenant(4, tenMinutes).gets(1, 1, 1)
	w.records(2) // of the last two
}

// records expects the memory to have records of so many holders.
func (w *twins) records(n int) {
	w.Helper()
	s, c := w.memory.locked([]byte("k"))
	defer s.mu.Unlock()
	if got := c.val.records(); got != n {
		w.Errorf("there are records of %d holders, want %d", got, n)
	}
}

// What was leased two sliding windows ago counts no more: to have it given back
// would help nobody. That of the window before counts, and is recalled.
func TestRecallOfSlidingWindowsBefore(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, sliding100), w.tenant(2, sliding100)
	a.gets(60, 60, 60)
	late := a.c
	late.Seq = 0
	w.passes(time.Minute)
	g := b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 80, 80, true }))
	w.expect("1 true", g.Recalled, g.Recalling)
	w.passes(time.Minute)
	w.stale(late) // a claim from then, which has the window turn
	g = b.hears(b.says(func(c *ratelimit.Claim) { c.Waiting, c.Want, c.Recall = 101, 101, true }))
	w.expect("0 false", g.Recalled, g.Recalling)
}
