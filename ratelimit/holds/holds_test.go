package holds

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

const (
	keyA = "the-key-of-a-fleet-made-at-random"
	keyB = "another-one-that-came-before-it"
	now  = int64(1_800_000_000)
)

func newDesk(t testing.TB, keys string) *Desk {
	t.Helper()
	d := new(Desk)
	if err := d.Set(keys); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *Desk) issue(t testing.TB, at int64, parts ...Part) string {
	t.Helper()
	b, n := d.Append(nil, NewSlot(), at, parts)
	if n != len(parts) || len(b) == 0 || len(b) > MaxText {
		t.Fatalf("%d of %d parts, in %d bytes", n, len(parts), len(b))
	}
	return string(b)
}

func budget(i int) []byte { return fmt.Appendf(nil, "the budget of key %d", i) }

// A hold says of each of its budgets what it was given, at any node with the key, once.
func TestHoldsAreSettledOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		made, settling := new(Desk), new(Desk)
		_, _ = made.Set(keyA), settling.Set(keyA)
		at := rapid.Int64Range(0, mostInstant).Draw(t, "at")
		var parts []Part
		for i := range rapid.IntRange(1, 9).Draw(t, "budgets") {
			amount := ratelimit.Tokens(rapid.Int64Range(0, int64(ratelimit.MaxLimit)).Draw(t, "amount"))
			parts = append(parts, Part{budget(i), amount})
		}
		text, n := made.Append(nil, NewSlot(), at, parts)
		if n == 0 || len(text) > MaxText {
			t.Fatalf("%d of %d parts in %d bytes", n, len(parts), len(text))
		}
		for range 2 * len(parts) {
			i := rapid.IntRange(0, len(parts)-1).Draw(t, "settled")
			h, result := settling.Settle(string(text), parts[i].Key, at+5, time.Minute)
			want := ratelimit.SettledCost
			switch {
			case i >= n:
				want = ratelimit.HoldForeign
			case parts[i].Amount < 0: // settled before
				want = ratelimit.HoldReplayed
			}
			if result != want {
				t.Fatalf("part %d of %d: %v, must be %v", i, n, result, want)
			}
			if result == ratelimit.SettledCost {
				if h.Amount != parts[i].Amount || h.At != ratelimit.LedgerTime(at*1e6) {
					t.Fatalf("%+v, must be %d at %d", h, parts[i].Amount, at)
				}
				parts[i].Amount = -1
			}
		}
	})
}

// Six budgets of a quarter of a billion each have room, and more do not.
func TestRoomForBudgets(t *testing.T) {
	d := newDesk(t, keyA)
	var parts []Part
	for i := range 7 {
		parts = append(parts, Part{budget(i), 1<<28 - 1})
	}
	d.issue(t, now, parts[:6]...)
	if b, n := d.Append(nil, NewSlot(), now, parts); n != 6 || len(b) > MaxText {
		t.Errorf("%d budgets in %d bytes", n, len(b))
	}
	if b, n := new(Desk).Append(nil, NewSlot(), now, parts); n != 0 || b != nil {
		t.Errorf("without a key: %d budgets, %q", n, b)
	}
}

// Keys that are wrong do not replace those of before.
func TestWrongKeysReplaceNone(t *testing.T) {
	d := newDesk(t, keyA+", \n"+keyB+"\n")
	for text, want := range map[string]error{
		"": ErrNoKeys, ",,": ErrNoKeys, "short": ErrShort, keyA + " short": ErrShort,
		strings.Repeat("0123456789abcdef ", 5): ErrManyKey,
	} {
		if err := d.Set(text); err != want { //nolint:errorlint // it is this one
			t.Errorf("keys %q: %v, must be %v", text, err, want)
		}
	}
	part := Part{budget(1), 7}
	before := newDesk(t, keyB).issue(t, now, part)
	if _, result := d.Settle(before, part.Key, now, time.Minute); result != ratelimit.SettledCost {
		t.Errorf("a hold of the key before: %v", result)
	}
}

// A hold expires, also when it is older than the settled ones that a node remembers. Then it names its slot.
func TestHoldsExpire(t *testing.T) {
	d := newDesk(t, keyA)
	part := Part{budget(1), 7}
	text := d.issue(t, now, part)
	if _, result := d.Settle(text, part.Key, now+61, time.Minute); result != ratelimit.HoldExpired {
		t.Errorf("after 61 s of 60: %v", result)
	}
	if _, result := d.Settle(text, part.Key, now+60, time.Minute); result != ratelimit.SettledCost {
		t.Errorf("after 60 s of 60: %v", result)
	}
	d.settled = memory{most: 2}
	for range 4 {
		d.Settle(d.issue(t, now, part), part.Key, now, time.Minute)
	}
	h, result := d.Settle(text, part.Key, now, time.Minute)
	if result != ratelimit.HoldExpired || h.Slot == 0 || h.Amount != 0 {
		t.Errorf("%v: %+v", result, h)
	}
}

