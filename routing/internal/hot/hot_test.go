package hot

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

const second = ratelimit.Instant(time.Second)

// hits is a key and its number of requests.
type hits struct{ key, n int }

// asked sends requests for keys within one second, and returns whether the first of them is hot after it.
func asked(h *Finder, lasts time.Duration, all ...hits) bool {
	now := 10 * second
	for _, x := range all {
		for range x.n {
			h.Hit(now, keyOf(x.key))
		}
	}
	return h.Hit(now.Add(lasts), keyOf(all[0].key))
}

// others are that many keys, with that many requests each.
func others(keys, n int) (all []hits) {
	for i := range keys {
		all = append(all, hits{1000 + i, n})
	}
	return all
}

// A key is hot if it had more requests than hot_rate in the previous second. Without hot_rate, it needs more than ten
// times the mean of keys, and more than 200. A second without requests for long counts with its real length.
func TestHotKey(t *testing.T) {
	for _, c := range []struct {
		name  string
		rate  float64
		lasts time.Duration
		hits  []hits
		hot   bool
	}{
		{"more than its rate", 300, time.Second, []hits{{1, 301}}, true},
		{"no more than its rate", 300, time.Second, []hits{{1, 300}}, false},
		{"two seconds of less", 300, 2 * time.Second, []hits{{1, 599}}, false},
		{"two seconds of more", 300, 2 * time.Second, []hits{{1, 601}}, true},
		{"a second is not over", 300, time.Second - 1, []hits{{1, 900}}, false},
		{"one key alone, more than 200", 0, time.Second, []hits{{1, 201}}, true},
		{"one key alone, 200", 0, time.Second, []hits{{1, 200}}, false},
		{"one key alone, 300 in two seconds", 0, 2 * time.Second, []hits{{1, 300}}, false},
		{"of nine keys there is no mean", 0, time.Second, append([]hits{{1, 300}}, others(8, 100)...), true},
		{"of ten there is", 0, time.Second, append([]hits{{1, 300}}, others(9, 100)...), false},
		{"more than ten times the mean of 20", 0, time.Second, append([]hits{{1, 3000}}, others(19, 1)...), true},
		{"no more than ten times the mean of 20", 0, time.Second, append([]hits{{1, 1900}}, others(19, 100)...), false},
		{"one more than ten times the mean", 0, time.Second, append([]hits{{1, 381}}, others(19, 20)...), true},
		{"ten times the mean", 0, time.Second, append([]hits{{1, 380}}, others(19, 20)...), false},
		{"of 10,000 keys, 100 times the mean", 0, time.Second, append([]hits{{1, 2000}}, others(10_000, 20)...), false},
		{"of 10,000 keys, more than 4 % of all", 0, time.Second, append([]hits{{1, 9000}}, others(10_000, 20)...), true},
		{"ten times the mean, and no more than 200", 0, time.Second, append([]hits{{1, 200}}, others(100, 1)...), false},
		{"ten times the mean, and more than 200", 0, time.Second, append([]hits{{1, 201}}, others(100, 1)...), true},
		{"ten times the mean, and 300 in two seconds", 0, 2 * time.Second, append([]hits{{1, 300}}, others(100, 1)...), false},
	} {
		if got := asked(New(c.rate), c.lasts, c.hits...); got != c.hot {
			t.Errorf("%s: hot %v", c.name, got)
		}
	}
}

// A busy second says nothing of the next one.
func TestHotAfterABusySecond(t *testing.T) {
	h := New(0)
	asked(h, time.Second, others(20, 5000)...)
	now := 11 * second
	for i := range 3000 {
		h.Hit(now, keyOf(7))
		h.Hit(now, keyOf(100+i%19))
	}
	if !h.Hit(now.Add(time.Second), keyOf(7)) {
		t.Error("a key that is asked for 19 times as often as each of 19 others is not hot")
	}
}

