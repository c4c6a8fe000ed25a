// Package ledgertest is the conformance suite of [ratelimit.Ledger]: what
// every ledger must do, wherever it keeps its accounts.
//
// Guarantee: a ledger that passes Run follows the protocol (docs/protocol.md,
// sections 4.1 to 4.12) on the cases written here. It does not prove that it does on
// others: random histories look for those (package leasing's tests).
package ledgertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Harness is a ledger whose clock the suite moves.
type Harness struct {
	Ledger  ratelimit.Ledger
	Advance func(time.Duration)
	// Forget loses all of the ledger's data, as FLUSHALL would. nil skips the
	// cases that need it.
	Forget func()
}

// Epoch is the ledger's time at which every case starts: 15 s into a minute,
// 0 s into that quarter.
const Epoch ratelimit.LedgerTime = 1_800_000_015_000_000

// Run runs the suite. start makes a new, empty ledger whose clock stands at
// Epoch.
func Run(t *testing.T, start func(t *testing.T) Harness) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			h := start(t)
			if c.forgets && h.Forget == nil {
				t.Fatal("this ledger's harness cannot forget")
			}
			c.run(&script{T: t, Harness: h, key: "k"})
		})
	}
}

// script is one case against one key.
type script struct {
	*testing.T
	Harness
	key string
}

// settle sends one claim and returns its answer.
func (s *script) settle(c ratelimit.Claim) ratelimit.Grant {
	s.Helper()
	if c.Key == "" {
		c.Key = s.key
	}
	if c.TTL == 0 {
		c.TTL = 10 * time.Second
	}
	c.Want = max(c.Want, c.Waiting)
	grants := make([]ratelimit.Grant, 1)
	s.Ledger.Settle(context.Background(), []ratelimit.Claim{c}, grants)
	return grants[0]
}

// expect settles a claim and checks the fields named in want; those that are
// zero there are not looked at unless exact names them.
func (s *script) granted(c ratelimit.Claim, want ratelimit.Tokens) ratelimit.Grant {
	s.Helper()
	g := s.settle(c)
	if g.Err != nil {
		s.Fatalf("claim %+v: %v", c, g.Err)
	}
	if got := g.Granted - c.Granted; got != want {
		s.Fatalf("claim %+v: granted %d more, want %d; the answer: %+v", c, got, want, g)
	}
	return g
}

func (s *script) equal(what string, got, want any) {
	s.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateErrors()); d != "" {
		s.Fatalf("%s (-want +got):\n%s", what, d)
	}
}

func perMinute(n ratelimit.Tokens) ratelimit.Limit {
	return ratelimit.Limit{Unit: ratelimit.Minute, Requests: n}
}

var sliding20 = ratelimit.Limit{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Minute, Requests: 20}

// onePerSecond is a bucket that refills by a token a second.
func onePerSecond(burst ratelimit.Tokens) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 60, Burst: burst}
}

