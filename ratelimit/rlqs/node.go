package rlqs

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

type (
	instant = ratelimit.Instant
	tokens  = ratelimit.Tokens
)

// Options bound what callers may have a node keep. The zero value is no valid one.
type Options struct {
	Streams     int     // at once, in this process
	Buckets     int     // of one stream
	BucketBytes int     // of one BucketId, keys and values
	Messages    float64 // that a stream may send a second, lastingly; more wait in its connection
}

// DefaultOptions are the bounds where nobody says otherwise.
func DefaultOptions() Options {
	return Options{Streams: 10_000, Buckets: 1000, BucketBytes: 1 << 10, Messages: 100}
}

// Validate reports every bound that makes no sense, under the name of its setting.
func (o *Options) Validate() error {
	var errs []error
	within := func(name string, value, least, most float64) {
		if !(value >= least && value <= most) {
			errs = append(errs, fmt.Errorf("%s is %v, must be between %v and %v", name, value, least, most))
		}
	}
	within("RLQS_MAX_STREAMS", float64(o.Streams), 0, 1<<20)
	within("RLQS_MAX_BUCKETS", float64(o.Buckets), 1, 1<<16)
	within("RLQS_MAX_BUCKET_BYTES", float64(o.BucketBytes), 16, 16<<10)
	within("RLQS_MAX_REPORTS", o.Messages, 1, 1e6)
	return errors.Join(errs...)
}

// Source is what a node decides with.
type Source struct {
	Rules   func() *config.Rules
	Limiter ratelimit.Limiter
	Wall    func() time.Time // for budgets without a ledger, whose windows are the wall clock's
}

// Node is what all streams of a process share. It is safe for concurrent use.
type Node struct {
	Stats   Stats
	source  Source
	options Options

	mu     sync.Mutex
	shares map[string]*share // guarded by mu, by key. Invariant: each has a holder
}

// NewNode makes a node without streams.
func NewNode(s Source, o Options) *Node {
	return &Node{source: s, options: o, shares: map[string]*share{}}
}

// share is what a node's streams have of one key. It is safe for concurrent use.
type share struct {
	key string

	mu      sync.Mutex
	holders int     // guarded by mu
	perSec  float64 // guarded by mu: requests, of all of them
}

// join adds a holder of a key.
func (n *Node) join(key []byte) *share {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.shares[string(key)]
	if s == nil {
		s = &share{key: string(key)}
		n.shares[s.key] = s
	}
	s.mu.Lock()
	s.holders++
	s.mu.Unlock()
	return s
}

// leave takes out a holder that had so many requests a second.
func (n *Node) leave(s *share, perSec float64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perSec = max(0, s.perSec-perSec)
	if s.holders--; s.holders == 0 {
		delete(n.shares, s.key)
	}
}

// measured takes in that a holder's requests have changed.
func (s *share) measured(by float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.perSec = max(0, s.perSec+by)
}

func (s *share) sums() (holders int, perSec float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.holders, s.perSec
}

// Held is a key that streams hold, for people.
type Held struct {
	Holders   int     `json:"streams"`
	PerSecond float64 `json:"per_second"`
}

// Look tells what this node's streams have of a key; false: none has it.
func (n *Node) Look(key []byte) (Held, bool) {
	n.mu.Lock()
	s := n.shares[string(key)]
	n.mu.Unlock()
	if s == nil {
		return Held{}, false
	}
	holders, perSec := s.sums()
	return Held{holders, math.Round(perSec*10) / 10}, true
}
