package sublease

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// LeastShare is how many tokens of a window each holder must have at least in the mean, for
// a budget to be worth dividing: below, most of it lies with holders that do not need it.
const LeastShare ratelimit.Tokens = 10

// Bounds are the promises of a rule for each key and window, where its budget is divided among holders that
// enforce it themselves. The promises of its nodes come on top (ratelimit.Rule.Declare).
type Bounds struct {
	// SilentEach is the over-admission of one holder that freezes, or is cut off, with a lease or an answer
	// in hand when a window ends, and continues in the next.
	SilentEach ratelimit.Tokens
	// Stranded is what one broken stream may leave unused until the window ends.
	Stranded ratelimit.Tokens
	// Turn is for how long a holder may be without a lease when a window ends that had
	// tokens left.
	Turn time.Duration
	// Held is what RLS callers of the same key may take beyond a token_bucket's burst, in
	// all: they ask for the whole of it, and leases only for a part (Asked).
	Held ratelimit.Tokens
	// NewKey is the longest time in which the node divides a new key, without the way to it: three decisions,
	// each of which may wait for the store.
	NewKey time.Duration
}

// Declare states the bounds of a rule for so many holders, or why its budget is not to be
// divided among them.
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
			fmt.Errorf("a limit of %d leaves %d for each of %d Envoys, must be at least %d: ask over RLS, "+
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
