package lease

import (
	"errors"
	"testing"
	"time"

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

// Whether a key has too many holders for draws, a script's answer says, and a draw's; a glance, which is answered by
// who has read the account, says nothing of it.
func TestWhoSaysThatAKeyIsCrowded(t *testing.T) {
	const now, at = instant(time.Hour), ledgerTime(1_800_000_015_000_000)
	w := perMinute100.WindowAt(at)
	for _, x := range []struct {
		was, glance, drawn bool
		holders            int
		is                 bool
	}{
		{false, false, true, 1, false},
		{true, false, true, 1, false},
		{false, false, false, 5, true},
		{true, false, false, 4, false},
		{true, true, true, 1, true},
		{false, true, true, 1, false},
		{true, true, false, 1, false},
		{false, true, false, 5, true},
	} {
		h := calmKey(now)
		h.Lease.Spent, h.Lease.Window, h.crowded = h.Lease.Granted, w, x.was
		fl := &Flight{Claim: ratelimit.Claim{
			Limit: perMinute100, Holder: 40, Seq: 2, Window: w, Granted: h.Lease.Granted, Spent: h.Lease.Spent,
			TTL: 10 * time.Second, Draw: w, Glance: x.glance,
		}}
		h.Lease.Seq = 2
		g := &ratelimit.Grant{
			Seq: 2, Granted: h.Lease.Granted, Fence: 7, Window: w, Carried: true, TTL: 10 * time.Second, Drawn: x.drawn,
			Holders: x.holders, At: at, ResetAfter: 45 * time.Second,
		}
		var there LedgerClock
		there.Heard(now, now, at)
		h.Answer(now, now, there, fl, g, func() float64 { return 0 })
		if h.crowded != x.is {
			t.Errorf("%+v: crowded %v", x, h.crowded)
		}
	}
}

// That a draw was lost is settled by the next claim of its window that is none. One for the next window says nothing
// of it.
func TestWhoSettlesALostDraw(t *testing.T) {
	const now, at = instant(time.Hour), ledgerTime(1_800_000_015_000_000)
	w := perMinute100.WindowAt(at)
	for _, x := range []struct{ ahead, drawn, lost bool }{
		{false, false, false}, {false, true, true}, {true, false, true}, {true, true, true},
	} {
		h := calmKey(now)
		h.Lease.Window, h.Lease.Seq, h.vain = w, 2, true
		fl := &Flight{Errand: Errand{Ahead: x.ahead}, Claim: ratelimit.Claim{
			Limit: perMinute100, Holder: 40, Seq: 2, Window: w, Granted: 20, Spent: 10, TTL: 10 * time.Second, Ahead: x.ahead,
		}}
		g := &ratelimit.Grant{
			Seq: 2, Granted: 20, Fence: 7, Window: w, Carried: true, TTL: 10 * time.Second, Drawn: x.drawn,
			Holders: 1, At: at, ResetAfter: 45 * time.Second,
		}
		if x.ahead {
			fl.Claim.Window, fl.Claim.Granted, fl.Claim.Spent, g.Window = w+1, 0, 0, w+1
		}
		var there LedgerClock
		there.Heard(now, now, at)
		h.Answer(now, now, there, fl, g, func() float64 { return 0 })
		if h.vain != x.lost {
			t.Errorf("%+v: lost %v", x, h.vain)
		}
	}
}
