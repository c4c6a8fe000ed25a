package xds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
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
	Domain     string   `yaml:"domain"`
	Descriptor []string `yaml:"descriptor"` // key or key_value, level by level; none: the domain
	// Fields are the fields of rule files that are added.
	Fields map[string]any `yaml:",inline"`

	// problems are the faults of Fields. A push is refused for them only if a rule uses them.
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
	if err := d.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s has a second document: write all rules in one", name)
	}
	for i := range a.Rules {
		r := &a.Rules[i]
		if r.Domain == "" {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: rule %d has no domain", name, i+1)
		}
		text, err := yaml.Marshal(r.Fields)
		if err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: rule %d: %w", name, i+1, err)
		}
		at := fmt.Sprintf("CONFIG_GRPC_XDS_ADDITIONS %s, rule %d", name, i+1)
		r.problems = config.CheckInherited(config.Text{Name: at, Data: text, Pushed: true})
	}
	return &a, nil
}

// of returns the additions to a descriptor, or with no path to its domain. If more than one addition sets a field, the
// last counts. The error has the faults of the used ones.
func (a *Additions) of(domain string, path []string) (map[string]any, error) {
	all := map[string]any{}
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
		maps.Copy(all, r.Fields)
	}
	return all, nil
}
