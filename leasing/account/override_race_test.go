package account

import (
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A ban that is set while a first claim is under way is what that is judged by, or its holder is recalled.
func TestBanReachesAFirstClaim(t *testing.T) {
	b, node := newBetween(t)
	operator := NewCAS(b.MemoryStore, "c:")
	told := map[string]bool{}
	operator.OnRecall = func(_ ratelimit.Holder, key string, _ ratelimit.Window) { told[key] = true }
	c := casClaim("k", 1, 1, 10)
	c.Limit.Ceiling = 100
	set := ratelimit.LedgerTime(0)
	b.happens = func(changes []Change) error {
		if set == 0 {
			o, err := operator.SetOverride(t.Context(), &OverrideChange{
				Key: "k", Limit: c.Limit, Override: &ratelimit.Override{}, Match: ratelimit.Match{Any: true},
			})
			if err != nil {
				t.Fatal(err)
			}
			set = o.Set
		}
		return nil
	}
	g := settle1(t, node, c)
	if set == 0 {
		t.Fatal("the ban was not set between")
	}
	if g.Granted > 0 && len(told) == 0 {
		t.Errorf("the ban is set, and then %d tokens are granted to a node that nobody recalls: %+v", g.Granted, g)
	}
}
