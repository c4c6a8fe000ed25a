package leasing

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A table that is full of idle keys has room for others: the tokens in hand of idle keys go back.
func TestIdleLeasesMakeRoom(t *testing.T) {
	s := newStage(t, 1, 1000, 1000, nil)
	s.rule.Limit.Unit = ratelimit.Day
	const keys = 3000 // of which the node may track a third
	for i := range keys {
		s.ask(0, fmt.Sprint("k", i), 1)
		if i%100 != 0 {
			continue
		}
		for range 100 { // in ten seconds all of them are idle
			s.sweep()
		}
	}
	if n := s.nodes[0].stats.fallbacks[ratelimit.FallbackTableFull].Load(); n > 0 {
		t.Errorf("%d of %d keys were limited by this node alone", n, keys)
	}
}

// A stream of new keys takes memory for the recent uses of a sixteenth of the table.
func TestRecentUsesAreBounded(t *testing.T) {
	s := newStage(t, 1, 8000, 1000, nil)
	for i := range 5000 {
		s.ask(0, fmt.Sprint("k", i), 1)
	}
	for i := range s.nodes[0].shards {
		if s := &s.nodes[0].shards[i]; len(s.uses) > s.most {
			t.Errorf("shard %d has %d recent uses, and room for %d", i, len(s.uses), s.most)
		}
	}
}

// Keys that go from a full table while they count, and come back, are not taken for accounts that the store has lost:
// an alert says so of those.
func TestFullTableLosesNoAccounts(t *testing.T) {
	for algorithm := range ratelimit.RateAlgorithms() {
		s := newStage(t, 2, 100, 20, nil)
		s.rule.Limit.Unit, s.rule.Limit.Algorithm = ratelimit.Minute, ratelimit.Algorithm(algorithm)
		s.rule.Limit.Burst = 20
		random := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // the same run each time
		popular := rand.NewZipf(random, 1.1, 5, 500)
		for end := s.now.Add(2*time.Minute + 10*time.Second); s.now < end; { // which has two turns of the minute
			for range 5 {
				s.ask(random.IntN(2), fmt.Sprint("k", popular.Uint64()), 1)
			}
			s.goOn(10 * time.Millisecond)
		}
		evicted, lost := uint64(0), uint64(0)
		for _, n := range s.nodes {
			evicted, lost = evicted+n.stats.evicted.Load(), lost+n.stats.missing.Load()
		}
		if evicted < 100 || lost > 0 {
			t.Errorf("%v: %d keys went from full tables, and %d accounts count as lost",
				ratelimit.Algorithm(algorithm), evicted, lost)
		}
	}
}
