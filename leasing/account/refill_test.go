package account

import (
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A refill is exact to the millionth of a token, and its time to the microsecond, also where products exceed 64 bits.
func TestRefillIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same run each time
	upTo := func(exponent int) int64 { return random.Int64N(1 << (1 + random.IntN(exponent))) }
	for range 50_000 {
		l := &ratelimit.Limit{
			Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Unit(1 + random.IntN(int(ratelimit.Year))),
			Multiplier: 1, Requests: 1 + tokens(upTo(31)),
		}
		seconds := int64(l.Period() / time.Second)
		elapsed, carry, level, full := upTo(62), random.Int64N(seconds), -upTo(60), upTo(60)
		level += upTo(60)
		switch random.IntN(3) {
		case 0: // a product just below 2^64
			l.Requests++
			quotient, _ := bits.Div64(1, 0, uint64(l.Requests))
			elapsed, carry = int64(min(quotient, math.MaxInt64)), seconds-1
		case 1: // or just above
			if missing, _ := bits.Div64(1, 0, uint64(max(60, seconds))); seconds >= 60 {
				level, full, carry = -int64(missing/2), int64(missing-missing/2)+1, seconds-1
			}
		}
		got, rest := Refilled(level, carry, elapsed, full, l)
		sum := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(int64(l.Requests)))
		added, remainder := sum.Add(sum, big.NewInt(carry)).QuoRem(sum, big.NewInt(seconds), new(big.Int))
		want, wantRest := added.Add(added, big.NewInt(level)), remainder.Int64()
		if want.Cmp(big.NewInt(full)) >= 0 || level >= full {
			want, wantRest = big.NewInt(full), 0
		}
		if want.Int64() != got || wantRest != rest {
			t.Fatalf("%v: from %d + %d after %d us, at most %d: %d + %d, want %v + %d",
				l, level, carry, elapsed, full, got, rest, want, wantRest)
		}
		us := new(big.Int).Mul(big.NewInt(full-level), big.NewInt(seconds))
		us.Sub(us, big.NewInt(carry)).Add(us, big.NewInt(int64(l.Requests-1))).Quo(us, big.NewInt(int64(l.Requests)))
		after, latest := RefilledAfter(full, level, carry, l), big.NewInt(math.MaxInt64/1000)
		switch {
		case full <= level:
			us.SetInt64(0)
		case us.Cmp(latest) > 0:
			us.SetInt64(math.MaxInt64)
		default:
			us.Mul(us, big.NewInt(1000))
		}
		if us.Int64() != int64(after) {
			t.Fatalf("%v: from %d + %d to %d after %v, want %v", l, level, carry, full, after, us)
		}
	}
}
