package ledger

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// The script settles most claims on a quick way, and leaves to its long way what that does not know. Here are
// the claims that must not take the quick one, each as the ledger in memory settles it, which has one way.

// ahead claims of the window behind the current one.
func (h *tenant) ahead(change func(*ratelimit.Claim)) ratelimit.Grant {
	h.Helper()
	return h.says(func(c *ratelimit.Claim) {
		c.Ahead, c.Window = true, c.Limit.WindowAt(h.now)+1
		change(c)
	})
}

// A holder that the account does not know, for its record was lost, tells what it has of the next window: that is
// booked, whichever of its totals are not 0. A ledger that has lost what it granted learns, and grants a twentieth.
func TestTotalsOfTheNextWindowAreBooked(t *testing.T) {
	for _, said := range []struct{ granted, spent, returned, more, left tokens }{
		{5, 2, 0, 5, 89}, {5, 0, 5, 5, 94}, {5, 0, 0, 5, 89}, {0, 3, 0, 13, 86}, {9, 3, 6, 5, 91},
	} {
		w := newTwins(t)
		w.tenant(1, perMinute100).gets(10, 10, 10)
		b := w.tenant(2, perMinute100)
		g := b.ahead(func(c *ratelimit.Claim) {
			c.Granted, c.Spent, c.Returned, c.Fence, c.Waiting = said.granted, said.spent, said.returned, 7, 10
		})
		w.expect(fmt.Sprint(said.granted+said.more), g.Granted)
		w.passes(45 * time.Second) // it is that window now
		g = w.tenant(3, perMinute100).gets(1, 1, 1)
		w.expect(fmt.Sprint(said.left), g.Available)
	}
}

// Sliding windows do not begin anew, so that nothing is claimed ahead of them.
func TestSlidingWindowIsNotClaimedAhead(t *testing.T) {
	w := newTwins(t)
	w.tenant(1, sliding100).gets(10, 10, 10)
	c := w.tenant(2, sliding100).c
	c.Seq, c.Ahead, c.Window, c.Waiting, c.Want = 1, true, sliding100.WindowAt(w.now)+1, 5, 5
	w.stale(c)
	w.expect("90", w.tenant(3, sliding100).gets(0, 0, 0).Available)
}

// A claim ahead that is sent a second time, under a name whose record is of the window before, is no new one.
func TestRepeatedClaimAheadUnderAnOldName(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Tally, b.c.Tally = true, true
	a.gets(10, 10, 10)
	w.passes(time.Minute)
	b.gets(10, 10, 10)
	a.c.Seq-- // as the one before
	a.ahead(func(c *ratelimit.Claim) { c.Fence, c.Granted, c.Waiting = 0, 0, 20 })
	w.passes(time.Minute)
	b.gets(1, 1, 1)
}

// Of the next window, too, a claim for which somebody waits has others asked to give back, and no lease is larger
// than its share of what is left.
func TestNextWindowRunsShort(t *testing.T) {
	w := newTwins(t)
	w.tenant(1, perMinute100).gets(10, 10, 10)
	a, b, c := w.tenant(2, perMinute100), w.tenant(3, perMinute100), w.tenant(4, perMinute100)
	w.expect("50", a.ahead(func(c *ratelimit.Claim) { c.Waiting, c.Want = 50, 100 }).Granted)
	w.expect("30", b.ahead(func(c *ratelimit.Claim) { c.Waiting = 30 }).Granted)
	g := c.ahead(func(c *ratelimit.Claim) { c.Waiting, c.Stretch = 1, true })
	w.expect("3 true 80", g.Granted, g.Plenty, g.Outstanding)
	g = w.tenant(5, perMinute100).ahead(func(c *ratelimit.Claim) { c.Waiting, c.Recall = 18, true })
	w.expect("17 3 true", g.Granted, g.Recalled, g.Recalling)
}

// What others hold of the next window is told also after a claim that took the long way.
func TestNextWindowsLeasesStayKnown(t *testing.T) {
	w := newTwins(t)
	w.tenant(1, perMinute100).gets(10, 10, 10)
	w.expect("40", w.tenant(2, perMinute100).ahead(func(c *ratelimit.Claim) { c.Waiting = 40 }).Granted)
	w.tenant(3, perMinute100).says(func(c *ratelimit.Claim) { c.Direct, c.Waiting = true, 1 })
	g := w.tenant(4, perMinute100).ahead(func(c *ratelimit.Claim) { c.Waiting = 1 })
	w.expect("1 40 59", g.Granted, g.Outstanding, g.Available)
}

