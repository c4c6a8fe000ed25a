package transport

import (
	"time"

	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Gate decides which calls start. It is safe for concurrent use. Its methods are called with a connection's lock held,
// for each call: they must not block, nor call the port.
type Gate interface {
	// Arrive decides on a call whose request is complete, and whose caller waits for patience; own calls of the same
	// connection were let in and have not left. If it says yes, Leave must follow.
	Arrive(now ratelimit.Instant, own int, patience time.Duration) bool
	// Leave says that calls of one connection have been decided, wait for their decision, or were reset, and that own
	// are left.
	Leave(now ratelimit.Instant, own, calls int)
	// Begin says that a call waits for its decision. End must follow.
	Begin()
	End()
}

// Gated is the gate of a Port's method. It must not be changed once it is used.
type Gated struct {
	Gate    Gate
	Clock   ratelimit.Clock
	Refusal *status.Status // the answer to a refused call
}
