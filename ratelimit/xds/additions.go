package xds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Additions are what messages cannot carry, and a file says instead: algorithm,
// burst, overrides, hold and coordination of domains and descriptors. Nil adds nothing.
type Additions struct {
	Rules []Addition `yaml:"rules"`
}

// Addition is for a domain, or for one descriptor in it.
type Addition struct {
	Domain       string         `yaml:"domain"`
	Descriptor   []string       `yaml:"descriptor"` // key or key_value, level by level; none: the domain
	Algorithm    string         `yaml:"algorithm"`
	Burst        *uint32        `yaml:"burst"`
	Overrides    *bool          `yaml:"overrides"`
	MaxOverride  *uint64        `yaml:"max_override"`
	Hold         map[string]any `yaml:"hold"`
	Coordination map[string]any `yaml:"coordination"`

	inherited config.Inherited // what the fields above mean
	// problems are the faults of the fields above. A push is refused for them only if a rule uses them.
	problems config.Problems
}

// maxAdditions are the most bytes of the file, which is read at start only.
const maxAdditions = 1 << 20

// ReadAdditions reads a file. Settings that are wrong cost no start: a push whose
// rules use them is refused.
func ReadAdditions(name string) (*Additions, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	// One byte more than allowed tells a file that is too large from one that just fits.
	data, err := io.ReadAll(io.LimitReader(f, maxAdditions+1))
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS: %w", err)
	}
	if len(data) > maxAdditions {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s is more than %d bytes: leave out settings "+
			"that equal the domain's", name, maxAdditions)
	}
	var a Additions
	d := yaml.NewDecoder(bytes.NewReader(data))
	// A misspelt field would otherwise add nothing, without a notice.
	d.KnownFields(true)
	// An empty file is one without additions.
	if err := d.Decode(&a); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: %w", name, err)
	}
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.Domain == "" {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: rule %d has no domain", name, i+1)
		}
		at := config.Place{File: fmt.Sprintf("CONFIG_GRPC_XDS_ADDITIONS %s, rule %d", name, i+1)}
		if r.inherited, r.problems, err = config.ReadInherited(at, r.said()); err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: the coordination of rule %d: %w", name, i+1, err)
		}
	}
	return &a, nil
}

// said are the fields that are set, as a rules file has them.
func (r *Addition) said() map[string]any {
	said := map[string]any{}
	if r.Algorithm != "" {
		said["algorithm"] = r.Algorithm
	}
	if r.Burst != nil {
		said["burst"] = *r.Burst
	}
	if r.Overrides != nil {
		said["overrides"] = *r.Overrides
	}
	if r.MaxOverride != nil {
		said["max_override"] = *r.MaxOverride
	}
	if len(r.Hold) > 0 {
		said["hold"] = r.Hold
	}
	if len(r.Coordination) > 0 {
		said["coordination"] = r.Coordination
	}
	return said
}

// of returns the additions to a descriptor, or with no path to its domain. If more than one addition sets a
// field, the last counts. The error has the faults of the used ones.
func (a *Additions) of(domain string, path []string) (config.Inherited, error) {
	var all config.Inherited
	if a == nil {
		return all, nil
	}
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.Domain != domain || !slices.Equal(r.Descriptor, path) {
			continue
		}
		// The file is read once, at the start; an addition that no rule uses must not keep a node
		// from serving.
		if len(r.problems) > 0 {
			return all, r.problems
		}
		all.Place = r.inherited.Place
		if r.inherited.Algorithm != nil {
			all.Algorithm = r.inherited.Algorithm
		}
		if r.inherited.Burst != nil {
			all.Burst = r.inherited.Burst
		}
		if r.inherited.Overrides != nil {
			all.Overrides = r.inherited.Overrides
		}
		if r.inherited.MaxOverride != nil {
			all.MaxOverride = r.inherited.MaxOverride
		}
		if r.inherited.Hold != nil {
			all.Hold = r.inherited.Hold
		}
		if len(r.inherited.Coordination) > 0 {
			all.Coordination = r.inherited.Coordination
		}
	}
	return all, nil
}
