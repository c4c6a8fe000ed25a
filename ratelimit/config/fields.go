package config

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// fields are the fields of one kind of map, with their decoders.
type fields[T any] map[string]func(*decoder, *T, *field)

// inherited fields can stand at the root and in any descriptor.
func inherited[T any](of func(*T) *Inherited, more fields[T]) fields[T] {
	more["algorithm"] = func(d *decoder, t *T, f *field) { d.algorithm(of(t), f) }
	more["burst"] = func(d *decoder, t *T, f *field) { of(t).Burst = new(d.whole(f, 1, ratelimit.MaxLimit)) }
	more["max_override"] = func(d *decoder, t *T, f *field) {
		of(t).MaxOverride = new(d.whole(f, 0, ratelimit.MaxLimit)) // nothing would mean no overrides
	}
	more["hold"] = func(d *decoder, t *T, f *field) { of(t).Hold = d.hold(f) }
	more["coordination"] = func(d *decoder, t *T, f *field) { d.coordination(of(t), f) }
	return more
}

var (
	fileFields       fields[File]
	descriptorFields fields[Descriptor]
	limitFields      fields[RateLimit]
	replacesFields   fields[Replacement]
	billingFields    fields[Billing]
	holdFields       fields[Hold]
	inheritedFields  fields[Inherited]
)

const mostUnits, mostAtOnce = ratelimit.Tokens(ratelimit.MaxPeriod / time.Second), ratelimit.MaxConcurrency

func init() { // descriptors hold descriptors
	fileFields = inherited(func(f *File) *Inherited { return &f.Defaults }, fields[File]{
		"domain":      func(d *decoder, t *File, f *field) { t.Domain = d.text(f) },
		"descriptors": func(d *decoder, t *File, f *field) { t.Descriptors = d.descriptors(f) },
	})
	descriptorFields = inherited(func(x *Descriptor) *Inherited { return &x.Inherited }, fields[Descriptor]{
		"key":             func(d *decoder, t *Descriptor, f *field) { t.Key = d.text(f) },
		"value":           func(d *decoder, t *Descriptor, f *field) { t.Value = d.value(f) },
		"rate_limit":      func(d *decoder, t *Descriptor, f *field) { t.Limit = d.limit(f) },
		"descriptors":     func(d *decoder, t *Descriptor, f *field) { t.Descriptors = d.descriptors(f) },
		"shadow_mode":     func(d *decoder, t *Descriptor, f *field) { t.Shadow = d.flag(f) },
		"quota_mode":      func(d *decoder, t *Descriptor, f *field) { t.Quota = d.flag(f) },
		"detailed_metric": func(d *decoder, t *Descriptor, f *field) { t.Detailed = d.flag(f) },
		"value_to_metric": func(d *decoder, t *Descriptor, f *field) { t.ValueToMetric = d.flag(f) },
		"share_threshold": func(d *decoder, t *Descriptor, f *field) { t.ShareThreshold = d.flag(f) },
		"metadata":        func(d *decoder, t *Descriptor, f *field) { t.Metadata = d.metadata(f) },
	})
	limitFields = fields[RateLimit]{
		"requests_per_unit": func(d *decoder, t *RateLimit, f *field) { t.Requests = d.tokens(f) },
		"unit":              func(d *decoder, t *RateLimit, f *field) { t.Unit = d.text(f) },
		"unit_multiplier":   func(d *decoder, t *RateLimit, f *field) { t.Multiplier = d.whole(f, 1, mostUnits) },
		"concurrency":       func(d *decoder, t *RateLimit, f *field) { t.Concurrency = d.whole(f, 1, mostAtOnce) },
		"hold_ttl":          func(d *decoder, t *RateLimit, f *field) { t.HoldTTL = d.duration(f) },
		"billing":           func(d *decoder, t *RateLimit, f *field) { t.Billing = d.billing(f) },
		"unlimited":         func(d *decoder, t *RateLimit, f *field) { t.Unlimited = d.flag(f) },
		"name":              func(d *decoder, t *RateLimit, f *field) { t.Name = d.text(f) },
		"replaces":          func(d *decoder, t *RateLimit, f *field) { d.replaces(t, f) },
	}
	inheritedFields = inherited(func(in *Inherited) *Inherited { return in }, fields[Inherited]{})
	billingFields = fields[Billing]{
		"day":       func(d *decoder, t *Billing, f *field) { t.Day = d.whole(f, 1, 31) },
		"time_zone": func(d *decoder, t *Billing, f *field) { t.Zone = d.zone(f) },
	}
	holdFields = fields[Hold]{
		"amount":     func(d *decoder, t *Hold, f *field) { t.from(ratelimit.HoldAmount); t.Amount = d.tokens(f) },
		"from":       func(d *decoder, t *Hold, f *field) { t.from(ratelimit.HoldRequest); d.fromRequest(f) },
		"learned":    func(d *decoder, t *Hold, f *field) { t.from(ratelimit.HoldLearned); t.Quantile = d.part(f) },
		"max":        func(d *decoder, t *Hold, f *field) { t.Max = d.whole(f, 1, ratelimit.MaxLimit) },
		"ttl":        func(d *decoder, t *Hold, f *field) { t.TTL = d.duration(f) },
		"on_unknown": func(d *decoder, t *Hold, f *field) { t.OnUnknown = d.onUnknown(f) },
		"on":         func(d *decoder, t *Hold, f *field) { t.On = d.holdOn(f) },
	}
	replacesFields = fields[Replacement]{
		"name": func(d *decoder, t *Replacement, f *field) { t.Name = d.text(f) },
	}
}

// elsewhere names the right place of a key in the wrong map. envoyproxy/ratelimit ignores the key
// there; Sluice ignores it with a warning.
var elsewhere = map[string]string{
	"domain": "at the root of the file", "descriptors": "at the root or in a descriptor",
	"key": "in a descriptor", "value": "in a descriptor", "rate_limit": "in a descriptor",
	"shadow_mode": "in a descriptor, next to rate_limit", "quota_mode": "in a descriptor, next to rate_limit",
	"detailed_metric": "in a descriptor, next to rate_limit", "value_to_metric": "in a descriptor, next to rate_limit",
	"share_threshold": "in a descriptor, next to rate_limit", "metadata": "in a descriptor, next to rate_limit",
	"requests_per_unit": "in rate_limit", "unit": "in rate_limit", "unit_multiplier": "in rate_limit",
	"unlimited": "in rate_limit", "concurrency": "in rate_limit", "hold_ttl": "in rate_limit",
	"name": "in rate_limit", "replaces": "in rate_limit",
}

func (known fields[T]) names() []string { return slices.Sorted(maps.Keys(known)) }
