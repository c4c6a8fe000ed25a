package leasing

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Many at once, of a node that has few busy keys and a ledger that often fails.
func TestColdKeysInARace(t *testing.T) {
	start := time.Now()
	clock := func() instant { return instant(time.Hour) + instant(time.Since(start)) }
	ledger := &failingLedger{LosableMemory: ledger.NewLosable(ledger.NewMemory(100_000, func() ledgerTime { return ledgertest.Epoch.Add(time.Since(start)) }))}
	f := NewFleet(ledger, 1, 3000, clock, time.Unix(1_800_000_015, 0))
	f.Drift = fiveOfDrift{}
	for i := range f.shards {
		f.shards[i].busy.most = 3
	}
	counters := new(ratelimit.RuleCounters)
	var rules []*ratelimit.Rule
	for i := range 6 {
		r := testRule(ratelimit.Limit{Unit: []ratelimit.Unit{ratelimit.Second, ratelimit.Minute, ratelimit.Second}[i%3], Requests: tokens(20 + i/4)})
		r.Counters = counters
		if i%3 == 0 {
			r.Coordination.Mode, r.Coordination.MaxNodes = ratelimit.Approx, 2
			r.Coordination.DriftBudget = ratelimit.Share{Tokens: 10}
		}
		if i%3 == 1 {
			r.Coordination.Reclaim = ratelimit.ReclaimEager
		}
		rules = append(rules, r)
	}
	f.lanes[0].queue = make(chan *flight, 20)
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { f.Run(ctx); close(ran) }()
	var wg sync.WaitGroup
	stop := start.Add(4 * time.Second)
	for g := range 6 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 9))
			for time.Now().Before(stop) {
				k := rnd.Uint64N(6000)
				if rnd.IntN(2) == 0 {
					k = rnd.Uint64N(50)
				}
				rule := rules[int(k%3)+3*rnd.IntN(2)]
				asks := []ask{{Rule: rule, Key: keyOf(k), Cost: tokens(rnd.IntN(4))}, {Rule: rule, Key: keyOf(k + 3), Cost: 1}}
				v := make([]verdict, 2)
				now := clock()
				f.Decide(t.Context(), now, asks, v)
				switch rnd.IntN(40) {
				case 0:
					f.Undo(clock(), asks, v)
				case 1:
					f.Look(t.Context(), clock(), &asks[0])
				case 2:
					f.Hottest(clock(), 5)
				case 3:
					f.Stats()
					f.Drifting()
				case 4:
					f.Recalled(f.keyName(asks[0].Key))
				case 5:
					if rnd.IntN(2000) == 0 {
						_ = f.Reset(t.Context(), clock(), &asks[0])
					}
				}
			}
		})
	}
	time.Sleep(time.Until(stop) - time.Second)
	cancel()
	<-ran
	wg.Wait()
	if err := coldInvariants(f); err != nil {
		t.Error(err)
	}
	var leased, drifting int64
	for w := (walk{}); f.step(&w, func(s *fleetShard, c *heldCell) {
		var scratch busyKey
		h := s.view(c, &scratch)
		leased += int64(h.Gauges.Leased)
		drifting += int64(h.Gauges.Drifting)
	}); {
	}
	if leased != counters.Leased.Load() || drifting != counters.Drifting.Load() {
		t.Errorf("gauges %d %d, keys say %d %d", counters.Leased.Load(), counters.Drifting.Load(), leased, drifting)
	}
	t.Logf("%+v", f.Stats())
}

// fiveOfDrift has a share of five tokens of each key.
type fiveOfDrift struct{}

func (fiveOfDrift) Share(instant, *ratelimit.Rule, ledgerTime) (tokens, ratelimit.Fence) { return 5, 0 }

// failingLedger answers late, and a tenth of its batches not at all.
type failingLedger struct{ *ledger.LosableMemory }

func (l *failingLedger) SettleEpoch(ctx context.Context, q ratelimit.EpochQuery, claims []ratelimit.Claim, grants []ratelimit.Grant) (ratelimit.Epoch, ledgerTime, error) {
	time.Sleep(time.Duration(rand.IntN(5000)) * time.Microsecond)
	if rand.IntN(10) == 0 {
		fillErrors(grants, context.DeadlineExceeded)
		return ratelimit.Epoch{}, 0, context.DeadlineExceeded
	}
	return l.LosableMemory.SettleEpoch(ctx, q, claims, grants)
}
