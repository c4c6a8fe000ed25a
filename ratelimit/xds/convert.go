package xds

import (
	"fmt"
	"strings"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Fields of a RateLimitDescriptor that the published types do not know.
const (
	quotaMode     = 7 // bool
	metadataField = 8 // google.protobuf.Struct
)

// maxDepth bounds descriptors in descriptors, as deep as messages may be.
const maxDepth = 100

// convert writes a resource as the rules file that it means, so that it is
// checked and compiled as files are.
func convert(resource *anypb.Any, more *Additions) (config.Text, error) {
	var c rlsconf.RateLimitConfig
	if resource.GetTypeUrl() != TypeURL {
		return config.Text{}, fmt.Errorf("a resource of type %q, and %s was asked for", resource.GetTypeUrl(), TypeURL)
	}
	if err := proto.Unmarshal(resource.GetValue(), &c); err != nil {
		return config.Text{}, fmt.Errorf("a resource that is no RateLimitConfig: %w", err)
	}
	name := "xds:" + c.GetName()
	file := yaml.MapSlice{{Key: "domain", Value: c.GetDomain()}}
	file = append(file, more.of(c.GetDomain(), nil)...)
	descriptors, err := descriptorsOf(c.GetDescriptors(), c.GetDomain(), nil, more)
	if err != nil {
		return config.Text{}, fmt.Errorf("%s: %w", name, err)
	}
	if len(descriptors) > 0 {
		file = append(file, yaml.MapItem{Key: "descriptors", Value: descriptors})
	}
	data, err := yaml.Marshal(file)
	if err != nil {
		return config.Text{}, fmt.Errorf("%s: %w", name, err)
	}
	return config.Text{Name: name, Data: data}, nil
}

func descriptorsOf(from []*rlsconf.RateLimitDescriptor, domain string, path []string, more *Additions) ([]yaml.MapSlice, error) {
	if len(path) > maxDepth {
		return nil, fmt.Errorf("descriptors are more than %d deep", maxDepth)
	}
	var all []yaml.MapSlice
	for _, d := range from {
		own := append(append([]string(nil), path...), strings.TrimSuffix(d.GetKey()+"_"+d.GetValue(), "_"))
		m := yaml.MapSlice{{Key: "key", Value: d.GetKey()}}
		add := func(key string, value any) { m = append(m, yaml.MapItem{Key: key, Value: value}) }
		if d.GetValue() != "" {
			add("value", d.GetValue())
		}
		if d.GetRateLimit() != nil {
			add("rate_limit", limitOf(d.GetRateLimit()))
		}
		if d.GetShadowMode() {
			add("shadow_mode", true)
		}
		if d.GetDetailedMetric() {
			add("detailed_metric", true)
		}
		if err := addUnknown(d.ProtoReflect().GetUnknown(), add); err != nil {
			return nil, fmt.Errorf("descriptor %s: %w", strings.Join(own, "."), err)
		}
		m = append(m, more.of(domain, own)...)
		below, err := descriptorsOf(d.GetDescriptors(), domain, own, more)
		if err != nil {
			return nil, err
		}
		if len(below) > 0 {
			add("descriptors", below)
		}
		all = append(all, m)
	}
	return all, nil
}

func limitOf(p *rlsconf.RateLimitPolicy) yaml.MapSlice {
	var m yaml.MapSlice
	if p.GetUnlimited() {
		m = append(m, yaml.MapItem{Key: "unlimited", Value: true})
	} else {
		m = append(m, yaml.MapItem{Key: "unit", Value: unitOf(p.GetUnit())}, yaml.MapItem{Key: "requests_per_unit", Value: p.GetRequestsPerUnit()})
	}
	if p.GetName() != "" {
		m = append(m, yaml.MapItem{Key: "name", Value: p.GetName()})
	}
	var replaces []yaml.MapSlice
	for _, r := range p.GetReplaces() {
		replaces = append(replaces, yaml.MapSlice{{Key: "name", Value: r.GetName()}})
	}
	if len(replaces) > 0 {
		m = append(m, yaml.MapItem{Key: "replaces", Value: replaces})
	}
	return m
}

// unitOf is a unit's name. The published types lack month, year and week, which
// have the numbers of Envoy's answers.
func unitOf(u rlsconf.RateLimitUnit) string {
	if u < 1 || u > rlsconf.RateLimitUnit(ratelimit.Week) {
		return fmt.Sprintf("unit %d", u) // no rule may have it
	}
	return ratelimit.Unit(u).String()
}

// addUnknown reads the fields that the types do not know, and leaves out those
// that we do not know either.
func addUnknown(b []byte, add func(string, any)) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case number == quotaMode && kind == protowire.VarintType:
			v, n := protowire.ConsumeVarint(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			if b = b[n:]; v != 0 {
				add("quota_mode", true)
			}
		case number == metadataField && kind == protowire.BytesType:
			v, n := protowire.ConsumeBytes(b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
			var s structpb.Struct
			if err := proto.Unmarshal(v, &s); err != nil {
				return fmt.Errorf("metadata: %w", err)
			}
			add("metadata", s.AsMap())
		default:
			n := protowire.ConsumeFieldValue(number, kind, b)
			if n < 0 {
				return protowire.ParseError(n)
			}
			b = b[n:]
		}
	}
	return nil
}
