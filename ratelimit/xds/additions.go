package xds

import (
	"fmt"
	"os"

	"github.com/goccy/go-yaml"
)

// Additions are what messages cannot carry, and a file says instead: algorithm,
// burst and coordination of domains and descriptors. Nil adds nothing.
type Additions struct {
	Rules []Addition `yaml:"rules"`
}

// Addition is for a domain, or for one descriptor in it.
type Addition struct {
	Domain       string         `yaml:"domain"`
	Descriptor   []string       `yaml:"descriptor"` // key or key_value, level by level; none: the domain
	Algorithm    string         `yaml:"algorithm"`
	Burst        *uint32        `yaml:"burst"`
	Coordination map[string]any `yaml:"coordination"`
}

// ReadAdditions reads a file. Its settings are checked when rules use them.
func ReadAdditions(name string) (*Additions, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS: %w", err)
	}
	var a Additions
	if err := yaml.UnmarshalWithOptions(data, &a, yaml.DisallowUnknownField()); err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: %w", name, err)
	}
	for i, r := range a.Rules {
		if r.Domain == "" {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: rule %d has no domain", name, i+1)
		}
	}
	return &a, nil
}

// of is what is added to a descriptor, or with no path to its domain.
func (a *Additions) of(domain string, path []string) yaml.MapSlice {
	var m yaml.MapSlice
	if a == nil {
		return nil
	}
	for _, r := range a.Rules {
		if r.Domain != domain || len(r.Descriptor) != len(path) {
			continue
		}
		same := true
		for i := range path {
			same = same && path[i] == r.Descriptor[i]
		}
		if !same {
			continue
		}
		if r.Algorithm != "" {
			m = append(m, yaml.MapItem{Key: "algorithm", Value: r.Algorithm})
		}
		if r.Burst != nil {
			m = append(m, yaml.MapItem{Key: "burst", Value: *r.Burst})
		}
		if len(r.Coordination) > 0 {
			m = append(m, yaml.MapItem{Key: "coordination", Value: r.Coordination})
		}
	}
	return m
}
