// Package load makes demand: the instants of requests, and their keys. The benchmark sends it to servers, and
// the simulator plays it in virtual time.
//
// Guarantee: a Stream is the same for the same Load and seed, and costs no allocation per request. Requests
// arrive as a Poisson process (independently of each other and of the answers). Its rate changes as Shape
// says, and its mean over the whole time is Rate.
package load

import (
	"math"
	"math/rand/v2"
	"time"
)

// Shape is how demand changes over time.
type Shape uint8

const (
	// Steady is the same all the time.
	Steady Shape = iota
	// Burst is 5.5 times the mean in the first tenth of each second, and half
	// the mean in the rest.
	Burst
	// Flash is two thirds of the mean, and in the fifth tenth of the time four times the mean, nearly all of
	// it on one key with few earlier requests.
	Flash
	// Ramp grows from nothing to twice the mean.
	Ramp
)

// Shapes are their names, by value.
var Shapes = [...]string{Steady: "steady", Burst: "burst", Flash: "flash", Ramp: "ramp"}

// String is the name that flags and files use.
func (s Shape) String() string { return Shapes[s] }

// Load is demand, described.
type Load struct {
	Rate   float64 `in:"1e-9..1e9"` // requests a second, in the mean
	Shape  Shape
	Keys   int           `in:"0..10000000"`  // distinct keys; 0 means 1
	Skew   float64       `in:"0..10"`        // of a Zipf law over the keys: 0 is uniform, 1.1 is that of the web
	Hot    float64       `in:"0..1"`         // the additional share of requests for one key
	Cost   int           `in:"0..1e9"`       // hits of a request: 1 to Cost, uniformly; 0 means 1
	Length time.Duration `in:"1ns..999999h"` // of the whole
}

// Request is one arrival.
type Request struct {
	At   time.Duration // since the start
	Key  int           // from 0
	Cost int64
	Node int // which node is asked, if the source says; -1: any
}

// Stream is the requests of a Load. It is not safe for concurrent use. Between two changes of the rate (a phase),
// arrivals are a Poisson process of that rate. at is the last arrival, or the beginning of the phase.
type Stream struct {
	load  Load
	rnd   *rand.Rand
	keys  *alias
	at    float64 // seconds
	until float64 // of the phase
	rate  float64 // in it
	flash bool
}

// Stream makes the requests of a load, which must be valid.
func (l Load) Stream(seed uint64) *Stream {
	s := &Stream{load: l, rnd: rand.New(rand.NewPCG(seed, 0x10ad))}
	if l.Skew > 0 && l.Keys > 1 {
		s.keys = newZipf(l.Keys, l.Skew)
	}
	return s
}

// Next is the next request, in the order of their arrival, until ok is false. If the next arrival would come after the
// phase, the phase ends without one and another distance is drawn, at the new rate. That is exact, because exponential
// distances have no memory.
func (s *Stream) Next() (r Request, ok bool) {
	for {
		if s.at >= s.until {
			s.phase()
		}
		next := math.Inf(1)
		if s.rate > 0 {
			next = s.at + s.rnd.ExpFloat64()/s.rate
		}
		if next < s.until { // arrivals have no memory: at a change of the rate they begin anew
			s.at = next
			break
		}
		s.at = s.until
		if s.at >= s.load.Length.Seconds() {
			return Request{}, false
		}
	}
	r = Request{At: time.Duration(s.at * 1e9), Cost: 1, Node: -1, Key: s.key()}
	if s.load.Cost > 1 {
		r.Cost = 1 + s.rnd.Int64N(int64(s.load.Cost))
	}
	return r, true
}

// key draws the key of a request. The last key is the coldest of a Zipf law, so a flash hits a key that few nodes have
// seen. Hot requests are for the first.
func (s *Stream) key() int {
	l := &s.load
	switch {
	case s.flash && s.rnd.Float64() < 0.9:
		return max(0, l.Keys-1)
	case l.Hot > 0 && s.rnd.Float64() < l.Hot:
		return 0
	case l.Keys <= 1:
		return 0
	case s.keys != nil:
		return s.keys.draw(s.rnd)
	}
	return s.rnd.IntN(l.Keys)
}

// phase sets the rate from at until it changes. A small number is added before rounding down: sums of fractions may be
// just below a whole second, and the phase would then have no length.
//
// The factors keep the mean: a burst is 0.1 x 5.5 + 0.9 x 0.5 = 1, and a flash is 0.9 x 2/3 + 0.1 x 4 = 1.
func (s *Stream) phase() {
	l := &s.load
	end := l.Length.Seconds()
	s.flash = false
	switch l.Shape {
	case Burst:
		second := math.Floor(s.at + 1e-9)
		if s.at-second < 0.1-1e-9 {
			s.rate, s.until = 5.5*l.Rate, second+0.1
		} else {
			s.rate, s.until = l.Rate/2, second+1
		}
	case Flash:
		switch {
		case s.at < 0.4*end:
			s.rate, s.until = 2*l.Rate/3, 0.4*end
		case s.at < 0.5*end:
			s.rate, s.until, s.flash = 4*l.Rate, 0.5*end, true
		default:
			s.rate, s.until = 2*l.Rate/3, end
		}
	case Ramp:
		step := end / 100
		n := math.Floor(s.at/step + 1e-6)
		s.rate, s.until = 2*l.Rate*(n+0.5)/100, (n+1)*step
	default:
		s.rate, s.until = l.Rate, end
	}
	s.until = min(s.until, end)
}

// alias draws from a discrete distribution in constant time: the alias method (Walker 1977, in the form of Vose 1991).
// A draw chooses a place uniformly, and stays there or takes the place's other one.
type alias struct {
	own   []float64 // the probability of staying at a place
	other []int32
}

// newZipf makes the distribution in which the k-th of n keys has a weight of k to the power of -s. Weights are scaled
// to a mean of 1. Each place with less is filled up from one with more, which then has less itself. Rounding may leave
// some over at the end: these count as full.
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
