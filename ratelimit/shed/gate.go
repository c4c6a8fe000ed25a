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
	Deadline               // its caller will have given up before an answer
)

// Reasons are the names of the reasons, by value; Begun has none.
var Reasons = [...]string{Overload: "overload", Deadline: "deadline"}

// What the gate reckons with; model_test.go plays it against a model of a node.
const (
	// fewest is how many calls may wait whatever was measured, and how many must
	// begin one after the other to be a measurement.
	fewest = 16
	// burstShare is how much of its caller's patience a call may wait, and
	// standingShare how much while there has been no end of waiting.
	burstShare, standingShare = 2, 4
	// standing is how long calls must have waited, never pausing for gap, until it
	// is taken for more than a burst: the interval of CoDel (RFC 8289).
	standing, gap = 100 * time.Millisecond, 20 * time.Millisecond
	// A refusal costs refusalCost of what an answer does, and refusals may have
	// refusalShare of the processor's time: else answering "no" to ten times the
	// load would leave no time for answers.
	refusalCost, refusalShare = 0.35, 0.15
	// pauseShare is how much of a caller's patience a connection may stay unread.
	pauseShare = 2
	// inertia is how slowly what is measured is believed.
	inertia = 8
	// likely is what the first measurement is believed at most, and a later one at
	// most twice what was measured before: the machine may have stood still.
	likely = 50 * time.Microsecond
	// followed is how many calls arrive from one that is followed to the next.
	followed = 32
	// stale is how long a measurement is good for.
	stale = time.Second
)

// Gate decides which calls are begun. It is safe for concurrent use, and does not
// allocate. It reads no clock: instants are given, and must not go back by more
// than callers on several processors see.
type Gate struct {
	maxWait  time.Duration
	shed     [len(Reasons)]atomic.Uint64
	gone     atomic.Uint64
	inFlight atomic.Int64
	owed     atomic.Int64 // the time that refusals have not been paid for yet

	mu          sync.Mutex
	waiting     int               // guarded by mu: calls that arrived and have not begun
	admitted    uint64            // guarded by mu: calls that arrived and were let in
	mark        uint64            // guarded by mu: admitted, when the call that is followed was; 0: none is
	behind      int               // guarded by mu: what waited when the call followed before this one began
	began       ratelimit.Instant // guarded by mu: when the last call began
	arrived     ratelimit.Instant // guarded by mu: when the last call arrived
	each        float64           // guarded by mu: nanoseconds from one call's beginning to the next's, while calls wait; 0: not known
	measured    ratelimit.Instant // guarded by mu: when
	counted     int               // guarded by mu: calls that began while others waited all the time
	countedFrom ratelimit.Instant // guarded by mu: when the first of them did
	since       ratelimit.Instant // guarded by mu: calls have waited long since then
	pressed     ratelimit.Instant // guarded by mu: and did so last then
	read        ratelimit.Instant // guarded by mu: until then, connections that refused are to stay unread
}

// NewGate makes a gate at which a call waits for maxWait at most, or for as long as
// its caller does, if that is less.
func NewGate(maxWait time.Duration) *Gate { return &Gate{maxWait: maxWait} }

// Arrive decides on a call whose caller waits for patience from now on. If it says
// Begun, Begin must follow.
func (g *Gate) Arrive(now ratelimit.Instant, patience time.Duration) Reason {
	reason, _ := g.arrive(now, patience, false)
	return reason
}

// arrive decides as Arrive does. With follow, the call's mark, if it is not 0, must
// be given to Followed before Begin.
func (g *Gate) arrive(now ratelimit.Instant, patience time.Duration, follow bool) (why Reason, mark uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if patience <= 0 {
		return g.refuseLocked(Deadline), 0
	}
	shorter := patience < g.maxWait/2 // a caller in a hurry, and not the queue, is why
	patience = min(patience, g.maxWait)
	if now.Sub(g.measured) > stale {
		g.each = 0
	}
	wait := time.Duration(float64(g.waiting) * g.each)
	if g.waiting >= fewest && wait > g.allowedLocked(now, wait, patience) {
		if shorter && wait > patience/burstShare {
			return g.refuseLocked(Deadline), 0
		}
		return g.refuseLocked(Overload), 0
	}
	g.forgetLocked(now)
	g.waiting++
	g.admitted++
	if follow && g.admitted >= g.mark+followed {
		g.mark = g.admitted
		return Begun, g.mark
	}
	return Begun, 0
}

