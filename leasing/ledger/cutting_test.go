package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

func billedLimit(t testing.TB, day int, name string) ratelimit.Limit {
	t.Helper()
	c, err := zone.Calendar(day, name)
	if err != nil {
		t.Fatal(err)
	}
	return ratelimit.Limit{Unit: ratelimit.Month, Requests: 30_000_000_000}.Billed(c)
}

// Billing months begin and end in Redis when they do here: in the microsecond, over year
// ends and leap years, on days that a month does not have, in zones far ahead of UTC and
// far behind it, and where clocks are set at that midnight.
func TestRedisBillingMonths(t *testing.T) {
	m := newMovedRedis(t, redistest.Shared(t))
	memory := NewMemory(10_000, func() ledgerTime { return m.now })
	for _, c := range []struct {
		day  int
		zone string
	}{
		{1, "UTC"},
		{15, "America/New_York"},
		{31, "Pacific/Kiritimati"},
		{29, "Etc/GMT+12"},
		{1, "America/Asuncion"}, // 2023-10-01 has no midnight
		{26, "Africa/Cairo"},    // nor has 2024-04-26
		{1, "America/Havana"},   // 2026-11-01 has two
	} {
		l := billedLimit(t, c.day, c.zone)
		claim := ratelimit.Claim{Limit: l, Holder: 1, Waiting: 1, Want: 1, TTL: time.Second, Stretch: true}
		first := l.WindowAt(ledgerTime(time.Date(2023, 1, 1, 0, 0, 0, 0, time.UTC).UnixMicro()))
		for w := first; w < first+6*12; w++ {
			for _, at := range []ledgerTime{l.WindowEnd(w) - 1, l.WindowEnd(w)} {
				m.now = at
				claim.Key, claim.Seq = fmt.Sprint("month", l.Calendar, at), 1
				got := make([]ratelimit.Grant, 2)
				memory.Settle(context.Background(), []ratelimit.Claim{claim}, got[:1])
				m.Settle(context.Background(), []ratelimit.Claim{claim}, got[1:])
				want := l.WindowEnd(l.WindowAt(at)).Sub(at)
				if d := cmp.Diff(got[0], got[1]); d != "" || got[1].Window != l.WindowAt(at) || got[1].ResetAfter != want {
					t.Fatalf("%v at %v (-memory +redis):\n%s\nit resets after %v, want %v", l.Calendar, l.Calendar.Local(at), d,
						got[1].ResetAfter, want)
				}
			}
		}
	}
}

// A claim tells Redis which windows there are about the time that the node takes it
// for. However wrong that is, the claim is booked once, in the window of Redis' clock.
func TestRedisCutsByItsOwnClock(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	l := billedLimit(t, 15, "America/New_York")
	day := int64(24 * time.Hour / time.Microsecond)
	for i, off := range []int64{0, 1, -1, 40 * day, -40 * day, 100 * day, -100 * day, 4000 * day, -4000 * day} {
		r := NewRedis(client, "")
		for claimed := range 3 {
			r.cutting.ahead.Store(off)
			c := ratelimit.Claim{
				Key: fmt.Sprint("off", i), Limit: l, Holder: 1, Seq: uint64(1 + claimed), Waiting: 7, Want: 7, TTL: time.Second,
				Granted: tokens(7 * claimed), Spent: tokens(7 * claimed),
			}
			c.Window = l.WindowAt(ledgerTime(time.Now().UnixMicro()))
			if claimed == 2 { // the script is forgotten besides
				s.Do("SCRIPT", "FLUSH")
			}
			var g [1]ratelimit.Grant
			r.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
			after := ledgerTime(time.Now().UnixMicro())
			if g[0].Err != nil || g[0].Granted != tokens(7*(claimed+1)) || g[0].Window != c.Window && g[0].Window != l.WindowAt(after) {
				t.Fatalf("%d days off: %+v", off/day, g[0])
			}
			if end := l.WindowEnd(g[0].Window); g[0].At.Add(g[0].ResetAfter) != end {
				t.Errorf("%d days off: the window ends at %v, want %v", off/day, g[0].At.Add(g[0].ResetAfter), end)
			}
		}
	}
}

