package accuracy

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
)

// mode is a way to coordinate a rule.
type mode struct {
	name         string
	entry        string // the descriptor's key
	coordination string // in YAML
	fields       map[string]string
}

var modes = []mode{
	{"strict", "strict", "mode: leasing, lease: {size: 1}", map[string]string{"mode": "leasing", "lease.size": "1"}},
	{"leasing", "leasing", "mode: leasing", map[string]string{"mode": "leasing"}},
	{"routing", "routing", "mode: routing", map[string]string{"mode": "routing"}},
	{"approx", "approx", "mode: approx, drift_budget: 5%, max_nodes: 4", map[string]string{"mode": "approx", "drift_budget": "5%", "max_nodes": "4"}},
}

// declares is what the mode's rule declares, with the limit.
func (m *mode) declares(limit int64, nodes int) ratelimit.Bounds {
	r := &ratelimit.Rule{Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: ratelimit.Tokens(limit)}, Coordination: ratelimit.DefaultCoordination()}
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := m.fields[field]; ok {
			if err := r.Coordination.Set(field, text); err != nil {
				panic(err) // modes is ours
			}
		}
	}
	return r.Declare(nodes, ratelimit.SharedStore)
}

// scenario is a demand, and what goes wrong meanwhile.
type scenario struct {
	name    string
	what    string
	load    func(*Options) load.Load
	closed  int
	strike  func(*cluster, *Options) error // a third into it
	mend    func(*cluster, *Options) error // two thirds into it
	fault   bool
	store   bool // it does something to the store's process or data
	amnesia bool // the store loses data: Bounds.OnLoss comes on top
	extra   bool // not among those run by default
}

// uniform is demand for twice the limit of each key.
func uniform(o *Options) load.Load {
	return load.Load{Rate: o.Rate, Keys: o.keys(), Length: o.Length}
}

func with(change func(*Options, *load.Load)) func(*Options) load.Load {
	return func(o *Options) load.Load {
		l := uniform(o)
		change(o, &l)
		return l
	}
}

var scenarios = []scenario{
	{name: "closed", what: "16 callers, each after its last answer; uniform keys", load: uniform, closed: 16},
	{name: "zipf", what: "open loop, Zipf 1.1 over 200 keys", load: with(func(_ *Options, l *load.Load) { l.Keys, l.Skew = 200, 1.1 })},
	{name: "burst", what: "open loop, 5.5 times the rate in a tenth of each second", load: with(func(_ *Options, l *load.Load) { l.Shape = load.Burst })},
	{name: "flash", what: "open loop, a crowd of four times the rate on a cold key", load: with(func(_ *Options, l *load.Load) { l.Shape = load.Flash })},
	{name: "hot", what: "open loop, half of it on one key", load: with(func(_ *Options, l *load.Load) { l.Hot = 0.5 })},
	{name: "uniform", what: "open loop, uniform keys", load: uniform, extra: true},
	{name: "ramp", what: "open loop, from nothing to twice the rate", load: with(func(_ *Options, l *load.Load) { l.Shape = load.Ramp }), extra: true},
	{
		name: "many", what: "open loop, more keys than the nodes' tables hold (--max-keys)", extra: true,
		load: with(func(o *Options, l *load.Load) { l.Keys = 3 * o.MaxKeys; l.Hot = 0.3 }),
	},

	{
		name: "kill", what: "a node is killed, and started again", fault: true, load: uniform,
		strike: func(c *cluster, _ *Options) error { return c.kill(0) }, mend: func(c *cluster, _ *Options) error { return c.start(0) },
	},
	{
		name: "pause", what: "a node is stopped, and goes on", fault: true, load: uniform, extra: true,
		strike: func(c *cluster, _ *Options) error { return c.pause(0, true) }, mend: func(c *cluster, _ *Options) error { return c.pause(0, false) },
	},
	{
		name: "join", what: "a node joins", fault: true, load: uniform, extra: true,
		strike: func(c *cluster, o *Options) error { return c.start(o.Nodes) },
	},
	{
		name: "roll", what: "each node in turn leaves, and is there again", fault: true, load: uniform,
		strike: func(c *cluster, o *Options) error {
			for i := range o.Nodes {
				if err := c.leave(i); err != nil {
					return err
				}
				if err := c.start(i); err != nil {
					return err
				}
			}
			return nil
		},
	},
	{
		name: "slow store", what: "each answer of Redis takes 50 ms more", fault: true, load: uniform,
		strike: func(c *cluster, _ *Options) error {
			return c.each(func(m *member) { m.redis.slow(50 * time.Millisecond) })
		},
		mend: func(c *cluster, _ *Options) error { return c.each(func(m *member) { m.redis.slow(0) }) },
	},
	{
		name: "hung store", what: "Redis is stopped, and goes on", fault: true, store: true, load: uniform,
		strike: func(c *cluster, _ *Options) error { return c.store.Hang(true) }, mend: func(c *cluster, _ *Options) error { return c.store.Hang(false) },
	},
	{
		name: "dead store", what: "Redis is killed, and started again empty", fault: true, store: true, amnesia: true, load: uniform, extra: true,
		strike: func(c *cluster, _ *Options) error { return c.store.Kill() }, mend: func(c *cluster, _ *Options) error { return c.store.Start() },
	},
	{
		name: "flushed store", what: "FLUSHALL", fault: true, store: true, amnesia: true, load: uniform,
		strike: func(c *cluster, _ *Options) error { return c.store.Forget() },
	},
	{
		name: "partition", what: "a node is cut off from Redis, and found again", fault: true, load: uniform,
		strike: func(c *cluster, _ *Options) error { c.members[0].redis.part(true); return nil },
		mend:   func(c *cluster, _ *Options) error { c.members[0].redis.part(false); return nil },
	},
	{
		name: "split", what: "a node is cut off from its peers, and found again", fault: true, load: uniform, extra: true,
		strike: func(c *cluster, _ *Options) error { c.members[0].peer.part(true); return nil },
		mend:   func(c *cluster, _ *Options) error { c.members[0].peer.part(false); return nil },
	},
}

func (c *cluster) each(do func(*member)) error {
	for _, m := range c.members {
		do(m)
	}
	return nil
}

// choose returns the scenarios of these names; of none: those run by default.
func choose(names []string, all bool) ([]scenario, error) {
	var chosen []scenario
	known := make([]string, 0, len(scenarios))
	for _, s := range scenarios {
		known = append(known, s.name)
	}
	for _, name := range names {
		found := false
		for _, s := range scenarios {
			if s.name == name {
				chosen, found = append(chosen, s), true
			}
		}
		if !found {
			return nil, fmt.Errorf("there is no scenario %q; there are: %s", name, strings.Join(known, ", "))
		}
	}
	if len(names) > 0 {
		return chosen, nil
	}
	for _, s := range scenarios {
		if all || !s.extra {
			chosen = append(chosen, s)
		}
	}
	return chosen, nil
}
