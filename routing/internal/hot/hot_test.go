package hot

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestHotKeysAreFound(t *testing.T) {
	h := New(0)
	now := ratelimit.Instant(1)
	for second := range 3 {
		for i := range 20_000 {
			now = now.Add(50 * time.Microsecond)
			key := keyOf(1_000_000)
			if i%10 == 0 {
				key = keyOf(second*2000 + i)
			}
			h.Hit(now, key)
		}
	}
	if names := h.Names(now); len(names) != 1 || names[0] != string(keyOf(1_000_000)) {
		t.Errorf("%q", names)
	}
	if len(h.slots) > mostSlots || len(h.keys) > mostSlots {
		t.Error("it grows")
	}
	if names := h.Names(now.Add(3 * time.Second)); len(names) != 0 {
		t.Errorf("still hot: %q", names)
	}
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}
