package ledger

import (
	"context"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What can go wrong around tills: clocks that are set, names that are used twice, what others have written.

// After the ledger's clock has gone back, the fences of draws would be below those that are renamed, and what
// was drawn would count in no window: nobody draws until it shows later times than before.
func TestNobodyDrawsBelowRenamedFences(t *testing.T) {
	w := newTwins(t)
	b := w.drawer(2)
	b.claims(1)
	w.passes(-time.Hour)
	b.claims(0) // the account moves to the new time
	got := tokens(1)
	for h := range ratelimit.Holder(6) {
		a := w.drawer(10 + 2*h)
		g := a.asks(30, nil)
		w.expect("false", g.Drawn)
		a.c.Spent = g.Granted
		got += g.Granted
		a.claims(0)
	}
	w.expect("100", got)
	w.passes(time.Hour + time.Minute)
	g := w.drawer(30).asks(1, nil)
	w.expect("true", g.Drawn)
}

// What was drawn in the account's window and the next stays charged when the ledger's clock goes back by more
// than a window, also to holders with a fence from after the account was last settled.
func TestDrawsBeforeTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(1), w.drawer(2)
	b.claims(5)
	w.passes(time.Second)
	for range 4 {
		a.asks(20, nil)
	}
	a.c.Spent = 80
	w.passes(-time.Hour)
	g := b.claims(100)
	w.expect("20 0", g.Granted, g.Available) // 5 of them from before
	g = a.claims(0)
	w.expect("true 80 0", g.Carried, g.Granted, g.Available)
}

// A node that has dropped a key, and draws ahead under the name that its lease of this window has, has
// forgotten this one: what it spent stays charged.
func TestDrawAheadUnderTheNameOfThisWindow(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(3), w.drawer(4)
	a.claims(50)
	a.c.Spent = 50
	a.claims(0)
	again := w.drawer(3)
	again.c.Seq = a.c.Seq
	g := again.asks(5, nextWindow)
	w.expect("true 5", g.Drawn, g.Granted)
	g = w.drawer(6).asks(5, func(c *ratelimit.Claim) { nextWindow(c); c.Draw, c.Stretch = 0, false })
	w.expect("false 5", g.Drawn, g.Granted)
	g = b.claims(100)
	w.expect("50 0", g.Granted, g.Available)
	// Both leases of the next window are charged there.
	w.passes(45 * time.Second)
	g = b.claims(0)
	w.expect("90", g.Available)
}

// A draw ahead whose answer was lost is booked when its window is there. By then its holder may have claimed of
// the next window under the same name, which stays.
func TestLostDrawAheadUnderTheNameOfTheNextWindow(t *testing.T) {
	w := newTwins(t)
	lost := w.drawer(3)
	g := lost.asks(5, nextWindow)
	w.expect("true", g.Drawn)
	w.passes(time.Minute)
	a := w.drawer(3) // of this window it has a lease under its other name
	a.c.Seq = lost.c.Seq
	g = a.asks(40, func(c *ratelimit.Claim) { nextWindow(c); c.Draw, c.Stretch = 0, false })
	w.expect("false 40", g.Drawn, g.Granted)
	x := w.drawer(6)
	g = x.claims(1)
	w.expect("1 94", g.Granted, g.Available) // the lost five are charged
	w.passes(time.Minute)
	g = x.claims(100)
	w.expect("60", g.Granted)
}

// A lease of the next window, of which the node's clock says that it has begun, when the ledger's clock has gone
// back before that: who gives it back has spent of it, and that stays charged there.
func TestNextWindowsLeaseIsGivenBackAfterTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	w.drawer(9).claims(1)
	ahead := func(c *ratelimit.Claim) { nextWindow(c); c.Draw, c.Stretch = 0, false }
	a, b := w.drawer(2), w.drawer(4)
	a.asks(30, ahead)
	w.passes(-90 * time.Second)
	a.c.Spent, a.c.Returned, a.c.TTL, a.c.Last = 20, 10, -1, true // -1, for 0 is made ten seconds
	a.c.Seq++
	a.c.Stretch = false
	g := w.claim(a.c)
	w.expect("30 80", g.Granted, g.Available)
	g = b.asks(100, ahead)
	w.expect("80", g.Granted)
}

