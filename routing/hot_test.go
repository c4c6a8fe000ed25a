package routing

import (
	"testing"
	"time"
)

func TestHotKeysAreFound(t *testing.T) {
	h := newHot(0)
	now := instant(1)
	for second := range 3 {
		for i := range 20_000 {
			now = now.Add(50 * time.Microsecond)
			key := keyOf(1_000_000)
			if i%10 == 0 {
				key = keyOf(second*2000 + i)
			}
			h.hit(now, key)
		}
	}
	if names := h.names(now); len(names) != 1 || names[0] != string(keyOf(1_000_000)) {
		t.Errorf("%q", names)
	}
	if len(h.slots) > hotSlots || len(h.keys) > hotSlots {
		t.Error("it grows")
	}
	if names := h.names(now.Add(3 * time.Second)); len(names) != 0 {
		t.Errorf("still hot: %q", names)
	}
}
