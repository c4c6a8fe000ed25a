package sim

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var (
	histories = flag.Int("histories", 300, "how many histories to play; make sim plays many more")
	first     = flag.Uint64("seed", 1, "of the first history")
)

// Whatever is set, and whatever goes wrong, no key goes further over its limit
// than declared, and no invariant breaks. Every fault is played in some history, and does what it says.
func TestHistories(t *testing.T) {
	t.Parallel()
	seen, sources := map[FaultKind]int{}, map[string]int64{}
	over, unanswered := 0, 0
	for seed := *first; seed < *first+uint64(*histories); seed++ {
		r := play(t, seed)
		if t.Failed() {
			return
		}
		for _, f := range History(seed).Faults {
			seen[f.Kind]++
		}
		for s, n := range r.Sources {
			sources[s] += n
		}
		if r.Over > 0 {
			over++
		}
		if r.Unanswered > 0 {
			unanswered++
		}
	}
	if *histories < 300 {
		return
	}
	for kind, name := range FaultKinds {
		if seen[FaultKind(kind)] == 0 {
			t.Errorf("%s was not played", name)
		}
	}
	for _, s := range []string{"lease", "claim", "owner", "drift", "fallback"} {
		if sources[s] == 0 {
			t.Errorf("nothing was decided by %s: %v", s, sources)
		}
	}
	if over == 0 || unanswered == 0 {
		t.Errorf("%d histories went over, %d ask a node that is away", over, unanswered)
	}
}

// play plays a history.
func play(t *testing.T, seed uint64) *Result {
	t.Helper()
	r, err := Run(History(seed))
	if err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
	if r.Violation != nil {
		t.Errorf("seed %d: %v\nreplay: go run ./cmd/sluicelab sim histories --seed %d --trace", seed, r.Violation, seed)
	}
	return r
}

// Each of these once went wrong.
func TestHistoriesOfBugs(t *testing.T) {
	t.Parallel()
	for seed, was := range map[uint64]string{
		16:    "reclaim: eager credited what was spent but not yet reported",
		586:   "a bucket that was full, and relearning, was asked again without end",
		1343:  "reclaim: eager, with a lease for the next window, and after denials",
		1608:  "reclaim: eager granted more at once than its declared largest lease",
		6440:  "a lease of mode approx that was reclaimed confirmed what had drifted",
		27551: "a sliding window forgot what was spent while the claim that ended it travelled",
		28235: "mode routing reclaimed eagerly, and is declared exact",

		665:     "what was spent of an eager lease was not told before the ledger credited it",
		902:     "a small lease was renewed for nothing, again and again",
		3997:    "a claim of a billing month took seconds",
		18484:   "what had drifted in a sliding window was forgotten with its key",
		1005636: "a clock set ahead by more than a window had a node claim of the old one in a loop",

		3004536: "an eager lease was credited whose tokens had been refunded",
		7001049: "what was admitted before the window was known was in no book",
		6698:    "what was refunded before a node's first answer was booked in a later window",
		7001361: "what was refunded without the store was booked in no window",
		1045565: "a node had a second budget for outages, for hot keys whose owner did not answer",
	} {
		if r := play(t, seed); r.Violation != nil {
			t.Errorf("it was: %s", was)
		}
	}
}

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(m.Run())
}

// A failed history is described by the names of its settings.
func TestHistoriesAreDescribedByName(t *testing.T) {
	o := History(1)
	if s := describe(&o); !strings.Contains(s, ", reclaim safe, ") && !strings.Contains(s, ", reclaim eager, ") {
		t.Errorf("reclaim has no name in %q", s)
	}
}
