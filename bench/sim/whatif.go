package sim

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// Question is the choice of a mode for a limit and a demand: which modes keep the limit, and at which cost.
type Question struct {
	Limit        ratelimit.Limit
	Coordination ratelimit.Coordination // variants change some fields of it
	Nodes        int
	Load         load.Load
	Recorded     *load.Recorded // instead of Load, if set
	Net          Net
	Seed         uint64
	MaxOver      ratelimit.Share // maximum over-admission
	MaxWait      time.Duration   // maximum time of 999 of 1,000 decisions
}

// Choice is one mode with its settings, and its results on a normal day and on a bad one. Declared holds on both days
// only without an outage; a Violation in either run says that more passed than its faults allow.
type Choice struct {
	Name     string           `json:"name"`
	Declared ratelimit.Tokens `json:"declared_over"`
	Plain    *Result          `json:"plain"`
	Bad      *Result          `json:"bad_day"`
	Fits     bool             `json:"fits"`
	Why      string           `json:"why"` // why it fits, or does not
}

// Answer has all choices, the recommended one first, and the reasons.
type Answer struct {
	Choices []Choice `json:"choices"`
	Best    int      `json:"best"`
	Reasons []string `json:"reasons"`
}

// variant is a mode with settings.
type variant struct {
	name string
	set  map[string]string // fields of the coordination
}

// variants are the choices of an answer. The first one, a lease of one token, is an exact limiter: it asks the store
// for each request.
var variants = []variant{
	{"strict, per request", map[string]string{"mode": "leasing", "lease.size": "1"}},
	{"leasing", map[string]string{"mode": "leasing"}},
	{"leasing, eager", map[string]string{"mode": "leasing", "reclaim": "eager"}},
	{"routing", map[string]string{"mode": "routing"}},
	{"approx, 0.5%", map[string]string{"mode": "approx", "drift_budget": "0.5%"}},
	{"approx, 1%", map[string]string{"mode": "approx", "drift_budget": "1%"}},
	{"approx, 5%", map[string]string{"mode": "approx", "drift_budget": "5%"}},
}

// WhatIf answers a question by playing it with each choice. It calls progress with the numbers of completed runs and of
// all runs. All choices get the same demand and the same faults, from one seed: they differ only by mode.
func WhatIf(ctx context.Context, q Question, progress func(int64)) (*Answer, error) {
	a := &Answer{}
	for i, v := range variants {
		c := Choice{Name: v.name}
		for day, result := range []**Result{&c.Plain, &c.Bad} {
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			o, err := q.options(v, day == 1)
			if err != nil {
				return nil, err
			}
			*result, err = Run(o)
			if err != nil {
				return nil, err
			}
			c.Declared = declare.Of(o.Rule, o.Nodes, declare.SharedStore).Over.Tokens
			progress(int64(2*i + day + 1))
		}
		q.judge(&c)
		a.Choices = append(a.Choices, c)
	}
	a.recommend(&q)
	return a, nil
}

// Runs is the number of runs of WhatIf.
func Runs() int64 { return int64(2 * len(variants)) }

func (q *Question) options(v variant, bad bool) (Options, error) {
	r := &ratelimit.Rule{Domain: "what-if", Path: "key", Limit: q.Limit, Coordination: q.Coordination, Counters: &ratelimit.RuleCounters{}}
	// With fewer seats than nodes, some nodes could not drift, and approx would look slower than it is.
	r.Coordination.MaxNodes = max(r.Coordination.MaxNodes, q.Nodes)
	if err := setFields(&r.Coordination, v.set); err != nil {
		return Options{}, fmt.Errorf("%s: %w", v.name, err)
	}
	o := Options{Seed: q.Seed, Nodes: q.Nodes, Rule: r, Load: q.Load, Net: q.Net, Check: true}
	if q.Recorded != nil {
		o.Load, o.Recorded = q.Recorded.Load(), q.Recorded
	}
	if bad {
		o.Faults, o.Refuses = badDay(o.Load.Length, q.Nodes), true
	}
	return o, nil
}

// badDay is a day with faults: the store is slow for a fifth of the time and away for a twentieth, a node crashes and
// returns, and another stops. Times are parts of the length, so that a short trace has all of them.
func badDay(length time.Duration, nodes int) []Fault {
	part := func(of float64) time.Duration { return time.Duration(of * float64(length)) }
	return []Fault{
		{At: part(0.2), Kind: Slow, For: 50 * time.Millisecond},
		{At: part(0.4), Kind: Slow},
		{At: part(0.5), Kind: Crash, Node: 0},
		{At: part(0.55), Kind: Restart, Node: 0},
		{At: part(0.6), Kind: Pause, Node: nodes - 1, For: part(0.05)},
		{At: part(0.75), Kind: Down, For: part(0.05)},
	}
}

// judge reports whether a choice meets the question's bounds. The bad day must keep the bounds, but not the maximum
// wait: an outage makes every mode wait.
func (q *Question) judge(c *Choice) {
	allowed := q.MaxOver.Of(q.Limit.Capacity())
	switch {
	case c.Plain.Violation != nil:
		c.Why = "went beyond its bound: " + c.Plain.Violation.What
	case c.Bad.Violation != nil:
		c.Why = "went beyond its bound on the bad day: " + c.Bad.Violation.What
	case c.Declared > allowed:
		c.Why = fmt.Sprintf("may be %d over, and at most %d are allowed", c.Declared, allowed)
	case c.Plain.P999 > q.MaxWait:
		c.Why = fmt.Sprintf("has 1 of 1,000 decisions wait %v or more, and %v are allowed", c.Plain.P999, q.MaxWait)
	default:
		c.Fits = true
		c.Why = "fits"
	}
}

