package ratelimit

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/internal/quantile"
)

// HoldFrom says how much a request holds.
type HoldFrom uint8

const (
	// HoldAmount holds a constant of the rule.
	HoldAmount HoldFrom = iota
	// HoldRequest holds the request's hits_addend.
	HoldRequest
	// HoldLearned holds a quantile of the last costs.
	HoldLearned
)

// OnUnknown is the charge of a request that ended without a known cost.
type OnUnknown uint8

const (
	// UnknownCharges leaves the hold charged.
	UnknownCharges OnUnknown = iota
	// UnknownReleases gives the hold back.
	UnknownReleases
)

// OnUnknowns are the names a config may use, by value.
var OnUnknowns = [...]string{UnknownCharges: "charge", UnknownReleases: "release"}

// String is the name that a config may use.
func (u OnUnknown) String() string { return OnUnknowns[u] }

// Hold is the reservation of a request in a rule's budget until its cost is known (package holds). It is
// immutable.
type Hold struct {
	From     HoldFrom
	Amount   Tokens  // of HoldAmount
	Quantile float64 // of HoldLearned: above 0 and below 1
	// Max is the largest hold, and for HoldLearned the hold before costs are known; 0: no bound.
	Max Tokens
	// TTL is how long after the request a hold can be settled.
	TTL       time.Duration
	OnUnknown OnUnknown
	// On, if it has any, are the hits of calls that hold. All other calls settle, without an id: they are charged their
	// hits less Amount.
	On []Tokens
}

// Bounds and the default of how long a hold can be settled.
const (
	DefaultHoldTTL = 10 * time.Minute
	MinHoldTTL     = time.Second
	MaxHoldTTL     = 24 * time.Hour
)

// MostHoldOn is how many hits On may have.
const MostHoldOn = 8

// Identified reports whether a hold has an id, which comes back with its cost.
func (h *Hold) Identified() bool { return len(h.On) == 0 }

// Takes reports whether a call with so many hits takes a hold.
func (h *Hold) Takes(hits Tokens) bool { return h.Identified() || slices.Contains(h.On, hits) }

// Validate says what does not fit together, or does not fit the limit. Each error begins with the field's name.
func (h *Hold) Validate(l Limit) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("hold."+format, args...)) }
	most := l.Capacity()
	switch {
	case h.From == HoldAmount && (h.Amount < 1 || most > 0 && h.Amount > most):
		bad("amount is %d, must be between 1 and the limit (%d): a larger one refuses every request", h.Amount, most)
	case h.From == HoldAmount && h.Max > 0:
		bad("max is %d, and has no effect with amount; remove max", h.Max)
	case h.From == HoldLearned && h.Max < 1:
		bad("max is missing: set the largest hold of a request, which is also the hold before costs are known")
	case h.From == HoldLearned && !(h.Quantile > 0 && h.Quantile < 1):
		bad("learned is %v, must be above 0 and below 1, such as 0.9: the quantile of the last costs", h.Quantile)
	}
	if most > 0 && h.Max > most {
		bad("max is %d, must be at most the limit (%d): larger holds are refused", h.Max, most)
	}
	if h.TTL < MinHoldTTL || h.TTL > MaxHoldTTL {
		bad("ttl is %v, must be between %v and %v", h.TTL, MinHoldTTL, DurationText(MaxHoldTTL))
	}
	if h.Identified() {
		return errs
	}
	switch {
	case h.From != HoldAmount:
		bad("on needs amount: a settlement without an id does not state its hold")
	case h.TTL != DefaultHoldTTL:
		bad("ttl is %v, and a hold without an id has none; remove ttl, or on", DurationText(h.TTL))
	case h.OnUnknown != UnknownCharges:
		bad("on_unknown is %v, and without an id no call reports an unknown cost; remove on_unknown, or on",
			h.OnUnknown)
	case len(h.On) > MostHoldOn:
		bad("on has %d numbers, and the maximum is %d", len(h.On), MostHoldOn)
	}
	return errs
}

// HoldField is a field of a hold as a rule file writes it.
type HoldField struct{ Name, Text string }

// Fields are those of a hold that a rule file has to say, in their order. Of nil there are none.
func (h *Hold) Fields() (all []HoldField) {
	if h == nil {
		return nil
	}
	switch h.From {
	case HoldAmount:
		all = append(all, HoldField{"amount", h.Amount.text()})
	case HoldRequest:
		all = append(all, HoldField{"from", "request"})
	case HoldLearned:
		all = append(all, HoldField{"learned", strconv.FormatFloat(h.Quantile, 'g', -1, 64)})
	}
	if h.Max > 0 {
		all = append(all, HoldField{"max", h.Max.text()})
	}
	if !h.Identified() {
		return append(all, HoldField{"on", "[" + h.OnText(", ") + "]"})
	}
	return append(all, HoldField{"ttl", DurationText(h.TTL)}, HoldField{"on_unknown", h.OnUnknown.String()})
}

// OnText is the hits that hold, as a text.
func (h *Hold) OnText(between string) string {
	all := make([]string, len(h.On))
	for i, n := range h.On {
		all[i] = n.text()
	}
	return strings.Join(all, between)
}

// String is how a rule file writes it in a line; "" of nil.
func (h *Hold) String() string {
	if h == nil {
		return ""
	}
	fields := h.Fields()
	texts := make([]string, len(fields))
	for i, f := range fields {
		texts[i] = f.Name + ": " + f.Text
	}
	return "{" + strings.Join(texts, ", ") + "}"
}

// Estimate is the hold of a call with so many hits. Costs are the learned costs, with key that of the request. Until
// some are known, a learned hold is Max: it refuses too many rather than too few.
func (h *Hold) Estimate(hits Tokens, key []byte, costs *quantile.Costs) Tokens {
	switch h.From {
	case HoldRequest:
		if h.Max > 0 {
			return min(hits, h.Max)
		}
		return hits
	case HoldLearned:
		if n, ok := costs.Quantile(key, h.Quantile); ok {
			return min(max(1, Tokens(n)), h.Max)
		}
		return h.Max
	case HoldAmount:
	}
	return h.Amount
}
