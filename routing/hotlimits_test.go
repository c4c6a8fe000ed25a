package routing

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Requests of one key can bring different limits. Tokens that a node leases for a large one do not serve a request whose
// limit is used up, and its refusal refuses no request with the large one.
func TestHotKeyOfTwoLimits(t *testing.T) {
	s := newScript(t, 1, 1_000_000)
	s.hotRate = 50
	s.ring("a:1", "b:1")
	a := s.nodes["a:1"]
	key := a.ownedBy("b:1")
	large := s.rule
	small := routed(10)
	ask := func(rule *ratelimit.Rule) verdict {
		v := make([]verdict, 1)
		a.Ask([]ask{{Rule: rule, Key: key, Kind: ratelimit.Spend, Cost: 1}}, v, nil, func() {})
		s.play(2 * time.Millisecond)
		return v[0]
	}
	for range 2000 {
		if v := ask(large); v.OverLimit {
			t.Fatalf("%+v", v)
		}
	}
	if s.hotKeys() == 0 {
		t.Fatal("the key is not leased")
	}
	passed, refused := 0, 0
	for range 100 {
		if v := ask(small); !v.OverLimit {
			passed++
		}
		if v := ask(large); v.OverLimit {
			refused++
		}
	}
	if passed > 0 || refused > 0 {
		t.Errorf("2000 are used: %d of 100 pass by a limit of 10, and %d are refused by one of 1000000", passed, refused)
	}
}
