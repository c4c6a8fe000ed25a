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

// Each of these events has so many tokens, and each admission is so far over. What is retracted is as if it had not been.
// What a client has given back meanwhile is not there to be retracted again, or the next tokens would pass unseen. Retracted
// after its window is over, it leaves the new one as it is. A clock that goes back by some windows and half of one makes
// nothing count more: of a sliding window, 8 of the 80 of the window before did.
func TestEventsInTheirOrder(t *testing.T) {
	type event struct {
		do      string
		at      ratelimit.LedgerTime // tenths of a window
		n, over ratelimit.Tokens
	}
	all := []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow, ratelimit.TokenBucket}
	for name, c := range map[string]struct {
		of     []ratelimit.Algorithm
		limit  ratelimit.Tokens
		events []event
	}{
		"retracted":           {all, 5, []event{{"admit", 10_000, 5, 0}, {"retract", 10_000, 1, 0}, {"admit", 10_000, 1, 0}}},
		"credited before":     {all[:2], 5, []event{{"admit", 10_000, 5, 0}, {"credit", 10_000, 5, 0}, {"retract", 10_000, 5, 0}, {"admit", 10_000, 6, 1}}},
		"of another window":   {all[1:2], 10, []event{{"admit", 10_009, 10, 0}, {"retract", 10_010, 10, 0}, {"credit", 10_010, 3, 0}, {"admit", 10_010, 10, 0}, {"admit", 10_010, 1, 1}}},
		"a clock that is set": {all[1:2], 100, []event{{"admit", 10_000, 80, 0}, {"admit", 10_019, 92, 0}, {"back", 9001, 0, 0}, {"admit", 9001, 100, 100}}},
	} {
		for _, of := range c.of {
			j, admitted := New(limit(of, c.limit)), ratelimit.LedgerTime(0)
			for _, e := range c.events {
				at := e.at * second
				switch e.do {
				case "admit":
					if over := j.Admit(at, e.n); over != e.over {
						t.Errorf("%s, %v: %d over at %d, must be %d", name, ratelimit.Algorithms[of], over, e.at, e.over)
					}
					admitted = at
				case "retract":
					j.Retract(admitted, at, e.n)
				case "credit":
					j.Credit(at, e.n)
				case "back":
					j.StepBack(admitted, at)
				}
			}
		}
	}
}
