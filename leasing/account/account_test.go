package account

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Both ledgers answer as the scripts say: of windows, and of buckets. Each line has a time after the script's begin, a
// holder, and its message. A ledger "keeps" an account for a time from now.
//
//	go test ./leasing/account -run Scripts -rewrite
func TestWindowScripts(t *testing.T) { runScripts(t, "testdata/windows.txt") }

func TestBucketScripts(t *testing.T) { runScripts(t, "testdata/buckets.txt") }

func runScripts(t *testing.T, path string) {
	datadriven.RunTest(t, path, func(t *testing.T, in *datadriven.TestData) string {
		var out strings.Builder
		p := newPair(t, limitOf(t, strings.TrimPrefix(in.FullCmd(), "play ")))
		for line := range strings.Lines(in.Input) {
			at, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			who, message, _ := strings.Cut(rest, " ")
			after, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			answer := p.says(after, who, message)
			for _, h := range p.asked {
				answer += fmt.Sprintf(" %c", rune(h))
			}
			p.asked = nil
			fmt.Fprintln(&out, answer)
		}
		return out.String()
	})
}

// An account is kept from the beginning of its window on, and for one window longer, a fixed one's for at most a day.
func TestWhenAnAccountIsOver(t *testing.T) {
	for _, l := range []ratelimit.Limit{
		fixed(100), weekly(100), limitOf(t, "sliding 100 a week"), {Unit: ratelimit.CalendarMonth, Requests: 100},
	} {
		p := newPair(t, l)
		c := claim(l, "k", 1, 1, 0)
		begins, ends := l.WindowEnd(c.Window-1), l.WindowEnd(c.Window)
		kept := ends.Sub(begins)
		if l.Algorithm == ratelimit.FixedWindow {
			kept = min(kept, 24*time.Hour)
		}
		for _, at := range []struct {
			now  instant
			over bool
		}{{begins - 1, true}, {begins, false}, {ends.Add(kept) - 1, false}, {ends.Add(kept), true}} {
			p.now = at.now
			c.Seq++
			draw := c
			draw.Seq, draw.Want = 0, 1
			for _, m := range []Claim{c, draw} {
				if g := p.must(m); errors.Is(g.Err, ErrOver) != at.over || !at.over && g.Err != nil {
					t.Errorf("%v: window %d, from %d to %d, at %d: %+v", l, c.Window, begins, ends, at.now, g)
				}
			}
		}
		if s := spanOf(&l, lastMonth+1); s.kept(epochAt) {
			t.Errorf("%v: a window after the end of time is kept", l)
		}
	}
}

// The sum is counted up to a bound. What is beyond is in no record either.
func TestTotalsSaturate(t *testing.T) {
	p := newPair(t, fixed(100))
	full := ratelimit.Holder(mostSum / MostBooked)
	for h := range full {
		c := claim(p.limit, "k", 1+h, 1, 0)
		c.Spent = 1 << 62
		if h == 0 {
			c.Spent = MostBooked - 5
		}
		p.must(c)
	}
	for seq, spent := range []tokens{9, 2} {
		c := claim(p.limit, "k", full+1, uint64(seq+1), 0)
		c.Spent = spent
		if g := p.must(c); g.Total != min(spent, 5) || g.Sum != mostSum-5+g.Total || g.Err != nil {
			t.Errorf("with %d more, the sum is %+v", spent, g)
		}
	}
}

func TestRecallCostsLittleOfManyRecords(t *testing.T) {
	a := &account{records: make(records, 5000)}
	a.askedAt(epochAt, time.Hour)
	if a.pause != 100*time.Millisecond {
		t.Errorf("after reading 5,000 records a pause of %v", a.pause)
	}
}

// A claim of a known holder allocates nothing.
func TestClaimsAllocateNothing(t *testing.T) {
	a, nobody := account{}, func(ratelimit.Holder) {}
	c := Claim{Limit: fixed(1_000_000), Holder: 1, Need: 1, Want: 1}
	var g Grant
	if n := testing.AllocsPerRun(100, func() {
		c.Seq++
		g = a.claim(epochAt, &c, 0, nobody)
	}); n > 0 || g.Granted != 1 {
		t.Errorf("%v allocations; %+v", n, g)
	}
}

