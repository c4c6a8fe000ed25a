package config

import "time"

// Pace spreads loads of rules, so that constant changes of rules cost a node a bounded part of one
// core. The zero Pace starts the first load at once. It is not safe for concurrent use.
//
// Guarantee: at least Interval passes between two loads, and at least nine times the duration of
// the load (a tenth of one core). The pause is never longer than the maximum of Interval and
// maxPause.
type Pace struct {
	Interval time.Duration
	next     time.Time
}

// maxPause bounds the wait of a change for earlier loads.
const maxPause = 30 * time.Second

// Wait is the time until the next load may start; 0: now.
func (p *Pace) Wait(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }

// Done notes the start and end of a load. A load that takes long, as of the largest files, makes the next one wait for
// longer.
func (p *Pace) Done(begun, ended time.Time) {
	p.next = ended.Add(max(p.Interval, min(maxPause, 9*ended.Sub(begun))))
}

// eventBurst is a series of events that one load answers. first is zero while there is none.
type eventBurst struct{ first time.Time }

// event returns the time to wait for more events. Each event restarts the wait, because a set of
// files takes a moment to write, up to settleMost: otherwise endless events put off a load for
// ever.
func (b *eventBurst) event(now time.Time) (wait time.Duration, another bool) {
	another = !b.first.IsZero()
	if !another {
		b.first = now
	}
	return max(0, min(settleTime, b.first.Add(settleMost).Sub(now))), another
}

const (
	// settleTime is how long a load waits for the next event of a burst. A set of files, as a checkout or a ConfigMap
	// writes it, brings an event each.
	settleTime = 50 * time.Millisecond
	settleMost = time.Second // since the first event
)