// nextWindow makes a claim one for the next window, which may be a draw.
func nextWindow(c *ratelimit.Claim) { c.Ahead, c.Draw, c.Window = true, c.Draw+1, c.Draw+1 }

// A claim for the next window has not booked what was drawn of this one, and does not shut its till: not with a
// lower limit, of which little is left, nor after a last word, or a claim that comes late, has booked some.
func TestClaimAheadDoesNotShutThisWindow(t *testing.T) {
	w := newTwins(t)
	a := w.drawer(2)
	got := w.drawer(4).claims(45).Granted
	for range 5 {
		a.c.Spent = a.asks(10, nil).Granted
	}
	got += a.c.Granted
	w.drawer(3).asks(1, nextWindow) // its till is there: the script takes the long way
	w.drawer(7).asks(1, func(c *ratelimit.Claim) { nextWindow(c); c.Draw, c.Stretch, c.Limit.Requests = 0, false, 50 })
	got += w.drawer(10).claims(100).Granted
	w.expect("100", got)

	for _, how := range []string{"late", "last word"} {
		w := newTwins(t)
		before := w.drawer(50)
		before.claims(5)
		w.passes(45 * time.Second)
		w.drawer(60).claims(0)
		a := w.drawer(2)
		draw := func() {
			g := a.asks(10, nil)
			w.expect("true", g.Drawn)
			a.c.Spent = g.Granted
		}
		for range 9 {
			draw()
		}
		if how == "late" {
			c := []ratelimit.Claim{{Key: "k", TTL: time.Second, Limit: perMinute100, Holder: 60, Seq: 1, Waiting: 1}}
			for _, l := range []ratelimit.Ledger{w.memory, w.redis} {
				l.Settle(context.Background(), c, make([]ratelimit.Grant, 1))
			}
		} else {
			last := before.c
			last.Seq, last.Spent, last.Final, last.Tally = 9, 5, true, true
			w.claim(last)
		}
		draw()
		w.drawer(3).asks(1, nextWindow)
		w.drawer(7).asks(1, func(c *ratelimit.Claim) { nextWindow(c); c.Draw, c.Stretch = 0, false })
		if g := w.drawer(10).claims(100); g.Granted != 0 {
			t.Errorf("%s: 100 were drawn, and %d granted besides", how, g.Granted)
		}
	}
}

// Where nodes have different limits, whose units are not the same share of each, they draw together no more than
// the larger one.
func TestUnitsOfDifferentLimits(t *testing.T) {
	for _, x := range []struct{ larger, lower, charged tokens }{{40, 39, 19}, {100, 79, 19}, {119, 100, 60}, {59, 40, 0}, {79, 60, 33}} {
		for _, split := range []int{0, 4, 10, 16} {
			w := newTwins(t)
			total := w.drawer(99).claims(x.charged).Granted
			draws := func(d *drawer, limit tokens) {
				was := d.c.Granted
				g := d.asks(1, func(c *ratelimit.Claim) { c.Limit.Requests = limit })
				d.c.Spent, total = g.Granted, total+g.Granted-was
			}
			a, b := w.drawer(2), w.drawer(4)
			for range split {
				draws(a, x.larger)
			}
			for range 20 {
				draws(b, x.lower)
			}
			if total > x.larger {
				t.Errorf("limits %d and %d, %d charged, %d draws of the larger: %d in all", x.larger, x.lower, x.charged, split, total)
			}
		}
	}
}