// And what has expired of it is told as stranded.
func TestNextWindowsLeasesExpire(t *testing.T) {
	w := newTwins(t) // 15 s into a minute
	w.tenant(1, perMinute100).gets(10, 10, 10)
	w.expect("40", w.tenant(2, perMinute100).ahead(func(c *ratelimit.Claim) { c.Waiting = 40 }).Granted)
	w.passes(11 * time.Second)
	w.tenant(3, perMinute100).says(func(c *ratelimit.Claim) { c.Direct, c.Waiting = true, 1 })
	g := w.tenant(4, perMinute100).ahead(func(c *ratelimit.Claim) { c.Waiting = 1 })
	w.expect("1 40 40 59", g.Granted, g.Outstanding, g.Stranded, g.Available)
}

// A bucket whose tokens are no even parts of a second says to the microsecond when there are some, on both ways.
func TestBucketOfUnevenTokens(t *testing.T) {
	for _, requests := range []tokens{7, 13, 1001} {
		w := newTwins(t)
		limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: requests, Burst: 9}
		a := w.tenant(1, limit)
		for i := range 60 {
			w.passes(time.Duration(1_234_567+i*98_765) * time.Microsecond)
			g := a.hears(a.says(func(c *ratelimit.Claim) {
				c.Waiting = tokens(1 + i%9)
				c.Direct = i%2 == 0 // the long way, and for all or nothing
			}))
			a.c.Spent = g.Granted
		}
	}
}

// However slowly a bucket fills, its account is not kept for ever.
func TestSlowBucketIsForgotten(t *testing.T) {
	for _, direct := range []bool{false, true} {
		w := newTwins(t)
		limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 1, Burst: 2000}
		w.tenant(1, limit).says(func(c *ratelimit.Claim) { c.Waiting, c.Direct = 1000, direct })
		w.tenant(2, limit).says(func(c *ratelimit.Claim) { c.Waiting, c.Direct = 1000, direct })
		const years = 2 * 365 * 24 * time.Hour
		kept, err := w.redis.client.PTTL(context.Background(), "t:k").Result()
		if err != nil || kept > years+years/8 || kept < years-time.Minute {
			t.Errorf("direct %v: kept for %v (%v)", direct, kept, err)
		}
	}
}

// A claim that is no draw has Redis tell the time once, in the script.
func TestTimeIsToldOnce(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "t:")
	claims, grants := make([]ratelimit.Claim, 5), make([]ratelimit.Grant, 5)
	for i := range claims {
		claims[i] = ratelimit.Claim{
			Key: "k", Limit: fixedHour, Holder: ratelimit.Holder(1 + i), Seq: 1, Waiting: 1, Want: 1, TTL: 10 * time.Second,
		}
	}
	l.Settle(context.Background(), claims, grants) // and loads the script
	before := s.Commands("time")
	for i := range claims {
		c, g := &claims[i], &grants[i]
		c.Seq, c.Window, c.Fence, c.Granted = 2, g.Window, g.Fence, g.Granted
	}
	l.Settle(context.Background(), claims, grants)
	if n := s.Commands("time") - before; n != len(claims) {
		t.Errorf("%d claims had the time told %d times", len(claims), n)
	}
}

// A record whose account is gone, as after an operator's HDEL, counts for what it says.
func TestRecordWithoutItsAccount(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l, _ := hourOf(client, "t:")
	c := ratelimit.Claim{Limit: fixedHour, Holder: 2, Seq: 1, Waiting: 600, Want: 600}
	g := holderSays(t, l, c)
	if g.Err != nil || g.Granted != 600 {
		t.Fatalf("%+v", g)
	}
	s.Do("HDEL", "t:k", "a")
	c.Seq, c.Window, c.Fence, c.Granted, c.Spent = 2, g.Window, g.Fence, g.Granted, g.Granted
	if g = holderSays(t, l, c); g.Err != nil || g.Granted > 1000 {
		t.Errorf("a holder that had spent 600 of 1000 was granted %d in all: %+v", g.Granted, g)
	}
}

