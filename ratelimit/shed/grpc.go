package shed

import (
	"context"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/tap"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Err is what a call is answered that is not begun.
var Err = status.Error(codes.Unavailable, "overloaded: not begun, nothing was charged")

// Tap asks the gate before a call of one method gets a stream. Other methods, such
// as health checks, are always let through.
func (g *Gate) Tap(method string, clock ratelimit.Clock) tap.ServerInHandle {
	return func(ctx context.Context, info *tap.Info) (context.Context, error) {
		if info.FullMethodName != method {
			return ctx, nil
		}
		patience := g.maxWait
		if deadline, ok := ctx.Deadline(); ok {
			patience = time.Until(deadline)
		}
		reason, mark := g.arrive(clock(), patience, true)
		switch {
		case reason == Begun && mark != 0:
			return context.WithValue(ctx, fate{}, mark), nil
		case reason == Begun:
			return ctx, nil
		case patience > longest:
			return context.WithValue(ctx, fate{}, refused), nil
		default:
			return ctx, Err
		}
	}
}

// longest is for how long grpc-go may remember a call that Tap refused: it keeps
// the timer of its deadline. Calls with a later one are refused by Enter instead.
const longest = time.Second

// fate is the context's key of a call's mark, or of refused.
type fate struct{}

// refused is the fate of a call that Tap refused and Enter is to.
const refused = uint64(0)

// Enter begins a call that Tap let through, or says that it is not to be begun: Err,
// if it was refused or its caller has given up. Without an error, End must follow.
func (g *Gate) Enter(ctx context.Context, now ratelimit.Instant) error {
	if mark, ok := ctx.Value(fate{}).(uint64); ok {
		if mark == refused {
			return Err
		}
		g.Followed(mark)
	}
	g.Begin(now)
	if ctx.Err() != nil {
		g.End()
		g.Late()
		return Err
	}
	return nil
}

// EnterNow is for calls that come without a tap: they arrive and begin at once.
func (g *Gate) EnterNow(now ratelimit.Instant) error {
	if g.Arrive(now, g.maxWait) != Begun {
		return Err
	}
	g.Begin(now)
	return nil
}

// Listener has connections stay unread while the gate says so.
func (g *Gate) Listener(l net.Listener, clock ratelimit.Clock) net.Listener {
	return &listener{Listener: l, gate: g, clock: clock}
}

type listener struct {
	net.Listener
	gate  *Gate
	clock ratelimit.Clock
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: c, gate: l.gate, clock: l.clock}, nil
}

type conn struct {
	net.Conn
	gate  *Gate
	clock ratelimit.Clock
	more  bool // the last Read left something behind
}

// Read implements net.Conn. It waits only where nothing is left behind: what stays
// unread gets old, and nobody can tell by how much.
func (c *conn) Read(b []byte) (int, error) {
	if !c.more && c.gate.owed.Load() != 0 {
		time.Sleep(c.gate.Pause(c.clock()))
	}
	n, err := c.Conn.Read(b)
	c.more = n == len(b)
	return n, err
}
