package routing

import (
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
	"github.com/sluice-gate/sluice/routing/wire"
)

// Verdicts of owners are read as if they came from a stranger (reject.go).

// read takes a verdict from a reply, if there is one.
func (c *core) read(now instant, a *ask, call *call) (v verdict, ok bool) {
	if call.status() != answered {
		return verdict{}, false
	}
	v, ok = verdictOf(a, call.reply)
	switch {
	case !ok:
		c.malformed(rejectedReply)
	case call.reply.GetHot() && c.inStore():
		c.hotHere.Start(now, a.Key)
	}
	return v, ok
}

// verdictOf is the answer of an owner; ok is false if that cannot be an answer.
func verdictOf(a *ask, reply *wire.Reply) (v verdict, ok bool) {
	// No owner charges more than an ask costs. A peer that reports more could make Undo give back tokens
	// that were never spent.
	if !charges(reply, a.Cost) || reply.GetRemaining() > moved.MostTokens || reply.GetWindow() < 0 {
		return verdict{}, false
	}
	v = verdict{
		OverLimit: reply.GetOverLimit(), Source: ratelimit.FromOwner,
		Remaining: ratelimit.Tokens(max(0, reply.GetRemaining())),
		Charged:   ratelimit.Tokens(reply.GetCharged()), Debt: ratelimit.Tokens(reply.GetDebt()),
		Window: ratelimit.Window(reply.GetWindow()),
	}
	v.ResetAfter = resetOf(&a.Rule.Limit, reply.GetResetUs())
	return v, true
}

// charges reports whether the charge in a message can be that of an ask of that cost.
func charges(m interface {
	GetCharged() int64
	GetDebt() int64
}, cost ratelimit.Tokens,
) bool {
	return m.GetCharged() >= 0 && m.GetDebt() >= 0 && m.GetCharged() <= int64(cost)-m.GetDebt()
}

// resetOf is how long a limit takes to be whole again, as the owner reports it, at most
// as long as that can take.
func resetOf(l *ratelimit.Limit, us int64) time.Duration {
	us = min(max(0, us), math.MaxInt64/int64(time.Microsecond))
	return min(time.Duration(us)*time.Microsecond, longest(l))
}

// longest is the longest that a limit can take to be whole again: the rest of a
// window, once more where the owner's clock was ahead; or a bucket's refill.
func longest(l *ratelimit.Limit) time.Duration { return 2*l.Period() + l.Refill(l.Burst) }
