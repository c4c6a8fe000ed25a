package routing

import "time"

// inlet is the other end of a peer's link: its stream to this node. Its frames are taken in one after the
// other.
type inlet struct {
	// addr and incarnation are what the introduction has proved: later frames say nothing of who
	// sends them.
	addr        string
	incarnation uint64

	turns int // presences taken in since
	since instant
}

const (
	// A node joins, leaves, and joins again when it was suspended. Each changes
	// all rings, and has the tables walked through.
	mostTurns = 20
	turnsIn   = 10 * time.Second
)

// mayTurn tells whether the peer may join or leave once more.
func (in *inlet) mayTurn(now instant) bool {
	// A stretch begins with the first turn in it, not at fixed times.
	if in.since == 0 || now.Sub(in.since) > turnsIn {
		in.since, in.turns = now, 0
	}
	in.turns++
	return in.turns <= mostTurns
}
