package config

import "time"

// Pace spreads loads of rules, so that whoever changes rules without a pause
// costs a node a bounded share of one core. The zero Pace lets the first load
// begin at once. It is not safe for concurrent use.
//
// Guarantee: from the end of a load to the beginning of the next, at least
// Interval passes, and at least nine times what the load took (a tenth of one
// core), but never more than the longer of Interval and maxPause.
type Pace struct {
	Interval time.Duration
	next     time.Time
}

// maxPause is how long a change waits at most because of loads before it.
const maxPause = 30 * time.Second

// Wait is how long the next load still has to wait; 0: it may begin.
func (p *Pace) Wait(now time.Time) time.Duration { return max(0, p.next.Sub(now)) }

// Done says when a load began and ended.
func (p *Pace) Done(begun, ended time.Time) {
	p.next = ended.Add(max(p.Interval, min(maxPause, 9*ended.Sub(begun))))
}

// burst is a row of events that one load answers.
type burst struct{ first time.Time }

// event returns how long to wait for others. It waits anew at each event, for a
// set of files takes a moment to write, but not for longer than settleMost:
// events without an end would put off a load for ever.
func (b *burst) event(now time.Time) (wait time.Duration, another bool) {
	another = !b.first.IsZero()
	if !another {
		b.first = now
	}
	return max(0, min(settleTime, b.first.Add(settleMost).Sub(now))), another
}

const (
	settleTime = 50 * time.Millisecond // events of one change come in a burst
	settleMost = time.Second
)
