package load

import (
	"math"
	"testing"
	"time"
)

// Whatever its shape, a load has the mean that it says, and is the same twice.
func TestRateIsTheMean(t *testing.T) {
	for shape := range Shapes {
		l := Load{Rate: 5000, Shape: Shape(shape), Keys: 100, Length: 20 * time.Second}
		one, two := l.Stream(7), l.Stream(7)
		n, last := 0, time.Duration(0)
		for {
			r, ok := one.Next()
			if again, _ := two.Next(); r != again {
				t.Fatalf("%v: %v and %v of one seed", l.Shape, r, again)
			}
			if !ok {
				break
			}
			if r.At < last || r.At >= l.Length || r.Key < 0 || r.Key >= l.Keys || r.Cost != 1 {
				t.Fatalf("%v: %+v after %v", l.Shape, r, last)
			}
			last = r.At
			n++
		}
		if got := float64(n) / 20; math.Abs(got-5000) > 5000*0.01 {
			t.Errorf("%v: %.0f a second, not 5000", l.Shape, got)
		}
	}
}

func TestZipf(t *testing.T) {
	l := Load{Rate: 1e6, Keys: 1000, Skew: 1.1, Length: time.Second}
	counts := make([]float64, l.Keys)
	total := 0.0
	for s := l.Stream(1); ; total++ {
		r, ok := s.Next()
		if !ok {
			break
		}
		counts[r.Key]++
	}
	sum := 0.0
	for k := range counts {
		sum += math.Pow(float64(k+1), -1.1)
	}
	for _, k := range []int{0, 1, 9, 99} {
		want := total * math.Pow(float64(k+1), -1.1) / sum
		if math.Abs(counts[k]-want) > 5*math.Sqrt(want) {
			t.Errorf("key %d was drawn %.0f times, want about %.0f", k, counts[k], want)
		}
	}
}

func TestHotAndFlash(t *testing.T) {
	hot, n := 0, 0
	for s := (Load{Rate: 1e5, Keys: 1000, Hot: 0.5, Length: time.Second}).Stream(1); ; n++ {
		r, ok := s.Next()
		if !ok {
			break
		}
		if r.Key == 0 {
			hot++
		}
	}
	if share := float64(hot) / float64(n); math.Abs(share-0.5) > 0.01 {
		t.Errorf("the hot key got %.3f of the requests, not 0.5", share)
	}
	before, during := 0, 0
	for s := (Load{Rate: 1e5, Keys: 1000, Shape: Flash, Length: time.Second}).Stream(1); ; {
		r, ok := s.Next()
		if !ok {
			break
		}
		if r.Key == 999 && r.At < 400*time.Millisecond {
			before++
		} else if r.Key == 999 && r.At < 500*time.Millisecond {
			during++
		}
	}
	if during < 30_000 || before > 200 {
		t.Errorf("the crowd's key got %d requests before and %d in the crowd", before, during)
	}
}

func TestValidateSaysEverything(t *testing.T) {
	if errs := (Load{Keys: -1, Skew: -1, Hot: 2, Cost: -1}).Validate(); len(errs) != 6 {
		t.Errorf("%d problems, want 6: %v", len(errs), errs)
	}
	if errs := (Load{Rate: 1, Length: 1}).Validate(); errs != nil {
		t.Error(errs)
	}
	if _, err := ParseShape("square"); err == nil {
		t.Error("square is no shape")
	}
}
