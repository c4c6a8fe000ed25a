package audit

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// recorded is a limiter of one node whose decisions are recorded, and its replay.
type recorded struct {
	*Decisions
	*testing.T
	name string
	rule *ratelimit.Rule
	now  ratelimit.Instant
}

func newRecorded(t *testing.T, l ratelimit.Limit) *recorded {
	r := &recorded{T: t, name: filepath.Join(t.TempDir(), "audit"), now: ratelimit.Instant(time.Second)}
	file, err := OpenRecord(r.name, slog.Default())
	if err != nil {
		t.Fatal(err)
	}
	wall := time.Unix(1_800_000_000, 0)
	r.rule = &ratelimit.Rule{Domain: "d", Path: "k", Limit: l, Coordination: ratelimit.DefaultCoordination()}
	r.rule.Coordination.Audit = true
	local := local.New(100, r.now, wall)
	r.Decisions = NewDecisions(local, file, 7, local.LedgerNow)
	return r
}

func (r *recorded) asks(kind ratelimit.Kind, cost ratelimit.Tokens) ([]ratelimit.Ask, []ratelimit.Verdict) {
	a, v := []ratelimit.Ask{{Rule: r.rule, Key: []byte("key"), Kind: kind, Cost: cost}}, make([]ratelimit.Verdict, 1)
	r.Decide(context.Background(), r.now, a, v)
	return a, v
}

// windows are what the replay has.
func (r *recorded) windows() []*Window {
	r.Write()
	all, _, err := ReadFile(r.name)
	if err != nil {
		r.Fatal(err)
	}
	return Replay(all)
}

// Requests that are refused do not count as admitted, and those that were charged all the same are shown. What is given
// back, charged later, or refused by another limit of the request is subtracted.
func TestDecisionsAreRecorded(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		for _, deny := range []ratelimit.OnDeny{ratelimit.DenyCharges, ratelimit.DenyRefunds} {
			r := newRecorded(t, ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Year, Requests: 90, Burst: 90})
			r.rule.Coordination.OnDeny = deny
			for range 98 {
				r.asks(ratelimit.Spend, 3)
			}
			charged := map[ratelimit.OnDeny]ratelimit.Tokens{ratelimit.DenyCharges: 204}[deny]
			want := Decided{Admitted: 90, Refused: 204, RefusedCharged: charged}
			if all := r.windows(); len(all) != 1 || all[0].Decided != want || all[0].Limit != 90 || !all[0].Held() {
				t.Fatalf("%v, deny %v: %+v", r.rule.Limit, deny, all[0])
			}
			r.asks(ratelimit.Refund, 10)
			r.asks(ratelimit.Peek, 0)
			r.asks(ratelimit.Charge, 4)
			want.Admitted -= 6
			if deny == ratelimit.DenyRefunds { // another limit refuses the request
				a, v := r.asks(ratelimit.Spend, 2)
				r.Undo(r.now, a, v)
				want.Refused += 2
			}
			if all := r.windows(); all[0].Decided != want {
				t.Errorf("%v, deny %v: %+v, must be %+v", r.rule.Limit, deny, all[0].Decided, want)
			}
		}
	}
}

// Each window has its own line, and a rule without an audit has none.
func TestDecisionsOfWindows(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 5})
	for range 3 {
		for range 7 {
			r.asks(ratelimit.Spend, 1)
		}
		r.now = r.now.Add(time.Minute)
	}
	r.rule.Coordination.Audit = false
	r.asks(ratelimit.Spend, 1)
	all := r.windows()
	if len(all) != 3 {
		t.Fatalf("%d windows", len(all))
	}
	for _, w := range all {
		if w.Decided != (Decided{Admitted: 5, Refused: 2, RefusedCharged: 2}) || w.Ends.Second() != 0 {
			t.Errorf("%+v", w)
		}
	}
}

// Any number of keys is recorded, in bounded memory.
func TestDecisionsAreBounded(t *testing.T) {
	r := newRecorded(t, ratelimit.Limit{Unit: ratelimit.Year, Requests: 5})
	for i := range mostOpen + 5 {
		a := []ratelimit.Ask{{Rule: r.rule, Key: fmt.Append(nil, "key", i), Cost: 1}}
		r.Decide(context.Background(), r.now, a, make([]ratelimit.Verdict, 1))
		if len(r.open) >= mostOpen {
			t.Fatalf("%d are open", len(r.open))
		}
	}
	if all := r.windows(); len(all) != mostOpen+5 {
		t.Errorf("%d windows are recorded of %d", len(all), mostOpen+5)
	}
}
