package config

import (
	"slices"
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

// holdFields are those of a hold block. Which of them fit together, Hold.Validate says, once the limit is known.
func (d *decoder) holdFields(t *Hold) fields {
	return fields{
		"amount":     into(&t.Amount, d.tokens),
		"from":       d.fromRequest,
		"learned":    into(&t.Quantile, d.part),
		"max":        func(f *yamlField) { t.Max = d.whole(f, 1, ratelimit.MaxLimit) },
		"ttl":        into(&t.TTL, d.duration),
		"on_unknown": into(&t.OnUnknown, d.onUnknown),
		"on":         into(&t.On, d.holdOn),
	}
}

// holdSources are the fields that say how much a hold reserves, by HoldFrom. Each hold has exactly one of them.
var holdSources = [...]string{
	ratelimit.HoldAmount: "amount", ratelimit.HoldRequest: "from", ratelimit.HoldLearned: "learned",
}

// hold is a block of its own, because its fields need each other.
func (d *decoder) hold(f *yamlField) *Hold {
	h := &Hold{Place: f.place, Hold: ratelimit.Hold{TTL: ratelimit.DefaultHoldTTL}}
	if block(d, h, f, d.holdFields(h)) == nil {
		return nil
	}
	given := 0
	for from, name := range holdSources {
		if f.value.get(name) != nil {
			given++
			h.From = ratelimit.HoldFrom(from)
		}
	}
	if given != 1 {
		d.problems.add(f.place, "config error, hold has %d of the fields amount, from and learned, must have "+
			"one: it says how much a request holds", given)
	}
	return h
}

// fromRequest accepts the only value of from. That the field is there selects HoldRequest.
func (d *decoder) fromRequest(f *yamlField) {
	if f.value.text != "request" {
		d.wrong(f, "request")
	}
}

// part is a number between 0 and 1; its bounds are those of ratelimit.Hold.
func (d *decoder) part(f *yamlField) float64 {
	n, err := strconv.ParseFloat(f.value.text, 64)
	if err != nil || f.value.kind != number && f.value.kind != integer {
		d.wrong(f, "a number above 0 and below 1")
		// Validate must not report its bounds, too.
		return 0.5
	}
	return n
}

func (d *decoder) onUnknown(f *yamlField) ratelimit.OnUnknown {
	return ratelimit.OnUnknown(max(0, d.oneOf(f, ratelimit.OnUnknowns[:])))
}

// holdOn has the hits of calls that hold, sorted, each once. A null among them is an error here, because tokens would
// take it for 0.
func (d *decoder) holdOn(f *yamlField) []ratelimit.Tokens {
	if f.value.kind != sequence || len(f.value.items) == 0 {
		d.wrongly(f, "a list of numbers, such as [0, 1]", "")
		return nil
	}
	on := make([]ratelimit.Tokens, len(f.value.items))
	for i := range f.value.items {
		if f.value.items[i].kind == null {
			d.wrong(f, "a list of numbers, such as [0, 1]")
		}
		on[i] = d.tokens(&yamlField{f.key, f.place, f.value.items[i]})
	}
	// Fingerprints compare the list as a text.
	slices.Sort(on)
	return slices.Compact(on)
}
