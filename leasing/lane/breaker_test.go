package lane

import (
	"testing"
	"time"
)

// breakerScript plays a breaker through instants of one store.
type breakerScript struct {
	testing.TB
	Breaker
	now instant
}

// fails has so many calls fail at once.
func (s *breakerScript) fails(n int, jitter float64) {
	s.Helper()
	for range n {
		if !s.Allow(s.now) {
			s.Fatalf("at %v a call was refused that was to fail", time.Duration(s.now))
		}
		s.Failure(s.now, jitter)
	}
}

// refusesFor expects calls to be refused for exactly that long.
func (s *breakerScript) refusesFor(d time.Duration) {
	s.Helper()
	for _, at := range []time.Duration{0, d / 2, d - 1} {
		if !s.Refuses(s.now.Add(at)) || s.Allow(s.now.Add(at)) {
			s.Errorf("%v after the failure a call was allowed: calls must be refused for %v", at, d)
		}
	}
	s.now = s.now.Add(d)
	if s.Refuses(s.now) {
		s.Errorf("%v after the failure a call is refused still", d)
	}
}

// Three failures in a row open it, and not two: a success between them starts
// the count again.
func TestBreakerOpensAtTheThirdFailure(t *testing.T) {
	s := &breakerScript{TB: t, now: 1}
	s.fails(2, 0.5)
	s.Success()
	s.fails(2, 0.5)
	if s.Open() || s.Refuses(s.now) {
		t.Fatal("it is open after two failures in a row")
	}
	s.fails(1, 0.5)
	if !s.Open() {
		t.Fatal("it is closed after three failures in a row")
	}
	s.refusesFor(50 * time.Millisecond)
}

// The pause doubles with each failed probe, from 50 to 250 ms, so that a store
// that stays away costs little; a success starts from 50 ms again.
func TestBreakerWaitsLongerEachTime(t *testing.T) {
	s := &breakerScript{TB: t, now: 1}
	for range 2 {
		s.fails(3, 0.5)
		for _, pause := range []int{50, 100, 200, 250, 250} {
			s.refusesFor(time.Duration(pause) * time.Millisecond)
			s.fails(1, 0.5)
		}
		s.now = s.now.Add(2 * time.Second)
		if later := s.now.Add(time.Hour); !s.Allow(s.now) || s.Allow(later) || !s.Refuses(later) {
			t.Fatal("not one call went out to see, two seconds later, until it was answered")
		}
		s.Success()
	}
}

// Nodes draw the pause from half to one and a half of its mean, so that a
// fleet does not probe in step.
func TestBreakerPausesDiffer(t *testing.T) {
	for jitter, pause := range map[float64]time.Duration{
		0: 25 * time.Millisecond, 0.25: 37_500 * time.Microsecond, 1: 75 * time.Millisecond,
	} {
		s := &breakerScript{TB: t, now: 1}
		s.fails(3, jitter)
		s.refusesFor(pause)
	}
}

// A probe whose result says nothing of the store is followed by another one.
func TestUndecidedProbe(t *testing.T) {
	s := &breakerScript{TB: t, now: 1}
	s.fails(3, 0.5)
	s.now = s.now.Add(time.Second)
	for range 3 {
		if !s.Allow(s.now) || s.Allow(s.now) {
			t.Fatal("there is not one probe")
		}
		s.Undecided()
	}
	if !s.Allow(s.now) {
		t.Fatal("after such a probe there is none")
	}
	s.Success()
	if s.Open() {
		t.Error("it is open after a success")
	}
}
