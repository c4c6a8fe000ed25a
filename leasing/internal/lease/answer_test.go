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

// answeredAt is when calmKey's claims are answered by a ledger whose clock is 15 s into a minute.
const answeredAt = ledgerTime(1_800_000_015_000_000)

// answers has a claim of a key of its second number answered at now, with what all answers in these tests have; the
// test sets the rest.
func (h *Held) answers(now instant, fl *Flight, g ratelimit.Grant) {
	h.Lease.Seq = 2
	fl.Claim.Limit, fl.Claim.Holder, fl.Claim.Seq, fl.Claim.TTL = perMinute100, 40, 2, 10*time.Second
	g.Seq, g.Fence, g.TTL, g.At, g.ResetAfter = 2, 7, 10*time.Second, answeredAt, 45*time.Second
	var there LedgerClock
	there.Heard(now, now, answeredAt)
	h.Answer(now, now+1, there, fl, &g, func() float64 { return 0 })
}

// Whether a key has too many holders for draws, a script's answer says, and a draw's; a glance, which is answered by
// who has read the account, says nothing of it.
func TestWhoSaysThatAKeyIsCrowded(t *testing.T) {
	const now = instant(time.Hour)
	w := perMinute100.WindowAt(answeredAt)
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
		fl := &Flight{Claim: ratelimit.Claim{Window: w, Granted: h.Lease.Granted, Spent: h.Lease.Spent, Draw: w, Glance: x.glance}}
		h.answers(now, fl, ratelimit.Grant{Granted: h.Lease.Granted, Window: w, Carried: true, Drawn: x.drawn, Holders: x.holders})
		if h.crowded != x.is {
			t.Errorf("%+v: crowded %v", x, h.crowded)
		}
	}
}

// That a draw was lost is settled by the next claim of its window that is none. One for the next window says nothing
// of it.
func TestWhoSettlesALostDraw(t *testing.T) {
	const now = instant(time.Hour)
	w := perMinute100.WindowAt(answeredAt)
	for _, x := range []struct{ ahead, drawn, lost bool }{
		{false, false, false}, {false, true, true}, {true, false, true}, {true, true, true},
	} {
		h := calmKey(now)
		h.Lease.Window, h.vain = w, true
		fl := &Flight{Errand: Errand{Ahead: x.ahead}, Claim: ratelimit.Claim{Window: w, Granted: 20, Spent: 10, Ahead: x.ahead}}
		g := ratelimit.Grant{Granted: 20, Window: w, Carried: true, Drawn: x.drawn, Holders: 1}
		if x.ahead {
			fl.Claim.Window, fl.Claim.Granted, fl.Claim.Spent, g.Window = w+1, 0, 0, w+1
		}
		h.answers(now, fl, g)
		if h.vain != x.lost {
			t.Errorf("%+v: lost %v", x, h.vain)
		}
	}
}

// A draw that was taken tells nothing of what its holder had: it does not count as told. Every other answer does.
func TestWhatADrawTells(t *testing.T) {
	const now = instant(time.Hour)
	w := perMinute100.WindowAt(answeredAt)
	for _, x := range []struct{ drawn, carried, told bool }{
		{false, true, true}, {false, false, true}, {true, false, true}, {true, true, false},
	} {
		h := calmKey(now)
		h.Lease.Window, h.Told = w, now-5
		fl := &Flight{Claim: ratelimit.Claim{Window: w, Granted: h.Lease.Granted, Spent: h.Lease.Spent, Draw: w}}
		g := ratelimit.Grant{Granted: h.Lease.Granted, Window: w, Carried: x.carried, Drawn: x.drawn, Holders: 1}
		if !x.carried {
			g.Window = w + 1
		}
		h.answers(now, fl, g)
		if told := h.Told == now; told != x.told {
			t.Errorf("%+v: told at %d", x, h.Told)
		}
	}
}
