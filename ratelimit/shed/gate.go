package shed

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Reason says why a call was not begun.
type Reason uint8

// The reasons.
const (
	Begun    Reason = iota // it was
	Overload               // calls wait, and it would have waited too long
	Deadline               // its caller has given up, or will have at once
)

// Reasons are the names of the reasons, by value; Begun has none.
var Reasons = [...]string{Overload: "overload", Deadline: "deadline"}

// What the gate reckons with; bench/overload plays it with a real server.
const (
	// fewest is how many calls may be in the node whatever was measured, and how many
	// must leave it one after the other to be a measurement.
	fewest = 16
	// slowest bounds the measurement: no call takes so much of a processor. Whatever makes calls linger, a burst of
	// twenty is let in.
	slowest = 500 * time.Microsecond
	// burstShare is how much of its caller's patience a call may spend in the node, and
	// standingShare how much while that has had no end. About as long again it waited
	// in the socket: its reader waits for its turn behind the calls that are inside.
	burstShare, standingShare = 2, 4
	// standing is how long calls must have been inside for long, never pausing for gap, until
	// it is taken for more than a burst: the interval of CoDel (RFC 8289).
	standing, gap = 100 * time.Millisecond, 20 * time.Millisecond
	// crowded is the time that a call may be inside if its connection has more calls there than all others
	// together. It is the time that Envoy's calls, with their 20 ms, have when calls wait. Less would leave the
	// processor without work between two readings of the socket.
	crowded = 5 * time.Millisecond
	// fairness is which part of its share a connection may have inside whatever others have. With
	// more, answers to many connections would be written in many small pieces.
	fairness = 4
	// hurry is how long a caller waits that is refused for its own sake.
	hurry = 5 * time.Millisecond
	// window is how long calls are counted for a measurement.
	window = time.Millisecond
	// inertia is how slowly measurements take effect.
	inertia = 8
	// likely bounds the effect of the first measurement, and twice the previous value that of later ones: the
	// machine may have stood still.
	likely = 50 * time.Microsecond
	// stale is how long more than likely counts without a new measurement.
	stale = time.Second
)

// Gate decides which calls start. It is safe for concurrent use, and does not allocate. It reads no clock:
// instants are arguments, and must not go back by more than callers on several processors see.
//
// A call is inside from its arrival, which is when its request is complete, until it is decided, or begins to wait for
// a store. So all that it does inside is work: a caller that does not send, or does not read, keeps nothing inside.
type Gate struct {
	maxWait  time.Duration
	shed     [len(Reasons)]atomic.Uint64
	gone     atomic.Uint64
	inFlight atomic.Int64 // calls that wait for their decision

	mu     sync.Mutex
	inside int // guarded by mu: calls
	// each is the time from one call's leaving to the next's, in nanoseconds, while others wait; 0: not known. Guarded
	// by mu.
	each     float64
	measured ratelimit.Instant // guarded by mu: when
	callers  int               // guarded by mu: connections with calls inside
	alone    int               // guarded by mu: calls that came without a transport: they count as one connection's
	// shared is the last time that a connection with nothing inside and another one both had a call. Guarded by mu.
	shared  ratelimit.Instant
	began   ratelimit.Instant // guarded by mu: calls have been inside for long since then
	pressed ratelimit.Instant // guarded by mu: and were so last then
	busy    bool              // guarded by mu: calls have waited since
	since   ratelimit.Instant // guarded by mu
	left    int               // guarded by mu: and so many have left
}

// NewGate makes a gate for callers that wait as long as they say, at most maxWait.
func NewGate(maxWait time.Duration) *Gate { return &Gate{maxWait: maxWait} }

// Arrive decides on a call whose caller waits for patience from now on, and of whose
// connection own calls are inside. If it says yes, Leave must follow.
func (g *Gate) Arrive(now ratelimit.Instant, own int, patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.startsLocked(now, own, patience) {
		return false
	}
	if own == 0 {
		g.callers++
	}
	g.inside++
	// From now on calls wait, so that the next one leaves as soon as the node can: a measurement begins.
	if !g.busy && g.inside >= fewest {
		g.busy = true
		g.since = now
		g.left = 0
	}
	return true
}

// startsLocked decides on a call, and counts it if it is refused.
func (g *Gate) startsLocked(now ratelimit.Instant, own int, patience time.Duration) bool {
	why := g.decideLocked(now, own, patience)
	if why != Begun {
		g.shed[why].Add(1)
	}
	return why == Begun
}

