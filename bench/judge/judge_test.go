package judge

import (
	"math/rand/v2"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

const second ratelimit.LedgerTime = 1_000_000

func limit(a ratelimit.Algorithm, requests ratelimit.Tokens) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: a, Unit: ratelimit.Second, Multiplier: 10, Requests: requests, Burst: requests}
}

// An exact limiter is neither over nor under, by its own judge, and one that
// admits or refuses a token too many is found out.
func TestJudgeFindsOneToken(t *testing.T) {
	for a := range ratelimit.RateAlgorithms() {
		for _, wrong := range []int{0, 1, -1} {
			rnd := rand.New(rand.NewPCG(1, 1))
			j, exact := New(limit(ratelimit.Algorithm(a), 50)), New(limit(ratelimit.Algorithm(a), 50))
			at, bent := 1000*10*second, false
			for at < 1005*10*second {
				at += ratelimit.LedgerTime(rnd.IntN(int(second / 20)))
				exact.advance(at)
				pass := exact.got.room(at, &exact.Limit) >= 1
				if pass {
					exact.got.spend(1)
				}
				switch {
				case wrong > 0 && !pass && !bent && at > 1002*10*second:
					pass, bent = true, true
				case wrong < 0 && pass && !bent && at > 1002*10*second:
					pass, bent = false, true
				}
				if pass {
					j.Admit(at, 1)
				} else {
					j.Refuse(at, 1)
				}
			}
			over, under, early := j.Worst, j.Under(at), j.Early
			switch {
			case wrong == 0 && (over != 0 || under != 0 || early != 0),
				wrong > 0 && over != 1,
				wrong < 0 && (over != 0 || under != 1 || early < 1):
				t.Errorf("%v, wrong by %d: over %d, under %d, early %d", ratelimit.Algorithms[a], wrong, over, under, early)
			}
		}
	}
}

func TestRetractedIsAsIfItHadNotBeen(t *testing.T) {
	for a := range ratelimit.RateAlgorithms() {
		j := New(limit(ratelimit.Algorithm(a), 5))
		at := 1000 * 10 * second
		for range 5 {
			j.Admit(at, 1)
		}
		j.Retract(at, at+second/2, 1)
		if over := j.Admit(at+second/2, 1); over != 0 || j.admitted != 5 {
			t.Errorf("%v: %d over, %d admitted", ratelimit.Algorithms[a], over, j.admitted)
		}
	}
}

// What a client has given back meanwhile is not there to be taken back again, or the
// next tokens would pass unseen.
func TestRetractedAfterItWasCredited(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		j := New(limit(a, 5))
		at := 1000 * 10 * second
		j.Admit(at, 5)
		j.Credit(at, 5)
		j.Retract(at, at, 5)
		if over := j.Admit(at, 6); over != 1 {
			t.Errorf("%v: 6 tokens of 5 were %d over", ratelimit.Algorithms[a], over)
		}
	}
}

// Taken back after its window is over, it leaves the new one as it is.
func TestRetractedOfTheWindowBefore(t *testing.T) {
	j := New(limit(ratelimit.SlidingWindow, 10))
	before, now := 1000*10*second+9*second, 1001*10*second
	j.Admit(before, 10)
	j.Retract(before, now, 10)
	j.Credit(now, 3)
	if over := j.Admit(now, 10); over != 0 {
		t.Errorf("10 tokens of 10 were %d over", over)
	}
	if over := j.Admit(now, 1); over != 1 {
		t.Errorf("one more was %d over", over)
	}
}

// A clock that goes back by some windows and half of one makes nothing count more: of a sliding window, 8 of the 80 of
// the window before did.
func TestClockThatGoesBack(t *testing.T) {
	j := New(limit(ratelimit.SlidingWindow, 100))
	j.Admit(1000*10*second, 80)
	from, at := 1001*10*second+9*second, 900*10*second+second
	if over := j.Admit(from, 92); over != 0 {
		t.Errorf("92 tokens and 8 of 100 were %d over", over)
	}
	j.StepBack(from, at)
	if over := j.Admit(at, 100); over != 100 {
		t.Errorf("100 more were %d over", over)
	}
}