// hopWeight is the approximate cost of a message between nodes, relative to a store operation: nodes can be
// added, and messages share frames.
const hopWeight = 0.25

// cost is the measure of choices: the work of the store and of the nodes, needless refusals, and waiting. Its unit is a
// store operation for 1,000 decisions. A refusal that was needless costs as much as a store operation, and a
// millisecond of p99.9 costs one.
func (c *Choice) cost() float64 {
	lost := 0.0
	if c.Plain.Offered > 0 {
		lost = float64(c.Plain.Under) / float64(c.Plain.Offered)
	}
	hops := 1000 * float64(c.Plain.Hops) / float64(max(1, c.Plain.Requests))
	return c.Plain.ClaimsPerThousand() + hopWeight*hops + 1000*lost + float64(c.Plain.P999)/float64(time.Millisecond)
}

// recommend chooses the cheapest choice that fits. If there is none, it chooses the one with the shortest waits of
// those within MaxOver. The first choice asks the store for each request, so its number is the measure in the reasons.
func (a *Answer) recommend(q *Question) {
	best := -1
	for i := range a.Choices {
		if c := &a.Choices[i]; c.Fits && (best < 0 || c.cost() < a.Choices[best].cost()) {
			best = i
		}
	}
	allowed := q.MaxOver.Of(q.Limit.Capacity())
	if best < 0 {
		for i := range a.Choices {
			c := &a.Choices[i]
			if c.Plain.Violation == nil && c.Declared <= allowed && (best < 0 || c.Plain.P999 < a.Choices[best].Plain.P999) {
				best = i
			}
		}
		a.Reasons = append(a.Reasons, fmt.Sprintf("Nothing keeps within %v for 999 of 1,000 decisions and at most %d over; %s comes closest.", q.MaxWait, allowed, a.Choices[max(best, 0)].Name))
	}
	a.Best = max(best, 0)
	c := &a.Choices[a.Best]
	strict := a.Choices[0].Plain.ClaimsPerThousand()
	over := fmt.Sprintf("it may be %d over, and was %d", c.Declared, c.Plain.Over)
	if c.Declared == 0 {
		over = "it is never over the limit, as long as the store keeps its data"
	}
	waits := 100 * float64(c.Plain.Waited) / float64(max(1, c.Plain.Requests))
	share := "%.2g"
	if waits >= 10 {
		share = "%.0f"
	}
	a.Reasons = append(
		a.Reasons,
		fmt.Sprintf("Use %s: %s.", c.Name, over),
		fmt.Sprintf("It asks the store %.4g times for 1,000 decisions, where asking for each takes %.4g; "+share+"%% of requests wait; 999 of 1,000 decisions take at most %v.",
			c.Plain.ClaimsPerThousand(), strict, waits, c.Plain.P999),
		fmt.Sprintf("On a bad day (a slow store, a dead one, a crash and a pause) it was %d over and %d under, and 999 of 1,000 decisions took at most %v.", c.Bad.Over, c.Bad.Under, c.Bad.P999),
	)
	for i := range a.Choices {
		if other := &a.Choices[i]; i != a.Best && !other.Fits {
			a.Reasons = append(a.Reasons, fmt.Sprintf("Not %s: it %s.", other.Name, other.Why))
		}
	}
}

// Table shows the choices; the recommended one has a star.
func (a *Answer) Table(limit ratelimit.Tokens) *report.Table {
	t := &report.Table{
		Head:  []string{"choice", "over", "of limit", "declared", "under", "refused early", "waited", "p99", "p99.9", "store ops/1000", "hops/1000", "bad day: over", "under", "p99.9"},
		Notes: []string{"over: of the key that went furthest, beyond its limit. under: less than an exact limiter had admitted. refused early: while the limit had room. hops: messages from node to node."},
	}
	percent := func(n, of float64) string { return fmt.Sprintf("%.2f%%", 100*n/max(1, of)) }
	short := func(d time.Duration) string { return fmt.Sprintf("%.2fms", d.Seconds()*1000) }
	for i := range a.Choices {
		c := &a.Choices[i]
		name := c.Name
		if i == a.Best {
			name = "* " + name
		}
		r, bad := c.Plain, c.Bad
		requests := float64(r.Requests)
		t.Rows = append(t.Rows, report.Row{Bad: r.Violation != nil || bad.Violation != nil, Cells: []string{
			name, fmt.Sprint(r.Over), percent(float64(r.Over), float64(limit)), fmt.Sprint(c.Declared), fmt.Sprint(r.Under), fmt.Sprint(r.Early),
			percent(float64(r.Waited), requests), short(r.P99), short(r.P999),
			fmt.Sprintf("%.2f", r.ClaimsPerThousand()), fmt.Sprintf("%.0f", 1000*float64(r.Hops)/max(1, requests)),
			fmt.Sprint(bad.Over), fmt.Sprint(bad.Under), short(bad.P999),
		}})
	}
	return t
}
