package account

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// epochAt is when tests begin: the start of a minute, of an hour and of a day. It is in the future, for a Redis' own
// clock, by which accounts expire.
const epochAt instant = 20_834 * 86_400 * 1_000_000

// bench is a ledger in memory, whose clock the test moves, and what it asks holders for.
type bench struct {
	*testing.T
	*Memory
	now   instant
	limit ratelimit.Limit
	asked []ratelimit.Holder
	seq   uint64
}

func fixed(n tokens) ratelimit.Limit { return ratelimit.Limit{Unit: ratelimit.Minute, Requests: n} }

func sliding(n tokens) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: n}
}

func newBench(t *testing.T, l ratelimit.Limit) *bench {
	b := &bench{T: t, now: epochAt, limit: l}
	b.Memory = NewMemory(func() ratelimit.LedgerTime { return b.now })
	b.OnRecall = func(h ratelimit.Holder, _ string, _ ratelimit.Window) { b.asked = append(b.asked, h) }
	return b
}

// account is what the store has of an account; nil: nothing.
func (m *Memory) account(key string, w ratelimit.Window) *kept {
	k := &kept{}
	switch data := m.records[NameOf("", key, w)].Data; {
	case data == nil:
		return nil
	case k.decode(data) != nil:
		panic(key)
	}
	return k
}

// accounts is the number of records, without the epoch's.
func (m *Memory) accounts() int { return len(m.records) - 1 }

// window is the one of now, and so many later.
func (b *bench) window(later int) ratelimit.Window {
	if b.limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return b.limit.WindowAt(b.now) + ratelimit.Window(later)
}

// claims settles a claim of a holder with these totals and this need, which is also its Want.
func (b *bench) claims(h ratelimit.Holder, taken, spent, need tokens, change ...func(*Claim)) Grant {
	b.Helper()
	b.seq++
	c := Claim{
		Key: "k", Window: b.window(0), Limit: b.limit, Holder: h, Seq: b.seq,
		Taken: taken, Spent: spent, Need: need, Want: need,
	}
	for _, f := range change {
		f(&c)
	}
	return b.settles(&c)
}

func (b *bench) draws(h ratelimit.Holder, n tokens, change ...func(*Claim)) Grant {
	return b.claims(h, 0, 0, 0, append([]func(*Claim){func(c *Claim) { c.Seq, c.Want = 0, n }}, change...)...)
}

func (b *bench) settles(c *Claim) Grant {
	b.Helper()
	grants := make([]Grant, 1)
	if _, _, err := b.Settle(b.Context(), []Claim{*c}, grants); err != nil {
		b.Fatal(err)
	}
	b.holds(c.Key, c.Window)
	return grants[0]
}

// holds checks the invariants of an account.
func (b *bench) holds(key string, w ratelimit.Window) {
	b.Helper()
	if k := b.account(key, w); k != nil {
		if err := k.invariants(&b.limit); err != nil {
			b.Fatal(err)
		}
	}
}

// is fails the test if a grant is not so: granted, the holder's total, the sum of all, and what others have in hand.
func (b *bench) is(g Grant, granted, total, sum, inHand tokens) {
	b.Helper()
	if g.Err != nil || g.Granted != granted || g.Total != total || g.Sum != sum || g.InHand != inHand {
		b.Fatalf("granted %d, total %d, sum %d, in hand %d, %v; want %d, %d, %d, %d",
			g.Granted, g.Total, g.Sum, g.InHand, g.Err, granted, total, sum, inHand)
	}
}

func TestGrants(t *testing.T) {
	b := newBench(t, fixed(100))
	wants := func(want tokens) func(*Claim) { return func(c *Claim) { c.Want = want } }
	b.is(b.claims(1, 0, 0, 10, wants(80)), 12, 12, 12, 0) // an eighth of what is free: 10 for requests that wait, and 2 in hand
	b.is(b.claims(2, 0, 0, 20, wants(80)), 20, 20, 32, 2) // what is needed, all of it
	b.is(b.claims(3, 0, 0, 1, wants(4)), 4, 4, 36, 2)     // no more than is wanted
	b.is(b.claims(4, 0, 0, 90), 64, 64, 100, 5)           // no more than is free
	b.is(b.claims(2, 5, 5, 0), 0, 5, 85, 5)               // giving back is a smaller total
	b.is(b.claims(5, 0, 0, 0, wants(90)), 1, 1, 86, 5)    // without need, a share
}

// The holder's total is the truth: a lost answer is taken back, and what was admitted without asking is booked whole.
func TestTotalsAreTheTruth(t *testing.T) {
	b := newBench(t, fixed(100))
	b.is(b.claims(1, 0, 0, 40), 40, 40, 40, 0)
	b.is(b.claims(1, 0, 0, 40), 40, 40, 40, 0)     // the answer was lost
	b.is(b.claims(1, 40, 250, 10), 0, 250, 250, 0) // 210 were charged
	b.is(b.claims(2, 0, 0, 1), 0, 0, 250, 0)       // debt refuses others
	b.is(b.draws(2, 5), 0, 5, 255, -1)
}

func TestOvertaken(t *testing.T) {
	b := newBench(t, fixed(100))
	b.claims(1, 0, 0, 10)
	g := b.claims(1, 0, 0, 10, func(c *Claim) { c.Seq = 1 })
	if !errors.Is(g.Err, ErrOvertaken) {
		t.Error(g.Err)
	}
	b.is(b.claims(2, 0, 0, 1), 1, 1, 11, 0)
}

func TestFencesRise(t *testing.T) {
	b := newBench(t, fixed(100))
	b.now = b.now.Add(time.Second)
	g := b.claims(1, 0, 0, 1)
	if g.Fence != ratelimit.Fence(b.now) || g.At != b.now {
		t.Error(g.Fence, g.At)
	}
	if next := b.claims(2, 0, 0, 1); next.Fence != g.Fence+1 {
		t.Error(next.Fence)
	}
	b.now = b.now.Add(-time.Second)
	if next := b.claims(2, 1, 0, 1); next.Fence != g.Fence+2 {
		t.Error(next.Fence)
	}
}
