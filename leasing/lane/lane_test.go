package lane

import (
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// script plays a queue whose batches take a time.
type script struct {
	testing.TB
	Queue[int]
	began   time.Time
	trip    time.Duration
	batches [][]int
	left    []time.Duration // when each message left, by its number
	flights atomic.Int32
}

// played plays a queue in a bubble of time.
func played(t *testing.T, trip time.Duration, play func(*script)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { play(newScript(t, trip)) })
}

func newScript(t testing.TB, trip time.Duration) *script {
	s := &script{TB: t, began: time.Now(), trip: trip, left: make([]time.Duration, 10_000)}
	s.Size, s.Patient, s.Flights = 1000, 1000, func() int { return 4 }
	s.Clock = func() instant { return instant(time.Since(s.began)) }
	s.After = func(d time.Duration, do func()) { time.AfterFunc(d, do) }
	return s
}

func (s *script) settle(batch []int) {
	if n := s.flights.Add(1); int(n) > s.Flights() || len(batch) > BatchSize {
		s.Errorf("%d batches are in flight, the last one of %d", n, len(batch))
	}
	s.mu.Lock()
	s.batches = append(s.batches, batch)
	for _, m := range batch {
		s.left[m] = time.Since(s.began)
	}
	s.mu.Unlock()
	time.Sleep(s.trip)
	s.flights.Add(-1)
}

// Messages that come at some pace wait for each other for as long as is declared, and make so many batches. Rare ones
// leave at once.
func TestBatchesByPace(t *testing.T) {
	for _, c := range []struct {
		every   time.Duration
		waits   time.Duration // at most
		batches int           // for 1,000 messages, at most; the first ones show their pace
	}{
		{20 * time.Millisecond, 0, 1000},
		{1800 * time.Microsecond, 0, 1000},
		{time.Millisecond, Gather, 550},
		{500 * time.Microsecond, Gather, 320},
		{100 * time.Microsecond, Gather, 150},
		{10 * time.Microsecond, Gather, 40},
	} {
		played(t, 500*time.Microsecond, func(s *script) {
			s.Start(s.settle)
			come := make([]time.Duration, 1000)
			for i := range come {
				come[i] = time.Since(s.began)
				if !s.Send(i, time.Hour) {
					s.Fatalf("every %v: %d was refused", c.every, i)
				}
				time.Sleep(c.every)
			}
			s.Stop()
			for i := range come {
				if waited := s.left[i] - come[i]; waited > c.waits {
					s.Errorf("every %v: message %d waited for %v, at most %v are declared", c.every, i, waited, c.waits)
				}
			}
			if n := len(s.batches); n > c.batches {
				s.Errorf("every %v: %d batches, at most %d are expected", c.every, n, c.batches)
			}
		})
	}
}

// A message with a shorter time makes its batch leave, and patient ones leave along with it.
func TestShortestWait(t *testing.T) {
	played(t, 0, func(s *script) {
		s.Later(100, 50*time.Millisecond) // before the start
		s.Start(s.settle)
		for i := range 100 { // they are frequent
			s.Send(i, 0)
			time.Sleep(100 * time.Microsecond)
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if len(s.batches) == 0 || !slices.Contains(s.batches[0], 100) {
			s.Error("what came before the start has not left")
		}
		s.batches = nil
		s.Later(200, 50*time.Millisecond)
		time.Sleep(time.Millisecond)
		s.Send(201, time.Millisecond)
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if len(s.batches) != 1 || !slices.Equal(s.batches[0], []int{201, 200}) {
			s.Errorf("they left as %v", s.batches)
		}
		s.Later(202, 50*time.Millisecond)
		time.Sleep(49 * time.Millisecond)
		if synctest.Wait(); s.Len() != 1 {
			s.Error("a patient message left early")
		}
		time.Sleep(time.Millisecond)
		if synctest.Wait(); s.Len() != 0 {
			s.Error("a patient message has not left after its time")
		}
		s.Later(203, time.Hour)
		if !slices.Equal(s.Rest(), []int{203}) || s.Rest() != nil {
			s.Error("the rest is not all of it")
		}
	})
}

// While as many batches are in flight as may be, messages wait, and leave with the first answer. None is lost, and
// none is refused before the queue is full.
func TestFullFlights(t *testing.T) {
	played(t, time.Second, func(s *script) {
		s.Start(s.settle)
		for i := range 4 {
			s.Send(i, 0)
		}
		for i := range s.Size {
			if !s.Send(10+i, 0) || !s.Later(2000+i, 0) {
				s.Fatalf("message %d was refused", i)
			}
		}
		if s.Send(5000, 0) || s.Later(5001, 0) {
			s.Error("a full queue takes another message")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if n := len(s.batches); n != 8 || s.Len() != 2*s.Size-4*BatchSize {
			s.Errorf("%d batches left, and %d messages wait", n, s.Len())
		}
		for _, b := range s.batches[4:] {
			if patient := len(b) - slices.IndexFunc(b, func(m int) bool { return m >= 2000 }); patient < BatchSize/2 {
				s.Errorf("only %d patient messages leave with others", patient)
			}
		}
		s.Stop()
		if s.Len() > 0 || s.Send(5002, 0) || s.Later(5003, 0) {
			s.Errorf("%d messages wait after the end, or others come", s.Len())
		}
		var all []int
		for _, b := range s.batches {
			all = append(all, b...)
		}
		if slices.Sort(all); len(all) != 4+2*s.Size || len(slices.Compact(all)) != len(all) {
			s.Errorf("%d of %d messages were sent", len(all), 4+2*s.Size)
		}
	})
}

// Timers may be early or late. Messages leave at their time, or with the next one.
func TestTimersAreInexact(t *testing.T) {
	for _, shift := range []time.Duration{-time.Microsecond, time.Second} {
		played(t, 0, func(s *script) {
			s.After = func(d time.Duration, do func()) { time.AfterFunc(max(1, d+shift), do) }
			s.Start(s.settle)
			s.Later(0, 10*time.Millisecond)
			if time.Sleep(20 * time.Millisecond); shift < 0 {
				if synctest.Wait(); s.Len() != 0 {
					s.Error("after an early timer a message stays")
				}
			}
			came := time.Since(s.began)
			for i := range 10 {
				s.Send(1+i, 0)
			}
			synctest.Wait()
			if waited := s.left[1] - came; s.Len() > 0 || waited > 0 {
				s.Errorf("timers are off by %v: %d messages stay, and the first waited for %v", shift, s.Len(), waited)
			}
			s.Stop()
		})
	}
}

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
