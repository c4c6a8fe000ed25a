package tokens

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Case is a limit and the demand for it.
type Case struct {
	ID    string          `json:"id"`
	Name  string          `json:"name"`
	Limit ratelimit.Limit `json:"-"`
	Most  int64           `json:"most"` // that a request costs
	Held  int64           `json:"held"` // by a constant estimate
	cost  func(r *rand.Rand) int64
	// Demand is that of an open loop, in limits. In a closed loop so many Callers ask for a while, and all is used soon.
	Demand  float64 `json:"demand,omitempty"`
	Callers int     `json:"callers,omitempty"`
	part    float64 // of the options' length, in an open loop
	// Responses take from first to last of the case's length.
	first, last float64
}

// tail is a cost with a heavy tail: Pareto, 1.5, from 350 up to tailMost, with a mean of about tailMean.
func tail(r *rand.Rand) int64 { return min(tailMost, int64(350/math.Pow(1-r.Float64(), 1/1.5))) }

const tailMost, tailMean = 20_000, 960

func limit(n ratelimit.Tokens, unit ratelimit.Unit) ratelimit.Limit {
	return ratelimit.Limit{Unit: unit, Multiplier: 1, Requests: n}
}

// million is the limit of cases in open loops.
var million = limit(1_000_000, ratelimit.Minute)

var cases = []Case{
	{
		ID: "half", Name: "1,000,000 a minute, demand of half the limit", Limit: million, Most: tailMost, Held: tailMean, cost: tail,
		Demand: 0.5, part: 1, last: 1. / 12,
	},
	{
		ID: "twice", Name: "1,000,000 a minute, demand of twice the limit", Limit: million, Most: tailMost, Held: tailMean, cost: tail,
		Demand: 2, part: 1, last: 1. / 12,
	},
	{
		ID: "flight", Name: "1,000,000 a minute, demand of twice the limit, 1,000 requests in flight if all pass", Limit: million,
		Most: tailMost, Held: tailMean, cost: tail, Demand: 2, part: 0.6, first: 0.25, last: 0.75,
	},
	{
		ID: "five", Name: "5 at once, limit 100, 1 to 30 each (litellm's case)", Limit: limit(100, ratelimit.Minute), Most: 30, Held: 15,
		cost: func(r *rand.Rand) int64 { return 1 + r.Int64N(30) }, Callers: 5, first: 1. / 30, last: 1. / 30,
	},
	{
		ID: "fifty", Name: "50 at once, limit 10,000, 5,000 each after 300 ms", Limit: limit(10_000, ratelimit.Minute), Most: 5000, Held: 2000,
		cost: func(*rand.Rand) int64 { return 5000 }, Callers: 50, first: 0.1, last: 0.1,
	},
}

// closedLength is that of a closed loop.
const closedLength = 3 * time.Second

// length is for how long requests come, of the options' length.
func (c *Case) length(of time.Duration) time.Duration {
	if c.Callers > 0 {
		return closedLength
	}
	return time.Duration(c.part * float64(of))
}

// takes is how long a response takes.
func (c *Case) takes(r *rand.Rand, of time.Duration) time.Duration {
	return time.Duration((c.first + r.Float64()*(c.last-c.first)) * float64(c.length(of)))
}

// whole is how long a case takes.
func (c *Case) whole(of time.Duration) time.Duration {
	return time.Duration((1 + c.last) * float64(c.length(of)))
}

// load is when requests come.
func (c *Case) load(of time.Duration) load.Load {
	length := c.length(of)
	rate := c.Demand * float64(c.Limit.Requests) / tailMean / length.Seconds()
	return load.Load{Rate: max(1, rate), Keys: 1, Length: length}
}

// Way is how requests are limited whose cost is not known.
type Way struct {
	Name string
	hold func(c *Case) string // of the rule; nil: it has none, and a request peeks
	// says that the client says the most that its request may cost.
	says, baseline bool
}

var ways = []Way{
	{Name: "peek and charge, as envoyproxy/ratelimit", baseline: true},
	{Name: "peek and charge"},
	{Name: "constant", hold: func(c *Case) string { return fmt.Sprintf("{amount: %d}", c.Held) }},
	{Name: "header", says: true, hold: func(c *Case) string { return fmt.Sprintf("{from: request, max: %d}", c.Most) }},
	{Name: "learned", hold: func(c *Case) string { return fmt.Sprintf("{learned: 0.97, max: %d}", c.Most) }},
	{Name: "maximum", hold: func(c *Case) string { return fmt.Sprintf("{amount: %d}", c.Most) }},
}

// domain and entry are those of deploy/envoy/llm.yaml.
const domain, entry = "llm", "team"

// rules are a case's for a way. Requests without an answer of Redis are refused, so that over-admission is
// the way's.
func (w *Way) rules(c *Case) string {
	hold := ""
	if w.hold != nil {
		hold = "hold: " + w.hold(c) + ", "
	}
	return fmt.Sprintf("domain: %s\ncoordination: {on_store_failure: closed, store_deadline: 1s}\ndescriptors:\n  - {key: %s, %srate_limit: {unit: %v, requests_per_unit: %d}}\n",
		domain, entry, hold, c.Limit.Unit, c.Limit.Requests)
}
