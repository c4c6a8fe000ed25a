package ratelimit

import "fmt"

// Mode is how the nodes of a fleet share a limit: a line in the table of modes.
type Mode uint8

const (
	// Leasing spends from tokens leased by the ledger. While that answers, it never over-admits.
	Leasing Mode = iota
	// Routing asks the key's owner. While that answers, it never over-admits.
	Routing
	// Approx may spend a drift share before the ledger has answered.
	Approx
)

// ModeSpec is a mode as configuration, declarations, advice and screens use it. The server
// chooses the limiter of a rule by it (cmd/sluice, modes.go).
type ModeSpec struct {
	Name    string
	Promise string   // a sentence without its subject, for people who choose one
	Fields  []string // of a coordination, that rules of no other mode read
	// Owned has one node decide on a key, its owner.
	Owned bool
	// Drifts has a node admit a share of a drift budget before the ledger has answered.
	Drifts bool
	// Declare changes the bounds of a rule of mode leasing on so many nodes to those of this mode; nil: no
	// change. The rule has a limit above 0, or a ceiling.
	Declare func(r *Rule, nodes int, storage Storage, b Bounds) Bounds
	// Doubts returns remarks on valid rules of this mode; nil: none.
	Doubts func(r *Rule) []string
}

// modes is the table. Mode is an index of it, which peers send each other: add a mode at the end.
var modes = []ModeSpec{
	Leasing: {
		Name:    "leasing",
		Promise: "never admits more than the limit while the store answers, and spends leased tokens without waiting",
	},
	Routing: {
		Name:    "routing",
		Promise: "never admits more than the limit while the owner of a key answers, and asks that owner", Owned: true,
		Declare: declareRouting,
	},
	Approx: {
		Name:    "approx",
		Promise: "admits at most its drift budget beyond the limit, and waits less",
		Fields:  []string{"drift_budget", "check_timeout"}, Drifts: true,
		Declare: declareApprox, Doubts: doubtApprox,
	},
}

// Spec returns the mode's line in the table. It is shared: do not change it.
func (m Mode) Spec() *ModeSpec { return &modes[m] }

// KnownMode reports whether a number that a peer sent is a mode.
func KnownMode(n uint32) bool { return int(n) < len(modes) }

// String is the name that a config may use.
func (m Mode) String() string { return modes[m].Name }

// ModeNames are the names that a config may use, by value.
func ModeNames() []string {
	names := make([]string, len(modes))
	for i := range modes {
		names[i] = modes[i].Name
	}
	return names
}

// declareRouting has an owner answer. Without a store its memory has the one account of a key.
func declareRouting(r *Rule, nodes int, storage Storage, b Bounds) Bounds {
	b.Wait = Wait{For: OwnersAnswer, Longest: r.Coordination.Deadline()}
	if storage == OwnMemory {
		b.Over, b.OnOutage = Over{EachOwner: r.Limit.Capacity()}, r.outage(OwnerOutage, nodes)
		return b
	}
	b.StoreOps.Nodes, b.StoreOps.OwnerGoneEach = 1, 1
	return b
}

// declareApprox adds the drift budget, and the share that a request gets without waiting.
func declareApprox(r *Rule, _ int, storage Storage, b Bounds) Bounds {
	if storage == OwnMemory {
		return b
	}
	c := &r.Coordination
	b.Over.Drift = c.DriftBudget.Of(r.Limit.Capacity())
	b.Over.Tokens += b.Over.Drift
	if r.DriftShare() > 0 {
		b.Wait.WithShare, b.Wait.Drifts = min(c.CheckTimeout, c.Deadline()), true
		if c.CheckTimeout == 0 {
			b.StoreOps.Each = 1 // each request without a lease drifts at once, and sends a message of its own
		}
	}
	return b
}

func doubtApprox(r *Rule) (doubts []string) {
	c, limit := &r.Coordination, r.Limit.Capacity()
	if r.DriftShare() < 1 {
		doubts = append(doubts, fmt.Sprintf("drift_budget %v of %d is %d tokens, less than one for each of max_nodes "+
			"%d: the rule waits like leasing; use a budget and a limit of at least %d tokens, or lower max_nodes",
			c.DriftBudget, limit, c.DriftBudget.Of(limit), c.MaxNodes, c.MaxNodes))
	}
	if c.CheckTimeout >= c.Deadline() {
		doubts = append(doubts, fmt.Sprintf("check_timeout %v is not below the store deadline of %v: the rule waits "+
			"like leasing", c.CheckTimeout, c.Deadline()))
	}
	return doubts
}
