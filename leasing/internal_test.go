package leasing

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/local"
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

// far is a store that takes a millisecond for an answer. A node that has ended has tokens in hand of each account.
type far struct {
	*account.Memory
	closed atomic.Int64
}

func (s *far) trip() { time.Sleep(time.Millisecond) }

func (s *far) Look(context.Context, string, window, *ratelimit.Limit) (*ratelimit.AccountLook, error) {
	s.trip()
	ended := ratelimit.HolderLook{Holder: ratelimit.Holder(1 << 40).Lapsing(), Outstanding: 1}
	return &ratelimit.AccountLook{Holders: []ratelimit.HolderLook{ended}}, nil
}

func (s *far) Over(_ context.Context, nodes []ratelimit.Holder) ([]ratelimit.Holder, error) {
	s.trip()
	return nodes, nil
}

func (s *far) Settle(
	ctx context.Context, claims []account.Claim, _ []account.Grant,
) (e ratelimit.Epoch, at ledgerTime, err error) {
	s.trip()
	if ctx.Err() == nil {
		s.closed.Add(int64(len(claims)))
	}
	return e, at, nil
}

// The leases of a thousand keys are taken back within a beat, and a second after a node's registration is over.
func TestLeasesOfManyKeysAreReclaimed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &far{Memory: account.NewMemory(func() ledgerTime { return 0 })}
		f := NewFleet(s, account.NewHolder(), 100, ratelimit.MonotonicClock(), time.Now())
		for i := range 1000 {
			f.note(shortage{&ratelimit.Rule{}, account.Claim{Key: ratelimit.KeyName(fmt.Append(nil, i)), Window: 1}})
		}
		ctx, stop := context.WithTimeout(t.Context(), 2*beatEvery-1)
		defer stop()
		f.reclaims(ctx, s)
		if n := s.closed.Load(); n != 1000 {
			t.Errorf("within a second the leases of %d keys of 1000 are taken back", n)
		}
	})
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

// distant is a store of another region.
type distant struct{ *account.Memory }

func (s distant) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ledgerTime, error) {
	defer time.Sleep(80 * time.Millisecond)
	return s.Memory.Settle(ctx, claims, grants)
}

// A node that ends gives back the leases of many keys within a few round trips.
func TestManyLeasesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := distant{account.NewMemory(func() ledgerTime { return ledgerTime(time.Now().UnixMicro()) })}
		f := NewFleet(s, account.NewHolder(), 1_000_000, ratelimit.MonotonicClock(), time.Now())
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); f.Run(ctx) }()
		time.Sleep(time.Second)
		_, a := driven(1)
		a.Rule.Coordination.StoreDeadline = time.Second
		asks, verdicts := make([]ask, 2000), make([]verdict, 2000)
		for i := range asks {
			asks[i] = a
			asks[i].Key = fmt.Append(nil, i)
		}
		f.Decide(ctx, f.clock(), asks, verdicts)
		began := time.Now()
		stop()
		<-ended
		if took := time.Since(began); took > time.Second {
			t.Errorf("it took %v", took)
		}
		w := a.Rule.Limit.WindowAt(ledgerTime(time.Now().UnixMicro()))
		for i := range asks {
			is, err := s.Look(t.Context(), f.keyName(asks[i].Key), w, &a.Rule.Limit)
			if err != nil || is == nil || is.Charged != 1 {
				t.Fatalf("key %d: %+v, %v, %+v", i, is, err, verdicts[i])
			}
		}
	})
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
	if n, busy := unsafe.Sizeof(key{}), unsafe.Sizeof(use{}); n > 104 || busy > 224 {
		t.Errorf("a key takes %d bytes, and %d more while it is busy", n, busy)
	}
}

// The time that a sweep takes for each key at rest, of a million keys, one after the other.
func BenchmarkSweep(b *testing.B) {
	const keys = 1_000_000
	n, a := driven(keys)
	now := n.clock()
	l, at, e := &n.lanes[0], ledgerTime(1_800_000_000_000_000), ratelimit.Epoch{ID: 7, Began: 1}
	l.clock.Observe(now, now, at, at)
	l.epoch = e
	there := l.time()
	for i := range keys {
		a.Key = fmt.Appendf(nil, "a key of some length %d", i)
		s, id, _ := n.find(a.Key)
		k := s.entry(now, id, n.trackLocked(s, now, id, &a))
		k.Enter(now, &there, &a.Rule.Limit)
		m, claim := lease.Message{}, account.Claim{Key: "k", Limit: a.Rule.Limit, Seq: 1, Need: 1}
		k.Write(&m, 1, claim, &lease.Asking{Now: now, Epoch: e})
		grant := account.Grant{Granted: 1, Total: 1, Sum: 1, At: at}
		if !k.Apply(&m, &grant, &lease.Answer{Now: now, Epoch: e}) || !k.Spend(now, &a, new(verdict)) {
			b.Fatal("its token is not spent")
		}
		s.mu.Unlock()
	}
	sweeps := func() {
		for range sweepParts {
			now = now.Add(SweepEvery)
			n.Sweep(now)
		}
	}
	for range 5 { // until no key is busy
		sweeps()
	}
	b.ResetTimer()
	for range b.N {
		sweeps()
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/keys, "ns/key")
}

// Bytes for each key in use, everything counted: -bench KeyBytes -benchtime 10000000x for ten million keys.
func BenchmarkKeyBytes(b *testing.B) {
	resident := func() float64 {
		runtime.GC()
		text, err := os.ReadFile("/proc/self/statm")
		pages := strings.Fields(string(text))
		if err != nil || len(pages) < 2 {
			b.Skip("no /proc/self/statm")
		}
		n, _ := strconv.Atoi(pages[1])
		return float64(n * os.Getpagesize())
	}
	for name, use := range map[string]func(maxKeys int) func(a *ask){
		"alone": func(maxKeys int) func(a *ask) {
			l, verdicts := local.New(maxKeys, 1, time.Now()), make([]verdict, 1)
			return func(a *ask) { l.Decide(b.Context(), 1, []ask{*a}, verdicts) }
		},
		"fleet": func(maxKeys int) func(a *ask) {
			f, _ := driven(maxKeys)
			return func(a *ask) {
				s, id, _ := f.find(a.Key)
				defer s.mu.Unlock()
				k := s.entry(1, id, f.trackLocked(s, 1, id, a))
				k.Taken, k.Spent, k.Deadline, k.CurrentUntil = 1, 1, lease.Never, lease.Never // so that it stays
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			before, use := resident(), use(b.N+b.N/32+64)
			_, a := driven(1)
			for i := range b.N {
				a.Key = fmt.Appendf(nil, "key of 24 bytes %08d", i)
				use(&a)
			}
			b.ReportMetric((resident()-before)/float64(b.N), "B/key")
			runtime.KeepAlive(use)
		})
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
