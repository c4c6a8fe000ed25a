package sim

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Result is what a run came to. Tokens are counted over all keys, but for Over,
// which is of the key that went furthest.
type Result struct {
	Requests int64            `json:"requests"`
	Offered  ratelimit.Tokens `json:"offered"`
	Admitted ratelimit.Tokens `json:"admitted"`
	Refused  ratelimit.Tokens `json:"refused"`
	// Unanswered were asked of nodes that had stopped, or crashed meanwhile.
	Unanswered ratelimit.Tokens `json:"unanswered"`

	Over     ratelimit.Tokens `json:"over"`     // the most that any key was beyond its limit
	Declared ratelimit.Tokens `json:"declared"` // what it may be, by the rule and what went wrong; -1: no bound
	Used     float64          `json:"used"`     // the highest share of that bound that a key used
	Under    ratelimit.Tokens `json:"under"`    // less than an exact limiter had admitted of the same requests
	Early    ratelimit.Tokens `json:"early"`    // refused while the limit had room

	Sources map[string]int64 `json:"sources"` // requests, by what decided them
	Claims  int64            `json:"claims"`  // that reached the store
	Trips   int64            `json:"trips"`   // in which they did
	Recalls int64            `json:"recalls"` // leases that the ledger asked for
	Draws   int64            `json:"draws"`   // claims that were draws
	Hops    int64            `json:"hops"`    // messages from node to node
	Waited  int64            `json:"waited"`  // requests that were not decided at once
	P50     time.Duration    `json:"wait_p50"`
	P99     time.Duration    `json:"wait_p99"`
	P999    time.Duration    `json:"wait_p999"`
	Longest time.Duration    `json:"wait_longest"`

	// OpsUsed is the highest share of the store operations it declares that a node needed for a
	// key in a window: Ops claims for OpsDemand. It is counted with Options.CountOps.
	OpsUsed   float64          `json:"store_operations_used,omitempty"`
	Ops       int64            `json:"store_operations,omitempty"`
	OpsDemand ratelimit.Demand `json:"store_operations_demand,omitzero"`

	Debt        ratelimit.Tokens `json:"debt"`               // the most that an account had beyond its limit
	Carried     ratelimit.Tokens `json:"carried"`            // the most debt of a window before that an account had
	Released    ratelimit.Tokens `json:"released,omitempty"` // of what requests had held
	Cut         ratelimit.Tokens `json:"cut"`                // of refunds, for the account would be below nothing
	Settled     int64            `json:"settled"`            // nodes' totals of accounts that were compared at the end with what they had booked
	Keys        int              `json:"keys"`               // that were asked for
	Fingerprint string           `json:"fingerprint"`
	Timeline    []Point          `json:"timeline,omitempty"`

	Violation *Violation `json:"violation,omitempty"`
}

// Point is one stretch of a run.
type Point struct {
	At       time.Duration    `json:"at"` // its end
	Offered  ratelimit.Tokens `json:"offered"`
	Admitted ratelimit.Tokens `json:"admitted"`
	Claims   int64            `json:"claims"`
	Drift    ratelimit.Tokens `json:"drift"` // spent and not confirmed, at its end
	Waited   int64            `json:"waited"`
}

// ClaimsPerThousand is the store's work for 1,000 decisions.
func (r *Result) ClaimsPerThousand() float64 {
	return 1000 * float64(r.Claims) / float64(max(1, r.Requests))
}

// OverPercent is Over as a share of limit.
func (r *Result) OverPercent(limit ratelimit.Tokens) float64 {
	return 100 * float64(r.Over) / float64(max(1, limit))
}

// Violation is something that must not be.
type Violation struct {
	At   time.Duration `json:"at"`
	Node int           `json:"node"` // -1: the ledger, or all of them
	Key  int           `json:"key"`
	What string        `json:"what"`
}

// Error says what was violated, and when.
func (v *Violation) Error() string {
	return fmt.Sprintf("at %v, node %d, key %d: %s", v.At, v.Node, v.Key, v.What)
}
