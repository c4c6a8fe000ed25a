package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
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
// checked and compiled as files are. left are the messages that the push may
// still hold.
func convert(resource *anypb.Any, more *Additions, bounds config.Bounds, left *int) (config.Text, error) {
	if resource.GetTypeUrl() != TypeURL {
		return config.Text{}, fmt.Errorf("a resource of type %q, and %s was asked for", shortenTo(resource.GetTypeUrl(), 200), TypeURL)
	}
	if err := configShape.count(resource.GetValue(), left, 0); errors.Is(err, errMany) {
		return config.Text{}, fmt.Errorf("a resource of %d bytes: with it the push holds more than %d descriptors, limits and values of metadata: have fewer rules, or raise CONFIG_MAX_TOKENS", len(resource.GetValue()), bounds.Tokens)
	} else if err != nil {
		return config.Text{}, fmt.Errorf("a resource of %d bytes that is no RateLimitConfig: %w", len(resource.GetValue()), err)
	}
	var c rlsconf.RateLimitConfig
	if err := proto.Unmarshal(resource.GetValue(), &c); err != nil {
		return config.Text{}, fmt.Errorf("a resource that is no RateLimitConfig: %w", err)
	}
	name := "xds:" + shortenTo(c.GetName(), 200)
	w := writer{more: more, domain: c.GetDomain(), most: bounds.FileBytes}
	w.text("domain", c.GetDomain())
	w.raw(more.of(c.GetDomain(), nil))
	if err := w.descriptors(c.GetDescriptors()); err != nil {
		return config.Text{}, fmt.Errorf("%s: %w", name, err)
	}
	return config.Text{Name: name, Data: w.out}, nil
}

// writer writes YAML: a line a field, every text in quotes.
type writer struct {
	out    []byte
	more   *Additions
	domain string
	most   int      // bytes of out
	path   []string // of the descriptor that is written
	indent int
	item   bool // the next line is the first of a list's item
}

func (w *writer) line(key string) {
	for range w.indent - 1 {
		w.out = append(w.out, "  "...)
	}
	if w.indent > 0 {
		lead := "  "
		if w.item {
			lead = "- "
		}
		w.out = append(w.out, lead...)
	}
	w.item = false
	w.out = append(append(w.out, key...), ':')
}

func (w *writer) field(key, value string) {
	w.line(key)
	w.out = append(append(append(w.out, ' '), value...), '\n')
}

// text writes a string as Go quotes it, which YAML reads alike: messages hold
// nothing but UTF-8.
func (w *writer) text(key, value string) {
	w.line(key)
	w.out = append(strconv.AppendQuote(append(w.out, ' '), value), '\n')
}

func (w *writer) flag(key string, value bool) {
	if value {
		w.field(key, "true")
	}
}

func (w *writer) raw(fields []addition) {
	for _, f := range fields {
		w.field(f.key, f.value)
	}
}

// open begins a map or a list below a key; what it returns ends it.
func (w *writer) open(key string) (end func()) {
	w.line(key)
	w.out = append(w.out, '\n')
	w.indent++
	return func() { w.indent-- }
}

func (w *writer) descriptors(all []*rlsconf.RateLimitDescriptor) error {
	if len(all) == 0 {
		return nil
	}
	if len(w.path) > maxDepth {
		return fmt.Errorf("descriptors are more than %d deep", maxDepth)
	}
	defer w.open("descriptors")()
	for _, d := range all {
		if len(w.out) > w.most {
			return fmt.Errorf("as a file it is more than %d bytes: have fewer rules, or raise CONFIG_MAX_FILE_BYTES", w.most)
		}
		w.path = append(w.path, strings.TrimSuffix(d.GetKey()+"_"+d.GetValue(), "_"))
		if err := w.descriptor(d); err != nil {
			return err
		}
		w.path = w.path[:len(w.path)-1]
	}
	return nil
}

func (w *writer) descriptor(d *rlsconf.RateLimitDescriptor) error {
	w.item = true
	w.text("key", d.GetKey())
	if d.GetValue() != "" {
		w.text("value", d.GetValue())
	}
	if d.GetRateLimit() != nil {
		w.limit(d.GetRateLimit())
	}
	w.flag("shadow_mode", d.GetShadowMode())
	w.flag("detailed_metric", d.GetDetailedMetric())
	if err := w.unknown(d.ProtoReflect().GetUnknown()); err != nil {
		return fmt.Errorf("descriptor %s: %w", shortenTo(strings.Join(w.path, "."), 200), err)
	}
	w.raw(w.more.of(w.domain, w.path))
	return w.descriptors(d.GetDescriptors())
}

func (w *writer) limit(p *rlsconf.RateLimitPolicy) {
	defer w.open("rate_limit")()
	if p.GetUnlimited() {
		w.field("unlimited", "true")
	} else {
		w.text("unit", unitOf(p.GetUnit()))
		w.field("requests_per_unit", strconv.FormatUint(uint64(p.GetRequestsPerUnit()), 10))
	}
	if p.GetName() != "" {
		w.text("name", p.GetName())
	}
	if len(p.GetReplaces()) == 0 {
		return
	}
	defer w.open("replaces")()
	for _, r := range p.GetReplaces() {
		w.item = true
		w.text("name", r.GetName())
	}
}

// unitOf is a unit's name. The published types lack month, year and week, which
// have the numbers of Envoy's answers.
func unitOf(u rlsconf.RateLimitUnit) string {
	if u < 1 || u > rlsconf.RateLimitUnit(ratelimit.Week) {
		return fmt.Sprintf("unit %d", u) // no rule may have it
	}
	return ratelimit.Unit(u).String()
}

// unknown reads the fields that the types do not know, and leaves out those that
// we do not know either. Of a field that is there twice, the last counts, as in
// every message.
func (w *writer) unknown(b []byte) error {
	quota, meta, given := false, []byte(nil), false
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		switch {
		case number == quotaMode && kind == protowire.VarintType:
			var v uint64
			v, n = protowire.ConsumeVarint(b)
			quota = v != 0
		case number == metadataField && kind == protowire.BytesType:
			meta, n = protowire.ConsumeBytes(b)
			given = true
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
	}
	w.flag("quota_mode", quota)
	if !given {
		return nil
	}
	var s structpb.Struct
	if err := proto.Unmarshal(meta, &s); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	text, err := flow(s.AsMap())
	if err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	w.field("metadata", text)
	return nil
}

// flow writes a value as JSON, which is YAML once the characters that YAML does
// not allow, or takes for an end of line, are escaped.
func flow(v any) (string, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return "", err
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
	return b.String(), nil
}
