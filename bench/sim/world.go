package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/bench/judge"
	"github.com/sluice-gate/sluice/bench/queue"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// epoch is the ledger's time at the beginning of runs, without Options.Start.
const epoch ratelimit.LedgerTime = 1_800_144_000_000_000 // a midnight in January 2027, and the start of an even window of any length in use

// world is one run. It has one goroutine: an event runs to its end before the next one begins, so no field needs a
// lock. Events change the state at their instant and schedule what follows from it.
type world struct {
	*Options
	now int64 // virtual nanoseconds since the start
	// The ledger's time at virtual time 0.
	origin  ratelimit.LedgerTime
	queue   queue.Queue
	rnd     *rand.Rand
	wakeRnd *rand.Rand // of [Net].Wake
	nodes   []*node
	fewest  int // the smallest number of live nodes that a node has seen, including itself
	// An address stays with its slot; nodes has the newest incarnation of each.
	slots map[string]int // of nodes, by their addresses
	// The last name that was given. Names are never used again, as those of processes.
	names   ratelimit.Holder
	store   store
	keys    []*key
	named   map[string]*key // by their names in the ledger
	envoys  *envoys         // nil: requests come to nodes
	scratch []byte
	rules   []*ratelimit.Rule // all versions that a node may have
	books   books
	resets  int // of keys, by an operator

	result Result
	waits  *hdrhistogram.Histogram // microseconds, of waiting requests
	point  Point
	every  int64 // nanoseconds to a point
	ends   int64 // end of the run
	idle   int   // events at this instant
	bound  bound
}

// key is one budget.
type key struct {
	index int
	name  []byte
	// id is the bucket id of Envoys, and bucket its name at their clients.
	id     map[string]string
	bucket string
	rule   *ratelimit.Rule // with the largest limit of any node so far
	part   *part           // of the ledger
	parts  []*part         // in which it was, and is
	judge  *judge.Judge
	// spent is by node, in the judge's window and the previous one. A ledger that lost its data lacks the usage
	// of nodes that cannot restate it.
	spent map[ratelimit.Holder]spending
	extra []extra         // events of this key alone
	held  []ratelimit.Ask // releases that are due
}

// Run plays a run to its end, or to the first violation.
func Run(o Options) (*Result, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	e, err := newEnvoys(&o)
	if err != nil {
		return nil, err
	}
	w := newWorld(&o, e)
	w.play()
	return w.finish(), nil
}

// newWorld prepares a run at time 0. The order matters: each step draws random numbers, and may schedule events, which
// run in that order at one instant. Another order gives every seed another history.
//
// The clock begins o.Start after the start of a window, so that a turn of the window falls anywhere in a run.
func newWorld(o *Options, e *envoys) *world {
	w := &world{
		Options: o, envoys: e, rnd: rand.New(rand.NewPCG(o.Seed, 0x51)), wakeRnd: rand.New(rand.NewPCG(o.Seed, 0x52)), slots: map[string]int{},
		named: map[string]*key{}, rules: []*ratelimit.Rule{o.Rule}, waits: hdrhistogram.New(1, int64(time.Minute/time.Microsecond), 3),
	}
	first := o.Rule.Limit.WindowAt(epoch - 1)
	w.origin = o.Rule.Limit.WindowEnd(first).Add(o.Start)
	w.result.Sources = map[string]int64{}
	w.store.open(w)
	w.fewest = o.Nodes
	w.bound.open(w)
	w.books.open(w)
	if e != nil {
		e.open(w)
	}
	if w.watch != nil {
		w.watch.open(w)
	}
	for range o.Nodes {
		w.join()
	}
	// Before this loop, only the last node has seen all others.
	for _, n := range w.nodes { // nodes that start together look for each other
		if n.ring != nil {
			n.lookOnce()
		}
	}
	for _, f := range o.Faults {
		w.queue.Push(int64(f.At), func() { w.strike(f) })
	}
	w.prepare()
	for _, c := range o.Changes {
		w.queue.Push(int64(c.At), func() { w.change(c) })
	}
	if o.Points > 0 {
		w.every = max(1, int64(o.Load.Length)/int64(o.Points))
		w.queue.Push(w.every, w.mark)
	}
	// Nodes sweep, look and register for ever, so the queue is never empty: only this instant ends a run.
	w.ends = int64(o.Load.Length) + int64(lane.TimeLimit) // work in progress at the end has ended
	if o.Check && !o.Storeless {
		w.ends = w.settleUp()
	}
	return w
}

// ledgerTime is the time of the clock of the ledger's first part.
func (w *world) ledgerTime() ratelimit.LedgerTime { return w.store.parts[0].time() }

// in schedules an event.
func (w *world) in(d time.Duration, do func()) { w.queue.Push(w.now+int64(d), do) }

