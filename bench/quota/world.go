package quota

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/sluice-gate/sluice/bench/judge"
	"github.com/sluice-gate/sluice/bench/queue"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// epoch is the ledger's time at which runs begin, unless Options.Start sets it.
const epoch ratelimit.LedgerTime = 1_800_144_000_000_000

// world is one run.
type world struct {
	*Options
	now    int64 // virtual nanoseconds since the start
	origin ratelimit.LedgerTime
	queue  queue.Queue
	rnd    *rand.Rand
	rules  *config.Rules
	ledger *account.Memory // nil: each node has its own
	losses uint64
	hung   int
	nodes  []*node
	envoys []*player
	keys   []*key
	names  ratelimit.Holder
	bound  bound
	result Result
}

// key is one budget.
type key struct {
	id    map[string]string
	judge *judge.Judge
	spent map[int64]ratelimit.Tokens // admitted, by window
	exact map[int64]ratelimit.Tokens // what an exact limiter would have
}

// Run plays a run to its end, or to the first violation.
func Run(o Options) (*Result, error) {
	if err := sublease.Servable(o.Rule); err != nil {
		return nil, fmt.Errorf("the rule cannot be divided: %w", err)
	}
	w := &world{Options: &o, rnd: rand.New(rand.NewPCG(o.Seed, 0x71))}
	w.origin = o.Rule.Limit.WindowEnd(o.Rule.Limit.WindowAt(epoch - 1)).Add(o.Start)
	if o.Rule.Limit.Algorithm == ratelimit.SlidingWindow {
		w.bound.counts = 1
	}
	w.bound.stays = o.Rule.Limit.Algorithm == ratelimit.TokenBucket
	if err := w.compile(); err != nil {
		return nil, err
	}
	if o.Nodes > 0 {
		w.ledger = account.NewMemory(w.ledgerTime)
		w.ledger.OnRecall = w.recall
	}
	for i := range max(1, o.Nodes) {
		w.nodes = append(w.nodes, &node{world: w, slot: i})
		w.nodes[i].start()
	}
	for range o.Envoys {
		w.join()
	}
	if o.Direct > 0 {
		w.bound.shared(w)
		w.ask()
	}
	for _, f := range o.Faults {
		w.at(int64(f.At), func() { w.strike(f) })
	}
	w.play()
	return w.finish(), nil
}

// compile makes rules of the one rule: its key is "k".
func (w *world) compile() error {
	r := w.Rule
	text := fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  algorithm: %s\n  rate_limit: {unit: %s, requests_per_unit: %d}\n",
		r.Limit.Algorithm, r.Limit.Unit, r.Limit.Requests)
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		text += fmt.Sprintf("  burst: %d\n", r.Limit.Burst)
	}
	rules, _, problems := config.Parse([]config.Text{{Name: "quota", Data: []byte(text)}}, config.Options{Coordination: r.Coordination})
	if problems != nil {
		return fmt.Errorf("the rule cannot be used: %w", problems)
	}
	w.rules = rules
	for i := range w.Keys {
		w.keys = append(w.keys, &key{
			id: map[string]string{"k": strconv.Itoa(i)}, judge: judge.New(r.Limit),
			spent: map[int64]ratelimit.Tokens{}, exact: map[int64]ratelimit.Tokens{},
		})
	}
	return nil
}

func (w *world) ledgerTime() ratelimit.LedgerTime { return w.origin + ratelimit.LedgerTime(w.now/1000) }

func (w *world) window() int64 { return int64(w.Rule.Limit.WindowAt(w.ledgerTime())) }

// play runs the due events, in order.
func (w *world) play() {
	for w.queue.Next() <= int64(w.Length) && w.result.Violation == "" {
		w.now = w.queue.Next()
		w.queue.Pop()()
		if w.Check {
			w.check()
		}
	}
}

// at has something happen at an instant.
func (w *world) at(t int64, do func()) {
	w.names++ // events and nodes are counted together: seeds of nodes come from it
	w.queue.Push(max(t, w.now), do)
}

// in has something happen after a while.
func (w *world) in(d time.Duration, do func()) { w.at(w.now+int64(d), do) }

func (w *world) violate(what string, args ...any) {
	if w.result.Violation == "" {
		w.result.Violation = fmt.Sprintf("%v: ", time.Duration(w.now)) + fmt.Sprintf(what, args...)
	}
}

// admit has a request judged.
func (w *world) admit(k *key, allowed bool) {
	w.result.Requests++
	window := w.window()
	k.exact[window] = min(k.exact[window]+1, w.Rule.Limit.Requests)
	if !allowed {
		return
	}
	w.result.Admitted++
	k.spent[window]++
	if over := k.judge.Admit(w.ledgerTime(), 1); over > 0 {
		w.result.Over = max(w.result.Over, over)
		if most := w.bound.now(window); over > most {
			w.violate("%d more than the limit were let pass of key %v, and %d are declared", over, k.id, most)
		}
	}
}

// finish draws the sums.
func (w *world) finish() *Result {
	r := &w.result
	r.Declared = w.bound.most
	first, last := int64(w.Rule.Limit.WindowAt(w.origin)), w.window()
	for _, k := range w.keys {
		var exact, spent ratelimit.Tokens
		for window := first + 1; window < last; window++ {
			if w.bound.stays { // a bucket has no windows: what one minute misses, the next may have
				exact, spent = exact+k.exact[window], spent+k.spent[window]
			} else {
				exact, spent = k.exact[window], k.spent[window]
			}
			if window == last-1 || !w.bound.stays {
				r.Under = max(r.Under, float64(exact-min(exact, spent))/float64(max(1, exact)))
			}
		}
	}
	return r
}
