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

// EnterNow is for calls that come without a transport, complete. They are not inside, because
// the gate cannot see when they begin to wait. Without an error, EndNow must follow when the call is decided.
func (g *Gate) EnterNow(now ratelimit.Instant) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.startsLocked(now, g.alone, g.maxWait) {
		return Err
	}
	if g.alone == 0 {
		g.callers++
	}
	g.alone++
	g.Begin()
	return nil
}

// EndNow says that a call that was entered is decided.
func (g *Gate) EndNow() {
	g.End()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.alone--
	if g.alone == 0 {
		g.callers--
	}
}
