package xds

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"

	"go.yaml.in/yaml/v3"
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

// maxAdditions are the most bytes of the file, which is read at start only.
const maxAdditions = 1 << 20

// ReadAdditions reads a file. Its settings are checked when rules use them.
func ReadAdditions(name string) (*Additions, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS: %w", err)
	}
	defer func() { _ = f.Close() }() // it was only read
	data, err := io.ReadAll(io.LimitReader(f, maxAdditions+1))
	if err != nil {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS: %w", err)
	}
	if len(data) > maxAdditions {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s is more than %d bytes: leave out what the domain's settings say already", name, maxAdditions)
	}
	var a Additions
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&a); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: %w", name, err)
	}
	for i, r := range a.Rules {
		if r.Domain == "" {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: rule %d has no domain", name, i+1)
		}
		if _, err := flow(r.Coordination); err != nil {
			return nil, fmt.Errorf("CONFIG_GRPC_XDS_ADDITIONS %s: the coordination of rule %d: %w", name, i+1, err)
		}
	}
	return &a, nil
}

// addition is a field as YAML.
type addition struct{ key, value string }

// of is what is added to a descriptor, or with no path to its domain. Where more
// than one says the same field, the last counts.
func (a *Additions) of(domain string, path []string) []addition {
	if a == nil {
		return nil
	}
	var all []addition
	add := func(key, value string) {
		all = slices.DeleteFunc(all, func(o addition) bool { return o.key == key })
		all = append(all, addition{key, value})
	}
	for _, r := range a.Rules {
		if r.Domain != domain || !slices.Equal(r.Descriptor, path) {
			continue
		}
		if r.Algorithm != "" {
			add("algorithm", strconv.Quote(r.Algorithm))
		}
		if r.Burst != nil {
			add("burst", strconv.FormatUint(uint64(*r.Burst), 10))
		}
		if len(r.Coordination) > 0 {
			text, _ := flow(r.Coordination) // tried when it was read
			add("coordination", text)
		}
	}
	return all
}
