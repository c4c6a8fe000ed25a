package declare

import (
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
)

// HoldBounds are the further bounds of a rule with a hold, for each key and window.
type HoldBounds struct {
	Hold string `json:"hold"` // as rule files write it
	// Least is the least that a request holds, if its cost is at least that.
	Least ratelimit.Tokens `json:"least_held_tokens"`
	// Most is the most that a request holds; 0: its hits_addend, whatever that is.
	Most ratelimit.Tokens `json:"most_held_tokens,omitempty"`
	// Over is the possible cost of requests in flight beyond their holds and the limit.
	Over     string `json:"over_admission"`
	Stranded string `json:"stranded"` // by a settlement that is lost
	Blind    string `json:"without_an_id,omitempty"`
}

// HeldOver is what requests in flight may be over by, where none costs more than cost, and each holds at least its
// Least.
func (b *HoldBounds) HeldOver(cost, inFlight ratelimit.Tokens) ratelimit.Tokens {
	each := max(0, cost-b.Least)
	if inFlight > 0 && each > ratelimit.MaxTokens/inFlight {
		return ratelimit.MaxTokens
	}
	return each * inFlight
}

// HoldOf states the promise of a rule's hold; false: it has none.
func HoldOf(r *ratelimit.Rule) (b HoldBounds, ok bool) {
	h := r.Hold
	if h == nil {
		return b, false
	}
	if r.Limit.Algorithm == ratelimit.Concurrency {
		return HoldBounds{
			Hold: "a slot", Least: 1, Most: 1,
			Over: fmt.Sprintf("0; in an outage and after a loss of data, up to %d earlier requests in flight on top",
				r.Limit.Requests),
			Stranded: "a request without a call at its end keeps its slot for " + ratelimit.DurationText(h.TTL),
		}, true
	}
	b = HoldBounds{Hold: h.String(), Least: 1, Most: h.Max}
	b.Over = "the sum of the costs of requests in flight above their holds"
	switch h.From {
	case ratelimit.HoldAmount:
		b.Least, b.Most = h.Amount, h.Amount
		b.Over += fmt.Sprintf("; 0 where no request costs more than %d", h.Amount)
	case ratelimit.HoldRequest:
		// A request can state less than it costs.
		b.Least = 0
		b.Over += "; 0 where no request costs more than its hits_addend"
		if h.Max > 0 {
			b.Over += fmt.Sprintf(", which is at most %d", h.Max)
		}
	case ratelimit.HoldLearned:
		b.Over += fmt.Sprintf("; %.4g%% of the last costs were above the hold, or more where costs are above %d",
			100*(1-h.Quantile), h.Max)
	}
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		b.Over += "; and the tokens held at the beginning of the time, because the rest of a hold returns at its end"
	}
	until := "until the window ends"
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		until = "until it has refilled"
	}
	b.Stranded = fmt.Sprintf("a request without a call at its end stays charged its hold, %s", until)
	if h.Identified() {
		return b, true
	}
	b.Blind = fmt.Sprintf("a cost of %v counts as another request, and holds %d more; a request in flight at the "+
		"end of a window is settled in the next one, which it may credit with up to %d; a cost that arrives twice "+
		"counts twice", h.OnText(" or "), h.Amount, h.Amount)
	return b, true
}
