package lease

import (
	"testing"
	"time"
)

// A key that a rule of mode approx has put into the table, and that nothing but its policy
// has admitted requests of, has a rule: whoever looks for room must be able to say how long
// it counts. (Seed 1007114 of the histories: the node ended.)
func TestKeyOfWhatWasBookedOnlyHasARule(t *testing.T) {
	var h Held
	h.Begin(40)
	now := instant(time.Hour)
	h.Book(now, &ask{Rule: testRule(perMinute100), Cost: 3}, 3)
	if h.MayGo(now, true) {
		t.Error("it may go, and 3 that were admitted would be forgotten")
	}
	if !h.MayGo(now.Add(2*time.Minute), true) {
		t.Error("it stays for ever")
	}
}