// Any number of keys takes no more room than some hundred, and the count of a key with requests among them is
// never too low.
func TestFloodHidesNoHotKey(t *testing.T) {
	h := New(199)
	now := 10 * second
	for i := range 20_400 {
		h.Hit(now, keyOf(1_000_000+i))
		if i >= 400 && i%200 == 199 { // it comes when no room is left
			for range 2 {
				h.Hit(now, keyOf(7))
			}
		}
	}
	if len(h.slots) != mostSlots || len(h.keys) != mostSlots {
		t.Errorf("%d are counted, under %d names", len(h.slots), len(h.keys))
	}
	if !h.Hit(now.Add(time.Second), keyOf(7)) {
		t.Error("a key that was asked for 200 times is not hot")
	}
	if names := h.Names(now.Add(time.Second)); !slices.Contains(names, string(keyOf(7))) {
		t.Errorf("%q are hot", names)
	}
}

// A key is leased here from when its owner has called it hot, and no other is. It goes back to its owner at
// less than 50 requests a second, which is checked every two seconds.
func TestKeysThatAreHotHere(t *testing.T) {
	var h Here
	if h.Use(second, keyOf(1)) || len(h.Names(second)) != 0 {
		t.Fatal("a key is leased that nobody has called hot")
	}
	h.Start(second, keyOf(1))
	h.Start(second.Add(time.Second), keyOf(1)) // which changes nothing
	if !h.Use(second, keyOf(1)) || h.Use(second, keyOf(2)) {
		t.Fatal("it is not the key that was called hot")
	}
	if names := h.Names(second); len(names) != 1 || names[0] != string(keyOf(1)) {
		t.Errorf("%q", names)
	}
	// One use was above: 100 in each of two seconds, and again, and then 99.
	for i, uses := range []int{98, 99, 98} {
		end := second.Add(time.Duration(i+1) * 2 * time.Second)
		for range uses {
			h.Use(end.Add(-time.Second), keyOf(1))
		}
		if kept := h.Use(end, keyOf(1)); kept != (i < 2) {
			t.Errorf("after %d seconds it is leased: %v", 2*(i+1), kept)
		}
	}
	if len(h.Names(8*second)) != 0 || h.Use(8*second, keyOf(1)) {
		t.Errorf("%q are leased", h.Names(8*second))
	}
}

// So many keys are leased here and no more, whatever owners say. A key without requests makes room.
func TestMostKeysHere(t *testing.T) {
	var h Here
	for i := range Most + 5 {
		h.Start(second, keyOf(i))
	}
	if len(h.Names(second)) != Most || h.Use(second, keyOf(Most)) || !h.Use(second, keyOf(Most-1)) {
		t.Errorf("%d are leased", len(h.Names(second)))
	}
	h.Start(4*second, keyOf(Most))
	if !h.Use(4*second, keyOf(Most)) || len(h.Names(4*second)) != 1 {
		t.Errorf("%d are leased, and the others had no requests", len(h.Names(4*second)))
	}
}

// A key that stays hot is found within two seconds, and the table of keys does not grow meanwhile.
func TestHotKeysAreFound(t *testing.T) {
	h := New(0)
	now := ratelimit.Instant(1)
	for second := range 3 {
		for i := range 20_000 {
			now = now.Add(50 * time.Microsecond)
			key := keyOf(1_000_000)
			if i%10 == 0 {
				key = keyOf(second*2000 + i)
			}
			h.Hit(now, key)
		}
	}
	if names := h.Names(now); len(names) != 1 || names[0] != string(keyOf(1_000_000)) {
		t.Errorf("%q", names)
	}
	if len(h.slots) > mostSlots || len(h.keys) > mostSlots {
		t.Error("it grows")
	}
	if names := h.Names(now.Add(3 * time.Second)); len(names) != 0 {
		t.Errorf("still hot: %q", names)
	}
}

func keyOf(i int) []byte {
	b := ratelimit.AppendPrefix(nil, "d", ratelimit.Limit{Unit: ratelimit.Year})
	return ratelimit.AppendEntry(b, "user", fmt.Sprint(i), false)
}
