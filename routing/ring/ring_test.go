package ring

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/ratelimit"
)

func members(n int) []string {
	m := make([]string, n)
	for i := range m {
		m[i] = fmt.Sprintf("10.0.%d.%d:8082", i/250, i%250+1)
	}
	return m
}

// keySets are values as clients have them.
var keySets = map[string]func(int) string{
	"sequential": func(i int) string { return fmt.Sprint("user-", i) },
	"ips":        func(i int) string { return fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255) },
	"random":     func(i int) string { return fmt.Sprint(rand.New(rand.NewPCG(uint64(i), 1)).Uint64()) },
}

// The busiest node has at most 1.10 times the mean; one more node takes at
// most 1.15 times its fair share, and keys move to it only.
func TestRingSpreads(t *testing.T) {
	for _, n := range []int{3, 10, 100} {
		before, after := New(members(n)), New(members(n+1))
		newcomer, keys := members(n + 1)[n], 10_000*min(n, 30)
		for name, key := range keySets {
			counts := map[string]int{}
			moved := 0
			for i := range keys {
				h := xxhash.Sum64String(key(i))
				owner := before.Owner(h)
				counts[owner]++
				if next := after.Owner(h); next != owner {
					moved++
					if next != newcomer {
						t.Fatalf("%s moved from %s to %s", key(i), owner, next)
					}
				}
			}
			busiest := slices.Max(slices.Collect(maps.Values(counts)))
			ratio, share := float64(busiest*n)/float64(keys), float64(moved*(n+1))/float64(keys)
			t.Logf("%d nodes, %s: the busiest has %.3f of the mean; one more takes %.3f of its share", n, name, ratio, share)
			if ratio > 1.10 || share > 1.15 {
				t.Errorf("%d nodes, %s: %.3f, %.3f", n, name, ratio, share)
			}
		}
	}
}

// The index finds what a search from the start finds.
func TestRingOwner(t *testing.T) {
	r := New(append(members(7), members(3)...))
	rnd := rand.New(rand.NewPCG(1, 1))
	hashes := []uint64{0, 1, 1<<64 - 1, r.points[0].hash, r.points[0].hash + 1, r.points[len(r.points)-1].hash, r.points[len(r.points)-1].hash + 1}
	for range 10_000 {
		hashes = append(hashes, rnd.Uint64(), r.points[rnd.IntN(len(r.points))].hash)
	}
	for _, h := range hashes {
		want := r.points[0].owner
		for _, p := range r.points {
			if p.hash >= h {
				want = p.owner
				break
			}
		}
		if got := r.Owner(h); got != r.members[want] {
			t.Fatalf("%x is %s's, not %s's", h, r.members[want], got)
		}
	}
	if len(r.Members()) != 7 || !r.Has(members(7)[3]) || r.Has("x") {
		t.Error(r)
	}
	if new(Ring).Owner(1) != "" {
		t.Error("an empty ring has an owner")
	}
	if n := testing.AllocsPerRun(100, func() { r.Owner(hashes[9]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	// Of a hundred nodes that start at once, each builds a hundred rings, and runs on meanwhile.
	if n := testing.AllocsPerRun(1, func() { New(members(100)) }); n > 1000 {
		t.Errorf("%v allocations for a ring of 100 nodes", n)
	}
}

// A point is where Envoy's RING_HASH puts it: XXH64, seed 0, of "address_i".
func TestRingIsEnvoys(t *testing.T) {
	r := New([]string{"127.0.0.1:90"})
	want := xxhash.Sum64String("127.0.0.1:90_17")
	for _, p := range r.points {
		if p.hash == want {
			return
		}
	}
	t.Error("no point at 127.0.0.1:90_17")
}

// Whatever its limit's multiplier is, a key is where its last value is; and where it has none, or was
// too long, or was made up, it is hashed whole.
func TestHashOfIsTheLastValues(t *testing.T) {
	multiplier := uint32(300)
	key := func(entries ...string) []byte {
		b := ratelimit.AppendPrefix(nil, "edge", ratelimit.Limit{Unit: ratelimit.Minute, Multiplier: multiplier, Requests: 1})
		for i := 0; i < len(entries); i += 2 {
			b = ratelimit.AppendEntry(b, entries[i], entries[i+1], false)
		}
		return ratelimit.SealKey(b, 0)
	}
	for _, k := range [][]byte{key("api_key", "abc"), key("path", "/x", "api_key", "abc"), ratelimit.AppendEntry(key(), "api_key", "abc", true)} {
		if HashOf(k) != xxhash.Sum64String("abc") {
			t.Errorf("%q", k)
		}
	}
	for _, multiplier = range []uint32{0, 1, 127, 128, 129, 1 << 14, 1<<28 - 1} {
		if HashOf(key("path", "/x", "api_key", "abc")) != xxhash.Sum64String("abc") {
			t.Errorf("under a multiplier of %d", multiplier)
		}
	}
	tooLong, lastUnit := key("api_key", "abc"), key("api_key", "abc")
	tooLong[0], lastUnit[0] = 0xf0, 0xef
	if HashOf(lastUnit) != xxhash.Sum64String("abc") {
		t.Error("of the last unit that there may be")
	}
	for _, k := range [][]byte{
		key("api_key", ""), key("k", string(make([]byte, 200))), nil,
		{1},
		{1, 2, 3, 200, 1},
		tooLong,
		{1, 2, 0x80, 0x80},
		{1, 2, 3, 0xff},
		{1, 2, 3, 0xff, 9},
		{1, 2, 3, 5, 'a', 'b', 'c', 'd'},
		append([]byte{1, 2, 3, 0xfd}, make([]byte, 0xfd)...),
	} {
		if HashOf(k) != xxhash.Sum64(k) {
			t.Errorf("%q is not hashed whole", k)
		}
	}
}

// A ring is built once for the same nodes. Of the last rings, at most 64 are kept.
func TestRingsAreKept(t *testing.T) {
	nodes := func(name string) []string { return []string{name, "z:1"} }
	if first := Of(nodes("a:1")); first != Of(nodes("a:1")) {
		t.Error("the same ring was built twice")
	}
	most := 0
	for i := range 2*64 + 1 {
		Of([]string{fmt.Sprint("few:", i)})
		most = max(most, len(kept.of))
	}
	if most != 64 {
		t.Errorf("%d rings were kept", most)
	}
}