// play merges two sources in the order of time: the arrivals of the load, and the queue. An arrival comes before an
// event at the same instant. Arrivals are drawn one at a time, so that a long load needs no memory. After the last
// arrival, events go on until w.ends.
func (w *world) play() {
	arrival := w.Load.Stream(w.Seed).Next
	if w.Recorded != nil {
		arrival = w.Recorded.Play()
	}
	next, more := arrival()
	for w.result.Violation == nil {
		if w.envoys != nil && w.Check {
			w.envoys.check()
		}
		at := w.queue.Next()
		if more && int64(next.At) <= at {
			w.now = int64(next.At)
			w.arrive(next)
			next, more = arrival()
			continue
		}
		if !more && at > w.ends {
			return
		}
		w.idle++
		if at > w.now {
			w.idle = 0
		} else if w.idle > livelock {
			w.violate(-1, -1, "%d events at one instant: something goes round and round", livelock)
		}
		w.now = at
		w.queue.Pop()()
	}
}

// livelock is the maximum of events at one instant. Time stands still while a node and the store answer each other
// without a delay. Without this maximum, such a run would never end, and would not say why.
const livelock = 200_000

// finish computes the sums. The declared bound is the largest that any key has now, at the end of the run, without
// faults that no longer matter then (bound.lasts).
func (w *world) finish() *Result {
	r := &w.result
	for _, n := range w.nodes {
		if n.ring != nil { // each of its requests is a coroutine, which would stay for ever
			n.ring.End()
		}
		n.forsake() // it may still be paused
	}
	r.Declared = declare.Of(w.Rule, len(w.nodes), declare.SharedStore).Over.Drift
	r.Used = w.bound.used
	for _, k := range w.keys {
		j := k.judge
		r.Over = max(r.Over, j.Worst)
		r.Under += j.Under(k.part.time())
		r.Early += j.Early
		if t := w.bound.tokens(k); t < 0 || r.Declared < 0 {
			r.Declared = -1
		} else {
			r.Declared = max(r.Declared, t)
		}
	}
	decided := r.Requests
	// The histogram has only requests that waited. A quantile of all decisions is therefore a higher one of the waits:
	// with 10 % that waited, p99 is the 90th percentile of the waits.
	quantile := func(q float64) time.Duration { // of all decisions, most of which took no time
		if r.Waited == 0 || q*float64(decided) <= float64(decided-r.Waited) {
			return 0
		}
		of := 100 * (1 - (1-q)*float64(decided)/float64(r.Waited))
		return time.Duration(w.waits.ValueAtQuantile(of)) * time.Microsecond
	}
	r.P99, r.P999 = quantile(0.99), quantile(0.999)
	if r.Waited > 0 {
		r.Longest = time.Duration(w.waits.Max()) * time.Microsecond
	}
	return r
}

// mark ends a point of the timeline.
func (w *world) mark() {
	w.point.At = time.Duration(w.now)
	w.result.Timeline = append(w.result.Timeline, w.point)
	w.point = Point{}
	if w.now+w.every <= int64(w.Load.Length) {
		w.queue.Push(w.now+w.every, w.mark)
	}
}

// key returns a key of a rule. It makes the key at the first request. Its name is the one that the product would give
// it in a store. Versions of a rule that differ only in the amount share a key. Another unit or algorithm makes another
// key.
func (w *world) key(rule *ratelimit.Rule, i int) *key {
	w.scratch = ratelimit.AppendPrefix(w.scratch[:0], rule.Domain, rule.Limit)
	w.scratch = ratelimit.AppendEntry(w.scratch, rule.Path, strconv.Itoa(i), false)
	k := w.named[string(w.scratch)]
	if k == nil {
		k = &key{index: len(w.keys), name: slices.Clone(w.scratch), rule: rule, judge: judge.New(rule.Limit)}
		k.enter(w.store.parts[w.store.Partition(string(w.scratch))])
		w.keys = append(w.keys, k)
		w.named[string(w.scratch)] = k
	}
	k.rule = larger(k.rule, rule)
	w.judges(k)
	return k
}

// enter has a key's accounts be in a part of the ledger.
func (k *key) enter(p *part) { k.part, k.parts = p, append(k.parts, p) }

// larger is a rule with the larger limit of two. A node with the old version may spend up to the old limit until it
// reads the new one. The judge has no access to a node's version, so it allows the largest.
func larger(a, b *ratelimit.Rule) *ratelimit.Rule {
	if b == a || b.Limit.Requests <= a.Limit.Requests && b.Limit.Burst <= a.Limit.Burst {
		return a
	}
	own := *b
	own.Limit.Requests, own.Limit.Burst = max(a.Limit.Requests, b.Limit.Requests), max(a.Limit.Burst, b.Limit.Burst)
	return &own
}

// judges has a key be judged by the largest limit of any node.
func (w *world) judges(k *key) {
	is, was := k.rule.Limit, k.judge.Limit
	if is == was {
		return
	}
	k.judge.Allow(is)
	if is.Algorithm == ratelimit.TokenBucket {
		// It refills at another rate from when the ledger last looked at it. Of a smaller one, nodes may have what the
		// larger had.
		k.extra = append(k.extra, extra{at: w.now, n: max(is.Burst, was.Burst)})
	}
}

