package shed

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

var refusal = status.New(codes.Unavailable, "overloaded: the request was rejected without a charge")

// Err is the answer to a refused call.
var Err = refusal.Err()

// Before puts the gate before the method of a transport.Port.
func (g *Gate) Before(clock ratelimit.Clock) *transport.Gated {
	return &transport.Gated{Gate: g, Clock: clock, Refusal: refusal}
}

// EnterNow is for calls that come without a transport: they arrive and begin at once.
// Without an error, EndNow must follow.
func (g *Gate) EnterNow(now ratelimit.Instant) error {
	g.mu.Lock()
	in := g.arriveLocked(now, g.alone, g.maxWait)
	if in {
		g.alone++
	}
	g.mu.Unlock()
	if !in {
		return Err
	}
	g.Begin(now)
	return nil
}

// EndNow says that a call that was entered then has ended, and left.
func (g *Gate) EndNow(now, entered ratelimit.Instant) {
	g.End(entered)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone--
	g.leaveLocked(now, g.alone, entered)
}
