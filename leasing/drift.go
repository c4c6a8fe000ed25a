package leasing

import (
	"errors"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Drift is the budget of each key that this node may spend before the ledger has answered (docs/protocol.md, section
// 12). Package approx implements it.
type Drift interface {
	// Share returns the tokens of that budget, for each key under the rule, in a window that began at begins by the
	// ledger's clock. It returns 0 if this node may not drift now, and does not block.
	Share(now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime) ratelimit.Tokens
}

// ErrClockSet means that the ledger's clock was set.
var ErrClockSet = errors.New("the store's clock stepped: leases are claimed anew")

// ErrEvicted means that a single account was lost.
var ErrEvicted = errors.New("the store lost an account in use, by eviction (maxmemory-policy) or deletion: its " +
	"grants can be repeated")
