package rls

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// appendMetadata writes dynamic_metadata: the request, and the metadata of the limits that let it pass, as
// envoyproxy/ratelimit does. It allocates; it is off by default.
//
//	{"domain": "edge", "descriptors": [{"entries": ["api_key=k"]}], "metadata": {"tier": "gold"}, "sluice_hold": "."}
func (c *call) appendMetadata() {
	descriptors := make([]any, len(c.matches))
	// The request's strings lie in pooled bytes, and the map must not refer to them for longer.
	fields := map[string]any{"domain": strings.Clone(c.request.domain), "descriptors": descriptors}
	merged, seen := map[string]any{}, map[*ratelimit.Rule]bool{}
	for i := range c.matches {
		m := &c.matches[i]
		descriptors[i] = c.describe(m.of)
		// A second time changes nothing, and may take long.
		if !m.bare() && !m.rule.Unlimited && !m.over && !seen[m.rule] {
			seen[m.rule] = true
			mergeMetadata(merged, m.rule.Metadata)
		}
	}
	if len(c.hold) > 0 {
		fields[EntryHold] = string(c.hold)
	}
	if c.request.hits != 0 {
		fields["hitsAddend"] = float64(c.request.hits)
	}
	if len(merged) > 0 {
		fields["metadata"] = merged
	}
	s, err := structpb.NewStruct(fields)
	if err != nil {
		return // every value above is one that a Struct can hold
	}
	body, _ := proto.Marshal(s) // whose texts NewStruct has checked
	c.out = wire.AppendString(c.out, 6, body)
}

// describe is a descriptor as metadata. Its texts are new, because the request's lie in pooled bytes.
func (c *call) describe(d *descriptor) map[string]any {
	entries := make([]any, 0, d.count)
	for _, e := range c.request.entriesOf(d) {
		entries = append(entries, e.Key+"="+e.Value)
	}
	about := map[string]any{"entries": entries}
	if d.hasOverride {
		about["limit"] = fmt.Sprintf("requests_per_unit:%d unit:%s", d.override.Requests,
			strings.ToUpper(d.override.Unit.String()))
	}
	if d.hasHits {
		about["hitsAddend"] = float64(d.hits)
	}
	return about
}

// mergeMetadata adds what into lacks; where both have maps, it goes deeper.
func mergeMetadata(into, from map[string]any) {
	for key, value := range from {
		deeper, isMap := value.(map[string]any)
		if _, has := into[key]; !has {
			into[key] = value
			// A map is copied, because the rule's own is shared by all requests, and later ones are
			// merged into this.
			if isMap {
				into[key] = map[string]any{}
			}
		}
		if own, ok := into[key].(map[string]any); ok && isMap {
			mergeMetadata(own, deeper)
		}
	}
}
