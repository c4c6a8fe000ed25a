package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A reset forgives the refusals that no message under way reports, and each of them once.
func TestForgivenOnce(t *testing.T) {
	e := Entry{&Key{}, &Use{}}
	e.Spent = 25
	e.Charged = 20
	e.Forgive(8)
	if e.Spent != 13 || e.Charged != 8 {
		t.Errorf("of 25 spent, 20 of them refused and 8 reported, %d stay spent and %d charged, want 13 and 8", e.Spent, e.Charged)
	}
	e.Forgive(0)
	if e.Spent != 5 || e.Charged != 0 {
		t.Errorf("without a message under way %d stay spent and %d charged, want 5 and 0", e.Spent, e.Charged)
	}
}

// What a bucket granted for requests that left comes back, less what the bucket may have refilled in its place since
// the claim.
func TestGrantedInVain(t *testing.T) {
	l := &ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Multiplier: 1, Requests: 10, Burst: 100}
	const claimed = instant(time.Hour)
	for after, back := range map[time.Duration]tokens{0: 10, 350 * time.Millisecond: 6, 2 * time.Second: 0} {
		e := Entry{&Key{}, &Use{vain: 10}}
		e.bucket = true
		e.Deadline = claimed.Add(lasts(l))
		e.Taken = 12
		e.Spent = 12
		e.ReturnVain(claimed.Add(after), l)
		if got := 12 - e.Spent; got != back {
			t.Errorf("%v after the claim %d of 10 come back, want %d", after, got, back)
		}
	}
}
