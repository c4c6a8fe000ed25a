package ratelimit

import "testing"

// What Get says, Set reads; and every field has a text.
func TestCoordinationFieldsAreReadAsWritten(t *testing.T) {
	for field, texts := range map[string][]string{
		"mode": ModeNames(), "lease.size": {"auto", "17"},
		"reclaim":      Reclaims[:],
		"drift_budget": {"0", "250", "0.5%", "100%"}, "max_nodes": {"1", "30"},
		"check_timeout": {"0s", "2ms"}, "on_store_failure": FailurePolicies[:],
		"on_deny": OnDenies[:], "audit": {"true", "false"},
	} {
		for _, text := range texts {
			c := DefaultCoordination()
			if err := c.Set(field, text); err != nil || c.Get(field) != text {
				t.Errorf("%s: %s is written %q (%v)", field, text, c.Get(field), err)
			}
		}
	}
	c := DefaultCoordination()
	for _, field := range CoordinationFields {
		again := Coordination{}
		if err := again.Set(field, c.Get(field)); err != nil || again.Get(field) != c.Get(field) {
			t.Errorf("the default of %s is %q: %v", field, c.Get(field), err)
		}
	}
	if got := c.Get("nonsense"); got != "" {
		t.Errorf("a field that is none: %q", got)
	}
}