// allowedLocked is how long a call may wait.
func (g *Gate) allowedLocked(now ratelimit.Instant, wait, patience time.Duration) time.Duration {
	if wait > g.maxWait/standingShare {
		if now.Sub(g.pressed) > gap {
			g.since = now
		}
		g.pressed = now
	}
	if now.Sub(g.pressed) > gap || now.Sub(g.since) < standing {
		return patience / burstShare
	}
	return patience / standingShare
}

func (g *Gate) refuseLocked(why Reason) Reason {
	g.shed[why].Add(1)
	g.owed.Add(int64(g.each * refusalCost / refusalShare))
	return why
}

// Pause is for how long a connection that is to be read now should stay unread, to
// pay for the calls of it that were refused. Connections pay one after the other, so
// that they are not read all at once and in between not at all.
func (g *Gate) Pause(now ratelimit.Instant) time.Duration {
	owed := time.Duration(g.owed.Swap(0))
	if owed == 0 {
		return 0
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.read = min(max(g.read, now).Add(owed), now.Add(g.maxWait/pauseShare))
	return g.read.Sub(now)
}

// measureLocked takes the time that some calls took to begin, one after the other,
// while others waited all the time.
func (g *Gate) measureLocked(now ratelimit.Instant) {
	if g.waiting == 0 {
		g.counted = 0
		return
	}
	if g.counted == 0 {
		g.countedFrom = now
	}
	if g.counted++; g.counted <= fewest {
		return
	}
	one := float64(now.Sub(g.countedFrom)) / fewest
	if g.each == 0 {
		g.each = min(one, float64(likely))
	} else {
		g.each += (min(one, 2*g.each) - g.each) / inertia
	}
	g.measured = now
	g.counted, g.countedFrom = 1, now
}

// A call may die between its arrival and its beginning: its stream was bad, or its
// deadline passed in that very moment. Such calls must not count as waiting for ever,
// or a client could have others refused. Calls begin in about the order in which they
// arrived, so that when one begins, those that wait are at most those that arrived
// after it: one of them now and then is followed (arrive, Followed). And when none has begun for
// a while, none waits (forgetLocked).

// Followed says that the call with a mark begins.
func (g *Gate) Followed(mark uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	behind := int(g.admitted-mark) + 1
	// The scheduler has the last call of a batch go first: so two of them must agree.
	g.waiting = min(g.waiting, max(behind, g.behind))
	g.behind = behind
}

func (g *Gate) forgetLocked(now ratelimit.Instant) {
	if g.waiting > 0 && now.Sub(g.began) > g.maxWait/standingShare && now.Sub(g.arrived) > g.maxWait/standingShare {
		g.waiting, g.counted = 0, 0
	}
	g.arrived = now
}

// Begin says that a call that arrived has begun. End must follow.
func (g *Gate) Begin(now ratelimit.Instant) {
	g.inFlight.Add(1)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = max(0, g.waiting-1)
	g.began = now
	g.measureLocked(now)
}

// End says that a call has ended.
func (g *Gate) End() { g.inFlight.Add(-1) }

// Late counts a call that arrived in time and whose caller had given up when it
// was its turn: it is not begun.
func (g *Gate) Late() { g.shed[Deadline].Add(1) }

// Gone counts a call whose caller gave up while it was decided: what it was charged
// has been given back.
func (g *Gate) Gone() { g.gone.Add(1) }

// Stats are what a gate did since it was made.
type Stats struct {
	Shed     [len(Reasons)]uint64 // calls, by reason
	GivenUp  uint64               // calls whose caller gave up while they were decided
	InFlight int                  // calls that are decided now
	Waiting  int                  // calls that wait for their turn now
}

// Stats returns the counts so far.
func (g *Gate) Stats() Stats {
	s := Stats{GivenUp: g.gone.Load(), InFlight: int(g.inFlight.Load())}
	for i := range s.Shed {
		s.Shed[i] = g.shed[i].Load()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.Waiting = g.waiting
	return s
}
