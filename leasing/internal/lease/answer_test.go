package lease

import (
	"errors"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A key rests for longer each time, up to a second, however many answers in a row were fruitless; a
// single one before the fifth is no reason.
func TestRestsGrowToASecond(t *testing.T) {
	var h Held
	h.Begin(40)
	for n := 1; n <= 700; n++ {
		h.fails(second, func() float64 { return 0 })
		rest := h.Pause.Sub(second)
		want := LongestPause / 2
		if n < MostFruitless+5 {
			want = firstPause << max(0, n-MostFruitless) / 2
		}
		if n < MostFruitless && h.Pause > second || n >= MostFruitless && rest != want {
			t.Fatalf("it rests for %v after %d fruitless answers", rest, n)
		}
	}
}

// An answer that settles nothing has nothing reconciled.
func TestNoReconciliationOfAnError(t *testing.T) {
	rule := testRule(perMinute100)
	fl := Flight{Claim: ratelimit.Claim{Limit: perMinute100, Window: 7, Granted: 3, Spent: 5}}
	if r, drifted := fl.Reconciled(rule, &ratelimit.Grant{Err: errors.New("no answer"), OverAdmitted: 4}, 9); drifted || r != (Reconciliation{}) {
		t.Errorf("%+v %v", r, drifted)
	}
}
