package moved

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What is written is read.
func TestParcelIsReadAsItWasWritten(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	n := func() int64 { return rnd.Int64N(1 << rnd.IntN(50)) }
	w := NewWriter(1_800_000_000_000_000)
	var want []Entry
	for i := range 1000 {
		a := ledger.Statement{
			Now: ratelimit.LedgerTime(n()), Fence: ratelimit.Fence(n()), Born: ratelimit.Fence(n()), Folded: ratelimit.Fence(n()), Window: ratelimit.Window(n()),
			Charged: ratelimit.Tokens(n()), Previous: ratelimit.Tokens(n()), Level: n(), Carry: n(), Dead: ratelimit.LedgerTime(n()), Lag: ratelimit.LedgerTime(n()),
		}
		if i%3 == 0 {
			a.Most, a.Over, a.Left, a.Late, a.Relearn, a.Relearned = ratelimit.Tokens(n()), ratelimit.Tokens(n()), -ratelimit.Tokens(n()), ratelimit.Tokens(n()), ratelimit.LedgerTime(n()), ratelimit.Tokens(n())
		}
		for range rnd.IntN(4) {
			a.Holders = append(a.Holders, ledger.Holding{
				Holder: ratelimit.Holder(2 + rnd.Uint64()>>1), Seq: 1 + uint64(n()), Window: ratelimit.Window(n()), Expires: ratelimit.LedgerTime(n()), Fence: ratelimit.Fence(n()),
				Granted: ratelimit.Tokens(n()), InFlight: ratelimit.Tokens(n()), Spent: ratelimit.Tokens(n()), Returned: ratelimit.Tokens(n()), Over: ratelimit.Tokens(n()),
				Direct: i%2 == 0, Closed: i%3 == 0, Void: i%5 == 0, Eager: i%7 == 0, Last: i%11 == 0,
			})
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

// Whatever a peer sends as a parcel, reading it ends, and what it says is within
// bounds.
func FuzzParcel(f *testing.F) {
	w := NewWriter(1_800_000_000_000_000)
	w.Account(keyOf(1), &ledger.Statement{Now: 5, Window: 3, Charged: 2, Holders: []ledger.Holding{{Holder: 9, Seq: 1, Granted: 4}}})
	f.Add(w.B)
	f.Fuzz(func(t *testing.T, b []byte) {
		_ = Read(b, func(m Entry) {
			if len(m.Key) == 0 || len(m.Key) > ratelimit.MaxKeyLen || m.Account.Previous < 0 || m.Account.Window < 0 || m.Account.Now < 0 || len(m.Account.Holders) > mostHolders {
				t.Errorf("%+v", m)
			}
		})
	})
}

// What an account may say, at its bounds: this node's clock shows a time, and the
// sender's a minute less.
func TestPlausibleAccounts(t *testing.T) {
	const here, sent = ratelimit.LedgerTime(1_800_000_060_000_000), ratelimit.LedgerTime(1_800_000_000_000_000)
	latest := here.Add(MostApart)
	second := ratelimit.Window(int64(latest)/1_000_000) + 1
	for _, c := range []struct {
		what   string
		change func(a *ledger.Statement)
		ok     bool
	}{
		{"an empty one", func(*ledger.Statement) {}, true},
		{"its clock is a year ahead", func(a *ledger.Statement) { a.Now = latest }, true},
		{"its clock is further ahead", func(a *ledger.Statement) { a.Now = latest + 1 }, false},
		{"it learns for a year", func(a *ledger.Statement) { a.Relearn = latest }, true},
		{"it learns for longer", func(a *ledger.Statement) { a.Relearn = latest + 1 }, false},
		{"the highest fence", func(a *ledger.Statement) { a.Fence, a.Born, a.Folded = 1<<53, 1<<53, 1<<53 }, true},
		{"a higher fence", func(a *ledger.Statement) { a.Fence = 1<<53 + 1 }, false},
		{"born at a higher fence", func(a *ledger.Statement) { a.Born = 1<<53 + 1 }, false},
		{"folded at a higher fence", func(a *ledger.Statement) { a.Folded = 1<<53 + 1 }, false},
		{"no such fence", func(a *ledger.Statement) { a.Fence = -1 }, false},
		{"it is kept for ever", func(a *ledger.Statement) { a.Dead = 1 << 61 }, true},
		{"it is kept for longer", func(a *ledger.Statement) { a.Dead = 1<<61 + 1 }, false},
		{"it was over before 1970", func(a *ledger.Statement) { a.Dead = -1 }, false},
		{"its clock runs behind", func(a *ledger.Statement) { a.Lag = ratelimit.LedgerTime(MostApart/1000) - 60_000_000 }, true},
		{"its clock runs behind by more than a year", func(a *ledger.Statement) { a.Lag = ratelimit.LedgerTime(MostApart/1000) - 60_000_000 + 1 }, false},
		{"its clock runs ahead", func(a *ledger.Statement) { a.Lag = -1 }, false},
		{"the fullest bucket", func(a *ledger.Statement) { a.Level, a.Carry = 1<<53, 1<<53 }, true},
		{"a fuller bucket", func(a *ledger.Statement) { a.Level = 1<<53 + 1 }, false},
		{"a bucket below nothing", func(a *ledger.Statement) { a.Level = -1 }, false},
		{"more of a refill", func(a *ledger.Statement) { a.Carry = 1<<53 + 1 }, false},
		{"less than nothing of a refill", func(a *ledger.Statement) { a.Carry = -1 }, false},
		{"the most charged", func(a *ledger.Statement) { a.Charged, a.Previous = 1<<53, 1<<53 }, true},
		{"more charged", func(a *ledger.Statement) { a.Charged = 1<<53 + 1 }, false},
		{"more charged before", func(a *ledger.Statement) { a.Previous = 1<<53 + 1 }, false},
		{"less than nothing charged before", func(a *ledger.Statement) { a.Previous = -1 }, false},
		{"a reset", func(a *ledger.Statement) { a.Charged = -5 }, true},
		{"the last window of a second", func(a *ledger.Statement) { a.Window = second }, true},
		{"a window of a second to come", func(a *ledger.Statement) { a.Window = second + 1 }, false},
		{"a bucket's window", func(a *ledger.Statement) { a.Window = ratelimit.Window(latest) }, true},
		{"a bucket's window to come", func(a *ledger.Statement) { a.Window = ratelimit.Window(latest) + 1 }, false},
		{"a bucket's window of a node whose clock began in 1970", func(a *ledger.Statement) { a.Window = 1<<40 + 1 }, true},
		{"no such window", func(a *ledger.Statement) { a.Window = -1 }, false},
		{"a lease for a year", func(a *ledger.Statement) {
			a.Holders = []ledger.Holding{{Expires: latest, Fence: 1 << 53, Window: second}}
		}, true},
		{"a lease for longer", func(a *ledger.Statement) { a.Holders = []ledger.Holding{{}, {Expires: latest + 1}} }, false},
		{"a lease with a higher fence", func(a *ledger.Statement) { a.Holders = []ledger.Holding{{Fence: 1<<53 + 1}} }, false},
		{"a lease of a window to come", func(a *ledger.Statement) { a.Holders = []ledger.Holding{{Window: second + 1}} }, false},
	} {
		m := Entry{Key: []byte("k")}
		if c.change(&m.Account); m.Plausible(here, sent) != c.ok {
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

// Each field that few accounts have is written, also where it is the only one.
func TestRareFieldsAreWritten(t *testing.T) {
	for _, a := range []ledger.Statement{
		{Most: 1}, {Over: 1}, {Left: 1}, {Left: -1}, {Late: 1}, {Relearn: 1}, {Relearned: 1}, {Dead: 5}, {Lag: 7}, {Folded: 9}, {},
	} {
		w := NewWriter(1_800_000_000_000_000)
		w.Account([]byte("k"), &a)
		var got []Entry
		if err := Read(w.B, func(m Entry) { got = append(got, m) }); err != nil || len(got) != 1 || !reflect.DeepEqual(got[0].Account, a) {
			t.Errorf("%+v was read as %+v, %v", a, got, err)
		}
	}
	if w := NewWriter(5); len(w.B) != 1 {
		t.Fatal(w.B)
	}
	small := NewWriter(1_800_000_000_000_000)
	empty := len(small.B)
	small.Account([]byte("k"), &ledger.Statement{Now: 1_800_000_000_000_000})
	if n := len(small.B) - empty; n > 14 { // key, ten fields, and how many holders there are
		t.Errorf("an account of which nothing is to be said takes %d bytes", n)
	}
}

// What is written for ever is read as for ever, whenever the parcel was begun.
func TestAccountThatIsKeptForEver(t *testing.T) {
	const base = 1_800_000_000_000_000
	w := NewWriter(base)
	w.Account([]byte("k"), &ledger.Statement{Dead: 1<<63 - 1})
	if err := Read(w.B, func(m Entry) {
		if m.Account.Dead != base+1<<60 || !m.Plausible(base, base) {
			t.Errorf("%+v", m)
		}
	}); err != nil {
		t.Error(err)
	}
}

// A parcel is read up to what makes no sense: each number has its bounds, and what
// is not there is missing.
func TestParcelsBeyondTheirBounds(t *testing.T) {
	const base = 1_000_000
	number := func(w *Writer, ns ...int64) {
		for _, n := range ns {
			w.number(n)
		}
	}
	type parts struct {
		key                                                    string
		now, window, charged, previous, level, carry, lag      int64
		more                                                   uint64
		rare                                                   []int64
		holder                                                 uint64
		seq                                                    uint64
		holderWindow, granted, inflight, spent, returned, over int64
	}
	write := func(p *parts) []byte {
		w := NewWriter(base)
		w.B = append(append(w.B, byte(len(p.key))), p.key...)
		w.time(p.now)
		w.B = append(w.B, 0, 0, 0) // fences
		w.number(p.window)
		w.B = append(w.B, 0) // dead
		number(w, p.charged, p.previous, p.level, p.carry, p.lag)
		w.B = binary.AppendUvarint(w.B, p.more)
		if p.more&1 != 0 {
			number(w, p.rare...)
			w.B = append(w.B, 0)
		}
		for range p.more >> 1 {
			w.B = binary.LittleEndian.AppendUint64(w.B, p.holder)
			w.B = binary.AppendUvarint(w.B, p.seq)
			w.number(p.holderWindow)
			w.B = append(w.B, 0, 0)
			number(w, p.granted, p.inflight, p.spent, p.returned, p.over)
			w.B = append(w.B, 0)
		}
		return w.B
	}
	const most = 1 << 53
	for _, c := range []struct {
		what   string
		change func(p *parts)
		ok     bool
	}{
		{"as it should be", func(*parts) {}, true},
		{"no key", func(p *parts) { p.key = "" }, false},
		{"1970", func(p *parts) { p.now = 0 }, true},
		{"before 1970", func(p *parts) { p.now = -1 }, false},
		{"the latest window", func(p *parts) { p.window = 1 << 62 }, true},
		{"a later window", func(p *parts) { p.window = 1<<62 + 1 }, false},
		{"a window before 1970", func(p *parts) { p.window = -1 }, false},
		{"the most charged, and the least", func(p *parts) { p.charged, p.previous = -most, 0 }, true},
		{"charged too little", func(p *parts) { p.charged = -most - 1 }, false},
		{"charged too much", func(p *parts) { p.charged = most + 1 }, false},
		{"charged less than nothing before", func(p *parts) { p.previous = -1 }, false},
		{"a level below nothing", func(p *parts) { p.level = -1 }, false},
		{"a refill below nothing", func(p *parts) { p.carry = -1 }, false},
		{"a clock that is ahead", func(p *parts) { p.lag = -1 }, false},
		{"a clock that is too far behind", func(p *parts) { p.lag = most + 1 }, false},
		{"what is rare", func(p *parts) { p.more, p.rare = 1, []int64{1, 2, -3, 4, -5} }, true},
		{"what is rare, below nothing", func(p *parts) { p.more, p.rare = 1, []int64{-1, 2, -3, 4, -5} }, false},
		{"what is late, below nothing", func(p *parts) { p.more, p.rare = 1, []int64{1, 2, -3, -4, -5} }, false},
		{"as many holders as may be", func(p *parts) { p.more = mostHolders << 1 }, true},
		{"one holder more", func(p *parts) { p.more = (mostHolders + 1) << 1 }, false},
		{"a holder that is none", func(p *parts) { p.holder = 1 }, false},
		{"a holder that has never claimed", func(p *parts) { p.seq = 0 }, false},
		{"a holder's later window", func(p *parts) { p.holderWindow = 1<<62 + 1 }, false},
		{"a holder's window before 1970", func(p *parts) { p.holderWindow = -1 }, false},
		{"granted less than nothing", func(p *parts) { p.granted = -1 }, false},
		{"granted too much", func(p *parts) { p.granted = most + 1 }, false},
		{"spent less than nothing", func(p *parts) { p.spent = -1 }, false},
	} {
		p := parts{key: "k", now: base, window: 3, charged: 2, more: 2, holder: 2, seq: 1, granted: most}
		c.change(&p)
		b, n, holders := write(&p), 0, 0
		err := Read(b, func(m Entry) { n, holders = n+1, len(m.Account.Holders) })
		if (err == nil) != c.ok || (n == 1) != c.ok || c.ok && holders != int(p.more>>1) {
			t.Errorf("%s: %d accounts of %d holders, %v", c.what, n, holders, err)
		}
		for i := 1; c.ok && i < min(len(b), 60); i++ {
			if err := Read(b[:i], func(Entry) {}); (err == nil) != (i == len(NewWriter(base).B)) {
				t.Errorf("%s: %d bytes of %d were read, %v", c.what, i, len(b), err)
			}
		}
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
