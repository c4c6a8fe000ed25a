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
// A call arrives, begins, ends and leaves. Between Begin and End it is being decided, and may wait for a
// store, which takes no processor time. A call that waits for its caller to read the answer takes none
// either: calls that are inside for longer than any caller waits do not count.
type Gate struct {
	maxWait  time.Duration
	shed     [len(Reasons)]atomic.Uint64
	gone     atomic.Uint64
	inFlight atomic.Int64 // calls that began and have not ended

	mu       sync.Mutex
	inside   recent            // guarded by mu: calls that arrived and have not left
	deciding recent            // guarded by mu: of these, those that began and have not ended
	seen     ratelimit.Instant // guarded by mu: when a call arrived or left last
	each     float64           // guarded by mu: nanoseconds from one call's leaving to the next's, while others wait; 0: not known
	measured ratelimit.Instant // guarded by mu: when
	callers  int               // guarded by mu: connections with calls inside
	alone    int               // guarded by mu: calls inside that came without a transport: they count as one connection's
	shared   ratelimit.Instant // guarded by mu: last time that a connection with nothing inside and another one both had a call
	began    ratelimit.Instant // guarded by mu: calls have been inside for long since then
	pressed  ratelimit.Instant // guarded by mu: and were so last then
	busy     bool              // guarded by mu: calls have waited since
	since    ratelimit.Instant // guarded by mu
	left     int               // guarded by mu: and so many have left
}

// NewGate makes a gate for callers that wait as long as they say, at most maxWait.
func NewGate(maxWait time.Duration) *Gate {
	period := max(1, maxWait/periods)
	return &Gate{maxWait: maxWait, inside: recent{period: period}, deciding: recent{period: period}}
}

// Arrive decides on a call whose caller waits for patience from now on, and of whose
// connection own calls are inside. If it says yes, Leave must follow.
func (g *Gate) Arrive(now ratelimit.Instant, own int, patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.arriveLocked(now, own, patience)
}

func (g *Gate) arriveLocked(now ratelimit.Instant, own int, patience time.Duration) bool {
	g.seen = now
	waiting := g.waitingLocked(now)
	if why := g.decideLocked(now, waiting, own, patience); why != Begun {
		g.shed[why].Add(1)
		return false
	}
	if own == 0 {
		g.callers++
	}
	g.inside.add(now)
	if !g.busy && waiting+1 >= fewest {
		g.busy, g.since, g.left = true, now, 0
	}
	return true
}

func (g *Gate) decideLocked(now ratelimit.Instant, waiting, own int, patience time.Duration) Reason {
	if patience <= 0 {
		return Deadline
	}
	if now.Sub(g.measured) > stale {
		g.each = min(g.each, float64(likely))
	}
	wait := time.Duration(float64(waiting) * g.each)
	if waiting < fewest {
		return Begun
	}
	callers := g.callers
	if own == 0 {
		if callers++; callers > 1 {
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
	if now.Sub(g.shared) < standing && 2*own > waiting {
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

// waitingLocked is how many calls wait for the processor, or to be written. A call that was
// reset has left, even if it is still being decided: so there may be fewer than none.
func (g *Gate) waitingLocked(now ratelimit.Instant) int {
	return max(0, g.inside.count(now)-g.deciding.count(now))
}

// Leave says that calls of a connection have been answered, or reset, which arrived then.
// own are left inside of it.
func (g *Gate) Leave(now ratelimit.Instant, own int, arrived ...ratelimit.Instant) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.leaveLocked(now, own, arrived...)
}

func (g *Gate) leaveLocked(now ratelimit.Instant, own int, arrived ...ratelimit.Instant) {
	g.seen = now
	if own == 0 && len(arrived) > 0 {
		g.callers--
	}
	for _, at := range arrived {
		g.inside.remove(at)
	}
	if !g.busy {
		return
	}
	g.left += len(arrived)
	over := g.waitingLocked(now) < fewest
	if !over && (now.Sub(g.since) < window || g.left < fewest) {
		return
	}
	g.measureLocked(now)
	g.busy, g.since, g.left = !over, now, 0
}

// measureLocked takes the time that calls took to leave, one after the other, while
// others waited all the time.
func (g *Gate) measureLocked(now ratelimit.Instant) {
	took := now.Sub(g.since)
	if g.left < fewest || took <= 0 {
		return
	}
	one := float64(took) / float64(g.left)
	if g.each == 0 {
		g.each = min(one, float64(likely))
	} else {
		g.each += (min(one, 2*g.each) - g.each) / inertia
	}
	g.measured = now
}

// Begin says that a call is being decided. End must follow.
func (g *Gate) Begin(now ratelimit.Instant) {
	g.inFlight.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deciding.add(now)
}

// End says that a call was decided that began then.
func (g *Gate) End(began ratelimit.Instant) {
	g.inFlight.Add(-1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.deciding.remove(began)
}

// Late counts a call that arrived in time and whose caller had given up when it
// was its turn: it is not begun.
func (g *Gate) Late() { g.shed[Deadline].Add(1) }

// Gone counts a call whose caller gave up during the decision, and whose charge was given back.
func (g *Gate) Gone() { g.gone.Add(1) }

// Stats count the work of a gate since its start.
type Stats struct {
	Shed     [len(Reasons)]uint64 // calls, by reason
	GivenUp  uint64               // calls whose caller gave up while they were decided
	InFlight int                  // calls that are decided now
	Waiting  int                  // calls that waited for their turn, or to be written, when one arrived or left last
}

// Stats returns the counts so far.
func (g *Gate) Stats() Stats {
	s := Stats{GivenUp: g.gone.Load(), InFlight: int(g.inFlight.Load())}
	for i := range s.Shed {
		s.Shed[i] = g.shed[i].Load()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Waiting = g.waitingLocked(g.seen)
	return s
}
