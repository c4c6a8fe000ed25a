package ratelimit

import (
	"fmt"
	"math"
	"time"
)

// Amount is a number of tokens that may hang on demand: Tokens, and besides what is
// asked for in the time Demand. The zero Amount is nothing.
type Amount struct {
	Tokens Tokens        `json:"tokens"`
	Demand time.Duration `json:"demand_ns,omitempty"`
}

// AllDemand is longer than any rule is in force: an Amount with it has no bound but
// what is asked for.
const AllDemand = time.Duration(math.MaxInt64)

// Bounded tells whether the amount is less than all that is asked for.
func (a Amount) Bounded() bool { return a.Demand != AllDemand }

// At is the amount where so many tokens are asked for in a second, rounded up, and
// [MaxLimit] at most: no key has more than that.
func (a Amount) At(perSecond float64) Tokens {
	n := float64(a.Tokens)
	if perSecond > 0 {
		n += math.Ceil(perSecond * a.Demand.Seconds())
	}
	return Tokens(min(n, float64(MaxLimit)))
}

// Times is the amount n times over: that of n nodes, each of which has the demand that
// At is told of.
func (a Amount) Times(n int) Amount {
	if !a.Bounded() {
		return a
	}
	return Amount{Tokens: a.Tokens * Tokens(n), Demand: a.Demand * time.Duration(n)}
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
