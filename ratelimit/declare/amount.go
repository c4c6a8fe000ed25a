package declare

import (
	"fmt"
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Amount is a number of tokens that may depend on demand: Tokens, plus the demand of the time Demand. The
// zero Amount is no tokens.
type Amount struct {
	Tokens ratelimit.Tokens `json:"tokens"`
	Demand time.Duration    `json:"demand_ns,omitempty"`
}

// AllDemand is longer than any rule is in force: an Amount with it is bounded by the demand alone.
const AllDemand = time.Duration(math.MaxInt64)

// Bounded reports whether the amount is less than all demand.
func (a Amount) Bounded() bool { return a.Demand != AllDemand }

// At is the amount under a demand of so many tokens a second, rounded up, and at most [MaxLimit], the most
// that a key has.
func (a Amount) At(perSecond float64) ratelimit.Tokens {
	n := float64(a.Tokens)
	if perSecond > 0 {
		n += math.Ceil(perSecond * a.Demand.Seconds())
	}
	return ratelimit.Tokens(min(n, float64(ratelimit.MaxLimit)))
}

// Times is the amount n times over: that of n nodes, each with the demand that At gets.
func (a Amount) Times(n int) Amount {
	if !a.Bounded() {
		return a
	}
	return Amount{Tokens: a.Tokens * ratelimit.Tokens(n), Demand: a.Demand * time.Duration(n)}
}

// String is for people: "30", "100 tokens and 2s of that node's traffic", "all demand".
func (a Amount) String() string {
	switch {
	case !a.Bounded():
		return "all demand"
	case a.Demand == 0:
		return fmt.Sprint(int64(a.Tokens))
	case a.Tokens == 0:
		return fmt.Sprintf("%v of that node's traffic", a.Demand)
	}
	return fmt.Sprintf("%d tokens and %v of that node's traffic", a.Tokens, a.Demand)
}
