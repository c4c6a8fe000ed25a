package rlqs

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

type (
	instant = ratelimit.Instant
	tokens  = ratelimit.Tokens
)

// Options bound what callers may have a node keep.
type Options struct {
	Streams     int     // at once, in this process
	Buckets     int     // of one stream
	BucketBytes int     // of one BucketId, keys and values; also of a domain
	Bytes       int     // that the buckets of all streams take, roughly
	Messages    float64 // that a stream may send a second, lastingly; more wait in its connection
}

// DefaultOptions are the default bounds.
func DefaultOptions() Options {
	return Options{Streams: 10_000, Buckets: 1000, BucketBytes: 1 << 10, Bytes: 256 << 20, Messages: 100}
}

// Source is the basis of a node's decisions.
type Source struct {
	Rules      func() *config.Rules
	Limiter    ratelimit.Limiter
	Wall       func() time.Time // for budgets without a ledger, whose windows are the wall clock's
	ShadowMode bool             // Envoys let everything pass
}

// Node is what all streams of a process share. It is safe for concurrent use. Its mu is taken before that of a pool.
type Node struct {
	stats    Stats
	sessions atomic.Uint64 // made so far
	source   Source
	options  Options
	// scratches are those that no session uses now.
	scratches chan *scratch

	mu       sync.Mutex
	pools    map[string]*pool           // guarded by mu, by key. Invariant: each has a holder
	subjects map[string]*subject        // guarded by mu, by name. Invariant: each has a user
	held     int                        // guarded by mu: bytes of them and of their buckets, roughly
	rules    *config.Rules              // guarded by mu: those that offers are of
	offers   map[*ratelimit.Rule]*offer // guarded by mu
}

// NewNode makes a node without streams.
func NewNode(s Source, o Options) *Node {
	return &Node{
		source: s, options: o, scratches: make(chan *scratch, mostScratches),
		pools: map[string]*pool{}, subjects: map[string]*subject{},
	}
}

// Stats are the node's counts.
func (n *Node) Stats() *Stats { return &n.stats }

// pool is what a node's streams have of one key. It is safe for concurrent use. The sums say how a budget is to be
// divided (sublease.Budget), and people see the holders.
type pool struct {
	key     string
	account []byte // the same, for asks; it is not written to

	mu      sync.Mutex
	holders []*bucket // guarded by mu, as is what each has published. Invariant: b.index is where b is
	perSec  float64   // guarded by mu. Invariant: the sum of the holders', except for rounding
	// left is what a token_bucket had at the instant at, and over its override; 0: it was never asked. Guarded by mu.
	left tokens
	at   instant
	over *ratelimit.Limit
}

// observe records the level of a token_bucket.
func (s *pool) observe(now instant, v *ratelimit.Verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.left = v.Remaining
	s.at = now
	s.over = v.Limit
}

// level is the present level of a token_bucket, if only this node takes from it, and its limit. An override below the
// rule's limit l does not count here: without a claim, its end would pass unnoticed.
func (s *pool) level(now instant, l *ratelimit.Limit) (tokens, *ratelimit.Limit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over != nil && s.over.Requests > l.Requests {
		l = s.over
	}
	if s.at == 0 {
		return l.Capacity(), l
	}
	return min(l.Capacity(), s.left+sublease.RefilledIn(l, now.Sub(s.at))), l
}

// join adds a holder of a key.
func (n *Node) join(b *bucket, key []byte) *pool {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.pools[string(key)]
	if s == nil {
		s = &pool{key: string(key), account: key}
		n.pools[s.key] = s
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b.index = int32(len(s.holders))
	s.holders = append(s.holders, b)
	return s
}

// leave takes out a holder.
func (n *Node) leave(b *bucket, s *pool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	// Sums of floating-point numbers may end a little below 0.
	s.perSec = max(0, s.perSec-b.published.perSecond)
	last := len(s.holders) - 1
	s.holders[last].index = b.index
	s.holders[b.index] = s.holders[last]
	s.holders[last] = nil
	// A key without holders is dropped, so that keys of the past cost no memory. n.mu is held, so that no
	// holder joins the pool meanwhile.
	s.holders = s.holders[:last]
	if last == 0 {
		delete(n.pools, s.key)
	}
}

// set records what has become of a holder.
func (s *pool) set(b *bucket, is published) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perSec = max(0, s.perSec+is.perSecond-b.published.perSecond)
	b.published = is
}

// sums are the number of holders, and how many requests a second all of them have.
func (s *pool) sums() (holders int, perSec float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.holders), s.perSec
}