// A draw that is executed behind its holder's next claims was given up: those say what the holder has.
func TestDrawBehindItsHoldersClaims(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(2), w.drawer(4)
	late := a.c
	late.Seq, late.Waiting, late.Want, late.Draw = 2, 1, 1, late.Limit.WindowAt(w.now)
	a.c.Seq = 3
	for _, n := range []tokens{40, 20, 0} {
		a.claims(n)
		a.c.Spent = a.c.Granted
	}
	w.claim(late) // its answer goes to nobody
	b.claims(1)
	g := a.claims(0)
	w.expect("false false 60", g.Missing, g.Relearning, g.Granted)
	g = b.claims(30)
	w.expect("31 9", g.Granted, g.Available)

	// The same of a holder that knows what it has: it was booked once, by a claim that said so.
	w = newTwins(t)
	a, b = w.drawer(2), w.drawer(4)
	a.claims(5)
	a.c.Spent = 5
	late = a.c
	late.Seq, late.Waiting, late.Want, late.Draw = a.c.Seq+1, 80, 80, late.Limit.WindowAt(w.now)
	a.c.Seq += 2
	a.claims(0)
	w.claim(late)
	g = b.claims(60)
	w.expect("60 35", g.Granted, g.Available)
}

// holderSays has a Redis ledger settle one claim of key k.
func holderSays(t *testing.T, l *Redis, c ratelimit.Claim) ratelimit.Grant {
	t.Helper()
	c.Key, c.TTL = "k", 10*time.Second
	var g [1]ratelimit.Grant
	l.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
	return g[0]
}

var fixedHour = ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}

// hourOf is a Redis ledger whose time stands still, and the window that it is.
func hourOf(client redis.UniversalClient, prefix string) (*Redis, ratelimit.Window) {
	l := NewRedis(client, prefix)
	now := ledgerTime(1_700_000_000_000_000)
	l.at = func() ledgerTime { return now }
	return l, fixedHour.WindowAt(now)
}

// A user that may use keys with the ledger's prefix only can claim and draw; and in a Cluster any prefix will do,
// also one that puts all accounts in one slot.
func TestTillsLieUnderThePrefix(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	s.Do("ACL", "SETUSER", "default", "resetkeys", "~t:*")
	l, w := hourOf(client, "t:")
	for seq, draw := range []ratelimit.Window{0, w} {
		g := holderSays(t, l, ratelimit.Claim{
			Limit: fixedHour, Holder: ratelimit.Holder(1 + seq), Seq: uint64(2 + 2*seq), Waiting: 1, Want: 1, Stretch: true, Draw: draw,
		})
		if g.Err != nil || g.Drawn != (draw != 0) {
			t.Errorf("drawing of %d: %+v", draw, g)
		}
	}
	var addrs []string
	for _, node := range redistest.Cluster(t, 3) {
		addrs = append(addrs, node.Addr)
	}
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer cluster.Close()
	for _, prefix := range []string{"t:", "{rl}:"} {
		l, _ := hourOf(cluster, prefix)
		if g := holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 1, Seq: 2, Waiting: 1, Want: 1, Stretch: true}); g.Err != nil {
			t.Errorf("prefix %s: %v", prefix, g.Err)
		}
	}
}

// What is in a till's place and is none costs nobody anything for long: a claim that finds it has it deleted.
func TestTillThatIsNone(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l, w := hourOf(client, "t:")
	till := TillName("t:k", w)
	for what, text := range map[string]string{
		"10 bytes":           "0123456789",
		"a byte more":        drawnEntry("h1", 50, 4) + "x",
		"no name":            drawnEntry("", 50, 4),
		"not a number":       drawnEntry("h1", math.NaN(), 4),
		"without end":        drawnEntry("h1", math.Inf(1), 4),
		"less than nothing":  drawnEntry("h1", -5000, 4),
		"a number too high":  drawnEntry("h2", 50, 1<<60),
		"no sequence":        drawnEntry("h2", 50, math.NaN()),
		"another name":       drawnEntry("a", 50, 4),
		"no holder's name":   drawnEntry("h!%", 50, 4),
		"half a token":       drawnEntry("h1", 0.5, 4),
		"a token and a half": drawnEntry("h1", 500.5, 4),
		"between numbers":    drawnEntry("h1", 500, 4.5),
		"five names at once": strings.Repeat(drawnEntry("h1 h2", 50, 4), 5),
		"a list":             "",
	} {
		s.Do("FLUSHALL")
		if text == "" {
			s.Do("RPUSH", till, "x")
		} else {
			s.Do("SET", till, text)
		}
		c := ratelimit.Claim{Limit: fixedHour, Holder: 2, Waiting: 1, Want: 1, Stretch: true, Recall: true, Draw: w}
		for i := range 3 {
			c.Seq = uint64(2 + 2*i)
			g := holderSays(t, l, c)
			if g.Err != nil || g.Granted == 0 {
				t.Errorf("%s: claim %d: %+v", what, i, g)
			}
			if c.Granted, c.Fence, c.Window = g.Granted, g.Fence, g.Window; !g.Carried {
				c.Spent = 0
			}
		}
		// All of the limit that the two holders, and what is an entry, have not got is there.
		g := holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 7, Seq: 1, Waiting: 700, Want: 700})
		if g.Err != nil || g.Granted != 700 {
			t.Errorf("%s: another holder, of %d: %+v", what, fixedHour.Requests, g)
		}
	}
}

