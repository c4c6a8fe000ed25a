package keytable

import "testing"

// Keys whose lengths grow over time, of which an eighth stays each time: a page is free only after its last place.
// That is the worst case of a client that chooses the lengths of its keys, and keeps some of all earlier keys in use.
// The bounds are those that package leasing declares (KeyBytes; local.KeyBytes), without a fleet's busy keys.
func TestKeysThatStay(t *testing.T) {
	t.Run("alone", func(t *testing.T) { keysThatStay(t, 550, func(v *value) *int64 { return &v.n }) })
	t.Run("fleet", func(t *testing.T) { keysThatStay(t, 780, func(v *ofFleet) *int64 { return &v[0] }) })
}

// ofFleet is as large as the state of a fleet's key.
type ofFleet [13]int64

// keysThatStay has tables of keys. number is the place of the key's number in its value.
func keysThatStay[T any](t *testing.T, most int, number func(*T) *int64) {
	const limit = 40_000
	arena := NewArena()
	table := New[T](arena, limit)
	next := uint64(0)
	for round, size := range []int{8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128} {
		key := make([]byte, size)
		begins := int64(round) * 3 * limit
		for range 3 * limit {
			next++
			c := table.Add(idOf(next), key, func(c *Cell[T]) bool { return *number(&c.Val) < begins && c.id.Low%8 != 0 })
			if c != nil {
				*number(&c.Val) = int64(next)
			}
		}
		each := (arena.taken - len(arena.rest)) / limit
		if t.Logf("keys of %d bytes: %d bytes a key", size, each); each > most {
			t.Errorf("keys of %d bytes, and some of those before: %d bytes a key, and %d are declared", size, each, most)
		}
	}
}
