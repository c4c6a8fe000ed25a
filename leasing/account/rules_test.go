package account

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

func (b *bench) pass(d time.Duration) { b.now = b.now.Add(d) }

// What would bring an account below nothing is cut, from the record as well: told again after a loss, it would be
// credited then.
func TestRefundsAreCutAtNothing(t *testing.T) {
	b := newBench(t, fixed(100))
	b.is(b.claims(1, 0, 20, 0), 0, 20, 20, 0)
	g := b.claims(2, -50, -50, 10)
	b.is(g, 10, -10, 10, 0)
	if cut := g.Cut(&Claim{Seq: 1, Taken: -50, Spent: -50}); cut != 30 {
		t.Errorf("%d were cut", cut)
	}
	// The holder that was not answered says so again: there is a charge now that it counts against.
	b.is(b.claims(1, 20, 40, 0), 0, 40, 30, 0)
	if g = b.claims(2, -50, -50, 0); g.Cut(&Claim{Seq: 1, Taken: -50, Spent: -50}) != 10 {
		t.Errorf("%+v", g)
	}
	b.is(g, 0, -40, 0, 0)
	// A refund of more than was charged leaves what the holder has in hand in the sum. Otherwise, that would be admitted
	// on top of the whole limit.
	b.is(b.claims(3, 15, 10, 0), 0, 15, 15, 0)
	b.is(b.claims(3, -40, -45, 0), 0, 5, 5, 0)
}

// Who has something in hand is asked to give it back by a claim that needs more than there is.
func TestRecall(t *testing.T) {
	b := newBench(t, fixed(100))
	recalls := func(want bool, holders ...ratelimit.Holder) {
		t.Helper()
		g := b.claims(9, 0, 0, 1)
		if g.Granted != 0 || g.Recalling != want || !slices.Equal(b.asked, holders) {
			t.Errorf("at %v: recalling %v, asked %v, want %v, %v", b.now.Sub(epochAt), g.Recalling, b.asked, want, holders)
		}
		b.asked = nil
	}
	b.claims(1, 50, 0, 0)
	b.claims(2, 30, 0, 0)
	b.claims(3, 0, 20, 0) // has nothing in hand
	recalls(true, 1, 2)
	recalls(true) // they were asked a moment ago
	b.pass(9999 * time.Microsecond)
	recalls(true)
	b.pass(time.Microsecond)
	recalls(true, 1, 2)
	b.pass(10 * time.Millisecond)
	recalls(false) // nothing came back: the pause is twice as long
	b.pass(10 * time.Millisecond)
	recalls(true, 1, 2)
	b.claims(1, 40, 30, 0) // something came back
	b.claims(4, 0, 10, 0)
	b.pass(10 * time.Millisecond)
	recalls(true, 1, 2)
	for range 20 {
		b.pass(time.Second)
		recalls(true, 1, 2)
	}
	b.pass(999 * time.Millisecond)
	recalls(false)
	b.claims(1, 40, 40, 0)
	b.claims(2, 30, 30, 0)
	b.pass(time.Hour)
	b.claims(1, 0, 100, 0)
	recalls(false) // there are no tokens in hand
}

func TestRecallCostsLittleOfManyRecords(t *testing.T) {
	a := &account{records: make(records, 5000)}
	a.askedAt(epochAt, time.Hour)
	if a.pause != 100*time.Millisecond {
		t.Errorf("after reading 5,000 records a pause of %v", a.pause)
	}
}

// Of the window before counts what the last period still covers of it.
func TestSliding(t *testing.T) {
	b := newBench(t, sliding(100))
	b.is(b.claims(1, 0, 80, 0), 0, 80, 80, 0)
	b.pass(time.Minute)
	b.is(b.claims(1, 0, 0, 99), 20, 20, 100, 0)
	b.pass(15 * time.Second)
	b.is(b.claims(2, 0, 0, 99), 20, 20, 100, 0)
	b.pass(time.Microsecond)
	b.is(b.claims(2, 20, 20, 99), 0, 20, 100, 0) // rounded up
	b.is(b.draws(2, 3), 0, 23, 103, -1)
	b.pass(45*time.Second - 2*time.Microsecond)
	b.is(b.draws(2, 1), 0, 24, 45, -1)
	b.pass(time.Microsecond)
	b.is(b.draws(2, 1), 0, 1, 45, -1) // all of what was spent in the window before
}

// An account is there from the beginning of its window on, and for one window longer, of a fixed one a day at most.
func TestWhenAnAccountIsOver(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		fixed(100), sliding(100),
		{Unit: ratelimit.Week, Requests: 100},
		{Unit: ratelimit.CalendarMonth, Requests: 100},
		{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Week, Requests: 100},
	} {
		b := newBench(t, l)
		w := b.window(0)
		this := func(c *Claim) { c.Window = w }
		kept := l.WindowEnd(w).Sub(l.WindowEnd(w - 1))
		if l.Algorithm == ratelimit.FixedWindow {
			kept = min(kept, 24*time.Hour)
		}
		for now, over := range map[instant]bool{
			l.WindowEnd(w-1) - 1: true, l.WindowEnd(w - 1): false,
			l.WindowEnd(w).Add(kept) - 1: false, l.WindowEnd(w).Add(kept): true,
		} {
			b.now = now
			for what, g := range map[string]Grant{"claim": b.claims(1, 0, 0, 0, this), "draw": b.draws(1, 1, this)} {
				if errors.Is(g.Err, ErrOver) != over || !over && g.Err != nil {
					t.Errorf("%v: a %s of window %d at %d: %v", l, what, w, now, g.Err)
				}
			}
		}
	}
	b := newBench(t, fixed(100))
	for _, w := range []ratelimit.Window{-1, 1 << 40, 1<<63 - 1} {
		if g := b.claims(1, 0, 0, 1, func(c *Claim) { c.Window = w }); !errors.Is(g.Err, ErrOver) {
			t.Errorf("window %d: %+v", w, g)
		}
	}
	if n := b.accounts(); n != 0 {
		t.Errorf("%d accounts", n)
	}
}

