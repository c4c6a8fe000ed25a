package ring

import (
	"cmp"
	"fmt"
	"math/bits"
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

// PointsPerNode is how many points of the ring a node has: enough
// that with 100 nodes the busiest has less than 1.10 times the mean.
const PointsPerNode = 2048

// Ring maps a hash to the member that owns it. It is immutable; the zero Ring has no members. A point is XXH64 of
// "address_i", and a hash belongs to the first point at or after it, as in Envoy's RING_HASH with XX_HASH.
// Source: Karger et al., "Consistent Hashing and Random Trees", 1997.
type Ring struct {
	members []string // addresses of nodes, in order
	points  []point
	shift   uint8   // of a hash, to its first guess in start
	start   []int32 // by the upper bits of a hash: the first point that may be its own
}

type point struct {
	hash  uint64
	owner int32
}

// New builds a ring of the nodes at these addresses. It allocates about 40 KB for each. Its time is in proportion to
// their number: of a hundred nodes that start at once, each builds a hundred rings.
func New(addrs []string) *Ring {
	// Two nodes must build the same ring of the same members, in any order and with repetitions.
	r := &Ring{members: slices.Compact(slices.Sorted(slices.Values(addrs)))}
	// start has between one and two entries for each point, so that the search for an owner looks
	// at about one point instead of the twenty of a binary search.
	size := bits.Len(uint(len(r.members) * PointsPerNode))
	r.shift, r.start = uint8(64-size), make([]int32, 1<<size+1)
	unsorted := make([]point, 0, len(r.members)*PointsPerNode)
	for i, addr := range r.members {
		name := append([]byte(addr), '_')
		for n := range PointsPerNode {
			hash := xxhash.Sum64(strconv.AppendInt(name, int64(n), 10))
			unsorted = append(unsorted, point{hash, int32(i)})
			r.start[hash>>r.shift+1]++
		}
	}
	for i := range 1 << size {
		r.start[i+1] += r.start[i]
	}
	r.points = make([]point, len(unsorted))
	next := slices.Clone(r.start)
	for _, p := range unsorted {
		r.points[next[p.hash>>r.shift]] = p
		next[p.hash>>r.shift]++
	}
	for i := range 1 << size {
		slices.SortFunc(r.points[r.start[i]:r.start[i+1]], func(a, b point) int {
			// Points with the same hash are in the order of their members, the same on every node.
			return cmp.Or(cmp.Compare(a.hash, b.hash), cmp.Compare(a.owner, b.owner))
		})
	}
	return r
}

// Owner returns the address of the member that a hash belongs to, "" if there
// is none. It does not allocate.
func (r *Ring) Owner(hash uint64) string {
	if len(r.points) == 0 {
		return ""
	}
	i := int(r.start[hash>>r.shift])
	for i < len(r.points) && r.points[i].hash < hash {
		i++
	}
	// Behind the last point the ring begins anew.
	if i == len(r.points) {
		i = 0
	}
	return r.members[r.points[i].owner]
}

// Members are the addresses of the members, in order. They are not to be changed.
func (r *Ring) Members() []string { return r.members }

// Has reports whether a member is in the ring.
func (r *Ring) Has(addr string) bool {
	_, ok := slices.BinarySearch(r.members, addr)
	return ok
}

// String lists the members.
func (r *Ring) String() string { return fmt.Sprint(r.members) }

// HashOf is the place of a key on the ring: XXH64 of the value of its last descriptor entry. So Envoy's ring
// hash by the header of that value chooses the same node. A key that was too long to keep is hashed whole.
func HashOf(key []byte) uint64 { return xxhash.Sum64(lastValue(key)) }

// lastValue finds the last field of a key (ratelimit.AppendEntry), or returns
// all of it.
func lastValue(key []byte) []byte {
	// A key begins with its limit's unit, and one that was too long with a mark that no unit has
	// (ratelimit.SealKey).
	if len(key) < 4 || key[0] >= 0xf0 {
		return key
	}
	at := 2
	for at < len(key) && key[at] >= 0x80 { // the multiplier, a varint
		at++
	}
	at++
	last := key
	for at < len(key) {
		// The value is a rule's pattern, before which there are two such bytes
		// (ratelimit.AppendEntry).
		if key[at] == 0xff {
			at += 2
		}
		// A key has at most MaxKeyLen bytes, in which no field is so long that its length takes
		// more than a byte. What does not fit was made up by a peer.
		if at >= len(key) || key[at] >= 0xfd || at+1+int(key[at]) > len(key) {
			return key
		}
		last = key[at+1 : at+1+int(key[at])]
		at += 1 + int(key[at])
	}
	if len(last) == 0 {
		return key // nothing distinguishes the keys
	}
	return last
}
