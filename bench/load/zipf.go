package load

import (
	"math"
	"math/rand/v2"
)

// alias draws from a discrete distribution in constant time: the alias method
// (Walker 1977, in the form of Vose 1991).
type alias struct {
	own   []float64 // the probability of staying at a place
	other []int32
}

// newZipf makes the distribution in which the k-th of n keys has a weight of
// k to the power of -s.
func newZipf(n int, s float64) *alias {
	a := &alias{own: make([]float64, n), other: make([]int32, n)}
	sum := 0.0
	for k := range a.own {
		a.own[k] = math.Pow(float64(k+1), -s)
		sum += a.own[k]
	}
	var small, large []int32
	for k := range a.own {
		a.own[k] *= float64(n) / sum
		if a.own[k] < 1 {
			small = append(small, int32(k))
		} else {
			large = append(large, int32(k))
		}
	}
	for len(small) > 0 && len(large) > 0 {
		less, more := small[len(small)-1], large[len(large)-1]
		small = small[:len(small)-1]
		a.other[less] = more
		a.own[more] -= 1 - a.own[less]
		if a.own[more] < 1 {
			large, small = large[:len(large)-1], append(small, more)
		}
	}
	for _, k := range append(small, large...) {
		a.own[k] = 1
	}
	return a
}

func (a *alias) draw(rnd *rand.Rand) int {
	k := rnd.IntN(len(a.own))
	if rnd.Float64() < a.own[k] {
		return k
	}
	return int(a.other[k])
}
