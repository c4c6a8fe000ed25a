package keytable

import "testing"

// Keys whose lengths grow over time, of which an eighth stays each time: a page is not
// free before the last of its places is, so that they take half as much again as keys do
// whose lengths change otherwise. That is what a client can bring about who chooses the
// lengths of its keys, and keeps asking for some of all that it has ever asked for.
func TestKeysThatStay(t *testing.T) {
	const limit, kept = 40_000, 100
	arena := NewArena()
	table := New[int64](arena, limit)
	next := uint64(0)
	for round, size := range []int{12, 28, 44, 60, 76, 92, 108, 124} {
		key := make([]byte, size)
		begins := int64(round) * 3 * limit
		for range 3 * limit {
			next++
			c := table.Add(idOf(next), key, func(c *Cell[int64]) bool { return c.Val < begins && c.id.Low%8 != 0 })
			if c != nil {
				c.Val = int64(next)
				table.Keep(c, make([]byte, kept))
			}
		}
		each := (arena.taken - len(arena.rest)) / limit
		if t.Logf("keys of %d bytes: %d bytes a key", size, each); each > 700 {
			t.Errorf("keys of %d bytes, and some of those before: %d bytes a key, where none takes more than %d", size, each, 40+128+kept)
		}
	}
}
