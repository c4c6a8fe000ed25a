package ratelimit

import (
	"context"
	"time"
)

// Look is the state of one key at a node and its ledger: for people, not for decisions.
type Look struct {
	Account string `json:"account"`         // as the ledger names it
	Owner   string `json:"owner,omitempty"` // the other node that answers for it, under mode routing
	// Lease is this node's; nil: it has none.
	Lease *LeaseLook `json:"lease,omitempty"`
	// Ledger is the account; nil: there is none yet, or LedgerError says why it
	// could not be read.
	Ledger      *AccountLook `json:"ledger,omitempty"`
	LedgerError string       `json:"ledger_error,omitempty"`
	// Alone is what on_store_failure: local would admit here.
	Alone Tokens `json:"alone,omitempty"`
}

// LeaseLook is a node's side of a key. Totals are of the lease's window.
type LeaseLook struct {
	Window    Window        `json:"window"`
	Granted   Tokens        `json:"granted"`
	Spent     Tokens        `json:"spent"`
	Unspent   Tokens        `json:"unspent"`
	Drifted   Tokens        `json:"drifted"`    // spent and not confirmed
	Elsewhere Tokens        `json:"elsewhere"`  // the rest at the ledger, by its last answer
	Expires   time.Duration `json:"expires_ns"` // from now; negative: it has
	Resets    time.Duration `json:"resets_ns"`
	Answered  time.Duration `json:"heard_ns"`      // ago
	Refuses   time.Duration `json:"refuses_ns"`    // for so long it refuses without asking
	PerSecond float64       `json:"per_second"`    // demand, as measured
	Asking    bool          `json:"asking"`        // a claim is under way
	Reported  Tokens        `json:"reported"`      // the part of Spent that the ledger has
	Failing   bool          `json:"store_failing"` // its part of the store counts as dead
}

// AccountLook is the ledger's side of a key.
type AccountLook struct {
	Window  Window       `json:"window"`
	Limit   Tokens       `json:"limit"`
	Free    Tokens       `json:"free"` // could be granted now; negative: so much was spent beyond
	Charged Tokens       `json:"charged"`
	Holders []HolderLook `json:"holders"`
}

// HolderLook is the ledger's copy of one holder's truth.
type HolderLook struct {
	Holder      Holder `json:"holder,string"`
	Here        bool   `json:"here"`           // this node
	Node        string `json:"node,omitempty"` // where it is, if that is known
	Fence       Fence  `json:"fence"`
	Seq         uint64 `json:"seq"` // of its last claim
	Granted     Tokens `json:"granted"`
	Spent       Tokens `json:"spent"`
	Outstanding Tokens `json:"outstanding"`
}

// HotKey is a busy key of this node.
type HotKey struct {
	Account   string  `json:"account"`
	Rule      string  `json:"rule"`
	PerSecond float64 `json:"per_second"`
	Spent     Tokens  `json:"spent"` // in this window, here
	Unspent   Tokens  `json:"unspent"`
	Limit     Tokens  `json:"limit"` // in force
	// Overridden says that an override of the key is that limit, and not the rule.
	Overridden bool `json:"overridden,omitempty"`
}

// Inspector is a Limiter that people can look into, and correct. All may be
// called at any time; Look, Drop and Reset ask the ledger, and block until ctx is
// done at most. Hottest takes every lock once.
type Inspector interface {
	Look(ctx context.Context, now Instant, a *Ask) Look
	Hottest(now Instant, n int) []HotKey
	// Drop gives back what this node's lease has left, and drops the charges of
	// refusals that it has not reported. The next request asks the ledger.
	// It reports whether there was a lease. With an error, the ledger may not have what was reported before.
	Drop(ctx context.Context, now Instant, key []byte) (had bool, err error)
	// Reset has the ledger count from nothing again in this window (fill a
	// bucket). What other nodes hold stays theirs. They Drop it before, so that
	// they report no earlier refusals, and after it, so that they ask again.
	Reset(ctx context.Context, now Instant, a *Ask) error
}

// NodeLimiter is the Limiter of a node, or a part of it. Stats has the counts since its start. SyncClock has windows
// follow corrections of the system's clock.
type NodeLimiter interface {
	Limiter
	Inspector
	Stats() LimiterStats
	SyncClock(now Instant, wall time.Time)
}