var cases = []struct {
	name    string
	forgets bool
	run     func(*script)
}{
	{"a grant tapers, and the last tokens go one by one", false, func(s *script) {
		c := ratelimit.Claim{Limit: perMinute(20), Holder: 1, Waiting: 1, Want: 100}
		var sizes []ratelimit.Tokens
		for {
			c.Seq++
			g := s.settle(c)
			if g.Granted == c.Granted {
				break
			}
			sizes = append(sizes, g.Granted-c.Granted)
			c.Granted, c.Spent, c.Window, c.Fence = g.Granted, g.Granted, g.Window, g.Fence
		}
		s.equal("grants", sizes, []ratelimit.Tokens{10, 5, 2, 1, 1, 1})
	}},
	{"what waits is granted whole when it is there", false, func(s *script) {
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 18, Want: 20}, 18)
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1, Waiting: 5}, 2)
	}},
	{"the answer says what is left, what is out, and until when", false, func(s *script) {
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 4, Want: 4}, 4)
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1, Waiting: 1}, 1)
		s.equal("available", g.Available, ratelimit.Tokens(15))
		s.equal("outstanding elsewhere", g.Outstanding, ratelimit.Tokens(4))
		s.equal("holders", g.Holders, 2)
		s.equal("reset", g.ResetAfter, 45*time.Second)
		s.equal("ttl", g.TTL, 10*time.Second)
	}},
	{"the same claim twice is the claim once, and a lower seq is ignored", false, func(s *script) {
		c := ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 5, Waiting: 3}
		first := s.granted(c, 3)
		s.equal("the same again", s.settle(c), first)
		c.Seq = 4
		s.equal("a late one", s.settle(c).Err, ratelimit.ErrStaleClaim)
		s.equal("left", s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1}, 0).Available,
			ratelimit.Tokens(17))
	}},
	{"what was not received was not granted", false, func(s *script) {
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 15}, 15)
		// The reply was lost: the holder asks again, knowing of nothing.
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 2, Waiting: 1}, 1)
		s.equal("available", g.Available, ratelimit.Tokens(19))
	}},
	{"returned tokens are there for others", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 15}, 15)
		g = s.granted(ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window,
			Granted: 15, Spent: 5, Returned: 10,
		}, 0)
		s.equal("available", g.Available, ratelimit.Tokens(15))
	}},
	{"fences only rise", false, func(s *script) {
		last := ratelimit.Fence(0)
		for i := range 50 {
			g := s.settle(ratelimit.Claim{Limit: perMinute(20), Holder: ratelimit.Holder(i%3 + 1), Seq: uint64(i + 1)})
			if g.Fence <= last {
				s.Fatalf("fence %d after %d", g.Fence, last)
			}
			last = g.Fence
		}
		if last < ratelimit.Fence(Epoch) {
			s.Fatalf("fence %d is below the ledger's clock", last)
		}
	}},
	{"a new window starts whole", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 20}, 20)
		old := g.Window
		s.Advance(45 * time.Second)
		g = s.settle(ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Window: old, Fence: g.Fence, Granted: 20,
			Spent: 20, Waiting: 7,
		})
		s.equal("window", g.Window, old+1)
		s.equal("granted in it", g.Granted, ratelimit.Tokens(7))
		s.equal("available", g.Available, ratelimit.Tokens(13))
	}},
	{"a window can be claimed ahead, and is charged when it comes", false, func(s *script) {
		l := perMinute(20)
		now := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 20}, 20)
		next := ratelimit.Claim{Limit: l, Holder: 2, Seq: 2, Window: now.Window + 1, Ahead: true, Want: 8}
		g := s.granted(next, 8)
		s.equal("window", g.Window, now.Window+1)
		s.equal("available in it", g.Available, ratelimit.Tokens(12))
		s.equal("ends after", g.ResetAfter, 105*time.Second)
		s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 1, Waiting: 1}, 0)
		s.Advance(45 * time.Second)
		g = s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 2, Waiting: 20}, 12)
		s.equal("it has come", g.Window, now.Window+1)
		s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 3, Window: g.Window, Granted: 8, Spent: 3, Returned: 5}, 0)
		s.Advance(2 * time.Minute)
		next.Seq = 4
		s.equal("one that is over", s.settle(next).Err, ratelimit.ErrStaleClaim)
		next.Window += 2
		s.equal("the current one", s.granted(next, 8).ResetAfter, time.Minute)
	}},
	{"safe: a silent holder's tokens stay charged, and are its to return", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 20}, 20)
		s.Advance(30 * time.Second)
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1, Waiting: 1}, 0)
		g = s.granted(ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 20, Spent: 3,
			Returned: 17,
		}, 0)
		s.equal("void", g.Void, false)
		s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 2, Window: g.Window, Waiting: 17}, 17)
	}},
	{"eager: expiry credits what was not reported, and the old fence is void", false, func(s *script) {
		c := ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 20, Reclaim: ratelimit.ReclaimEager}
		g := s.granted(c, 20)
		s.Advance(11 * time.Second)
		other := ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1, Waiting: 15, Reclaim: ratelimit.ReclaimEager}
		s.granted(other, 15)
		back := ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 20, Spent: 8,
			Returned: 12,
			Reclaim:  ratelimit.ReclaimEager,
		}
		g = s.settle(back)
		s.equal("void", g.Void, true)
		s.equal("granted: what was spent is booked, nothing comes back", g.Granted, ratelimit.Tokens(20))
		s.equal("available", g.Available, ratelimit.Tokens(0))
	}},
	{"amnesia heals: a claim re-creates its record", true, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 12}, 12)
		s.Forget()
		again := s.granted(ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 12, Spent: 4,
		}, 0)
		s.equal("available", again.Available, ratelimit.Tokens(8))
		if again.Fence < g.Fence {
			s.Fatalf("fence went back from %d to %d", g.Fence, again.Fence)
		}
	}},
	{"amnesia: until all have told, no more than a twentieth is granted", true, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(1000), Holder: 1, Seq: 1, Waiting: 400}, 400)
		s.granted(ratelimit.Claim{Limit: perMinute(1000), Holder: 2, Seq: 1, Waiting: 400}, 400)
		s.Forget()
		c := ratelimit.Claim{
			Limit: perMinute(1000), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 400,
			Spent: 400, Waiting: 30,
		}
		g = s.granted(c, 30)
		s.equal("relearning", g.Relearning, true)
		c.Seq, c.Granted, c.Spent = 3, 430, 430
		g = s.granted(c, 20)
		s.equal("the rest may come in", g.RetryAfter, 2*time.Second)
		s.granted(ratelimit.Claim{
			Limit: perMinute(1000), Holder: 2, Seq: 2, Window: g.Window, Granted: 400, Spent: 400,
			Waiting: 30,
		}, 0)
		s.Advance(2 * time.Second)
		c.Seq, c.Granted, c.Spent, c.Waiting = 4, 450, 450, 200
		g = s.granted(c, 150)
		s.equal("relearning", g.Relearning, false)
	}},
	{"a holder that forgot its totals is still charged what it confirmed", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 10}, 10)
		s.granted(ratelimit.Claim{
			Limit: perMinute(20), Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 10, Spent: 6,
			Returned: 4,
		}, 0)
		g = s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 3, Waiting: 2}, 2)
		s.equal("available", g.Available, ratelimit.Tokens(12))
		// The reply to that was lost; nothing is charged twice.
		g = s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 4, Waiting: 2}, 2)
		s.equal("available", g.Available, ratelimit.Tokens(12))
	}},
	{"a lowered limit grants nothing more, a raised one the difference", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 10}, 10)
		c := ratelimit.Claim{Holder: 1, Window: g.Window, Fence: g.Fence, Granted: 10, Spent: 10, Waiting: 1}
		c.Seq, c.Limit = 2, perMinute(5)
		g = s.granted(c, 0)
		s.equal("over-admitted", g.OverAdmitted, ratelimit.Tokens(0))
		c.Seq, c.Limit = 3, perMinute(30)
		s.equal("available", s.granted(c, 1).Available, ratelimit.Tokens(19))
	}},
	{
		"drift is confirmed with tokens the limit still has, and what goes " +
			"over is counted once, when it is spent", false,
		func(s *script) {
			g := s.granted(ratelimit.Claim{Limit: perMinute(20), Holder: 1, Seq: 1, Waiting: 17}, 17)
			other := ratelimit.Claim{
				Limit: perMinute(20), Holder: 1, Window: g.Window, Fence: g.Fence, Granted: 17,
				Spent: 17,
			}
			c := ratelimit.Claim{Limit: perMinute(20), Holder: 2, Seq: 1, Spent: 5}
			c.Window = s.settle(c).Window
			c.Seq = 2
			g = s.settle(c)
			s.equal("confirmed", g.Granted, ratelimit.Tokens(3))
			s.equal("over-admitted while the other has spent nothing", g.OverAdmitted, ratelimit.Tokens(0))
			other.Seq = 2
			s.equal("over-admitted when it has", s.settle(other).OverAdmitted, ratelimit.Tokens(2))
			c.Seq, c.Granted = 3, 3
			s.equal("over-admitted, again", s.settle(c).OverAdmitted, ratelimit.Tokens(0))
			s.equal("confirmed, again", s.settle(c).Granted, ratelimit.Tokens(3))
		},
	},
	{"a window's last reports count when it is over", false, func(s *script) {
		l := perMinute(20)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 20, Tally: true}, 20)
		first := ratelimit.Claim{
			Limit: l, Holder: 1, Seq: 2, Window: g.Window, Granted: 20, Spent: 20, Tally: true,
			Final: true,
		}
		late := ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Window: g.Window, Spent: 3, Tally: true}
		s.Advance(45 * time.Second)
		s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 1, Waiting: 1, Tally: true}, 1) // the window is over
		g = s.settle(late)
		s.equal("as long as tokens were left", g.OverAdmitted, ratelimit.Tokens(0))
		s.equal("in the new window", g.Granted, ratelimit.Tokens(0))
		g = s.settle(first)
		s.equal("the last word", g.OverAdmitted, ratelimit.Tokens(3))
		s.equal("the same again", s.settle(first).OverAdmitted, ratelimit.Tokens(3))
		first.Seq = 3
		s.equal("once more", s.settle(first).OverAdmitted, ratelimit.Tokens(0))
		s.equal("what is left now", s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 2, Waiting: 19, Tally: true},
			19).Available, ratelimit.Tokens(1))
		s.Advance(time.Minute)
		first.Seq = 4
		s.equal("too late", s.settle(first).Err, ratelimit.ErrStaleClaim)
	}},
	{"what was told in time is not told again after another has begun the next window", false, func(s *script) {
		l := perMinute(12)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 12}, 12)
		told := ratelimit.Claim{Limit: l, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 12, Spent: 12}
		g = s.settle(told)
		s.equal("just used up", g.OverAdmitted, ratelimit.Tokens(0))
		s.Advance(45 * time.Second) // the window is over
		s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 1, Waiting: 1}, 1)
		s.Advance(time.Millisecond)
		s.granted(ratelimit.Claim{Limit: l, Holder: 4, Seq: 1, Waiting: 1}, 1)
		told.Seq, told.Fence, told.Waiting = 3, g.Fence, 1
		s.equal("the same, late", s.settle(told).OverAdmitted, ratelimit.Tokens(0))
	}},
	{"bucket: drift that it did not have is paid back as it refills", false, func(s *script) {
		l := onePerSecond(10)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 10, Direct: true}, 10)
		c := ratelimit.Claim{Limit: l, Holder: 1, Seq: 2, Fence: g.Fence, Window: g.Window, Granted: 10, Spent: 14}
		g = s.granted(c, 0)
		s.equal("over-admitted", g.OverAdmitted, ratelimit.Tokens(4))
		s.Advance(3 * time.Second)
		c.Seq = 3
		g = s.granted(c, 3)
		s.equal("over-admitted, again", g.OverAdmitted, ratelimit.Tokens(0))
		s.Advance(3 * time.Second)
		c.Seq, c.Granted, c.Waiting = 4, 13, 2
		s.granted(c, 3) // what is owed, and two
	}},
	{"sliding: the window before counts by the part still covered", false, func(s *script) {
		s.Advance(15 * time.Second) // half of the minute is gone
		g := s.granted(ratelimit.Claim{Limit: sliding20, Holder: 1, Seq: 1, Waiting: 20}, 20)
		s.Advance(30*time.Second + 15*time.Second) // a quarter of the next
		c := ratelimit.Claim{
			Limit: sliding20, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 20,
			Spent: 20, Waiting: 20,
		}
		g = s.settle(c)
		s.equal("granted", g.Granted, ratelimit.Tokens(5))
		s.equal("the next comes after", g.RetryAfter, 3*time.Second)
		s.Advance(time.Minute + 45*time.Second)
		s.equal("available two windows on", s.settle(ratelimit.Claim{Limit: sliding20, Holder: 2, Seq: 1}).Available,
			ratelimit.Tokens(20))
	}},
	{"sliding: what a holder gave back of the window before is not held against it", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: sliding20, Holder: 1, Seq: 1, Waiting: 20}, 20)
		s.Advance(45 * time.Second)
		g = s.settle(ratelimit.Claim{
			Limit: sliding20, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 20,
			Spent: 4, Returned: 16,
		})
		s.equal("available", g.Available, ratelimit.Tokens(16))
	}},
	{"sliding: what a holder may have spent since it wrote the claim is", false, func(s *script) {
		g := s.granted(ratelimit.Claim{Limit: sliding20, Holder: 1, Seq: 1, Waiting: 20}, 20)
		s.Advance(45 * time.Second)
		g = s.settle(ratelimit.Claim{
			Limit: sliding20, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 20,
			Spent: 4, Returned: 6,
		})
		s.equal("available", g.Available, ratelimit.Tokens(6))
	}},
	{"bucket: starts full, refills evenly, never above burst", false, func(s *script) {
		l := onePerSecond(10)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 10, Direct: true}, 10)
		s.equal("full again after", g.ResetAfter, 10*time.Second)
		c := ratelimit.Claim{Limit: l, Holder: 1, Window: g.Window, Granted: 10, Spent: 10, Waiting: 3, Direct: true}
		s.Advance(1500 * time.Millisecond)
		c.Seq, c.Fence = 2, g.Fence
		g = s.granted(c, 0) // all or nothing: there is one
		s.equal("available", g.Available, ratelimit.Tokens(1))
		s.equal("three after", g.RetryAfter, 1500*time.Millisecond)
		s.Advance(time.Hour)
		c.Seq, c.Waiting = 3, 10
		s.granted(c, 10)
	}},
	{"bucket: what an expired lease had not spent is gone", false, func(s *script) {
		l := onePerSecond(2)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 1}, 1)
		s.Advance(12 * time.Second) // 10 s until it expires, 2 s to refill behind it
		s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Waiting: 2}, 2)
		g = s.granted(ratelimit.Claim{
			Limit: l, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 1,
			Returned: 1,
		}, 0)
		s.equal("available", g.Available, ratelimit.Tokens(0))
	}},
	{"bucket: level and what live leases may spend are at most burst", false, func(s *script) {
		l := onePerSecond(10)
		s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 8, TTL: time.Minute}, 8)
		s.Advance(30 * time.Second)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Waiting: 10}, 2)
		s.equal("available", g.Available, ratelimit.Tokens(0))
		s.Advance(90 * time.Second)
		s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 2, Window: g.Window, Granted: 2, Spent: 2, Waiting: 20}, 10)
	}},
	{"bucket: slow rates lose nothing to rounding", false, func(s *script) {
		l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Day, Requests: 7, Burst: 7}
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 7, Direct: true}, 7)
		c := ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Window: g.Window, Granted: 7, Spent: 7}
		for range 1000 {
			s.Advance(86_400 * time.Millisecond)
			c.Seq++
			g = s.settle(c)
		}
		s.equal("after a day in a thousand steps", g.Available, ratelimit.Tokens(7))
	}},
	{"bucket: amnesia remembers what the holder says", true, func(s *script) {
		l := onePerSecond(10)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 6}, 6)
		s.Forget()
		g = s.settle(ratelimit.Claim{
			Limit: l, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 6,
			Spent: 2,
		})
		s.equal("available", g.Available, ratelimit.Tokens(4))
	}},
	{"plenty: a lease is a share of the limit, until the window ends", false, func(s *script) {
		l := perMinute(1000)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 1, Stretch: true}, 50)
		s.equal("plenty", g.Plenty, true)
		s.equal("ttl", g.TTL, 45*time.Second)
		// What the holder has still counts in its share.
		g = s.granted(ratelimit.Claim{
			Limit: l, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 50,
			Spent: 30, Waiting: 1, Stretch: true,
		}, 30)
		// Who wants more gets it, tapered as ever.
		s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Want: 200, Stretch: true}, 200)
		for h := ratelimit.Holder(3); h <= 4; h++ {
			s.granted(ratelimit.Claim{Limit: l, Holder: h, Seq: 1, Waiting: 1, Stretch: true}, 50)
		}
		// a fifth of the limit for five
		s.granted(ratelimit.Claim{Limit: l, Holder: 5, Seq: 1, Waiting: 1, Stretch: true}, 40)
		g = s.granted(ratelimit.Claim{Limit: l, Holder: 6, Seq: 1, Waiting: 90}, 90)
		s.equal("ttl of who did not ask for more", g.TTL, 10*time.Second)
		// Less than half is left, but what others have not spent can be recalled.
		g = s.granted(ratelimit.Claim{Limit: l, Holder: 7, Seq: 1, Waiting: 1, Stretch: true}, 28)
		s.equal("plenty", g.Plenty, true)
		busy := ratelimit.Claim{Limit: l, Holder: 8, Seq: 1, Waiting: 400}
		s.granted(busy, 400)
		// An eighth is not left: there is nothing to give for later.
		g = s.granted(ratelimit.Claim{Limit: l, Holder: 9, Seq: 1, Waiting: 1, Stretch: true}, 1)
		s.equal("plenty", g.Plenty, false)
		s.equal("ttl", g.TTL, 10*time.Second)
	}},
	{"plenty: not when more than half is spent", false, func(s *script) {
		l := perMinute(1000)
		busy := ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 550}
		g := s.granted(busy, 550)
		s.equal("while it may give back",
			s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Waiting: 1, Stretch: true}, 50).Plenty, true)
		busy.Seq, busy.Waiting, busy.Window, busy.Fence, busy.Granted, busy.Spent = 2, 0, g.Window, g.Fence, 550, 550
		s.granted(busy, 0)
		s.equal("when it has spent", s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 1, Waiting: 1, Stretch: true},
			1).Plenty, false)
	}},
	{"plenty: small limits, long windows and buckets", false, func(s *script) {
		g := s.granted(ratelimit.Claim{
			Key: "small", Limit: perMinute(10), Holder: 1, Seq: 1, Waiting: 1,
			Stretch: true,
		}, 1)
		s.equal("ttl", g.TTL, 45*time.Second)
		g = s.granted(ratelimit.Claim{
			Key: "long", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 20}, Holder: 1,
			Seq: 1, Waiting: 1, Stretch: true,
		}, 1)
		s.equal("ttl", g.TTL, 5*time.Minute)
		g = s.granted(ratelimit.Claim{
			Key: "bucket", Limit: onePerSecond(1000), Holder: 1, Seq: 1, Waiting: 1,
			Stretch: true,
		}, 1)
		s.equal("plenty", g.Plenty, false)
		s.equal("ttl", g.TTL, 10*time.Second)
	}},
	{"recall: each holder once a shortage, until it is heard", false, func(s *script) {
		l := perMinute(10)
		one := ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 6, Recall: true}
		g := s.granted(one, 6)
		s.equal("recalled", g.Recalled, 0)
		two := ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Waiting: 5, Recall: true}
		short := s.granted(two, 4)
		s.equal("recalled", short.Recalled, 1)
		s.equal("recalling", short.Recalling, true)
		claims := func(waiting ratelimit.Tokens) ratelimit.Grant {
			two.Seq++
			two.Window, two.Fence, two.Granted, two.Spent = short.Window, short.Fence, short.Granted, short.Granted
			two.Waiting = waiting
			short = s.settle(two)
			return short
		}
		again := claims(1)
		s.equal("recalled again", again.Recalled, 0)
		s.equal("recalling still", again.Recalling, true)
		s.Advance(10 * time.Millisecond)
		s.equal("recalling after a while", claims(1).Recalling, false)
		// It gives back all but one, which it needs.
		one.Seq, one.Waiting, one.Window, one.Fence, one.Granted, one.Spent, one.Returned = 2, 0, g.Window, g.Fence, 6,
			2, 3
		g = s.granted(one, 0)
		s.equal("what is there now", claims(3).Granted, ratelimit.Tokens(7))
		again = claims(1)
		s.equal("recalled who has answered", again.Recalled, 0)
		s.equal("recalling", again.Recalling, false)
		s.Advance(time.Second) // the message may have been lost
		s.equal("recalled after a second", claims(1).Recalled, 1)
		// Nothing is recalled for a claim that does not say that it can be.
		two.Recall = false
		s.Advance(time.Second)
		s.equal("recalled", claims(1).Recalled, 0)
	}},
	{"recall: a lease granted since is recalled at once", false, func(s *script) {
		l := perMinute(10)
		g := s.granted(ratelimit.Claim{Limit: l, Holder: 1, Seq: 1, Waiting: 10, Recall: true}, 10)
		s.equal("recalled", s.granted(ratelimit.Claim{Limit: l, Holder: 2, Seq: 1, Waiting: 1, Recall: true},
			0).Recalled, 1)
		back := ratelimit.Claim{
			Limit: l, Holder: 1, Seq: 2, Window: g.Window, Fence: g.Fence, Granted: 10, Spent: 2,
			Returned: 8,
		}
		g = s.granted(back, 0)
		back.Seq, back.Fence, back.Waiting = 3, g.Fence, 8
		s.granted(back, 8)
		s.equal("recalled", s.granted(ratelimit.Claim{Limit: l, Holder: 3, Seq: 1, Waiting: 1, Recall: true},
			0).Recalled, 1)
	}},
	{"recall: not of the dead, nor of who ended", false, func(s *script) {
		eager := ratelimit.Claim{Limit: onePerSecond(10), Holder: 1, Seq: 1, Waiting: 10}
		s.granted(eager, 10)
		s.Advance(9 * time.Second)
		s.equal("a bucket's lease", s.settle(ratelimit.Claim{
			Limit: onePerSecond(10), Holder: 2, Seq: 1, Waiting: 1,
			Recall: true,
		}).Recalled, 1)
		s.Advance(time.Second)
		s.equal("one that has expired", s.settle(ratelimit.Claim{
			Limit: onePerSecond(10), Holder: 2, Seq: 2,
			Waiting: 10, Recall: true,
		}).Recalled, 0)
	}},
	{"keys are apart, and a batch answers in order", false, func(s *script) {
		claims := make([]ratelimit.Claim, 40)
		for i := range claims {
			claims[i] = ratelimit.Claim{
				Key: fmt.Sprint("key", i%20), Limit: perMinute(20), Holder: ratelimit.Holder(i/20 + 1), Seq: 1,
				Waiting: ratelimit.Tokens(i%20 + 1), Want: ratelimit.Tokens(i%20 + 1), TTL: time.Second,
			}
		}
		grants := make([]ratelimit.Grant, len(claims))
		s.Ledger.Settle(context.Background(), claims, grants)
		for i, g := range grants {
			want := claims[i].Waiting
			if i >= 20 {
				want = min(want, 20-want)
			}
			if g.Err != nil || g.Granted != want {
				s.Fatalf("claim %d: granted %d (%v), want %d", i, g.Granted, g.Err, want)
			}
		}
	}},
	{"numbers as large as limits go", false, func(s *script) {
		const most = ratelimit.MaxLimit
		for i, l := range []ratelimit.Limit{
			{Unit: ratelimit.Year, Requests: most},
			{Algorithm: ratelimit.SlidingWindow, Unit: ratelimit.Year, Requests: most},
			{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Year, Requests: most, Burst: most},
		} {
			c := ratelimit.Claim{Key: fmt.Sprint("large", i), Limit: l, Holder: 1, Seq: 1, Waiting: most}
			g := s.granted(c, most)
			s.equal("available", g.Available, ratelimit.Tokens(0))
			c.Seq, c.Window, c.Fence, c.Granted, c.Spent = 2, g.Window, g.Fence, most, most
			c.Waiting = 1
			if g = s.settle(c); g.Granted > most+1 || g.Available < 0 || errors.Is(g.Err, ratelimit.ErrStaleClaim) {
				s.Fatalf("limit %v: %+v", l, g)
			}
		}
	}},
}
