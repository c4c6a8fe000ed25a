package load

import (
	"math"
	"slices"
	"strings"
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

func TestReadRecorded(t *testing.T) {
	for name, text := range map[string]string{
		"csv":               "time,key,hits,node\n2.5,b,3,1\n1.5,a\n",
		"csv without names": "2.5,b,3,1\n1.5,a,1\n",
		"dates":             "2026-11-21T10:00:02.5Z,b,3,1\n2026-11-21T10:00:01.5Z,a\n",
	} {
		r, err := ReadRecorded(strings.NewReader(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		a, _ := r.Play()()
		if len(r.Requests) != 2 || r.Keys[a.Key] != "a" || a.At != 0 || a.Cost != 1 || a.Node != -1 {
			t.Errorf("%s: %+v", name, r)
		}
		if l := r.Load(); l.Keys != 2 || l.Length != time.Second+1 || l.Rate < 1 {
			t.Errorf("%s: %+v", name, l)
		}
		if b := r.Requests[1]; r.Keys[b.Key] != "b" || b.At != time.Second || b.Cost != 3 || b.Node != 1 {
			t.Errorf("%s: %+v", name, b)
		}
	}
}

func TestBadTraces(t *testing.T) {
	for text, want := range map[string]string{
		"":           "no requests",
		"time,key\n": "no requests",
		"1,a\nx,a":   "line 2: time is \"x\"",
		"1,a\n1,a,b": "line 2: hits is \"b\"",
		"1,a,0":      "hits is \"0\"",
		"1,a,1,x":    "node is \"x\"",
		"1,a,1,1000": "node is \"1000\"",
		"1":          "1 columns",
		"-1,a":       "time is \"-1\"",
		"1,\"a":      "trace",
	} {
		if _, err := ReadRecorded(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRecorded(f *testing.F) {
	f.Add("1,a\n2,b,3,4")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ReadRecorded(strings.NewReader(text))
		if err != nil {
			return
		}
		last := time.Duration(-1)
		for _, q := range r.Requests {
			if q.At < last || q.Key >= len(r.Keys) || q.Cost < 1 {
				t.Fatalf("%+v after %v", q, last)
			}
			last = q.At
		}
	})
}
