package local

import "github.com/sluice-gate/sluice/ratelimit"

// Short names of the domain's types, for this package.
type (
	instant    = ratelimit.Instant
	ledgerTime = ratelimit.LedgerTime
	tokens     = ratelimit.Tokens
	window     = ratelimit.Window
	ask        = ratelimit.Ask
	verdict    = ratelimit.Verdict
)
