package rlqs

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// maxEntries is the most that a BucketId may have: so deep do rules go.
const maxEntries = 16

// subject is a BucketId, which all streams that have subscribed to it share. With ten thousand of them, a
// copy for each would be most of their memory, and of the collector's work. Only users changes.
type subject struct {
	name    string         // canonical
	id      []byte         // as answers have it
	entries []config.Entry // by key
	users   int            // guarded by Node.mu. Invariant: at least 1 while the node has it
}

// measure reports whether the BucketId of a report is within the bounds.
func (r *report) measure(o *Options) error {
	// A BucketId comes from a caller, and its entries are matched.
	switch {
	case r.count == 0:
		return bad("a BucketId has 0 entries, must be 1 to %d", maxEntries)
	case r.more:
		return bad("a BucketId has more than %d entries, must be 1 to %d", maxEntries, maxEntries)
	}
	size := 0
	for _, e := range r.id() {
		size += len(e.Key) + len(e.Value)
		if !utf8.ValidString(e.Key) || !utf8.ValidString(e.Value) {
			return bad("a BucketId has an entry that is not UTF-8: %q", ratelimit.OneLine(e.Key+"="+e.Value))
		}
	}
	if size > o.BucketBytes {
		return bad("a BucketId has %d bytes, and the maximum is %d", size, o.BucketBytes)
	}
	return nil
}

// appendName appends the canonical name of a BucketId: the same for the same entries.
func appendName(b []byte, id []config.Entry) []byte {
	for _, e := range id {
		b = ratelimit.AppendEntry(b, e.Key, e.Value, ratelimit.OfRequest)
	}
	return b
}

// bucketCost is what a bucket takes, in bytes, without its subject.
const bucketCost = 450

// costs is what a BucketId takes, whose name has that length: the name, the entries, the answers' form, and its key in
// a pool.
func costs(name string) int { return 600 + 5*len(name) }

// subscribe finds the subject of a BucketId that is within the bounds, or makes it; release gives it back. It is nil
// if the node has as many as it may.
func (n *Node) subscribe(name []byte, id []config.Entry) *subject {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, cost := n.subjects[string(name)], bucketCost
	if s == nil {
		cost += costs(string(name))
	}
	if n.held+cost > n.options.Bytes {
		return nil
	}
	n.held += cost
	if s == nil {
		s = &subject{name: string(name), id: appendID(nil, id)}
		for _, e := range id {
			// The message in which they lie is not kept.
			s.entries = append(s.entries, config.Entry{Key: strings.Clone(e.Key), Value: strings.Clone(e.Value)})
		}
		n.subjects[s.name] = s
	}
	s.users++
	return s
}

// release ends one use of a subject. The last one drops it.
func (n *Node) release(s *subject) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stats.Buckets.Add(-1)
	n.held -= bucketCost
	s.users--
	if s.users == 0 {
		n.held -= costs(s.name)
		delete(n.subjects, s.name)
	}
}

// placeOf is where a bucket of that name is among a stream's, or is to be.
func (s *Session) placeOf(name []byte) (at int, found bool) {
	return slices.BinarySearchFunc(s.buckets, name, func(b *bucket, name []byte) int {
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
