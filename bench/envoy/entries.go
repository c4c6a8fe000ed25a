package envoy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
)

// Entries are the rate_limits of a route.
type Entries []*route.RateLimit

// ParseEntries reads rate_limits, or the first rate_limits in a whole configuration of Envoy. It refuses
// entries that a Filter does not play.
func ParseEntries(text string) (all Entries, err error) {
	var tree any
	if err := yaml.Unmarshal([]byte(text), &tree); err != nil {
		return nil, fmt.Errorf("reading rate_limits: %w", err)
	}
	list, ok := tree.([]any)
	if !ok {
		list = rateLimits(tree)
	}
	if len(list) == 0 {
		return nil, errors.New("reading rate_limits: there are none")
	}
	for i, e := range list {
		one := &route.RateLimit{}
		text, err := json.Marshal(e)
		if err == nil {
			err = protojson.Unmarshal(text, one)
		}
		if err == nil {
			err = plays(one)
		}
		if err != nil {
			return nil, fmt.Errorf("reading rate_limits: entry %d: %w", i, err)
		}
		all = append(all, one)
	}
	return all, nil
}

// rateLimits are the first below a part of a configuration.
func rateLimits(tree any) []any {
	switch t := tree.(type) {
	case []any:
		for _, below := range t {
			if found := rateLimits(below); found != nil {
				return found
			}
		}
	case map[string]any:
		if found, ok := t["rate_limits"].([]any); ok {
			return found
		}
		for _, below := range t {
			if found := rateLimits(below); found != nil {
				return found
			}
		}
	}
	return nil
}

// plays says what a Filter does not play of an entry.
func plays(e *route.RateLimit) error {
	for i, a := range e.GetActions() {
		m := a.GetMetadata()
		if a.GetGenericKey() == nil && a.GetRequestHeaders() == nil &&
			(m == nil || m.GetSource() != route.RateLimit_Action_MetaData_DYNAMIC) {
			return fmt.Errorf("action %d is none of generic_key, request_headers and metadata with source: DYNAMIC", i)
		}
	}
	kinds := []string{"REQ", "RESP", "BYTES_SENT", "DYNAMIC_METADATA"}
	if format := e.GetHitsAddend().GetFormat(); format != "" {
		if kind, _ := substitution(format); !slices.Contains(kinds, kind) {
			return fmt.Errorf("hits_addend has format %q, must be one substitution of %v", format, kinds)
		}
	}
	return nil
}
