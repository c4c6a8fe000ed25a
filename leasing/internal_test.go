package leasing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// driven is a node whose clock stands, and a request.
func driven(keys int) (*Stepped, ask) {
	rule := &ratelimit.Rule{Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: 1 << 31}}
	rule.Coordination = ratelimit.DefaultCoordination()
	clock, half := func() instant { return instant(time.Hour) }, func() float64 { return 0.5 }
	n := NewStepped(account.NewHolder(), keys, clock, time.Now(), func(time.Duration, func()) {}, half)
	return n, ask{Rule: rule, Key: []byte("k"), Cost: 1}
}

// parted is a ledger in parts, as a Redis Cluster is.
type parted struct{ *account.Memory }

func (parted) Partitions() int           { return 16 }
func (parted) Partition(name string) int { return len(name) % 16 }
func (parted) Ask(context.Context, int) (e ratelimit.Epoch, from, to ledgerTime, err error) {
	return e, 0, 0, account.ErrMoved
}

// Accounts of a part that does not answer wait for it: looks at them would delay those at other parts.
func TestDeadPartDelaysNoReclaim(t *testing.T) {
	n, _ := driven(10)
	n.Divide(parted{})
	for _, key := range []string{"0", "10"} {
		n.note(shortage{claim: account.Claim{Key: key, Window: 1}})
	}
	for range 3 {
		n.lanes[1].Failure(n.clock(), 0)
	}
	if all := n.takeShort(n.clock()); len(all) != 1 || all[0].claim.Key != "10" {
		t.Errorf("with a dead part, the looks are at %+v", all)
	}
	n.lanes[1].Success()
	if all := n.takeShort(n.clock()); len(all) != 1 || all[0].claim.Key != "0" {
		t.Errorf("when the part answers, the looks are at %+v", all)
	}
}

// A decision from what is in hand does not allocate, and waits for no lock that keys share, on one server or in a
// Cluster.
func TestDecisionsInHandShareNothing(t *testing.T) {
	for _, parts := range []int{1, 16} {
		n, a := driven(100)
		a.Key = ratelimit.AppendEntry(nil, "api_key", strings.Repeat("of a client ", 4), ratelimit.OfRequest)
		asks, verdicts := []ask{a}, make([]verdict, 1)
		ledger := parted{account.NewMemory(func() ledgerTime { return 1_800_000_000_000_000 })}
		if parts > 1 {
			n.Divide(ledger)
		}
		for w := n.Ask(n.clock(), asks, verdicts); w != nil && w.Advance(n.clock()); {
			b := n.Batch()
			grants := make([]account.Grant, len(b.Claims()))
			epoch, at, err := ledger.Settle(t.Context(), b.Claims(), grants)
			if err != nil {
				t.Fatal(err)
			}
			b.Answer(epoch, at, grants)
		}
		for i := range n.lanes {
			n.lanes[i].mu.Lock() // a decision that needs it hangs
		}
		decide := func() { n.Decide(t.Context(), n.clock(), asks, verdicts) }
		allocs := testing.AllocsPerRun(1000, decide)
		if allocs != 0 || verdicts[0].Source != ratelimit.FromLease {
			t.Errorf("%d parts: a decision allocates %v times: %+v", parts, allocs, verdicts[0])
		}
	}
}

// The state of a key is small, for tens of millions of keys. 224 bytes are a size of Go's allocator.
func TestKeysAreSmall(t *testing.T) {
	if n, busy := unsafe.Sizeof(key{}), unsafe.Sizeof(use{}); n > 112 || busy > 224 {
		t.Errorf("a key takes %d bytes, and %d more while it is busy", n, busy)
	}
}

// A stream of new keys takes memory for the recent uses of a sixteenth of the table.
func TestRecentUsesAreBounded(t *testing.T) {
	n, a := driven(8000)
	for i := range 5000 {
		a.Key = fmt.Append(nil, "k", i)
		s, id, _ := n.find(a.Key)
		s.entry(1, id, n.trackLocked(s, 1, id, &a))
		s.mu.Unlock()
	}
	for i := range n.shards {
		if s := &n.shards[i]; len(s.uses) > s.most {
			t.Errorf("shard %d has %d recent uses, and room for %d", i, len(s.uses), s.most)
		}
	}
}

// Late reports with debt that are tried for long are bounded in number: invented keys in an outage cost no more memory.
func TestLateReportsAreBounded(t *testing.T) {
	n, _ := driven(100)
	reports := make([]*lateReport, mostLate+7)
	for i := range reports {
		reports[i] = &lateReport{tries: lateTries - 1, until: lease.Never}
		n.retryLate(reports[i])
	}
	if kept, lost := n.stats.late.Load(), n.Stats().Unreported; kept != mostLate || lost != 7 {
		t.Errorf("%d late reports are tried on, and %d are lost", kept, lost)
	}
	n.endLate(reports[0])
	if kept := n.stats.late.Load(); kept != mostLate-1 {
		t.Errorf("after the end of one, %d late reports are tried on", kept)
	}
	n.Release()
	n.after = func(time.Duration, func()) { t.Error("a node that has ended tries a late report again") }
	n.retryLate(reports[1])
}

// A request without room in the queue counts as that: neither as an error of the store nor as its breaker.
func TestFullQueueIsNamed(t *testing.T) {
	n, a := driven(10)
	n.lanes[0].Size = 0
	v := make([]verdict, 1)
	w := n.Ask(n.clock(), []ask{a}, v)
	if w != nil || v[0].Source != ratelimit.FromFallback || v[0].Reason != ratelimit.FallbackQueueFull {
		t.Errorf("%v by %v", v[0].Reason, v[0].Source)
	}
}
