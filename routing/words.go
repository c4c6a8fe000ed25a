package routing

import (
	"github.com/sluice-gate/sluice/ratelimit"
)

// Short names of the domain's types, for this package.
type (
	instant = ratelimit.Instant
	verdict = ratelimit.Verdict
	ask     = ratelimit.Ask
)
