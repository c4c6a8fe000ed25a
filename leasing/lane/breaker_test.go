package lane

import (
	"math/rand/v2"
	"testing"
	"time"
)

// Random calls against the breaker on paper. It opens at the third failure in a row. The pause doubles with each
// further one, from 50 to 250 ms, so that a store that stays away costs little; a success starts from 50 ms again.
// Nodes draw the pause from half to one and a half of that, so that a fleet does not probe in step. After it one
// call is a probe, and another one follows if its result says nothing of the store.
func TestBreakerOpensAtTheThirdFailure(t *testing.T) {
	pauses := []time.Duration{50, 100, 200, 250}
	for seed := range uint64(200) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		var b Breaker
		failures, probing, now, till := 0, false, instant(1), instant(0)
		for step := range 300 {
			now = now.Add(time.Duration(rnd.IntN(40)) * time.Millisecond)
			if rnd.IntN(10) == 0 && till > now {
				now = till - instant(rnd.IntN(2)) // to the nanosecond
			}
			open := failures >= 3
			refused := open && (now < till || probing)
			if b.Open() != open || b.Refuses(now) != refused || b.Allow(now) == refused {
				t.Fatalf("seed %d, step %d: after %d failures, %v before the end of its pause, with a probe %v: refuses %v",
					seed, step, failures, till.Sub(now), probing, b.Refuses(now))
			}
			probing = probing || open && !refused
			if refused && rnd.IntN(4) > 0 {
				continue // few calls of before end in a pause
			}
			switch n := rnd.IntN(10); {
			case n == 0:
				b.Success()
				failures, probing = 0, false
			case n == 1:
				b.Undecided()
				probing = false
			case n == 2:
				b.Probe()
				till = 0
			case n < 7:
				jitter := float64(rnd.IntN(5)) / 4
				b.Failure(now, jitter)
				failures++
				probing = false
				if failures >= 3 {
					mean := pauses[min(failures-3, len(pauses)-1)] * time.Millisecond
					till = now.Add(time.Duration((0.5 + jitter) * float64(mean)))
				}
			}
		}
	}
}
