// Package table measures the cost of the table of keys in a process: memory for each key, and the work of the
// garbage collector. It also measures the time of decisions while keys are added, and while all windows turn
// at once. It measures its own process, which should do no other work.
package table

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Kind is what decides.
type Kind string

// The kinds of table. In a fleet the ledger is one that grants everything and keeps
// nothing, so that only the node's own memory counts.
const (
	Local Kind = "local"
	Fleet Kind = "fleet"
)

// Options select the measurement.
type Options struct {
	report.Setup
	Keys  []int    `default:"1000000,5000000,10000000" help:"Number of keys."`
	Kinds []string `default:"local,fleet" enum:"local,fleet" help:"Kinds of tables: local (a node alone), fleet (a node with a shared store)."`
	Here  bool     `hidden:"" help:"Measure the first size and kind in this process."`
}

// Examples implements [report.Measurement].
func (*Options) Examples() string {
	return "  sluicelab bench table\n  sluicelab bench table --kinds fleet --keys 1000000"
}

// Measure implements [report.Measurement]. Each table has a process of its own, for memory that one has used is not
// another's.
func (o *Options) Measure(ctx context.Context) (report.Result, error) {
	if o.Here {
		r, err := run(Kind(o.Kinds[0]), o.Keys[0])
		return Results{r}, err
	}
	var all Results
	for _, kind := range o.Kinds {
		for _, n := range o.Keys {
			o.Tell(len(o.Kinds)*len(o.Keys), fmt.Sprintf("%d keys in a %s table", n, kind))
			child := exec.CommandContext(ctx, o.Lab, "bench", "table", "--here", "--json", "--sluice", o.Binary, "--kinds", kind, "--keys", strconv.Itoa(n))
			child.Stderr = os.Stderr
			out, err := child.Output()
			if err != nil {
				return nil, fmt.Errorf("measuring %d keys in a %s table: %w", n, kind, err)
			}
			var r Results
			if err := json.Unmarshal(out, &r); err != nil {
				return nil, fmt.Errorf("measuring the cost of %d keys: %w", n, err)
			}
			all = append(all, r...)
		}
	}
	return all, nil
}

// Results are of each kind and size.
type Results []Result

// Page implements [report.Result].
func (r Results) Page() *report.Page {
	return &report.Page{Title: "The table of keys", Tables: []report.Table{report.Rows("", r)}}
}

// Problems implements [report.Result].
func (Results) Problems() error { return nil }

// Result is what was measured.
type Result struct {
	Kind  Kind `json:"kind" col:"table"`
	Keys  int  `json:"keys" col:"keys"`
	Bytes int  `json:"bytes_a_key" col:"bytes a key"` // peak resident memory, less that of the process before, by keys

	Add  Times `json:"add" col:"add"`   // decisions about new keys, while the table grows
	Turn Times `json:"turn" col:"turn"` // the first decisions about all keys after their windows have turned at once

	Collector float64 `json:"collector_percent" col:"collector, percent|%.1f"` // of one core, from the first key to the last turn
}

// Times are how long decisions took, the measuring included (about 50 ns).
type Times struct {
	P50  time.Duration `json:"p50_ns" col:"p50|%v"`
	P99  time.Duration `json:"p99_ns"`
	P999 time.Duration `json:"p999_ns"`
	// P9999 is the one in ten thousand, and Worst the longest; on a machine that does
	// something else too these are its scheduler's.
	P9999 time.Duration `json:"p9999_ns" col:"p99.99|%v"`
	Worst time.Duration `json:"worst_ns" col:"worst|%v"`
}

// run measures in this process. It blocks until it is done.
func run(kind Kind, keys int) (Result, error) {
	if keys < 1000 {
		return Result{}, fmt.Errorf("bench: %d keys, must be at least 1000", keys)
	}
	runtime.GC()
	debug.FreeOSMemory()
	before, err := process.Memory(os.Getpid(), "VmRSS")
	if err != nil {
		return Result{}, err
	}
	m := &measure{kind: kind, keys: keys, begun: time.Now(), rule: &ratelimit.Rule{
		Domain: "edge", Path: "user",
		Limit:        ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1 << 31},
		Coordination: ratelimit.DefaultCoordination(),
	}}
	m.rule.Coordination.OnStoreFailure = ratelimit.FailOpen // so that no other table has keys of its own
	stop := m.open()
	defer stop()
	r := Result{Kind: kind, Keys: keys}
	begun, collected := time.Now(), collector()
	r.Add = m.each(keys)
	peak, err := process.Memory(os.Getpid(), "VmHWM")
	if err != nil {
		return Result{}, err
	}
	r.Bytes = int(peak-before) / keys
	m.ahead.Store(int64(time.Hour))
	r.Turn = m.each(keys)
	r.Collector = 100 * (collector() - collected) / time.Since(begun).Seconds()
	if m.elsewhere.Load() > 0 {
		return r, fmt.Errorf("bench: %d decisions were not made by the table that is measured", m.elsewhere.Load())
	}
	return r, nil
}

