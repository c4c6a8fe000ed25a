package sim

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

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
	P50     time.Duration    `json:"wait_p50"`
	P99     time.Duration    `json:"wait_p99"`
	P999    time.Duration    `json:"wait_p999"`
	Longest time.Duration    `json:"wait_longest"`

	Debt        ratelimit.Tokens `json:"debt"`               // the largest debt of an account
	Released    ratelimit.Tokens `json:"released,omitempty"` // tokens returned from holds
	Cut         ratelimit.Tokens `json:"cut"`                // of refunds, because the account would fall below 0
	Settled     int64            `json:"settled"`            // nodes' totals of accounts that were compared with their bookings at the end
	Keys        int              `json:"keys"`               // keys with requests
	Fingerprint string           `json:"fingerprint"`
	Timeline    []Point          `json:"timeline,omitempty"`

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
