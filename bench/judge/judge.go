// Package judge counts what was admitted of a key against its limit's own
// definition, which knows nothing of leases, nodes or ledgers.
//
// Guarantee: Worst is what a client that counts every admission, and has the
// ledger's clock, would find.
package judge

import (
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Judge watches one key. It is not safe for concurrent use.
type Judge struct {
	limit  ratelimit.Limit
	window int64
	spent  ratelimit.Tokens // in this window
	before ratelimit.Tokens // in the one before
	level  float64          // of a bucket
	at     ratelimit.LedgerTime
	worst  ratelimit.Tokens
	total  ratelimit.Tokens // over, of windows that have ended
	least  ratelimit.Tokens // admitted in a whole window
	whole  int              // windows that have ended, but for the first
}

// New makes a judge of one limit.
func New(l ratelimit.Limit) *Judge { return &Judge{limit: l, level: float64(l.Burst)} }

// Admit takes in that n tokens were admitted at an instant of the ledger's
// clock, which must not go back.
func (j *Judge) Admit(at ratelimit.LedgerTime, n ratelimit.Tokens) {
	if j.limit.Algorithm == ratelimit.TokenBucket {
		j.admitBucket(at, n)
		return
	}
	j.roll(at)
	j.spent += n
	used := j.spent
	if j.limit.Algorithm == ratelimit.SlidingWindow { // the window before counts by the part still covered, rounded down
		period := j.limit.Period()
		left := period - time.Duration(at)*time.Microsecond%period
		used += ratelimit.Tokens(float64(j.before) * float64(left) / float64(period))
	}
	if n > 0 {
		j.worst = max(j.worst, used-j.limit.Requests)
	}
}

func (j *Judge) roll(at ratelimit.LedgerTime) {
	now := int64(at) / int64(j.limit.Period()/time.Microsecond)
	if now == j.window {
		return
	}
	if j.window > 0 {
		j.total += max(0, j.spent-j.limit.Requests)
		if j.whole++; j.whole == 2 || j.whole > 2 && j.spent < j.least {
			j.least = j.spent
		}
	}
	j.before = 0
	if now == j.window+1 {
		j.before = j.spent
	}
	j.window, j.spent = now, 0
}

func (j *Judge) admitBucket(at ratelimit.LedgerTime, n ratelimit.Tokens) {
	if j.at > 0 {
		rate := float64(j.limit.Requests) / float64(j.limit.Period()/time.Microsecond)
		j.level = min(float64(j.limit.Burst), j.level+float64(at-j.at)*rate)
	}
	j.at = at
	j.level -= float64(n)
	if over := -j.level; over > 0.001 {
		j.worst = max(j.worst, ratelimit.Tokens(over+0.999))
	}
}

// Worst is the most that was admitted beyond the limit at any instant.
func (j *Judge) Worst() ratelimit.Tokens { return j.worst }

// Over is what was admitted beyond the limit in fixed windows until at, all
// windows together.
func (j *Judge) Over(at ratelimit.LedgerTime) ratelimit.Tokens {
	j.roll(at)
	return j.total
}

// Least is the least that was admitted in a window until at, not counting the
// first and the one that goes on; ok says that there was one.
func (j *Judge) Least(at ratelimit.LedgerTime) (n ratelimit.Tokens, ok bool) {
	j.roll(at)
	return j.least, j.whole >= 2
}