// A till that is shut does not grow either where what a draw failed for is settled on the long way.
func TestShutTillIsEmptiedTheLongWay(t *testing.T) {
	s := redistest.Shared(t)
	l, w := shutTill(t, s)
	now := l.at().Add(11 * time.Second) // that lease has expired: its end has to be found
	l.at = func() ledgerTime { return now }
	g := holderSays(t, l, ratelimit.Claim{Limit: fixedHour, Holder: 2, Seq: 2, Waiting: 1, Want: 1, Stretch: true, Recall: true, Draw: w})
	if g.Err != nil || g.Granted != 0 {
		t.Fatalf("%+v", g)
	}
	if n := s.Do("STRLEN", TillName("t:k", w)).(int64); n != 0 {
		t.Errorf("the till has %d bytes", n)
	}
}

// With the time of Redis itself, an account is kept until its window ends, or the next one of which something was
// claimed, and not for much longer; whichever way the claim was settled.
func TestAccountIsKeptForItsWindow(t *testing.T) {
	client := redistest.Shared(t).Client()
	defer client.Close()
	l := NewRedis(client, "t:")
	for key, change := range map[string]func(*ratelimit.Claim, ratelimit.Window){
		"quick": func(*ratelimit.Claim, ratelimit.Window) {},
		"long":  func(c *ratelimit.Claim, _ ratelimit.Window) { c.Audit = "rule" },
		"ahead": func(c *ratelimit.Claim, now ratelimit.Window) { c.Ahead, c.Window = true, now+1 },
	} {
		c := ratelimit.Claim{Key: key, Limit: fixedHour, Holder: 1, Seq: 1, Waiting: 5, Want: 5, TTL: 10 * time.Second}
		settle := func() ledgerTime {
			var g [1]ratelimit.Grant
			l.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
			if g[0].Err != nil || g[0].Granted != 5 {
				t.Fatalf("%s: %+v", key, g[0])
			}
			return g[0].At
		}
		first := fixedHour.WindowAt(settle())
		c.Holder = 3
		change(&c, first)
		at := settle()
		if fixedHour.WindowAt(at) != first {
			continue // the hour has just turned: neither claim is what it was to be
		}
		ends := fixedHour.WindowEnd(max(first, c.Window))
		kept, err := client.PTTL(context.Background(), "t:"+key).Result()
		// Redis is asked some time after the claim, and its clock is this machine's.
		rest := ends.Sub(ledgerTime(time.Now().UnixMicro()))
		if err != nil || kept < rest || kept > ends.Sub(at)+2*time.Second {
			t.Errorf("%s: kept for %v (%v), and the window's end is in %v", key, kept, err, rest)
		}
	}
}

// An account's record says of a claim what the node that sent it says.
func TestRecordSaysWhatTheNodeDoes(t *testing.T) {
	s := redistest.Shared(t)
	client := s.Client()
	defer client.Close()
	l, _ := hourOf(client, "t:")
	for key, limit := range map[string]ratelimit.Limit{"window": fixedHour, "bucket": bucket100} {
		c := ratelimit.Claim{
			Key: key, Limit: limit, Holder: 2, Seq: 1, Waiting: 20, Want: 20, TTL: 10 * time.Second, Audit: "edge.user", AuditBound: 3,
		}
		for range 2 {
			var g [1]ratelimit.Grant
			l.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
			if g[0].Err != nil {
				t.Fatal(g[0].Err)
			}
			entries, err := client.XRevRange(context.Background(), AuditStream("t:"+key), "+", "-").Result()
			if err != nil || len(entries) == 0 {
				t.Fatal(entries, err)
			}
			got, err := ReadAuditEvent(key, entries[0].Values)
			if err != nil {
				t.Fatal(err)
			}
			want := NewAuditEvent(&c, &g[0])
			if c.Seq == 1 { // of a first claim its node says what it was answered about
				want.Claimed = 0
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("%s, claim %d: the node (-) and the record (+):\n%s", key, c.Seq, d)
			}
			c.Seq, c.Window, c.Fence, c.Granted, c.Spent = c.Seq+1, g[0].Window, g[0].Fence, g[0].Granted, 7
		}
	}
}
