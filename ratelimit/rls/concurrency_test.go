package rls

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/leasing/slots"
	"github.com/sluice-gate/sluice/ratelimit"
)

// deadSlots is a ledger that does not answer.
type deadSlots struct{}

func (deadSlots) Slots(_ context.Context, _ []account.SlotAsk, answers []account.SlotAnswer) {
	for i := range answers {
		answers[i].Err = errors.New("the store is down")
	}
}

// What on_store_failure admits has a slot, too, by which it is given back: a node's part is for requests at once, and
// not for those of hold_ttl.
func TestSlotsWithoutAStore(t *testing.T) {
	f := holdFixtureOf(t, `domain: d
descriptors:
  - {key: slots, rate_limit: {concurrency: 2, hold_ttl: 60s}}
  - {key: open, coordination: {on_store_failure: open}, rate_limit: {concurrency: 2, hold_ttl: 60s}}
`)
	clock := func() ratelimit.Instant { return f.now }
	limiter := slots.New(deadSlots{}, local.New(100, f.now, time.Unix(1_800_000_000, 0)), clock)
	limiter.Nodes = func() int { return 1 }
	f.limiter = limiter
	for range 5 {
		a, over := f.takes(desc("slots=a"))
		b, overB := f.takes(desc("slots=a"))
		if a == "" || b == "" || over || overB {
			t.Fatalf("holds %q and %q, over %v and %v", a, b, over, overB)
		}
		if _, over := f.takes(desc("slots=a")); !over {
			t.Fatal("three are in flight of two")
		}
		f.ends("slots=a", a, unsaid)
		f.ends("slots=a", b, unsaid)
		if hold, over := f.takes(desc("open=a")); hold == "" || over {
			t.Fatalf("open: hold %q, over %v", hold, over)
		}
	}
}
