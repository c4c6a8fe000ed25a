package ledger

import (
	"fmt"
	"math"
	"math/big"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// The two functions in which a token_bucket's fractions live are held against the same written with numbers of any
// size: at each edge of what they take, and on both sides of it.

var (
	edgeUnits    = []ratelimit.Unit{ratelimit.Second, ratelimit.Minute, ratelimit.Hour, ratelimit.Day, ratelimit.Week}
	edgeRequests = []tokens{1, 2, 3, 7, 59, 60, 61, 999, 1_000_000, math.MaxUint32}
	edgeAmounts  = []int64{1, 2, Micro - 1, Micro, Micro + 1, 7 * Micro, 1 << 31, 1 << 32, 9223372036854775, 9223372036854776, 1 << 62}
)

// around calls f for each edge, and for what lies next to it.
func around(edges []int64, f func(int64)) {
	for _, edge := range edges {
		for _, n := range []int64{edge - 1, edge, edge + 1} {
			f(n)
		}
	}
}

// eachEdge calls f for each limit, and for what can be carried over with it.
func eachEdge(f func(l *ratelimit.Limit, carry int64)) {
	for _, unit := range edgeUnits {
		for _, requests := range edgeRequests {
			l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: unit, Requests: requests, Burst: requests}
			seconds := int64(l.Period() / time.Second)
			for _, carry := range []int64{0, seconds / 2, seconds - 1} {
				f(&l, carry)
			}
		}
	}
}

// exactlyRefilled is what Refilled says it is.
func exactlyRefilled(level, carry int64, elapsed ledgerTime, full int64, l *ratelimit.Limit) (int64, int64) {
	brought := new(big.Int).Mul(big.NewInt(int64(elapsed)), big.NewInt(int64(l.Requests)))
	brought.Add(brought, big.NewInt(carry))
	added, rest := brought.QuoRem(brought, big.NewInt(int64(l.Period()/time.Second)), new(big.Int))
	if added.Add(added, big.NewInt(level)).Cmp(big.NewInt(full)) >= 0 {
		return full, 0
	}
	return added.Int64(), rest.Int64()
}

// exactTime is what TimeToLevel says it is.
func exactTime(level, has, carry int64, l *ratelimit.Limit) time.Duration {
	if level <= has {
		return 0
	}
	missing := new(big.Int).Mul(big.NewInt(level-has), big.NewInt(int64(l.Period()/time.Second)))
	missing.Sub(missing, big.NewInt(carry))
	us, rest := missing.QuoRem(missing, big.NewInt(int64(l.Requests)), new(big.Int))
	if rest.Sign() > 0 {
		us.Add(us, big.NewInt(1))
	}
	if us.Mul(us, big.NewInt(1000)); us.IsInt64() {
		return time.Duration(us.Int64())
	}
	return math.MaxInt64
}

func TestRefillIsExact(t *testing.T) {
	wrong := 0
	eachEdge(func(l *ratelimit.Limit, carry int64) {
		for _, full := range []int64{Micro, 1000 * Micro, 1 << 62} {
			for _, level := range []int64{0, 1, full / 2, full - 1, full} {
				around(edgeAmounts, func(elapsed int64) {
					got := fmt.Sprint(Refilled(level, carry, ledgerTime(elapsed), full, l))
					want := fmt.Sprint(exactlyRefilled(level, carry, ledgerTime(elapsed), full, l))
					if got != want && wrong < 10 {
						wrong++
						t.Errorf("%d per %v, level %d of %d, carried over %d, after %d us: %s, not %s",
							l.Requests, l.Period(), level, full, carry, elapsed, got, want)
					}
				})
			}
		}
	})
}

func TestTimeToLevelIsExact(t *testing.T) {
	wrong := 0
	eachEdge(func(l *ratelimit.Limit, carry int64) {
		for _, has := range []int64{0, 1, 5 * Micro} {
			around(append(edgeAmounts, 0), func(missing int64) {
				got, want := TimeToLevel(has+missing, has, carry, l), exactTime(has+missing, has, carry, l)
				if got != want && wrong < 10 {
					wrong++
					t.Errorf("%d per %v, from %d to %d, carried over %d: %v, not %v", l.Requests, l.Period(), has, has+missing, carry, got, want)
				}
			})
		}
	})
}

// A limit of nothing never fills: how long that takes is no time, and the caller says that it is never.
func TestTimeToLevelOfNothing(t *testing.T) {
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second}
	if got := TimeToLevel(Micro, 0, 0, &l); got != 0 {
		t.Errorf("%v, not 0", got)
	}
}