// Holders that draw and end leave no more records than others.
func TestHoldersThatDrewAreFolded(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "t:")
	now := ledgerTime(1_700_000_000_000_000)
	l.at = func() ledgerTime { return now }
	limit := ratelimit.Limit{Unit: ratelimit.Day, Requests: 1_000_000}
	for h := range ratelimit.Holder(400) {
		now = now.Add(15 * time.Second)
		c := ratelimit.Claim{Limit: limit, Holder: h + 10, Seq: 2, Waiting: 1, Want: 1, Stretch: true, Draw: limit.WindowAt(now)}
		g := holderSays(t, l, c)
		last := ratelimit.Claim{
			Limit: limit, Holder: c.Holder, Seq: 4, Granted: g.Granted, Spent: 1, Returned: g.Granted - 1, Fence: g.Fence, Window: g.Window,
			Last: true,
		}
		if g = holderSays(t, l, last); g.Err != nil {
			t.Fatal(g.Err)
		}
	}
	if n := s.Do("HLEN", "t:k").(int64); n > 10 {
		t.Errorf("%d fields are left of 400 holders that have ended", n)
	}
	if g := holderSays(t, l, ratelimit.Claim{Limit: limit, Holder: 1, Seq: 2}); g.Available != limit.Requests-400 {
		t.Errorf("%d are left of %d, of which 400 are spent", g.Available, limit.Requests)
	}
}

// shutTill is a ledger in which one holder has all of an hour's limit, and that hour.
func shutTill(t *testing.T, s *redistest.Server) (*Redis, ratelimit.Window) {
	t.Helper()
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	l, w := hourOf(client, "t:")
	holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 4, Seq: 1, Waiting: 1000, Want: 1000})
	return l, w
}

// What is appended to a till that is shut nobody reads. It does not pile up, whoever goes on drawing.
func TestShutTillDoesNotGrow(t *testing.T) {
	s := redistest.Shared(t)
	l, w := shutTill(t, s)
	for i := range 50 { // a node that has dropped the key, and is asked for it again
		g := holderSays(t, l, ratelimit.Claim{
			Limit: fixedHour, Holder: 2, Seq: uint64(2 + 2*i), Waiting: 1000, Want: 1000, Stretch: true, Recall: i%2 == 0, Draw: w,
		})
		if g.Err != nil || g.Granted != 0 {
			t.Fatalf("%+v", g)
		}
	}
	if n := s.Do("STRLEN", TillName("t:k", w)).(int64); n > 20*entryBytes {
		t.Errorf("the till has %d bytes", n)
	}
}

