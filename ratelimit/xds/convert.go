package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// Fields of a RateLimitDescriptor that the published types lack.
const (
	quotaMode     = 7 // bool
	metadataField = 8 // google.protobuf.Struct
)

// converter turns the resources of one push into YAML, so that they are checked and compiled as files are.
//
// A converted resource looks like a file. Example: domain: "edge", then descriptors: with items - key: "user", each
// field on its own line.
type converter struct {
	more *Additions
	caps config.Caps
	// messages is how many the push may still hold. It goes down over all of its resources
	// together: many small ones cost as much as a large one.
	messages int
	rules    int // descriptors so far

	domain string // that is converted
	// path leads to the descriptor that is converted, for errors and for additions to it.
	path []string
	out  []byte // YAML of the domain
}

func newConverter(more *Additions, caps config.Caps) *converter {
	return &converter{more: more, caps: caps, messages: caps.Tokens}
}

// text converts a resource. Errors name the resource and the rule, because no file has its lines.
func (c *converter) text(resource *anypb.Any) (config.Text, error) {
	if resource.GetTypeUrl() != TypeURL {
		return config.Text{}, fmt.Errorf("a resource of type %q, must be of type %s",
			ratelimit.OneLine(resource.GetTypeUrl()), TypeURL)
	}
	body := resource.GetValue()
	// Counted in the bytes, before anything is built: see shape.
	if err := configShape.count(body, &c.messages, 0); errors.Is(err, errMany) {
		return config.Text{}, fmt.Errorf("a resource of %d bytes: with it the push holds more than %d descriptors, "+
			"limits and values of metadata: have fewer rules, or raise MAX_MEMORY", len(body), c.caps.Tokens)
	} else if err != nil {
		return config.Text{}, fmt.Errorf("a resource of %d bytes that is not a RateLimitConfig: %w", len(body), err)
	}
	var m rlsconf.RateLimitConfig
	if err := proto.Unmarshal(body, &m); err != nil {
		return config.Text{}, fmt.Errorf("a resource that is not a RateLimitConfig: %w", err)
	}
	name := "xds:" + ratelimit.OneLine(m.GetName())
	// Quoted, a text may be four times as long, and is copied: of 64 MB it would take two gigabytes.
	if len(body) > c.caps.FileBytes {
		return config.Text{}, fmt.Errorf("%s: %w", name, c.tooLarge())
	}
	c.domain = m.GetDomain()
	c.path = nil
	c.out = nil
	c.line("", "domain", strconv.Quote(m.GetDomain()))
	err := c.added("")
	if err == nil {
		err = c.descriptors("", m.GetDescriptors())
	}
	if err != nil {
		return config.Text{}, fmt.Errorf("%s: %w", name, err)
	}
	return config.Text{Name: name, Data: c.out, Pushed: true}, nil
}

// line writes a field. Strings are quoted as in Go: YAML reads them alike, because messages are UTF-8.
func (c *converter) line(indent, key, value string) {
	c.out = fmt.Appendf(c.out, "%s%s: %s\n", indent, key, value)
}

// quoted writes a field that is not empty.
func (c *converter) quoted(indent, key, value string) {
	if value != "" {
		c.line(indent, key, strconv.Quote(value))
	}
}

// flag writes a field that is set.
func (c *converter) flag(indent, key string, set bool) {
	if set {
		c.line(indent, key, "true")
	}
}

// json writes a value as JSON, which is YAML once characters that YAML forbids, or reads as an end of line, are
// escaped.
func (c *converter) json(indent, key string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	var b strings.Builder
	for _, r := range string(text) {
		switch {
		case r >= 0x7f && r <= 0x9f, r == 0xfeff, r == 0xfffe, r == 0xffff:
			fmt.Fprintf(&b, `\u%04x`, r)
		default:
			b.WriteRune(r)
		}
	}
	c.line(indent, key, b.String())
	return nil
}

// added writes the additions to the descriptor that is converted, or to its domain.
func (c *converter) added(indent string) error {
	fields, err := c.more.of(c.domain, c.path)
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		err = errors.Join(err, c.json(indent, key, fields[key]))
	}
	return err
}

// descriptors converts them and all below them. It stops where there is one more
// than there may be: the store refuses all of them then, as it does those of files.
func (c *converter) descriptors(indent string, all []*rlsconf.RateLimitDescriptor) error {
	if len(all) > 0 {
		c.line(indent, "descriptors", "")
	}
	for _, m := range all {
		// One more than may be is converted, so that the check of all rules sees that there are too
		// many.
		if c.rules > c.caps.Rules {
			break
		}
		c.rules++
		if err := c.descriptor(indent, m); err != nil {
			return err
		}
		if len(c.out) > c.caps.FileBytes {
			return c.tooLarge()
		}
	}
	return nil
}

