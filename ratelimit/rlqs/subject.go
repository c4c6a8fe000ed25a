package rlqs

import (
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// maxEntries is the most that a BucketId may have: so deep do rules go.
const maxEntries = 16

// subject is a BucketId, which all streams that have subscribed to it share: with ten thousand
// of them, a copy for each would be most of what they keep, and of what the collector looks at.
// It is not changed but for users.
type subject struct {
	name    string         // canonical
	id      *rlqs.BucketId // for answers
	entries []config.Entry // by key
	users   int            // guarded by Node.mu. Invariant: at least 1 while the node knows it
}

// measure tells whether a BucketId is within the bounds.
func measure(id *rlqs.BucketId, o *Options) error {
	of := id.GetBucket()
	// A BucketId comes from a caller, and its entries are sorted and matched.
	if len(of) == 0 || len(of) > maxEntries {
		return fmt.Errorf("a BucketId has %d entries, must be 1 to %d", len(of), maxEntries)
	}
	size := 0
	for k, v := range of {
		size += len(k) + len(v)
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return fmt.Errorf("a BucketId has an entry that is no UTF-8: %q", ratelimit.OneLine(k+"="+v))
		}
	}
	if size > o.BucketBytes {
		return fmt.Errorf("a BucketId has %d bytes, the most is %d (RLQS_MAX_BUCKET_BYTES)", size, o.BucketBytes)
	}
	return nil
}

// appendName appends the canonical name of a BucketId: the same for the same entries. What has
// more entries than a BucketId may have has none.
func appendName(b []byte, id *rlqs.BucketId) []byte {
	of := id.GetBucket()
	if len(of) > maxEntries {
		return b
	}
	var keys [maxEntries]string
	n := 0
	for k := range of {
		keys[n] = k
		n++
	}
	// A map has no order, and the name must be the same for each report of the bucket.
	slices.Sort(keys[:n])
	for _, k := range keys[:n] {
		b = ratelimit.AppendEntry(b, k, of[k], ratelimit.OfRequest)
	}
	return b
}

// subscribe finds the subject of a BucketId that is within the bounds, or makes it; release gives
// it back.
func (n *Node) subscribe(name []byte, id *rlqs.BucketId) *subject {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.subjects[string(name)]
	if s == nil {
		// The message of which id is a part is not to be kept, nor written to.
		s = &subject{name: string(name), id: proto.CloneOf(id)}
		for _, k := range slices.Sorted(maps.Keys(s.id.GetBucket())) {
			s.entries = append(s.entries, config.Entry{Key: k, Value: s.id.GetBucket()[k]})
		}
		n.subjects[s.name] = s
	}
	s.users++
	return s
}

func (n *Node) release(s *subject) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s.users--; s.users == 0 {
		delete(n.subjects, s.name)
	}
}

// placeOf is where a bucket of that name is among a stream's, or is to be.
func (s *Session) placeOf(name []byte) (at int, found bool) {
	return slices.BinarySearchFunc(s.byName, name, func(b *bucket, name []byte) int {
		// In comparisons alone the name is not copied into a string.
		switch {
		case b.subject.name < string(name):
			return -1
		case b.subject.name > string(name):
			return 1
		}
		return 0
	})
}
