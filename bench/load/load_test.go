package load

import (
	"math"
	"slices"
	"testing"
	"time"
)

// requests are all of a load.
func requests(l Load, seed uint64) (all []Request) {
	s := l.Stream(seed)
	for r, ok := s.Next(); ok; r, ok = s.Next() {
		all = append(all, r)
	}
	return all
}

// Whatever its shape, a load has the mean that it says, and is the same twice.
func TestRateIsTheMean(t *testing.T) {
	for shape := range Shapes {
		l := Load{Rate: 5000, Shape: Shape(shape), Keys: 100, Length: 20 * time.Second}
		all := requests(l, 7)
		if !slices.Equal(all, requests(l, 7)) {
			t.Errorf("%v: one seed has two streams", l.Shape)
		}
		last := time.Duration(0)
		for _, r := range all {
			if r.At < last || r.At >= l.Length || r.Key < 0 || r.Key >= l.Keys || r.Cost != 1 {
				t.Fatalf("%v: %+v after %v", l.Shape, r, last)
			}
			last = r.At
		}
		if got := float64(len(all)) / 20; math.Abs(got-5000) > 5000*0.01 {
			t.Errorf("%v: %.0f a second, not 5000", l.Shape, got)
		}
	}
}

func TestZipf(t *testing.T) {
	l := Load{Rate: 1e6, Keys: 1000, Skew: 1.1, Length: time.Second}
	counts := make([]float64, l.Keys)
	all := requests(l, 1)
	for _, r := range all {
		counts[r.Key]++
	}
	sum := 0.0
	for k := range counts {
		sum += math.Pow(float64(k+1), -1.1)
	}
	for _, k := range []int{0, 1, 9, 99} {
		want := float64(len(all)) * math.Pow(float64(k+1), -1.1) / sum
		if math.Abs(counts[k]-want) > 5*math.Sqrt(want) {
			t.Errorf("key %d was drawn %.0f times, want about %.0f", k, counts[k], want)
		}
	}
}

func TestHotAndFlash(t *testing.T) {
	hot := requests(Load{Rate: 1e5, Keys: 1000, Hot: 0.5, Length: time.Second}, 1)
	n := len(slices.DeleteFunc(slices.Clone(hot), func(r Request) bool { return r.Key != 0 }))
	if share := float64(n) / float64(len(hot)); math.Abs(share-0.5) > 0.01 {
		t.Errorf("the hot key got %.3f of the requests, not 0.5", share)
	}
	before, during := 0, 0
	for _, r := range requests(Load{Rate: 1e5, Keys: 1000, Shape: Flash, Length: time.Second}, 1) {
		switch {
		case r.Key != 999 || r.At >= 500*time.Millisecond:
		case r.At < 400*time.Millisecond:
			before++
		default:
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