// The memory compared with a complete map: a settled part is never settled again, and holds made after all
// dropped parts can be settled.
func TestMemory(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m, at := memory{most: rapid.IntRange(1, 8).Draw(t, "most")}, int64(100)
		type part struct {
			id uint64
			n  int
		}
		all, made := map[part]bool{}, map[uint64]int64{}
		var settled []int64 // when holds were settled, in order
		for range rapid.IntRange(1, 80).Draw(t, "settlements") {
			at += rapid.Int64Range(0, 3).Draw(t, "step")
			p := part{rapid.Uint64Range(0, 30).Draw(t, "id"), rapid.IntRange(0, 3).Draw(t, "part")}
			if _, ok := made[p.id]; !ok {
				made[p.id] = at - rapid.Int64Range(0, 9).Draw(t, "age")
			}
			got := m.mark(p.id, p.n, made[p.id], at)
			switch {
			case got == marked && all[p]:
				t.Fatalf("%+v is settled twice", p)
			// With so few settlements nothing is dropped yet.
			case got != marked && !all[p] && len(settled) < m.most:
				t.Fatalf("%+v is not settled: %v", p, got)
			// Those of the last generation are known.
			case got == forgotten && len(settled) >= m.most && made[p.id] > settled[len(settled)-m.most]:
				t.Fatalf("%+v is made at %d, and forgotten", p, made[p.id])
			case got == marked:
				all[p] = true
				settled = append(settled, max(at, made[p.id]))
			}
		}
	})
}

// A node whose clock was ahead, and is set back, settles new holds: those of before are as from before its start.
func TestClockIsSetBack(t *testing.T) {
	m := memory{most: 2}
	const ahead = now + 2*60*60
	m.mark(1, 0, ahead, ahead)
	for i := range int64(10) {
		if got := m.mark(uint64(2+i), 0, now+i, now+i); got != marked {
			t.Fatalf("%d holds later it is not settled: %v", i, got)
		}
		if got := m.mark(uint64(2+i), 0, now+i, now+i-mostBack); got == marked {
			t.Fatalf("it is settled twice, with a clock that goes back by a little")
		}
	}
}

// 100,000 holds that are forged, cut, changed, of other keys, or settled before: all are refused.
func TestHostileHolds(t *testing.T) {
	d, other := newDesk(t, keyA), newDesk(t, keyB)
	r := rand.New(rand.NewPCG(1, 2))
	part := Part{budget(1), 1000}
	used := d.issue(t, now, part)
	if _, result := d.Settle(used, part.Key, now, time.Minute); result != ratelimit.SettledCost {
		t.Fatal(result)
	}
	const all = 100_000
	var results [len(ratelimit.SettledNames)]int
	for i := range all {
		good, key := d.issue(t, now, part), part.Key
		text := good
		switch i % 8 {
		case 0: // cut
			text = good[:r.IntN(len(good))]
		case 1: // a byte is another
			b := []byte(good)
			for at := r.IntN(len(b)); string(b) == good; {
				b[at] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_=. \x00\xff"[r.IntN(69)]
			}
			text = string(b)
		case 2: // made up
			b := make([]byte, r.IntN(2*MaxText))
			for j := range b {
				b[j] = byte(r.Uint32())
			}
			text = string(b)
		case 3: // another fleet's
			text = other.issue(t, now, part)
		case 4: // of another budget
			key = budget(2 + i)
		case 5: // settled before
			text = used
		case 6: // longer
			text = good + good
		case 7: // the head of one, and the tail of another
			at := r.IntN(len(good)-20) + 10
			text = good[:at] + d.issue(t, now, part)[at:]
		}
		h, result := d.Settle(text, key, now, time.Minute)
		if result == ratelimit.SettledCost || h.Amount != 0 || h.Slot != 0 {
			t.Fatalf("%d: %q is believed: %+v", i, text, h)
		}
		results[result]++
	}
	t.Logf("%d hostile holds: %d forged, %d foreign, %d replayed", all, results[ratelimit.HoldForged],
		results[ratelimit.HoldForeign], results[ratelimit.HoldReplayed])
}

// Texts that were not made with the key are refused, and none ends the process.
func FuzzHold(f *testing.F) {
	d := newDesk(f, keyA)
	f.Add(d.issue(f, now, Part{budget(1), 1000}), budget(1))
	f.Add("", []byte{})
	f.Add(strings.Repeat("A", MaxText), []byte("k"))
	stranger := newDesk(f, keyB)
	f.Fuzz(func(t *testing.T, s string, key []byte) {
		if h, result := stranger.Settle(s, key, now, ratelimit.MaxHoldTTL); result == ratelimit.SettledCost {
			t.Fatalf("%q is believed: %+v", s, h)
		}
	})
}
