// Package load makes demand: the instants of requests, and their keys. The benchmark sends it to servers, and
// the simulator plays it in virtual time.
//
// Guarantee: a Stream is the same for the same Load and seed, and costs no allocation per request. Requests
// arrive as a Poisson process (independently of each other and of the answers). Its rate changes as Shape
// says, and its mean over the whole time is Rate.
package load

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
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

// ParseShape returns the shape of that name.
func ParseShape(name string) (Shape, error) {
	i := slices.Index(Shapes[:], name)
	if i < 0 {
		return 0, fmt.Errorf("%q is not a shape of load: it is one of %s", name, strings.Join(Shapes[:], ", "))
	}
	return Shape(i), nil
}

// Load is demand, described.
type Load struct {
	Rate   float64 // requests a second, in the mean
	Shape  Shape
	Keys   int           // distinct keys; 0 means 1
	Skew   float64       // of a Zipf law over the keys: 0 is uniform, 1.1 is that of the web
	Hot    float64       // the additional share of requests for one key, 0 to 1
	Cost   int           // hits of a request: 1 to Cost, uniformly; 0 means 1
	Length time.Duration // of the whole
}

// Validate reports every problem, each with its value and its bound.
func (l Load) Validate() []error {
	var errs []error
	bad := func(what string, value any, bound string) {
		errs = append(errs, fmt.Errorf("%s is %v, must be %s", what, value, bound))
	}
	if !(l.Rate > 0) || l.Rate > 1e9 {
		bad("the rate", l.Rate, "above 0 and at most 1e9 requests a second")
	}
	if l.Keys < 0 || l.Keys > MaxKeys {
		bad("the number of keys", l.Keys, fmt.Sprintf("1 to %d", MaxKeys))
	}
	if !(l.Skew >= 0) || l.Skew > 10 {
		bad("the skew", l.Skew, "0 to 10")
	}
	if !(l.Hot >= 0) || l.Hot > 1 {
		bad("the hot key's share", l.Hot, "0 to 1")
	}
	if l.Cost < 0 || l.Cost > 1e9 {
		bad("the cost", l.Cost, "1 to 1e9")
	}
	if l.Length <= 0 {
		bad("the length", l.Length, "positive")
	}
	return errs
}

// MaxKeys is how many distinct keys a load may have.
const MaxKeys = 10_000_000

// Request is one arrival.
type Request struct {
	At   time.Duration // since the start
	Key  int           // from 0
	Cost int64
	Node int // which node is asked, if the source says; -1: any
}

// Stream is the requests of a Load. It is not safe for concurrent use.
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

// Next is the next request, in the order of their arrival, until ok is false.
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

// phase sets the rate from at until it changes.
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
