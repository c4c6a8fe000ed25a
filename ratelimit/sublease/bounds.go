package sublease

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// LeastShare is the least mean number of tokens of a window for each holder of a divided budget. Below it,
// most tokens are at holders that do not need them.
const LeastShare ratelimit.Tokens = 10

// Bounds are the promises of a rule for each key and window, where its budget is divided among holders that
// enforce it themselves. The promises of its nodes come on top (ratelimit.Rule.Declare).
type Bounds struct {
	// SilentEach is the over-admission of one holder that freezes, or is cut off, with a lease or an answer
	// in hand when a window ends, and continues in the next.
	SilentEach ratelimit.Tokens
	// Stranded is what one broken stream may leave unused until the window ends.
	Stranded ratelimit.Tokens
	// Turn is for how long a holder may be without a lease when a window ends that had tokens left.
	Turn time.Duration
	// Held is the total that RLS callers of the same key may take beyond a token_bucket's burst. They use the
	// whole burst, and leases only a part of it (Asked).
	Held ratelimit.Tokens
	// NewKey is the longest time in which the node divides a new key, without the way to it: three decisions,
	// each of which may wait for the store.
	NewKey time.Duration
}

// Declare states the bounds of a rule for so many holders, or why its budget is not to be divided among them.
func Declare(r *ratelimit.Rule, holders int) (Bounds, error) {
	if err := Servable(r); err != nil {
		return Bounds{}, err
	}
	if r.Unlimited || r.Limit.Requests == 0 || r.Shadow {
		return Bounds{}, nil
	}
	limit := Asked(r.Limit).Capacity()
	if n := limit / ratelimit.Tokens(max(1, holders)); n < LeastShare {
		return Bounds{},
			fmt.Errorf("a limit of %d leaves %d for each of %d Envoys, must be at least %d: use RLS, "+
				"or have fewer Envoys share it", limit, n, holders, LeastShare)
	}
	return DeclareEach(r), nil
}

// DeclareEach states the bounds of a rule with a limit, however many holders share it.
func DeclareEach(r *ratelimit.Rule) Bounds {
	asked := Rule(r)
	most := asked.LargestLease()
	return Bounds{
		SilentEach: most, Stranded: most, Turn: unit + Slack, NewKey: 3 * r.Coordination.Deadline(),
		Held: r.Limit.Capacity() - asked.Limit.Capacity(),
	}
}
