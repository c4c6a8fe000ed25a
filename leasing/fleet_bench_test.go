package leasing

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A decision from what is in hand does not allocate.
func TestDecideDoesNotAllocate(t *testing.T) {
	f, asks, verdicts := warm(t)
	if n := testing.AllocsPerRun(1000, func() { f.Decide(context.Background(), f.clock(), asks, verdicts) }); n != 0 {
		t.Errorf("a decision allocates %v times", n)
	}
}

// The state of a key is small, for tens of millions of keys. 224 bytes are a size of Go's allocator.
func TestKeysAreSmall(t *testing.T) {
	if n, busy := unsafe.Sizeof(key{}), unsafe.Sizeof(use{}); n > 104 || busy > 224 {
		t.Errorf("a key takes %d bytes, and %d more while it is busy", n, busy)
	}
}

func warm(t testing.TB) (*Fleet, []ratelimit.Ask, []ratelimit.Verdict) {
	rule := &ratelimit.Rule{
		Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: 1 << 31},
		Coordination: ratelimit.DefaultCoordination(),
	}
	ledger := account.NewMemory(func() ratelimit.LedgerTime { return 1_800_000_000_000_000 })
	now := instant(time.Hour)
	node := NewStepped(account.NewHolder(), 100_000, func() instant { return now }, time.Now(), func(time.Duration, func()) {},
		func() float64 { return 0.5 })
	asks := []ratelimit.Ask{{Rule: rule, Key: []byte("k"), Cost: 1}}
	if v := decided(t, node, ledger, asks[0]); v.OverLimit {
		t.Fatal(v)
	}
	return node.Fleet, asks, make([]ratelimit.Verdict, 1)
}

// Bytes for each key in use, everything counted: -bench KeyBytes -benchtime 10000000x for ten million keys.
func BenchmarkKeyBytes(b *testing.B) {
	f, asks, verdicts := warm(b)
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
			l := local.New(maxKeys, 1, time.Now())
			return func(a *ask) { l.Decide(b.Context(), 1, []ask{*a}, verdicts) }
		},
		"fleet": func(maxKeys int) func(a *ask) {
			f := NewFleet(nil, f.name, maxKeys, f.clock, time.Now())
			return func(a *ask) {
				s, id, _ := f.find(a.Key)
				defer s.mu.Unlock()
				k := s.entry(1, id, f.trackLocked(s, 1, id, a))
				k.Taken, k.Spent, k.Deadline, k.Till = 1, 1, lease.Never, lease.Never // so that it stays
			}
		},
	} {
		b.Run(name, func(b *testing.B) {
			before, use := resident(), use(b.N+b.N/32+64)
			for i := range b.N {
				a := asks[0]
				a.Key = fmt.Appendf(nil, "key of 24 bytes %08d", i)
				use(&a)
			}
			b.ReportMetric((resident()-before)/float64(b.N), "B/key")
			runtime.KeepAlive(use)
		})
	}
}
