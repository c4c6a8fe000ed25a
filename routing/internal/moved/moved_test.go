package moved

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

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

// What an account may say, at its bounds.
func TestPlausibleAccounts(t *testing.T) {
	const here = ratelimit.LedgerTime(1_800_000_060_000_000)
	latest := here.Add(MostApart)
	second := ratelimit.Window(int64(latest)/1_000_000) + 1
	for _, c := range []struct {
		what   string
		change func(a *local.Account)
		ok     bool
	}{
		{"an empty one", func(*local.Account) {}, true},
		{"its clock is a year ahead", func(a *local.Account) { a.Begins, a.Ends = latest, latest+1 }, true},
		{"its clock is further ahead", func(a *local.Account) { a.Begins, a.Ends = latest+1, latest+2 }, false},
		{"its window has no length", func(a *local.Account) { a.Begins, a.Ends = latest, latest }, false},
		{"its window ends in three years", func(a *local.Account) { a.Begins, a.Ends = 1, latest.Add(2*MostApart) }, true},
		{"its window ends later", func(a *local.Account) { a.Begins, a.Ends = 1, latest.Add(2*MostApart)+1 }, false},
		{"a bucket is never full", func(a *local.Account) { a.Algorithm, a.Begins, a.Ends = ratelimit.TokenBucket, 1, 1<<61 }, true},
		{"it is kept for longer", func(a *local.Account) { a.Ends = 1<<61 + 1 }, false},
		{"it was over before 1970", func(a *local.Account) { a.Ends = -1 }, false},
		{"a bucket's debt", func(a *local.Account) { a.Algorithm, a.State = ratelimit.TokenBucket, -5 }, true},
		{"the last window of a second", func(a *local.Account) { a.State = int64(second) }, true},
		{"a window of a second to come", func(a *local.Account) { a.State = int64(second) + 1 }, false},
		{"no such window", func(a *local.Account) { a.State = -1 }, false},
	} {
		m := Entry{Key: []byte("k")}
		if c.change(&m.Account); m.Plausible(here) != c.ok {
			t.Errorf("%s: plausible %v", c.what, !c.ok)
		}
	}
}

// A peer's clock may be a year ahead of this node's or behind it, to the microsecond, and never shows a
// time before 1970.
func TestClocksThatMayBe(t *testing.T) {
	const here, year = ratelimit.LedgerTime(1_800_000_000_000_000), int64(MostApart / 1000)
	for _, c := range []struct {
		here ratelimit.LedgerTime
		t    int64
		ok   bool
	}{
		{here, int64(here) + year, true},
		{here, int64(here) + year + 1, false},
		{here, int64(here) - year, true},
		{here, int64(here) - year - 1, false},
		{5, 0, true},
		{5, -1, false},
	} {
		if Current(c.here, c.t) != c.ok {
			t.Errorf("%d µs from this node's clock: it may be %v", c.t-int64(c.here), !c.ok)
		}
	}
}

// A parcel is read up to what makes no sense: each number has its bounds, and what is not there is missing.
func TestParcelsBeyondTheirBounds(t *testing.T) {
	const base, most = 1_000_000, MostTokens
	for _, c := range []struct {
		what   string
		change func(a *local.Account)
		ok     bool
	}{
		{"as it should be", func(*local.Account) {}, true},
		{"slots, which do not move", func(a *local.Account) { a.Algorithm = ratelimit.Concurrency }, false},
		{"an algorithm that there is not", func(a *local.Account) { a.Algorithm = 4 }, false},
		{"1970", func(a *local.Account) { a.Begins = 1 }, true},
		{"before 1970", func(a *local.Account) { a.Begins = -1 }, false},
		{"the most charged", func(a *local.Account) { a.Sum = most }, true},
		{"charged too much", func(a *local.Account) { a.Sum = most + 1 }, false},
		{"charged less than nothing", func(a *local.Account) { a.Sum = -1 }, false},
		{"charged less than nothing before", func(a *local.Account) { a.Extra = -1 }, false},
		{"charged too much before", func(a *local.Account) { a.Extra = 1<<53 + 1 }, false},
		{"the most debt", func(a *local.Account) { a.State = -mostLevel }, true},
		{"more debt", func(a *local.Account) { a.State = -mostLevel - 1 }, false},
		{"a later window", func(a *local.Account) { a.State = mostLevel + 1 }, false},
	} {
		a := local.Account{Sum: 2, State: 3}
		c.change(&a)
		w, n := NewWriter(base), 0
		w.Account([]byte("k"), &a)
		err := Read(w.B, func(Entry) { n++ })
		if (err == nil) != c.ok || (n == 1) != c.ok {
			t.Errorf("%s: %d accounts, %v", c.what, n, err)
		}
		for i := 1; c.ok && i < min(len(w.B), 60); i++ {
			if err := Read(w.B[:i], func(Entry) {}); (err == nil) != (i == len(NewWriter(base).B)) {
				t.Errorf("%s: %d bytes of %d were read, %v", c.what, i, len(w.B), err)
			}
		}
	}
	keyless := NewWriter(base)
	keyless.Account(nil, &local.Account{})
	if err := Read(keyless.B, func(Entry) {}); err == nil {
		t.Error("an account without a key was read")
	}
	if err := Read(nil, func(Entry) {}); err == nil {
		t.Error("a parcel without a time was read")
	}
	if err := Read(binary.AppendVarint(nil, -1), func(Entry) {}); err == nil {
		t.Error("a parcel from before 1970 was read")
	}
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}
