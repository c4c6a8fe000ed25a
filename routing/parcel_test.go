package routing

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What is written is read.
func TestParcelIsReadAsItWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	n := func() int64 { return rnd.Int64N(1 << rnd.IntN(50)) }
	w := newWriter(1_800_000_000_000_000)
	var want []moved
	for i := range 1000 {
		a := leasing.Account{
			Now: ratelimit.LedgerTime(n()), Fence: ratelimit.Fence(n()), Born: ratelimit.Fence(n()), Folded: ratelimit.Fence(n()), Window: ratelimit.Window(n()),
			Charged: ratelimit.Tokens(n()), Previous: ratelimit.Tokens(n()), Level: n(), Carry: n(), Dead: ratelimit.LedgerTime(n()), Lag: ratelimit.LedgerTime(n()),
		}
		if i%3 == 0 {
			a.Most, a.Over, a.Left, a.Late, a.Relearn, a.Relearned = ratelimit.Tokens(n()), ratelimit.Tokens(n()), -ratelimit.Tokens(n()), ratelimit.Tokens(n()), ratelimit.LedgerTime(n()), ratelimit.Tokens(n())
		}
		for range rnd.IntN(4) {
			a.Holders = append(a.Holders, leasing.Holding{
				Holder: ratelimit.Holder(2 + rnd.Uint64()>>1), Seq: 1 + uint64(n()), Window: ratelimit.Window(n()), Expires: ratelimit.LedgerTime(n()), Fence: ratelimit.Fence(n()),
				Granted: ratelimit.Tokens(n()), InFlight: ratelimit.Tokens(n()), Spent: ratelimit.Tokens(n()), Returned: ratelimit.Tokens(n()), Over: ratelimit.Tokens(n()),
				Direct: i%2 == 0, Closed: i%3 == 0, Void: i%5 == 0, Eager: i%7 == 0, Last: i%11 == 0,
			})
		}
		w.account(keyOf(i), &a)
		want = append(want, moved{keyOf(i), a})
	}
	var got []moved
	if err := readParcel(w.b, func(m moved) { got = append(got, m) }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("they differ")
	}
	if err := readParcel(w.b[:len(w.b)-3], func(moved) {}); err == nil {
		t.Error("half an account was read")
	}
}

// Whatever a peer sends as a parcel, reading it ends, and what it says is within
// bounds.
func FuzzParcel(f *testing.F) {
	w := newWriter(1_800_000_000_000_000)
	w.account(keyOf(1), &leasing.Account{Now: 5, Window: 3, Charged: 2, Holders: []leasing.Holding{{Holder: 9, Seq: 1, Granted: 4}}})
	f.Add(w.b)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = readParcel(b, func(m moved) {
			if len(m.key) == 0 || len(m.key) > ratelimit.MaxKeyLen || m.account.Previous < 0 || m.account.Window < 0 || m.account.Now < 0 || len(m.account.Holders) > mostHolders {
				t.Errorf("%+v", m)
			}
		})
	})
}
