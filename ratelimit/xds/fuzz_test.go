package xds

import (
	"reflect"
	"strings"
	"testing"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
)

// Any resource is refused, or has the meaning of its message, which is read here in another way.
func FuzzResource(f *testing.F) {
	inner := limit("api_key", 100)
	inner.ShadowMode, inner.DetailedMetric, inner.RateLimit.Name = true, true, "gold"
	inner.RateLimit.Replaces = []*rlsconf.RateLimitReplace{{Name: "other"}}
	inner.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType),
		1))
	for _, c := range []*rlsconf.RateLimitConfig{
		domain("d", limit("k", 5), &rlsconf.RateLimitDescriptor{
			Key: "tier", Value: "go*ld",
			Descriptors: []*rlsconf.RateLimitDescriptor{inner},
		}),
		domain("d: [\u0085\x7f\"", &rlsconf.RateLimitDescriptor{
			Key: "yes", Value: "0x10",
			RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true},
		}),
	} {
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add(nest(3, nest(metadataField, nest(1, append(nest(1, []byte("k\u2028")),
		nest(2, nest(3, []byte("\x00\x7f\ufeff")))...)))))
	o := options()
	run := func(t *testing.T, b []byte) {
		text, err := convertOne(&anypb.Any{TypeUrl: TypeURL, Value: b}, nil)
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
		if len(problems) == 0 && len(wrong) > 0 || len(problems) > 0 && len(wrong) == 0 &&
			!strings.Contains(problems.Error(), "nested deeper") {
			t.Fatalf("converted: %v\ndirectly: %v\n%s", problems, wrong, text.Data)
		}
		if len(problems) > 0 {
			return
		}
		x, y := got.All(), want.All()
		for i := range min(len(x), len(y)) { // fields that the types lack
			y[i].Quota, y[i].Metadata = x[i].Quota, x[i].Metadata
		}
		equal(t, string(text.Data), x, y)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2<<10 {
			return
		}
		fuzztest.Bytes(b, func(b []byte) { run(t, b) })
	})
}

func equal(t *testing.T, text string, got, want []*ratelimit.Rule) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rules, want %d:\n%s", len(got), len(want), text)
	}
	for i := range got {
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Fatalf("%+v, want %+v:\n%s", got[i], want[i], text)
		}
	}
}

// direct is the meaning of descriptors, without fields that the types lack.
func direct(all []*rlsconf.RateLimitDescriptor) []config.Descriptor {
	var out []config.Descriptor
	for _, d := range all {
		x := config.Descriptor{
			Key: d.Key, Value: d.Value, Shadow: d.ShadowMode, Detailed: d.DetailedMetric,
			Descriptors: direct(d.Descriptors),
		}
		if p := d.RateLimit; p != nil {
			x.Limit = &config.RateLimit{Unlimited: p.Unlimited, Name: p.Name}
			if !p.Unlimited {
				x.Limit.Unit, x.Limit.Requests = unitOf(p.Unit), ratelimit.Tokens(p.RequestsPerUnit)
			}
			for _, r := range p.Replaces {
				x.Limit.Replaces = append(x.Limit.Replaces, config.Replacement{Name: r.GetName()})
			}
		}
		out = append(out, x)
	}
	return out
}