// violate ends the run. Only the first violation counts: later ones are often its consequences. play returns after the
// current event.
func (w *world) violate(node, key int, what string, args ...any) {
	if w.result.Violation == nil {
		w.result.Violation = &Violation{At: time.Duration(w.now), Node: node, Key: key, What: fmt.Sprintf(what, args...)}
		w.trace("VIOLATION node %d, key %d: %s", node, key, w.result.Violation.What)
	}
}

// trace writes events, if a trace is set.
func (w *world) trace(what string, args ...any) {
	if w.Trace != nil {
		fmt.Fprintf(w.Trace, "%12.6f "+what+"\n", append([]any{time.Duration(w.now).Seconds()}, args...)...)
	}
}

// travel draws the time of one way, which is above 0. Half of the round trip is one way. It is never 0: an event must
// not cause another at its own instant without end.
func (w *world) travel(d Delay) time.Duration {
	t := d.Least
	if d.Tail > 0 {
		t += time.Duration(w.rnd.ExpFloat64() * float64(d.Tail))
	}
	return max(t/2, time.Microsecond)
}

// behind delivers something on a way that keeps the order, behind what was sent last, and not before held. A stream of
// TCP does the same: a message cannot overtake an earlier one. last is the arrival of the latest message, and two
// messages never arrive at the same instant.
func (w *world) behind(last *int64, held int64, do func()) {
	*last = max(w.now+int64(w.travel(w.Net.Hop)), *last+1, held)
	w.queue.Push(*last, do)
}

// alarm has something happen at an instant, unless that is set for the same or an earlier one. set is when. A later
// alarm that was set before stays in the queue. It finds another instant in set, and does nothing.
func (w *world) alarm(set *int64, at int64, do func()) {
	if *set > w.now && *set <= at {
		return
	}
	*set = at
	w.queue.Push(at, func() {
		if *set == at {
			*set = 0
			do()
		}
	})
}

// lost reports whether a message is lost. A net without losses draws no random number.
func (w *world) lost() bool { return w.Net.Loss > 0 && w.rnd.Float64() < w.Net.Loss }

// plan has the drift seats for a node's rules.
func (n *node) plan() approx.Plan {
	rules := []*ratelimit.Rule{n.rule}
	if n.Second != nil {
		rules = append(rules, n.Second)
	}
	return approx.NewPlan(rules)
}

// Result is the result of a run. Tokens are counted over all keys, except Over, which is the maximum of a key.
type Result struct {
	Requests int64            `json:"requests"`
	Offered  ratelimit.Tokens `json:"offered"`
	Admitted ratelimit.Tokens `json:"admitted"`
	Refused  ratelimit.Tokens `json:"refused"`
	// Unanswered requests reached nodes that had stopped, or crashed in the meantime.
	Unanswered ratelimit.Tokens `json:"unanswered"`

	Over     ratelimit.Tokens `json:"over"`     // the largest excess of a key over its limit
	Declared ratelimit.Tokens `json:"declared"` // declared bound of that, for the rule and the faults; -1: no bound
	Used     float64          `json:"used"`     // the highest share of that bound that a key used
	Under    ratelimit.Tokens `json:"under"`    // tokens fewer than an exact limiter admits for the same requests
	Early    ratelimit.Tokens `json:"early"`    // refused while the limit had room

	Sources map[string]int64 `json:"sources"`           // requests, by the source of their decision
	Claims  int64            `json:"claims"`            // that reached the store
	Recalls int64            `json:"recalls"`           // recalls of leases by the ledger
	Draws   int64            `json:"draws"`             // claims that were draws
	Hops    int64            `json:"hops"`              // messages from node to node
	Waited  int64            `json:"waited"`            // requests that were not decided at once
	Streams int64            `json:"streams,omitempty"` // that Envoys opened
	P99     time.Duration    `json:"wait_p99"`
	P999    time.Duration    `json:"wait_p999"`
	Longest time.Duration    `json:"wait_longest"`

	Debt     ratelimit.Tokens `json:"debt"`               // the largest debt of an account
	Released ratelimit.Tokens `json:"released,omitempty"` // tokens returned from holds
	Cut      ratelimit.Tokens `json:"cut"`                // of refunds, because the account would fall below 0
	Settled  int64            `json:"settled"`            // nodes' totals of accounts that were compared with their bookings at the end
	Timeline []Point          `json:"timeline,omitempty"`

	Violation *Violation `json:"violation,omitempty"`
}

// Point is one stretch of a run.
type Point struct {
	At       time.Duration    `json:"at"` // its end
	Offered  ratelimit.Tokens `json:"offered"`
	Admitted ratelimit.Tokens `json:"admitted"`
}

// ClaimsPerThousand is the number of claims for 1,000 decisions.
func (r *Result) ClaimsPerThousand() float64 {
	return 1000 * float64(r.Claims) / float64(max(1, r.Requests))
}

// Violation is a broken invariant.
type Violation struct {
	At   time.Duration `json:"at"`
	Node int           `json:"node"` // -1: the ledger, or all of them
	Key  int           `json:"key"`
	What string        `json:"what"`
}

// Error has the violation and its time.
func (v *Violation) Error() string {
	return fmt.Sprintf("at %v, node %d, key %d: %s", v.At, v.Node, v.Key, v.What)
}
