package quota

import (
	"flag"
	"testing"
)

var (
	firstSeed = flag.Uint64("seed", 1, "of the first history")
	histories = flag.Int("histories", 400, "how many to play")
)

// Whatever goes wrong, no more is let pass than is declared, nor could be.
func TestHistories(t *testing.T) {
	t.Parallel()
	var sum Result
	faults := map[string]int{}
	for i := range *histories {
		o := History(*firstSeed + uint64(i))
		r, err := Run(o)
		if err != nil {
			t.Fatal(err)
		}
		if r.Violation != "" {
			t.Fatalf("%s\n  %s\n  replay: go test ./bench/quota -run TestHistories -seed %d -histories 1", r.Violation, o.Describe(), o.Seed)
		}
		for _, f := range o.Faults {
			faults[FaultKinds[f.Kind]]++
		}
		sum.Requests, sum.Admitted = sum.Requests+r.Requests, sum.Admitted+r.Admitted
		if r.Over > 0 {
			sum.Over++
		}
	}
	t.Logf("%d histories, %d requests, %d let pass; faults %v; %d went over, within what they declare",
		*histories, sum.Requests, sum.Admitted, faults, sum.Over)
}

// The same options give the same result.
func TestHistoriesAreRepeated(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		a, err := Run(History(seed))
		if err != nil {
			t.Fatal(err)
		}
		b, err := Run(History(seed))
		if err != nil {
			t.Fatal(err)
		}
		if *a != *b {
			t.Fatalf("seed %d: %+v, and then %+v", seed, *a, *b)
		}
	}
}