// Whatever a Redis says that an account is, a draw of it ends nothing: more numbers than there are fields, fewer than
// are needed, and what is no array at all.
func TestAccountThatIsNoneIsNotDrawnFrom(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l, w := hourOf(client, "t:")
	for what, field := range map[string]string{
		"many numbers":    "\xdc\x00\xff" + strings.Repeat("\x01", 255),
		"numbers cut off": "\xdc\x00\x1e\x01\x01",
		"without sums":    "\xdc\x00\x14" + strings.Repeat("\x00", 20),
		"no array":        "\xa3abc",
		"one byte":        "\xdc",
	} {
		if err := client.HSet(t.Context(), "t:k", "a", field).Err(); err != nil {
			t.Fatal(err)
		}
		g := holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 4, Seq: 2, Waiting: 1, Want: 1, Stretch: true, Draw: w})
		if g.Drawn {
			t.Errorf("%s: %+v", what, g)
		}
		s.Do("FLUSHALL")
	}
}

// What a till holds can be read back: who has drawn how much, whether as if for the first time, and nothing that is no
// entry.
func TestTillIsReadBack(t *testing.T) {
	c := ratelimit.Claim{Holder: 77, Seq: 4, Draw: 9, Window: 9, Fence: 3, Granted: 5}
	fresh := ratelimit.Claim{Holder: 78, Seq: 6, Draw: 9}
	got, ok := readTill(entries(&c, 2, 5) + strings.Repeat("x", entryBytes) + entries(&fresh, 1, 5))
	want := []drawing{{holder: 77, n: 10, seq: 4}, {holder: 78, n: 5, seq: 6, fresh: true}}
	if !ok || got.units != 3 || !slices.Equal(got.drawn, want) {
		t.Errorf("%v %+v, want %+v", ok, got, want)
	}
	if got, ok := readTill("what is this"); ok {
		t.Errorf("%+v", got)
	}
}

// A claim that comes too late may be the first of a window: the account turns with it, and is kept for the whole
// window by whoever claims then. So may a repeated one, and in mode approx one that is for its window or none.
func TestLateClaimTurnsTheWindow(t *testing.T) {
	for name, late := range map[string]func(c *ratelimit.Claim){
		"late":     func(c *ratelimit.Claim) { c.Seq-- },
		"repeated": func(*ratelimit.Claim) {},
		"approx":   func(c *ratelimit.Claim) { c.Seq, c.Ahead, c.Tally = c.Seq+1, true, true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwins(t)
			a := w.drawer(2)
			a.claims(10)
			w.ages(50 * time.Second)
			c := a.c
			late(&c)
			w.stales(c, name != "repeated")
			for range 2 {
				a.c.Seq += 2
				a.asks(20, func(c *ratelimit.Claim) { c.Draw, c.Stretch, c.Ahead = 0, false, false })
				a.c.Spent += 20
				w.redis.outlives(t, w.memory, w.now, &ratelimit.Claim{Key: "k", Limit: perMinute100})
				w.ages(20 * time.Second)
			}
		})
	}
}

// An account that waits for the ledger's clock, which was set back by less than a window, is kept until the window
// ends by that clock.
func TestWaitingAccountIsKept(t *testing.T) {
	w := newTwins(t)
	w.ages(40 * time.Second)
	a := w.drawer(2)
	a.claims(60)
	w.ages(-30 * time.Second)
	a.c.Spent = 60
	a.claims(20)
	w.redis.outlives(t, w.memory, w.now, &ratelimit.Claim{Key: "k", Limit: perMinute100})
}

// ages has time go by, for the account's expiry as well.
func (w *twins) ages(d time.Duration) {
	w.passes(d)
	w.redis.ages("t:k", d)
}

// stales sends a claim that neither ledger settles, or both do as before.
func (w *twins) stales(c ratelimit.Claim, late bool) {
	w.Helper()
	if late {
		w.stale(c)
	} else {
		w.claim(c)
	}
}

// The long way keeps an account for its window, and no longer.
func TestLongWayKeepsTheAccountForItsWindow(t *testing.T) {
	w := newTwins(t)
	w.tenant(1, perMinute100).says(func(c *ratelimit.Claim) { c.Direct, c.Waiting = true, 1 })
	if left := w.dead(0); left != 45*time.Second {
		t.Errorf("kept for %v", left)
	}
}