// Totals are counted up to a bound, and the sum of them up to another. What is beyond is in no record either.
func TestTotalsSaturate(t *testing.T) {
	b := newBench(t, fixed(100))
	b.is(b.claims(1, 0, 1<<62, 1), 0, MostBooked, MostBooked, 0)
	b.is(b.claims(1, -1<<62, -1<<62, 0), 0, 0, 0, 0)
	k := b.account("k", b.window(0))
	most := record{holder: 3, taken: mostSum - 5, spent: mostSum - 5}
	k.account = account{sum: most.taken, spent: most.spent, records: records{most}}
	at := NameOf("", "k", b.window(0))
	b.records[at] = memoryRecord{Record{b.records[at].Version, k.encode()}, k.over}
	b.is(b.claims(2, 0, 9, 0), 0, 5, mostSum, 0)
	b.is(b.claims(2, 0, 2, 0), 0, 2, mostSum-3, 0)
}

func TestClaimsThatMeanNothing(t *testing.T) {
	b := newBench(t, fixed(100))
	for what, change := range map[string]func(*Claim){
		"no key":          func(c *Claim) { c.Key = "" },
		"no holder":       func(c *Claim) { c.Holder = 0 },
		"a far number":    func(c *Claim) { c.Seq = 1 << 53 },
		"no window":       func(c *Claim) { c.Window = 0 },
		"a draw of none":  func(c *Claim) { c.Seq, c.Want = 0, 0 },
		"a negative draw": func(c *Claim) { c.Seq, c.Want = 0, -1 },
		"a bucket's draw": func(c *Claim) { c.Seq, c.Limit.Algorithm, c.Window = 0, ratelimit.TokenBucket, 0 },
		"a vast draw":     func(c *Claim) { c.Seq, c.Want = 0, 1<<50 },
		"no period":       func(c *Claim) { c.Limit.Unit = 0 },
		"a vast limit":    func(c *Claim) { c.Limit.Requests = 1 << 50 },
	} {
		if g := b.claims(1, 0, 0, 1, change); !errors.Is(g.Err, errClaim) {
			t.Errorf("%s: %+v", what, g)
		}
	}
}

// A copy of the data is another ledger, and goes on in an epoch of its own.
func TestLoss(t *testing.T) {
	b := newBench(t, fixed(100))
	before, _, _ := b.Settle(t.Context(), nil, nil)
	b.claims(1, 0, 0, 10)
	older := b.Copy()
	b.is(b.claims(1, 10, 10, 10), 10, 20, 20, 0)
	b.Lose(older, "7")
	after, _, _ := b.Settle(t.Context(), nil, nil)
	if after.ID == before.ID || after.Ends != b.now.Add(ratelimit.YoungFor) {
		t.Errorf("%+v, and then %+v", before, after)
	}
	b.is(b.claims(1, 20, 20, 10), 10, 30, 30, 0)
	b.Evict("k", b.window(0))
	b.is(b.claims(2, 0, 0, 10), 10, 10, 10, 0)
	b.Lose(nil, "8")
	b.is(b.claims(2, 0, 0, 9), 9, 9, 9, 0)
}

// A claim of a known holder allocates nothing.
func TestClaimsAllocateNothing(t *testing.T) {
	a, nobody := account{}, func(ratelimit.Holder) {}
	c := Claim{Limit: fixed(1_000_000), Holder: 1, Need: 1, Want: 1}
	var g Grant
	if n := testing.AllocsPerRun(100, func() {
		c.Seq++
		g = a.claim(epochAt, &c, 0, nobody)
	}); n > 0 || g.Granted != 1 {
		t.Errorf("%v allocations; %+v", n, g)
	}
}

// A claim does not compute the calendar up to the end of time: for a billing month, that took a second.
func TestClaimsOfBillingMonthsAreQuick(t *testing.T) {
	c, err := zone.Calendar(31, "America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	limit := (ratelimit.Limit{Unit: ratelimit.Month, Multiplier: 1, Requests: 10}).Cut().Billed(c)
	began := time.Now()
	for range 100 {
		w := limit.WindowAt(epochAt)
		if s := spanOf(&limit, w); !s.kept(epochAt) {
			t.Fatalf("window %d is not kept: %+v", w, s)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("100 claims took %v", took)
	}
	if s := spanOf(&limit, lastMonth+1); s.kept(epochAt) {
		t.Error("a window after the end of time is kept")
	}
}
