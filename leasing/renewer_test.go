package leasing

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// pacedLedger notes when batches came, and takes its time for each.
type pacedLedger struct {
	begin time.Time
	takes []time.Duration

	mu   sync.Mutex
	came []time.Duration // guarded by mu
}

func (l *pacedLedger) Settle(context.Context, []ratelimit.Claim, []ratelimit.Grant) {
	l.mu.Lock()
	n := len(l.came)
	l.came = append(l.came, time.Since(l.begin))
	l.mu.Unlock()
	time.Sleep(l.takes[min(n, len(l.takes)-1)])
}

// A batch leaves at once when there was none for a while. The next one leaves when the last
// one is back, and a millisecond after that one left at the earliest, so that claims gather.
// A batch that takes longer than two milliseconds keeps nobody waiting: others leave
// meanwhile, four in all; a fifth waits until one of them is back.
func TestBatchesFollowEachOther(t *testing.T) {
	const us = time.Microsecond
	for _, c := range []struct {
		name          string
		takes         []time.Duration
		wanted, leave []time.Duration // when claims are queued, and when batches leave for them
	}{
		{"a prompt ledger", []time.Duration{0}, []time.Duration{0, 100 * us, 200 * us, 5000 * us}, []time.Duration{0, 1000 * us, 5000 * us}},
		{"a ledger that takes less", []time.Duration{400 * us}, []time.Duration{0, 100 * us, 1100 * us}, []time.Duration{0, 1000 * us, 2000 * us}},
		{"a ledger that takes longer", []time.Duration{1700 * us}, []time.Duration{0, 100 * us, 1600 * us, 1800 * us}, []time.Duration{0, 1700 * us, 3400 * us}},
		{
			"a late ledger",
			[]time.Duration{50_000 * us},
			[]time.Duration{0, 100 * us, 2100 * us, 4100 * us, 6100 * us, 9000 * us},
			[]time.Duration{0, 2000 * us, 4000 * us, 6000 * us, 50_000 * us},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &pacedLedger{begin: time.Now(), takes: c.takes}
				f := NewFleet(l, 1, 100, func() instant { return instant(time.Hour + time.Since(l.begin)) }, time.Now())
				ctx, stop := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				wg.Go(func() { f.send(ctx, &f.lanes[0]) })
				for _, at := range c.wanted {
					time.Sleep(at - time.Since(l.begin))
					f.lanes[0].queue <- &flight{Flight: lease.Flight{Errand: lease.Errand{Beat: true}}} // a batch without claims
				}
				time.Sleep(time.Second)
				stop()
				wg.Wait()
				if !slices.Equal(l.came, c.leave) {
					t.Errorf("for claims at %v batches leave at %v, and not at %v", c.wanted, l.came, c.leave)
				}
			})
		})
	}
}
