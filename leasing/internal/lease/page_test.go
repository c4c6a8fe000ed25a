package lease

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/ledgertest/specpage"
	"github.com/sluice-gate/sluice/ratelimit"
)

// eighths says which part of a limit of 800 a sum may be at most for something to hold.
func eighths(t *testing.T, holds func(sum tokens) bool) []string {
	t.Helper()
	for sum := range tokens(801) {
		if !holds(sum + 1) {
			if sum%100 != 0 {
				t.Errorf("%d of 800 are no eighths", sum)
			}
			return []string{fmt.Sprintf("%d/8", sum/100)}
		}
	}
	t.Error("it always holds")
	return nil
}

// The specification's numbers of a node's side are the code's.
func TestPageConstants(t *testing.T) {
	page := specpage.Read(t)
	of := func(d time.Duration) []string { return []string{specpage.Duration(d)} }
	count := func(n int) []string { return []string{fmt.Sprint(n)} }
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 800}
	rule := &ratelimit.Rule{Limit: limit, Coordination: ratelimit.DefaultCoordination()}
	bucket := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 1, Burst: 1}
	page.Constants([]string{"lease"}, map[string][]string{
		"lease.mayDraw": eighths(t, func(sum tokens) bool {
			p := Part{Window: 1, Sum: sum, Deadline: Never}
			return p.mayDraw(&Asking{Epoch: ratelimit.Epoch{ID: 1}}, &account.Claim{Limit: limit})
		}),
		"lease.plenty":         eighths(t, func(sum tokens) bool { return plenty(rule, sum) }),
		"lease.lasts":          {fmt.Sprintf("%d/4", 4*lasts(&bucket)/account.BucketSlot(&bucket))},
		"lease.slow":           of(slow),
		"lease.rarelyRefunded": count(rarelyRefunded),
		"lease.MaxSkew":        {fmt.Sprint("1/", MaxSkew)},
	})
}

// The size of claims while there is plenty is the specification's formula.
func TestPageFormulas(t *testing.T) {
	page := specpage.Read(t)
	page.Says("`limit / (5 x max(4, nodes))`")
	page.Says("a limit below `20 x max(2, nodes)`")
	for _, nodes := range []int{1, 3, 4, 5, 50, 51, 100} {
		for _, limit := range []tokens{1, 100, 1000, 100_000} {
			rule := &ratelimit.Rule{
				Limit:        ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit},
				Coordination: ratelimit.DefaultCoordination(),
			}
			e := Entry{&Key{Part: Part{Deadline: Never}}, &Use{}}
			formula := limit / tokens(5*max(4, nodes))
			if limit < tokens(20*max(2, nodes)) {
				formula = 0
			}
			size := Sizing{Rule: rule, Nodes: nodes}
			for _, need := range []tokens{0, 3} {
				if want, _ := e.Wants(1, need, size); want != max(need, formula) {
					t.Errorf("limit %d, %d nodes: wants %d, and the page says %d", limit, nodes, want, formula)
				}
			}
			e.scarce = 2
			if want, _ := e.Wants(1, 3, size); want != 3 {
				t.Errorf("limit %d, %d nodes: wants %d where others need the rest, not the need", limit, nodes, want)
			}
		}
	}
}