// Nodes whose clocks are off by up to a month bring other ends of windows, of which the
// script needs the same: around a cut, and where an account is a month ahead, because the
// ledger's clock went back.
func TestNodesClocksCutNothing(t *testing.T) {
	m := newMovedRedis(t, redistest.Shared(t))
	memory := NewMemory(10_000, func() ledgerTime { return m.now })
	l, calls, off := billedLimit(t, 30, "Africa/Cairo"), 0, ledgerTime(0)
	m.at = func() ledgerTime { // the time that is sent with a claim, and then what it is cut about
		if calls++; calls%2 == 0 {
			return m.now + off
		}
		return m.now
	}
	day := ledgerTime(24 * time.Hour / time.Microsecond)
	cut := l.WindowEnd(l.WindowAt(ledgertest.Epoch)) // the 30th of January: 28 February follows
	for i, by := range []ledgerTime{0, 300_000, -300_000, 27 * day, -27 * day} {
		off = by
		for j, before := range []ledgerTime{1, 0, 150_000, -150_000, 1000 * day} {
			for k, ahead := range []ledgerTime{0, 29 * day} {
				c := ratelimit.Claim{Key: fmt.Sprint(i, j, k), Limit: l, Holder: 1, Waiting: 7, Want: 7, TTL: time.Hour, Stretch: true}
				for _, at := range []ledgerTime{cut - before + ahead, cut - before} {
					var got [2]ratelimit.Grant
					m.now = at
					c.Seq++
					memory.Settle(context.Background(), []ratelimit.Claim{c}, got[:1])
					calls = 0
					m.Settle(context.Background(), []ratelimit.Claim{c}, got[1:])
					if d := cmp.Diff(got[0], got[1]); d != "" || got[0].Err != nil {
						t.Fatalf("%v off, %v before the cut, %v ahead: (-memory +redis)\n%s", off, before, ahead, d)
					}
				}
			}
		}
	}
}

// Only rules with billing months send more: what others send is 17 numbers, as before.
func TestOnlyBilledClaimsAreLonger(t *testing.T) {
	r := NewRedis(nil, "")
	month := ratelimit.Limit{Unit: ratelimit.Month, Requests: 10}
	for l, want := range map[ratelimit.Limit]int{month: 8 * 17, month.Cut(): 8 * 17, billedLimit(t, 15, "UTC"): 8 * (17 + 8)} {
		if packed := r.arguments(&ratelimit.Claim{Limit: l, Seq: 1}, false)[1].([]byte); len(packed) != want {
			t.Errorf("%v: %d bytes, want %d", l, len(packed), want)
		}
	}
}

// A store that answers every claim by another time is asked twice more, and then not
// believed.
func TestRedisThatNeverKnowsItsTime(t *testing.T) {
	s := redistest.Start(t)
	m := newMovedRedis(t, s)
	l := billedLimit(t, 1, "UTC")
	asked := 0
	m.at = func() ledgerTime { // what the claim is cut about is never the time that is sent with it
		asked++
		return ledgertest.Epoch + ledgerTime(asked%2)*ledgerTime(1000*24*time.Hour/time.Microsecond)
	}
	var g [1]ratelimit.Grant
	m.Settle(context.Background(), []ratelimit.Claim{{Key: "k", Limit: l, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second}}, g[:])
	if g[0].Err == nil || g[0].Granted != 0 || s.Do("EXISTS", "t:k").(int64) != 0 {
		t.Errorf("%+v", g[0])
	}
	if asked != 6 { // the time, and what it is cut about, three times
		t.Errorf("its clock was asked %d times", asked)
	}
}

// Two nodes whose time zone data put a cut an hour apart: whatever order they claim in,
// each window has its limit once, on every ledger, and none is gone back to.
func TestNodesWhoseZonesDiffer(t *testing.T) {
	s := redistest.Start(t)
	early, late := billedLimit(t, 1, "Etc/GMT-1"), billedLimit(t, 1, "UTC")
	for _, ledger := range []string{"memory", "redis"} {
		for seed := range uint64(20) {
			t.Run(fmt.Sprint(ledger, "/seed ", seed), func(t *testing.T) {
				s.Do("FLUSHALL")
				rnd := rand.New(rand.NewPCG(seed, 22))
				m := newMovedRedis(t, s)
				l := ratelimit.Ledger(m)
				if ledger == "memory" {
					l = NewMemory(10, func() ledgerTime { return m.now })
				}
				m.now = late.WindowEnd(late.WindowAt(ledgertest.Epoch)).Add(-2 * time.Hour)
				admitted, latest := map[window]tokens{}, window(0)
				holders := make([]ratelimit.Claim, 2)
				for range 60 {
					m.now = m.now.Add(time.Duration(rnd.Int64N(int64(6 * time.Minute))))
					h := rnd.IntN(2)
					c := &holders[h]
					c.Key, c.Holder, c.Limit, c.TTL = "k", ratelimit.Holder(h+1), []ratelimit.Limit{early, late}[h], time.Hour
					c.Limit.Requests = 100
					c.Seq++
					c.Waiting = 1 + tokens(rnd.IntN(9))
					c.Want = c.Waiting
					var g [1]ratelimit.Grant
					l.Settle(context.Background(), []ratelimit.Claim{*c}, g[:])
					if g[0].Err != nil {
						t.Fatal(g[0].Err)
					}
					if !g[0].Carried {
						c.Granted, c.Spent, c.Returned = 0, 0, 0
					}
					got := g[0].Granted - c.Granted
					c.Granted, c.Spent, c.Fence, c.Window = g[0].Granted, c.Spent+got, g[0].Fence, g[0].Window
					admitted[c.Window] += got
					if c.Window < latest {
						t.Fatalf("window %d after window %d", c.Window, latest)
					}
					latest = c.Window
				}
				for w, n := range admitted {
					if n > 100 {
						t.Errorf("window %d: %d of 100 were granted", w, n)
					}
				}
				if len(admitted) != 2 {
					t.Errorf("windows %v", admitted)
				}
			})
		}
	}
}
