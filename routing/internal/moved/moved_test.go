package moved

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What is written is read.
func TestParcelIsReadAsItWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	n := func() int64 { return rnd.Int64N(1 << rnd.IntN(43)) }
	below := func() int64 { return -n() }
	w := NewWriter(1_800_000_000_000_000)
	var want []Entry
	for i := range 1000 {
		a := local.Account{
			Algorithm: ratelimit.Algorithm(i % 3), Sum: ratelimit.Tokens(n()), Extra: n(), State: n() + below(),
			Begins: ratelimit.LedgerTime(n()), Ends: ratelimit.LedgerTime(n()), Limit: ratelimit.Tokens(n()),
		}
		w.Account(keyOf(i), &a)
		want = append(want, Entry{keyOf(i), a})
	}
	var got []Entry
	if err := Read(w.B, func(m Entry) { got = append(got, m) }); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Error("they differ")
	}
	if err := Read(w.B[:len(w.B)-3], func(Entry) {}); err == nil {
		t.Error("half an account was read")
	}
}

// Whatever a peer sends as a parcel, reading it ends, and what it says is within bounds.
func FuzzParcel(f *testing.F) {
	w := NewWriter(1_800_000_000_000_000)
	w.Account(keyOf(1), &local.Account{State: 3, Sum: 2})
	f.Add(w.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = Read(b, func(m Entry) {
			a := &m.Account
			if len(m.Key) == 0 || len(m.Key) > ratelimit.MaxKeyLen || a.Sum < 0 || a.Extra < 0 || a.Begins < 0 {
				t.Errorf("%+v", m)
			}
		})
	})
}

// A parcel is read up to what makes no sense. An account is accepted if each number is within its bounds, and if it ends
// all waits.
func TestAccountsBeyondTheirBounds(t *testing.T) {
	const here = ratelimit.LedgerTime(1_800_000_060_000_000)
	latest := here.Add(MostApart)
	second := ratelimit.Window(int64(latest)/1_000_000) + 1
	for _, c := range []struct {
		what   string
		change func(a *local.Account)
		ok     bool
	}{
		{"as it should be", func(*local.Account) {}, true},
		{"its clock is a year ahead", func(a *local.Account) { a.Begins, a.Ends = latest, latest+1 }, true},
		{"its clock is further ahead", func(a *local.Account) { a.Begins, a.Ends = latest+1, latest+2 }, false},
		{"its window has no length", func(a *local.Account) { a.Begins, a.Ends = latest, latest }, false},
		{"its window ends in three years", func(a *local.Account) { a.Begins, a.Ends = 1, latest.Add(2*MostApart) }, true},
		{"its window ends later", func(a *local.Account) { a.Begins, a.Ends = 1, latest.Add(2*MostApart)+1 }, false},
		{"a bucket is never full", func(a *local.Account) { a.Algorithm, a.Begins, a.Ends = ratelimit.TokenBucket, 1, 1<<61 }, true},
		{"it was over before 1970", func(a *local.Account) { a.Ends = -1 }, false},
		{"it began before 1970", func(a *local.Account) { a.Begins = -1 }, false},
		{"slots, which do not move", func(a *local.Account) { a.Algorithm = ratelimit.Concurrency }, false},
		{"an algorithm that there is not", func(a *local.Account) { a.Algorithm = 4 }, false},
		{"the most charged", func(a *local.Account) { a.Sum = MostTokens }, true},
		{"charged too much", func(a *local.Account) { a.Sum = MostTokens + 1 }, false},
		{"charged less than nothing", func(a *local.Account) { a.Sum = -1 }, false},
		{"charged less than nothing before", func(a *local.Account) { a.Extra = -1 }, false},
		{"charged too much before", func(a *local.Account) { a.Extra = 1<<53 + 1 }, false},
		{"a bucket's debt", func(a *local.Account) { a.Algorithm, a.State = ratelimit.TokenBucket, -mostLevel }, true},
		{"more debt", func(a *local.Account) { a.Algorithm, a.State = ratelimit.TokenBucket, -mostLevel-1 }, false},
		{"the last window of a second", func(a *local.Account) { a.State = int64(second) }, true},
		{"a window of a second to come", func(a *local.Account) { a.State = int64(second) + 1 }, false},
		{"no such window", func(a *local.Account) { a.State = -1 }, false},
	} {
		a := local.Account{Sum: 2, State: 3}
		c.change(&a)
		w, n := NewWriter(here), 0
		w.Account([]byte("k"), &a)
		err := Read(w.B, func(m Entry) {
			if m.Plausible(here) {
				n++
			}
		})
		if c.ok != (err == nil && n == 1) {
			t.Errorf("%s: %d accounts, %v", c.what, n, err)
		}
		for i := 1; c.ok && i < min(len(w.B), 60); i++ {
			if err := Read(w.B[:i], func(Entry) {}); (err == nil) != (i == len(NewWriter(here).B)) {
				t.Errorf("%s: %d bytes of %d were read, %v", c.what, i, len(w.B), err)
			}
		}
	}
	keyless := NewWriter(here)
	keyless.Account(nil, &local.Account{})
	for what, b := range map[string][]byte{"no key": keyless.B, "no time": nil, "1969": binary.AppendVarint(nil, -1)} {
		if err := Read(b, func(Entry) {}); err == nil {
			t.Errorf("a parcel of %s was read", what)
		}
	}
	year := int64(MostApart / time.Microsecond) // by which clocks may differ, and none shows a time before 1970
	for at, ok := range map[int64]bool{year: true, year + 1: false, -year: true, -year - 1: false} {
		if Current(here, int64(here)+at) != ok {
			t.Errorf("%d µs from this node's clock: it may be %v", at, !ok)
		}
	}
	if !Current(5, 0) || Current(5, -1) {
		t.Error("1970 is refused, or 1969 is not")
	}
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}