// A refill is exact to the millionth of a token, and its time to the microsecond, also where products exceed 64 bits.
func TestRefillIsExact(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same run each time
	upTo := func(exponent int) int64 { return random.Int64N(1 << (1 + random.IntN(exponent))) }
	for range 50_000 {
		l := &ratelimit.Limit{
			Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Unit(1 + random.IntN(int(ratelimit.Year))),
			Multiplier: 1, Requests: 1 + tokens(upTo(31)),
		}
		seconds := int64(l.Period() / time.Second)
		elapsed, carry, level, full := upTo(62), random.Int64N(seconds), -upTo(60), upTo(60)
		level += upTo(60)
		switch random.IntN(3) {
		case 0: // a product just below 2^64
			l.Requests++
			quotient, _ := bits.Div64(1, 0, uint64(l.Requests))
			elapsed, carry = int64(min(quotient, math.MaxInt64)), seconds-1
		case 1: // or just above
			if missing, _ := bits.Div64(1, 0, uint64(max(60, seconds))); seconds >= 60 {
				level, full, carry = -int64(missing/2), int64(missing-missing/2)+1, seconds-1
			}
		}
		got, rest := Refilled(level, carry, elapsed, full, l)
		sum := new(big.Int).Mul(big.NewInt(elapsed), big.NewInt(int64(l.Requests)))
		added, remainder := sum.Add(sum, big.NewInt(carry)).QuoRem(sum, big.NewInt(seconds), new(big.Int))
		want, wantRest := added.Add(added, big.NewInt(level)), remainder.Int64()
		if want.Cmp(big.NewInt(full)) >= 0 || level >= full {
			want, wantRest = big.NewInt(full), 0
		}
		if want.Int64() != got || wantRest != rest {
			t.Fatalf("%v: from %d + %d after %d us, at most %d: %d + %d, want %v + %d",
				l, level, carry, elapsed, full, got, rest, want, wantRest)
		}
		us := new(big.Int).Mul(big.NewInt(full-level), big.NewInt(seconds))
		us.Sub(us, big.NewInt(carry)).Add(us, big.NewInt(int64(l.Requests-1))).Quo(us, big.NewInt(int64(l.Requests)))
		after, latest := RefilledAfter(full, level, carry, l), big.NewInt(math.MaxInt64/1000)
		switch {
		case full <= level:
			us.SetInt64(0)
		case us.Cmp(latest) > 0:
			us.SetInt64(math.MaxInt64)
		default:
			us.Mul(us, big.NewInt(1000))
		}
		if us.Int64() != int64(after) {
			t.Fatalf("%v: from %d + %d to %d after %v, want %v", l, level, carry, full, after, us)
		}
	}
}

// A registration lasts for its time from its last renewal, and is known to be over long after. What a store does not
// have is not over.
func TestRegistrations(t *testing.T) {
	const node, other, unknown = ratelimit.Holder(1 << 28), ratelimit.Holder(2 << 28), ratelimit.Holder(3 << 28)
	p := newPair(t, fixed(1))
	for name, l := range map[string]Registrations{"memory": p.memory, "Redis": p.Redis} {
		for _, s := range []struct {
			after     time.Duration
			registers ratelimit.Holder
			over      []ratelimit.Holder
		}{
			{0, node, nil},
			{3 * time.Second, other, nil},
			{ratelimit.RegisteredFor - time.Microsecond, 0, nil},
			{ratelimit.RegisteredFor, node, []ratelimit.Holder{node}},
			{ratelimit.RegisteredFor + 3*time.Second, 0, []ratelimit.Holder{other}},
			{overFor, other, []ratelimit.Holder{node, other}},
			{overFor + 2*ratelimit.RegisteredFor, unknown, []ratelimit.Holder{node, other}},
			{overFor + 4*ratelimit.RegisteredFor, 0, []ratelimit.Holder{unknown, other}}, // the first is dropped
		} {
			p.now = epochAt.Add(s.after)
			got, err := l.Over(t.Context(), []ratelimit.Holder{node, unknown, other})
			if err != nil || !slices.Equal(got, s.over) {
				t.Errorf("%s: after %v, %v are over, %v; want %v", name, s.after, got, err, s.over)
			}
			if err := p.memory.Sweep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if s.registers == 0 {
				continue
			}
			if err := l.Register(t.Context(), s.registers); err != nil {
				t.Fatal(name, err)
			}
		}
	}
}

// Only what ended nodes have in hand is taken back, under names that lapse, and not the reader's own.
func TestCloses(t *testing.T) {
	const lapsing, gone, alive = ratelimit.Holder(1 << 27), ratelimit.Holder(5 << 28), ratelimit.Holder(6 << 28)
	holders := []ratelimit.HolderLook{
		{Holder: gone | lapsing, Seq: 7, Granted: 9, Spent: 4, Outstanding: 5},
		{Holder: gone | lapsing | 1, Seq: 8, Granted: 9, Spent: 9},
		{Holder: gone | 2, Seq: 9, Granted: 9, Spent: 4, Outstanding: 5},
		{Holder: alive | lapsing, Seq: 7, Granted: 9, Spent: 4, Outstanding: 5},
	}
	if nodes := Lapsing(holders, alive); !slices.Equal(nodes, []ratelimit.Holder{gone}) {
		t.Errorf("%x may have ended", nodes)
	}
	all := Closes(Claim{Key: "k", Window: 3}, holders, []ratelimit.Holder{gone})
	if len(all) != 1 || all[0] != (Claim{Key: "k", Window: 3, Holder: gone | lapsing, Seq: 8, Taken: 4, Spent: 4}) {
		t.Errorf("%+v", all)
	}
}
