package leasing

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Keys that wander between processes admit what one process would have
// admitted, to the token.
func TestHandOver(t *testing.T) {
	for algorithm := range ratelimit.Algorithms {
		t.Run(ratelimit.Algorithms[algorithm], func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(algorithm)))
			wall := time.Unix(1_800_000_000, 0)
			one := NewLocal(1000, 1, wall)
			several := []*Local{NewLocal(1000, 1, wall), NewLocal(1000, 1, wall), NewLocal(1000, 1, wall)}
			owner := make([]int, 50)
			now := instant(1)
			for step := range 20_000 {
				now = now.Add(time.Duration(rnd.Int64N(int64(2 * time.Millisecond))))
				k := rnd.IntN(len(owner))
				r := testRule(ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Second, Multiplier: 3, Requests: tokens(1 + k%7*5), Burst: tokens(1 + k%7*5)})
				a := ask{Rule: r, Key: keyOf(uint64(k)), Cost: 1 + tokens(rnd.IntN(2))}
				want, got := decideOne(one, now, a), decideOne(several[owner[k]], now, a)
				want.Source, got.Source = 0, 0
				if want.OverLimit != got.OverLimit || want.Remaining != got.Remaining {
					t.Fatalf("step %d, %v: %+v, one process says %+v", step, r.Limit, got, want)
				}
				if rnd.IntN(20) == 0 { // all keys of a kind go elsewhere
					kind, to := rnd.IntN(5), rnd.IntN(3)
					for from := range several {
						if from == to {
							continue
						}
						several[from].HandOver(now, func(key []byte) bool { return int(key[4])%5 == kind }, func(key []byte, a Account) {
							if !several[to].Adopt(now, key, a) {
								t.Fatal("no room")
							}
						})
					}
					for k := range owner {
						if k%5 == kind {
							owner[k] = to
						}
					}
				}
			}
		})
	}
}

// An account that arrives where the key is known already is charged there too.
func TestAdoptMerges(t *testing.T) {
	wall := time.Unix(1_800_000_000, 0)
	a, b := NewLocal(10, 1, wall), NewLocal(10, 1, wall)
	r := testRule(ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	for _, l := range []*Local{a, b} {
		l.Decide(context.Background(), 2, []ask{{Rule: r, Key: keyOf(1), Cost: 4}}, make([]verdict, 1))
	}
	handed := 0
	a.HandOver(3, func([]byte) bool { return true }, func(key []byte, x Account) { handed++; b.Adopt(3, key, x) })
	v := decideOne(b, 4, ask{Rule: r, Key: keyOf(1), Cost: 2})
	if next := decideOne(b, 4, ask{Rule: r, Key: keyOf(1), Cost: 1}); handed != 1 || v.OverLimit || !next.OverLimit {
		t.Error(fmt.Sprint(handed, v, next))
	}
}
