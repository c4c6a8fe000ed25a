package ledger

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Corners of an account that histories seldom come to: each was a mutant that survived.

// drawnEntry is what a draw appends to a till, of whatever values.
func drawnEntry(name string, n, seq float64) string {
	b := fmt.Appendf(nil, "%-14s", name)
	for _, f := range []float64{n, seq} {
		for i := range 8 {
			b = append(b, byte(math.Float64bits(f)>>(8*i)))
		}
	}
	return string(b)
}

// What is no entry is left out of a till, and what is written behind it counts.
func TestTillWithAHole(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l, w := hourOf(client, "t:")
	for what, hole := range map[string]string{
		"no name":                     drawnEntry("", 50, 4),
		"half a token":                drawnEntry("h1", 0.5, 4),
		"more tokens than there are":  drawnEntry("h1", MostFence, 4),
		"between sequence numbers":    drawnEntry("h1", 50, 4.5),
		"a sequence number too high":  drawnEntry("h1", 50, MostFence),
		"a sequence number below all": drawnEntry("h1", 50, -MostFence),
	} {
		// A claim for all or nothing is not for the script's quick way.
		for _, direct := range []bool{false, true} {
			s.Do("FLUSHALL")
			s.Do("SET", TillName("t:k", w), drawnEntry("h1", 100, 4)+hole+drawnEntry("h3", 200, 6))
			g := holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 7, Seq: 1, Waiting: 701, Want: 701, Direct: direct})
			if g.Err != nil || g.Granted+g.Available != 700 || direct && g.Granted != 0 {
				t.Errorf("%s, all or nothing %v: of 1000 less 100 and 200: %+v", what, direct, g)
			}
		}
	}
}

// Of one holder's draws the last counts for what is late: a claim that was sent between two of them is.
func TestClaimBetweenTwoDraws(t *testing.T) {
	w := newTwins(t)
	a := w.drawer(1)
	a.c.Seq = 3
	a.asks(1, nil)
	between := a.c
	between.Seq = 6
	a.c.Seq = 7
	w.expect("true 15", w.drawn(a.asks(6, nil))...)
	w.drawer(2).claims(1) // it books both
	w.stale(between)
	w.expect("15", a.claims(0).Granted)
}

// An account of which something was drawn, and nothing claimed, is kept until the window of the draw ends.
func TestDrawsKeepTheirAccount(t *testing.T) {
	now := ledgertest.Epoch // 15 s into a minute
	m := NewMemory(1, func() ledgerTime { return now })
	claim := func(key string, draw ratelimit.Window) ratelimit.Grant {
		t.Helper()
		c := ratelimit.Claim{Key: key, Limit: perMinute100, Holder: 1, Seq: 4, Waiting: 50, Want: 50, Draw: draw, Stretch: true, TTL: time.Second}
		var g [1]ratelimit.Grant
		m.Settle(t.Context(), []ratelimit.Claim{c}, g[:])
		return g[0]
	}
	g := claim("k", perMinute100.WindowAt(now))
	if !g.Drawn || g.Granted != 50 {
		t.Fatalf("%+v", g)
	}
	now = now.Add(44 * time.Second)
	if g = claim("another", 0); g.Err == nil {
		t.Errorf("the account of draws made room for another, a second before its window ends: %+v", g)
	}
	now = now.Add(time.Second)
	if g = claim("another", 0); g.Err != nil {
		t.Errorf("the window of the draws is over: %+v", g)
	}
}

// Whatever a holder of a bucket says that it gave back, the bucket has no more than it holds, and what was never
// granted counts as spent.
func TestBucketIsGivenBackMoreThanItHolds(t *testing.T) {
	for _, returned := range []tokens{200, 1 << 32, ratelimit.MaxBooked} {
		w := newTwins(t)
		a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
		a.gets(10, 10, 10)
		b.gets(50, 50, 50)
		b.c.Spent = 50
		a.c.Returned = returned
		a.says(nil)
		w.expect("0", b.says(nil).Available)
		w.passes(time.Minute)
		w.expect("60", b.says(nil).Available)
	}
}

// A bucket of which nothing refills, for its rule was changed to none a minute, goes on with what it has.
func TestBucketThatIsNotFilledAnyMore(t *testing.T) {
	w := newTwins(t)
	none := bucket100
	none.Requests = 0
	w.tenant(1, bucket100).gets(10, 10, 10)
	w.passes(time.Hour)
	a := w.tenant(2, none)
	a.gets(5, 5, 5)
	w.passes(time.Hour)
	w.tenant(3, none).gets(1, 1, 1)
}

// A lease of the next window is charged there, and nothing that its holder says of the window before comes into the
// account of what was over in that.
func TestLeaseOfTheNextWindowIsNotTallied(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Tally, b.c.Tally = true, true
	b.gets(80, 80, 80)
	b.c.Spent = 80
	b.gets(0, 0, 0)
	w.passes(time.Minute)
	b.gets(1, 1, 1)
	at := perMinute100.WindowAt(w.now)
	w.expect("5", a.ahead(func(c *ratelimit.Claim) { c.Waiting = 5 }).Granted)
	g := a.says(func(c *ratelimit.Claim) { c.Window, c.Spent = at-1, 50 })
	w.expect("0", g.OverAdmitted)
}

// A claim that is late, to an account that is not there yet, books nothing. The fence that a dropped account had stays
// the least of all that are granted in its place.
func TestLateClaimToAReusedPlace(t *testing.T) {
	now := ledgerTime(1_800_000_015_000_000)
	m := NewMemory(1, func() ledgerTime { return now })
	settle := func(c ratelimit.Claim) ratelimit.Grant {
		c.Limit, c.TTL, c.Want = perMinute100, time.Second, c.Waiting
		var g [1]ratelimit.Grant
		m.Settle(t.Context(), []ratelimit.Claim{c}, g[:])
		return g[0]
	}
	ahead := ratelimit.Fence(now) + 3_600_000_000
	settle(ratelimit.Claim{Key: "before", Holder: 1, Seq: 1, Fence: ahead})
	if g := settle(ratelimit.Claim{Key: "k", Holder: 1, Seq: 1, Final: true}); !errors.Is(g.Err, ratelimit.ErrStaleClaim) {
		t.Fatalf("the last word on no window: %+v", g)
	}
	if g := settle(ratelimit.Claim{Key: "k", Holder: 1, Seq: 2, Waiting: 1}); g.Fence <= ahead {
		t.Errorf("the fence is %d, and was %d before", g.Fence, ahead)
	}
}
