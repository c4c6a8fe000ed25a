package account

import (
	"errors"
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
)

var errInvariant = errors.New("an invariant is broken")

// invariants tells which invariant of an account is broken.
func (k *kept) invariants(l *ratelimit.Limit) error {
	if k.bucket != nil {
		return k.bucket.invariants(l)
	}
	a := &k.account
	var sum, spent tokens
	for i := range a.records {
		r := &a.records[i]
		sum, spent = sum+r.taken, spent+r.spent
		if r.inHand() < 0 || r.fence > a.fence {
			return fmt.Errorf("%w: record %+v, fence %d", errInvariant, *r, a.fence)
		}
	}
	if spent != a.spent || sum != a.sum || sum < 0 {
		return fmt.Errorf("%w: sum %d of records' %d, spent %d of %d", errInvariant, a.sum, sum, a.spent, spent)
	}
	return nil
}

func (b *bucket) invariants(l *ratelimit.Limit) error {
	room := b.room(burstOf(l))
	if b.hand < 0 || b.old < 0 || b.level > 0 && b.level > room {
		return fmt.Errorf("%w: bucket %+v", errInvariant, *b)
	}
	return nil
}
