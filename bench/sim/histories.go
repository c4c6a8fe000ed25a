package sim

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Summary is the result of many histories. Counts of 0 are listed, too: newSummary sets them.
type Summary struct {
	Histories int64            `json:"histories"`
	Decisions int64            `json:"decisions"`
	Claims    int64            `json:"claims"`
	Events    map[string]int64 `json:"events"`  // faults, and changes of rules, node by node, by the changed part
	Played    map[string]int64 `json:"played"`  // histories, by their mode and special parts
	Closest   float64          `json:"closest"` // the highest share of a declared bound that a key used
	Failure   *Failure         `json:"failure,omitempty"`
}

// Failure is a history with a violation. Its trace is the last part of the run, with the violation at its end.
type Failure struct {
	Seed      uint64     `json:"seed"`
	Violation *Violation `json:"violation"`
	What      string     `json:"what"` // parts of the history
	Trace     string     `json:"-"`    // its last events
	Replay    string     `json:"replay"`
}

// Error has the violation, and the command that plays the history again.
func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d: %v\n  of %s\n  replay: %s", f.Seed, f.Violation, f.What, f.Replay)
}

// GCPercent is the heap growth between garbage collections: most objects of the simulator are short-lived, and
// its heap is small.
const GCPercent = 400

// Kind selects the histories to play. A mode's name selects those of the mode, and "storeless" rings without a store,
// which only mode routing has. "envoys" stands for Envoys that lease parts of limits (HistoryOfEnvoys), instead of all
// others. "" selects all but these.
// Histories that are not selected are made, which takes microseconds, and not played.
type Kind string

// History makes the history of a seed, and reports whether it is selected. A failure's seed therefore plays the same
// history without the kind, except with "envoys".
func (k Kind) History(seed uint64) (o Options, selected bool) {
	if k == "envoys" {
		return HistoryOfEnvoys(seed), true
	}
	o = History(seed)
	return o, k == "" || k == "storeless" && o.Storeless || string(k) == o.Rule.Coordination.Mode.String()
}

// Histories plays count histories of a kind from the seed first on, on that many cores, until one fails or
// ctx is done. It calls progress with the number of played histories, from one goroutine at a time. A failure stops new
// histories; those under way end, and the one with the lowest seed of them is reported. Each history is one
// goroutine's, and only the summary is shared, under mu.
func Histories(
	ctx context.Context, which Kind, first uint64, count int64, cores int, progress func(int64),
) (Summary, error) {
	sum := newSummary(which)
	var mu sync.Mutex
	plays, playing := errgroup.WithContext(ctx)
	plays.SetLimit(max(1, cores))
	for seed := first; count > 0 && playing.Err() == nil; seed++ {
		o, selected := which.History(seed)
		if !selected {
			continue
		}
		count--
		plays.Go(func() error {
			r, err := Run(o)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			sum.add(&o, r)
			progress(sum.Histories)
			if r.Violation == nil {
				return nil
			}
			if sum.Failure == nil || o.Seed < sum.Failure.Seed {
				sum.Failure = which.failure(o.Seed)
			}
			return sum.Failure // ends the run
		})
	}
	if err := plays.Wait(); sum.Failure == nil && err != nil {
		return sum, err
	}
	return sum, ctx.Err()
}

// newSummary has a 0 for each possible event, so that missing events show.
func newSummary(which Kind) Summary {
	s := Summary{Events: map[string]int64{}, Played: map[string]int64{}}
	if which == "envoys" {
		for _, k := range envoyFaults {
			s.Events[k.String()] = 0
		}
		return s
	}
	for _, k := range FaultKinds[:Break] {
		s.Events[k] = 0
	}
	for _, what := range changeable {
		s.Events["change of "+what] = 0
	}
	return s
}

// add counts a history. Its counts of special parts show that random histories reach them: a case that no history plays
// is not checked.
func (s *Summary) add(o *Options, r *Result) {
	s.Histories++
	s.Decisions += r.Requests
	s.Claims += r.Claims
	for _, f := range o.Faults {
		s.Events[f.Kind.String()]++
	}
	for _, c := range o.Changes {
		s.Events["change of "+c.What]++
	}
	for what, is := range map[string]bool{
		"two descriptors": o.Second != nil, "peeks, refunds, large costs": o.Mix != Mix{}, "full tables": o.Table > 0,
		"long windows": o.Rule.Limit.Unit != ratelimit.Second, "lost messages": o.Net.Loss > 0, "a real Redis": o.Ledger != nil,
		"draws": r.Draws > 0, "a ledger of parts": o.Parts > 1, "debt": r.Debt > 0, "recalls": r.Recalls > 0,
		"refunds that were cut":      r.Cut > 0,
		"totals compared at the end": r.Settled > 0, "late requests": o.Net.Wake > 0,
		"tills under strain": o.strainsTills() && o.Envoys == nil, "regions": o.Regions > 1,
		"a limit exceeded": r.Over > 0, "unanswered requests": r.Unanswered > 0,
	} {
		if is {
			s.Played[what]++
		}
	}
	for source := range r.Sources {
		s.Played["decisions by "+source]++
	}
	s.Played["mode "+o.Rule.Coordination.Mode.String()]++
	// Other bounds are made of the whole limit for each fault, which no history comes close to.
	if o.Rule.Coordination.Mode.Spec().Drifts {
		s.Closest = max(s.Closest, r.Used)
	}
}

// traceTail bounds the bytes of a failed history's trace.
const traceTail = 8 << 10

// failure plays a history anew, for its last events. Histories run without a trace, which would cost more than the
// play. The same seed gives the same run, so its trace is made afterwards.
func (k Kind) failure(seed uint64) *Failure {
	var trace bytes.Buffer
	o, _ := k.History(seed)
	o.Trace = &trace
	r, _ := Run(o)
	tail := trace.Bytes()
	if len(tail) > traceTail {
		tail = tail[len(tail)-traceTail:]
		tail = tail[bytes.IndexByte(tail, '\n')+1:]
	}
	f := &Failure{
		Seed: seed, Violation: r.Violation, Trace: string(tail), What: describe(&o),
		Replay: fmt.Sprintf("sluicelab sim histories --seed %d --trace", seed),
	}
	if o.Envoys != nil {
		f.What += fmt.Sprintf(", Envoys %+v", *o.Envoys)
		f.Replay += " --kind envoys"
	}
	return f
}

// describe has the settings of a history, its faults and its changes in one line.
func describe(o *Options) string {
	c := &o.Rule.Coordination
	return fmt.Sprintf("%v, mode %v, %d nodes, %d keys, %.0f requests a second %v; trip %v+%v, loss %.2g, clocks %.2g apart; lease %+v, reclaim %v, drift %v of %d seats, on_store_failure %v, %d parts, %d regions; faults %v; changes %v; mix %v, second %v, table %d",
		o.Rule.Limit, c.Mode, o.Nodes, o.Load.Keys, o.Load.Rate, o.Load.Shape, o.Net.Trip.Least, o.Net.Trip.Tail, o.Net.Loss, o.Net.Skew,
		c.Lease, ratelimit.Reclaims[c.Reclaim], c.DriftBudget, c.MaxNodes, c.OnStoreFailure, max(1, o.Parts), max(1, o.Regions), o.Faults, o.Changes, o.Mix, o.Second != nil, o.Table)
}
