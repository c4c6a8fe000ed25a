package config

import (
	"slices"
	"strconv"

	"github.com/sluice-gate/sluice/ratelimit"
)

var holdFields = decoders[Hold]{
	"amount":     func(d *decoder, t *Hold, f *yamlField) { t.from(ratelimit.HoldAmount); t.Amount = d.tokens(f) },
	"from":       func(d *decoder, t *Hold, f *yamlField) { t.from(ratelimit.HoldRequest); d.fromRequest(f) },
	"learned":    func(d *decoder, t *Hold, f *yamlField) { t.from(ratelimit.HoldLearned); t.Quantile = d.part(f) },
	"max":        func(d *decoder, t *Hold, f *yamlField) { t.Max = d.whole(f, 1, ratelimit.MaxLimit) },
	"ttl":        func(d *decoder, t *Hold, f *yamlField) { t.TTL = d.duration(f) },
	"on_unknown": func(d *decoder, t *Hold, f *yamlField) { t.OnUnknown = d.onUnknown(f) },
	"on":         func(d *decoder, t *Hold, f *yamlField) { t.On = d.holdOn(f) },
}

// hold is a block of its own, because its fields need each other.
func (d *decoder) hold(f *yamlField) *Hold {
	h := block(d, &Hold{Place: f.place, Hold: ratelimit.Hold{TTL: ratelimit.DefaultHoldTTL}}, f, holdFields)
	if h != nil && h.given != 1 {
		d.problems.add(f.place, "config error, hold has %d of amount, from and learned, must have one: how much a "+
			"request holds", h.given)
	}
	return h
}

// from records the source of the estimate: a hold has exactly one.
func (h *Hold) from(from ratelimit.HoldFrom) {
	h.given++
	h.From = from
}

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
		return 0.5
	}
	return n
}

func (d *decoder) onUnknown(f *yamlField) ratelimit.OnUnknown {
	return ratelimit.OnUnknown(max(0, d.oneOf(f, ratelimit.OnUnknowns[:])))
}

// holdOn has the hits of calls that hold.
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
	slices.Sort(on)
	return slices.Compact(on)
}