// decideLocked is why a call does not start, or Begun. It allows a call what its caller's patience leaves, and less if
// its own connection makes others wait. A call of a connection with a small part of its share starts in any case.
func (g *Gate) decideLocked(now ratelimit.Instant, own int, patience time.Duration) Reason {
	if patience <= 0 {
		return Deadline
	}
	if now.Sub(g.measured) > stale {
		g.each = min(g.each, float64(likely))
	}
	// By Little's law: all that are inside leave before this call does.
	wait := time.Duration(float64(g.inside) * g.each)
	if g.inside < fewest {
		return Begun
	}
	callers := g.callers
	if own == 0 {
		callers++
		if callers > 1 {
			g.shared = now
		}
	}
	// If each connection had four times as many calls inside as this one with its next, they could be
	// answered in the allowed time: others have more than their share. The factor is four because connections
	// that all have too many differ by chance, and none of them must be let in.
	fair := time.Duration(float64(fairness*(own+1)*callers) * g.each)
	allowed := g.allowedLocked(now, wait, min(patience, g.maxWait))
	// The connection with most calls inside makes others wait. Its own callers may wait long, but those of
	// others may not.
	if now.Sub(g.shared) < standing && 2*own > g.inside {
		allowed = min(allowed, crowded)
	}
	switch {
	case wait <= allowed || fair <= allowed:
		return Begun
	case patience < hurry:
		return Deadline
	default:
		return Overload
	}
}

// allowedLocked is how long a call may be inside.
func (g *Gate) allowedLocked(now ratelimit.Instant, wait, patience time.Duration) time.Duration {
	// Hasty callers are refused for their own sake: that they would wait too long shows no pressure.
	if wait > patience/standingShare && patience >= hurry {
		if now.Sub(g.pressed) > gap {
			g.began = now
		}
		g.pressed = now
	}
	if now.Sub(g.pressed) > gap || now.Sub(g.began) < standing {
		return patience / burstShare
	}
	return patience / standingShare
}

// Leave says that calls of a connection were decided, began to wait, or were reset. own are left inside of it.
func (g *Gate) Leave(now ratelimit.Instant, own, calls int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if own == 0 {
		g.callers--
	}
	g.inside -= calls
	if !g.busy {
		return
	}
	g.left += calls
	// The measurement ends when fewer wait, or when it has lasted for a window.
	over := g.inside < fewest
	if !over && (now.Sub(g.since) < window || g.left < fewest) {
		return
	}
	g.measureLocked(now)
	g.busy = !over
	g.since = now
	g.left = 0
}

// measureLocked takes the time that calls took to leave, one after the other, while
// others waited all the time.
func (g *Gate) measureLocked(now ratelimit.Instant) {
	took := now.Sub(g.since)
	if g.left < fewest || took <= 0 {
		return
	}
	one := min(float64(took)/float64(g.left), float64(slowest))
	if g.each == 0 {
		g.each = min(one, float64(likely))
	} else {
		g.each += (min(one, 2*g.each) - g.each) / inertia
	}
	g.measured = now
}

// Begin says that a call waits for its decision. End must follow.
func (g *Gate) Begin() { g.inFlight.Add(1) }

// End says that a call that waited was decided.
func (g *Gate) End() { g.inFlight.Add(-1) }

// Late counts a call that arrived in time and whose caller had given up when it
// was its turn: it is not begun.
func (g *Gate) Late() { g.shed[Deadline].Add(1) }

// Gone counts a call whose caller gave up during the decision, and whose charge was given back.
func (g *Gate) Gone() { g.gone.Add(1) }

// Stats count the work of a gate since its start.
type Stats struct {
	// calls, by reason
	Shed [len(Reasons)]uint64 `metric:"sluice_shed_total,reason"`
	// calls whose caller gave up while they were decided
	GivenUp uint64 `metric:"sluice_calls_given_up_total"`
	// calls that wait for their decision, as for a store
	InFlight int `metric:"sluice_calls_in_flight"`
	// calls that wait for their turn
	Waiting int `metric:"sluice_calls_waiting"`
}

// Stats returns the counts so far.
func (g *Gate) Stats() Stats {
	s := Stats{GivenUp: g.gone.Load(), InFlight: int(g.inFlight.Load())}
	for i := range s.Shed {
		s.Shed[i] = g.shed[i].Load()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Waiting = g.inside
	return s
}
