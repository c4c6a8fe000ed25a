package xds

import (
	"slices"
	"testing"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Whatever a resource holds, it is refused or means the rules that its message
// says, read here without going through text.
func FuzzResource(f *testing.F) {
	inner := limit("api_key", 100)
	inner.ShadowMode, inner.DetailedMetric, inner.RateLimit.Name = true, true, "gold"
	inner.RateLimit.Replaces = []*rlsconf.RateLimitReplace{{Name: "other"}}
	inner.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType), 1))
	for _, c := range []*rlsconf.RateLimitConfig{
		domain("d", limit("k", 5), &rlsconf.RateLimitDescriptor{Key: "tier", Value: "go*ld", Descriptors: []*rlsconf.RateLimitDescriptor{inner}}),
		domain("d: [\u0085\x7f\"", &rlsconf.RateLimitDescriptor{Key: "yes", Value: "0x10", RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true}}),
	} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(nest(3, nest(metadataField, nest(1, append(nest(1, []byte("k\u2028")), nest(2, nest(3, []byte("\x00\x7f\ufeff")))...)))))
	bounds := config.DefaultBounds()
	o := config.Options{Coordination: ratelimit.DefaultCoordination()}
	run := func(t *testing.T, b []byte) {
		left := bounds.Tokens
		text, err := convert(&anypb.Any{TypeUrl: TypeURL, Value: b}, nil, bounds, &left)
		var c rlsconf.RateLimitConfig
		parseErr := proto.Unmarshal(b, &c)
		if parseErr != nil {
			if err == nil {
				t.Fatalf("read what protobuf refuses: %v", parseErr)
			}
			return
		}
		if err != nil {
			if len(err.Error()) > 600 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(text.Data) > 200*len(b)+100 {
			t.Fatalf("%d bytes became %d", len(b), len(text.Data))
		}
		got, _, problems := config.Parse([]config.Text{text}, o)
		want, wrong := config.Compile([]config.File{{Domain: c.Domain, Descriptors: direct(c.Descriptors)}}, o)
		switch {
		case (len(problems) == 0) != (len(wrong) == 0):
			t.Fatalf("as text: %v\ndirectly: %v\n%s", problems, wrong, text.Data)
		case len(problems) > 0:
			return
		}
		a, b2 := got.All(), want.All()
		if len(a) != len(b2) {
			t.Fatalf("%d rules, want %d:\n%s", len(a), len(b2), text.Data)
		}
		for i := range a {
			x, y := a[i], b2[i]
			if x.Domain != y.Domain || x.Path != y.Path || x.Limit != y.Limit || x.Unlimited != y.Unlimited || x.Name != y.Name ||
				x.Shadow != y.Shadow || x.MetricNames.Detailed != y.MetricNames.Detailed || !slices.Equal(x.Replaces, y.Replaces) {
				t.Fatalf("%+v, want %+v:\n%s", x, y, text.Data)
			}
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2<<10 {
			return
		}
		eachNeighbour(b, func(b []byte) { run(t, b) })
	})
}

// eachNeighbour calls f with in, and with in as it is with one bit changed at
// each of some places. The fuzzer itself needs longer for an input than a resource
// does, for it looks through the counters of all packages linked in: this has
// each of its inputs stand for several.
func eachNeighbour(in []byte, f func([]byte)) {
	f(in)
	b := make([]byte, len(in))
	for i := range min(neighbours, len(in)) {
		copy(b, in)
		b[i*len(in)/neighbours%len(in)] ^= 1 << (i % 8)
		f(b)
	}
}

const neighbours = 8

// direct is what descriptors say, but for the fields that the types do not know.
func direct(all []*rlsconf.RateLimitDescriptor) []config.Descriptor {
	var out []config.Descriptor
	for _, d := range all {
		x := config.Descriptor{Key: d.Key, Value: d.Value, Shadow: d.ShadowMode, Detailed: d.DetailedMetric, Descriptors: direct(d.Descriptors)}
		if p := d.RateLimit; p != nil {
			x.Limit = &config.RateLimit{Unlimited: p.Unlimited, Name: p.Name}
			if !p.Unlimited {
				x.Limit.Unit, x.Limit.Requests = unitOf(p.Unit), p.RequestsPerUnit
			}
			for _, r := range p.Replaces {
				x.Limit.Replaces = append(x.Limit.Replaces, config.Replacement{Name: r.GetName()})
			}
		}
		out = append(out, x)
	}
	return out
}
