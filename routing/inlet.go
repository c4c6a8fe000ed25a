package routing

import (
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// inlet is the other end of a peer's link: its stream to this node. What is said
// on it is taken in one frame after the other.
type inlet struct {
	// addr and incarnation are what the introduction has proved: later frames say nothing of who
	// sends them.
	addr        string
	incarnation uint64
	version     uint32
	say         func(*wire.Frame) // answers without blocking; of version 1 only

	holders []ratelimit.Holder // that have claimed on it
	turns   int                // presences taken in since
	since   instant
}

const (
	// mostHoldersOf is how many holders of leases one stream may claim for: a node
	// has one. Each is a record in every account that it claims of.
	mostHoldersOf = 4
	// A node joins, leaves, and joins again when it was suspended. Each changes
	// all rings, and has the tables walked through.
	mostTurns = 20
	turnsIn   = 10 * time.Second
)

// ownClaims are those of a frame's claims that are of a node's own holders.
func (in *inlet) ownClaims(c *core, claims []*wire.Claim) []*wire.Claim {
	own := claims[:0:0]
	for _, m := range claims {
		holder := ratelimit.Holder(m.GetHolder())
		if !slices.Contains(in.holders, holder) {
			// A peer that makes up holders would fill each account that it claims of with their
			// records.
			if len(in.holders) >= mostHoldersOf {
				c.malformed(rejectedClaim)
				continue
			}
			in.holders = append(in.holders, holder)
		}
		own = append(own, m)
	}
	return own
}

// mayTurn tells whether the peer may join or leave once more.
func (in *inlet) mayTurn(now instant) bool {
	// A stretch begins with the first turn in it, not at fixed times.
	if in.since == 0 || now.Sub(in.since) > turnsIn {
		in.since, in.turns = now, 0
	}
	in.turns++
	return in.turns <= mostTurns
}

// answerPulls has answers sent that come later, when whoever has them cannot wait
// for the peer to read.
func (in *inlet) answerPulls(answer func(*wire.Frame)) (stop func()) {
	if in.version != 1 {
		return func() {}
	}
	// Whoever answers a pull holds core.mu, under which nothing may wait for a peer to read
	// (docs/protocol.md, section 7).
	late, done := make(chan *wire.Frame, 16), make(chan struct{})
	in.say = func(f *wire.Frame) {
		select {
		case late <- f:
		default: // it reads nothing; it pulls again on its next stream
		}
	}
	go func() {
		for {
			select {
			case f := <-late:
				answer(f)
			case <-done:
				return
			}
		}
	}()
	return func() { close(done) }
}
