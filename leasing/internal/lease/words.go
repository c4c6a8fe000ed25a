package lease

import "github.com/sluice-gate/sluice/ratelimit"

// The domain's words, as this package's code says them.
type (
	instant    = ratelimit.Instant
	ledgerTime = ratelimit.LedgerTime
	tokens     = ratelimit.Tokens
	window     = ratelimit.Window
	ask        = ratelimit.Ask
	verdict    = ratelimit.Verdict
)
