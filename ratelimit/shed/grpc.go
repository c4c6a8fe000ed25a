package shed

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

const (
	code    = codes.Unavailable
	message = "overloaded: the request was rejected without a charge"
)

// Err is the answer to a refused call.
var Err = status.Error(code, message)

// Before puts the gate before a method, where the transport reads frames.
func (g *Gate) Before(method string, clock ratelimit.Clock) *transport.Gated {
	return &transport.Gated{Gate: g, Method: method, Clock: clock, Code: code, Message: message}
}

// Enter begins a call that was let in, or says that it is not to be begun: Err, if its
// caller has given up. Without an error, End must follow.
func (g *Gate) Enter(ctx context.Context, now ratelimit.Instant) error {
	if ctx.Err() != nil {
		g.Late()
		return Err
	}
	g.Begin(now)
	return nil
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
