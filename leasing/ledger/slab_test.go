package ledger

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

// Random additions and removals, against a map. Few hashes, so that tags
// collide, probes are long and removals close gaps.
func TestSlabIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const limit = 40
		s := newSlab[int](limit)
		model := map[string]int{}
		hash := func(key string) uint64 { return uint64(key[0]%5)<<29 | uint64(key[0]&1)<<60 }
		for step := range rapid.IntRange(1, 300).Draw(t, "steps") {
			key := fmt.Sprint(rapid.IntRange(0, 60).Draw(t, "key"))
			c := s.get(hash(key), []byte(key))
			if want, ok := model[key]; ok != (c != nil) || ok && c.val != want {
				t.Fatalf("%s: got %v, want %v %v", key, c, want, ok)
			}
			switch {
			case c == nil:
				if c = s.add(hash(key), []byte(key)); c != nil {
					c.val, model[key] = step, step
				} else if len(model) < limit {
					t.Fatalf("no room for %s among %d", key, len(model))
				}
			case rapid.Bool().Draw(t, "evict"):
				gone := ""
				if s.evict(100, func(c *cell[int]) bool { gone = string(c.key[:c.len]); return true }) {
					delete(model, gone)
				}
			default:
				c.hot = true
			}
			if s.size != len(model) {
				t.Fatalf("size %d, want %d", s.size, len(model))
			}
		}
	})
}