func (c *converter) tooLarge() error {
	return fmt.Errorf("error loading config file: as a file it exceeds %d bytes: use fewer rules", c.caps.FileBytes)
}

// descriptor converts an item of a list. Its other fields are indented by the mark of the item.
func (c *converter) descriptor(indent string, m *rlsconf.RateLimitDescriptor) error {
	named := config.Descriptor{Key: m.GetKey(), Value: m.GetValue()}
	// path is a stack: a descriptor takes its segment off at its end. After an error its state does not matter, because
	// the resource is given up.
	c.path = append(c.path, named.Segment())
	c.line(indent, "- key", strconv.Quote(m.GetKey()))
	below := indent + "  "
	c.quoted(below, "value", m.GetValue())
	c.limit(below, m.GetRateLimit())
	c.flag(below, "shadow_mode", m.GetShadowMode())
	c.flag(below, "detailed_metric", m.GetDetailedMetric())
	err := c.unknown(below, m.ProtoReflect().GetUnknown())
	if err == nil {
		err = c.added(below)
	}
	if err != nil {
		return fmt.Errorf("descriptor %s: %w", ratelimit.OneLine(strings.Join(c.path, ".")), err)
	}
	err = c.descriptors(below, m.GetDescriptors())
	c.path = c.path[:len(c.path)-1]
	return err
}

// limit writes rate_limit with its fields; nil: there is none, and the descriptor has no limit.
func (c *converter) limit(indent string, m *rlsconf.RateLimitPolicy) {
	if m == nil {
		return
	}
	c.line(indent, "rate_limit", "")
	below := indent + "  "
	c.flag(below, "unlimited", m.GetUnlimited())
	if !m.GetUnlimited() { // with it, the number has no effect
		c.line(below, "requests_per_unit", strconv.FormatUint(uint64(m.GetRequestsPerUnit()), 10))
	}
	c.quoted(below, "unit", unitOf(m.GetUnit()))
	c.quoted(below, "name", m.GetName())
	if len(m.GetReplaces()) > 0 {
		c.line(below, "replaces", "")
	}
	for _, r := range m.GetReplaces() {
		c.line(below, "- name", strconv.Quote(r.GetName()))
	}
}

// unitOf is a unit's name, "" if there is none. The published types lack month, year and week, which
// have the numbers of Envoy's answers.
func unitOf(u rlsconf.RateLimitUnit) string {
	if u == 0 {
		return ""
	}
	if u < 1 || u > rlsconf.RateLimitUnit(ratelimit.Week) {
		return fmt.Sprintf("unit %d", u) // no rule may have it
	}
	return ratelimit.Unit(u).String()
}

// unknown converts the fields that the types lack, and leaves out others. Of a field that is there twice, the
// last counts, as in every message.
func (c *converter) unknown(indent string, b []byte) error {
	quota, meta, given := false, []byte(nil), false
	err := wire.Each(b, "descriptor", fmt.Errorf, func(f wire.Field) error {
		switch {
		case f.IsVarint(quotaMode):
			quota = f.Value != 0
		case f.IsBytes(metadataField):
			meta, given = f.Body, true
		}
		return nil
	})
	if err != nil {
		return err
	}
	c.flag(indent, "quota_mode", quota)
	if !given {
		return nil
	}
	var s structpb.Struct
	if err := proto.Unmarshal(meta, &s); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	return c.json(indent, "metadata", s.AsMap()) // a NaN is a string in it
}

// textsOf converts the resources of a push, and says of the first few that are bad
// why. Texts are in the order of their names: a server may send them in any. It stops beyond the bytes
// that all files may have, as their check does.
func textsOf(resources []*anypb.Any, more *Additions, caps config.Caps) ([]config.Text, error) {
	c := newConverter(more, caps)
	texts := make([]config.Text, 0, len(resources))
	var errs []error
	for sum, i := 0, 0; i < len(resources) && sum <= caps.TotalBytes; i++ {
		text, err := c.text(resources[i])
		if err != nil {
			errs = append(errs, err)
			if len(errs) == maxErrors {
				break
			}
			continue
		}
		sum += len(text.Data)
		texts = append(texts, text)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortStableFunc(texts, func(a, b config.Text) int { return strings.Compare(a.Name, b.Name) })
	return texts, nil
}

// maxErrors are those that one push is refused with.
const maxErrors = 20