type measure struct {
	kind    Kind
	keys    int
	limiter ratelimit.Limiter
	rule    *ratelimit.Rule
	ahead   atomic.Int64 // how far the clock was set ahead
	begun   time.Time

	elsewhere atomic.Int64 // decisions of fallbacks, and of budgets that keys share
}

// clock runs as clocks do: batches to a ledger are paced by it.
func (m *measure) clock() ratelimit.Instant {
	return 1 + ratelimit.Instant(time.Since(m.begun)) + ratelimit.Instant(m.ahead.Load())
}

// open makes the limiter; stop ends it.
func (m *measure) open() (stop func()) {
	wall := time.Unix(1_800_000_000, 0)
	if m.kind == Local {
		m.limiter = leasing.NewLocal(m.keys+m.keys/8, 1, wall)
		return func() {}
	}
	ctx, cancel := context.WithCancel(context.Background())
	// With half as much room again as keys, what is leased stays, as it does where MAX_KEYS
	// was not reached.
	f := leasing.NewFleet(ample{m.clock}, account.NewHolder(), m.keys+m.keys/2, m.clock, wall)
	var ended sync.WaitGroup
	ended.Go(func() { f.Run(ctx) })
	m.limiter = f
	return func() {
		cancel()
		ended.Wait()
	}
}

// asker asks about one key at a time.
type asker struct {
	m        *measure
	asks     [1]ratelimit.Ask
	verdicts [1]ratelimit.Verdict
	now      ratelimit.Instant
	prefix   int
	key      []byte
}

func (m *measure) asker() *asker {
	a := &asker{m: m, now: m.clock()}
	a.key = ratelimit.AppendPrefix(nil, m.rule.Domain, m.rule.Limit)
	a.prefix = len(a.key)
	return a
}

// mostTries is how often a key is asked about until its table decides: on a busy
// machine a ledger's answer comes late, and the next ask finds it.
const mostTries = 100

// ask is about a key of 40 bytes.
func (a *asker) ask(n uint64) {
	const digits = "0123456789abcdef"
	var value [23]byte
	for i := range value {
		value[i] = digits[n>>(4*(i%16))&15]
	}
	a.key = ratelimit.AppendEntry(a.key[:a.prefix], "user", string(value[:]), ratelimit.OfRequest)
	a.asks[0] = ratelimit.Ask{Rule: a.m.rule, Key: a.key, Cost: 1}
	for range mostTries {
		a.m.limiter.Decide(context.Background(), a.now, a.asks[:], a.verdicts[:])
		if from := a.verdicts[0].Source; from != ratelimit.FromFallback && from != ratelimit.FromOverflow {
			return
		}
		a.now = a.m.clock()
	}
	a.m.elsewhere.Add(1)
}

// each decides once about each of n keys, in an order without locality, and measures
// each decision. Where it must wait for a ledger, many do at once.
func (m *measure) each(n int) Times {
	callers := 1
	if m.kind != Local {
		callers = 512
	}
	took := make([]uint32, n)
	var next atomic.Int64
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			a := m.asker()
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				a.now = m.clock()
				begun := time.Now()
				a.ask(shuffled(uint64(i), uint64(n)))
				took[i] = uint32(min(time.Since(begun), 1<<32-1))
			}
		})
	}
	all.Wait()
	slices.Sort(took)
	at := func(share float64) time.Duration { return time.Duration(took[min(n-1, int(share*float64(n)))]) }
	return Times{P50: at(0.5), P99: at(0.99), P999: at(0.999), P9999: at(0.9999), Worst: at(1)}
}

// shuffled maps 0 to n-1 onto itself without an order that a cache could use.
func shuffled(i, n uint64) uint64 {
	const step = 0x9e3779b97f4a7c15 // odd; where it shares a factor with n, the next one does not
	s := step % n
	for gcd(s, n) != 1 {
		s++
	}
	return i * s % n
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// ample is a ledger that grants everything and keeps nothing.
type ample struct{ clock ratelimit.Clock }

// Settle implements [account.Ledger].
func (l ample) Settle(_ context.Context, claims []account.Claim, grants []account.Grant) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	at := ratelimit.LedgerTime(1_800_000_000_000_000).Add(time.Duration(l.clock()))
	for i := range claims {
		c := &claims[i]
		total := max(c.Taken, c.Spent) + max(c.Want, c.Need)
		grants[i] = account.Grant{Granted: max(c.Want, c.Need), Total: total, Sum: total, Fence: 1, At: at}
	}
	return ratelimit.Epoch{}, at, nil // without an epoch, so that no node draws: it keeps no totals
}

// collector is how many seconds of CPU the garbage collector has used.
func collector() float64 {
	s := []metrics.Sample{{Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"}}
	metrics.Read(s)
	return s[0].Value.Float64() - s[1].Value.Float64()
}
