package ring

import (
	"slices"
	"strings"
	"sync"
)

// Rings are built once for each set of members: nodes of one process, and
// nodes that come and go, see the same again and again.
var kept struct {
	mu sync.Mutex
	of map[string]*Ring // guarded by mu

	points int // guarded by mu: of all
}

// mostRings are kept, with at most mostPoints in all, some 100 MB; then all are built anew.
const mostRings, mostPoints = 64, 1 << 22

// Of is the ring of the nodes at these addresses, which it puts in order. It may have been built before, and
// may block while another is built.
func Of(addrs []string) *Ring {
	slices.Sort(addrs)
	name := strings.Join(addrs, "\x00")
	kept.mu.Lock()
	defer kept.mu.Unlock()
	// The lock is held while a ring is built: nodes of one process that see the same change would
	// otherwise each build the same ring.
	r := kept.of[name]
	if r == nil {
		r = New(addrs)
		kept.points += len(r.points)
		if kept.of == nil || len(kept.of) >= mostRings || kept.points > mostPoints {
			kept.of, kept.points = map[string]*Ring{}, len(r.points)
		}
		kept.of[name] = r
	}
	return r
}
