package xds

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// Fields of a RateLimitDescriptor that the published types lack.
const (
	quotaMode     = 7 // bool
	metadataField = 8 // google.protobuf.Struct
)

// converter turns the resources of one push into the descriptors that rules files
// are decoded to, so that they are checked and compiled as files are.
type converter struct {
	more *Additions
	caps config.Caps
	// messages is how many the push may still hold. It goes down over all of its resources
	// together: many small ones cost as much as a large one.
	messages int
	rules    int // descriptors so far

	domain string       // that is converted
	at     config.Place // of everything in it
	// path leads to the descriptor that is converted, for errors and for additions to it.
	path []string
}

func newConverter(more *Additions, caps config.Caps) *converter {
	return &converter{more: more, caps: caps, messages: caps.Tokens}
}

// file converts a resource.
func (c *converter) file(resource *anypb.Any) (config.File, error) {
	if resource.GetTypeUrl() != TypeURL {
		return config.File{}, fmt.Errorf("a resource of type %q, must be of type %s",
			shortenTo(resource.GetTypeUrl(), 200), TypeURL)
	}
	body := resource.GetValue()
	// Counted in the bytes, before anything is built: see shape.
	if err := configShape.count(body, &c.messages, 0); errors.Is(err, errMany) {
		return config.File{}, fmt.Errorf("a resource of %d bytes: with it the push holds more than %d descriptors, "+
			"limits and values of metadata: have fewer rules, or raise MAX_MEMORY", len(body), c.caps.Tokens)
	} else if err != nil {
		return config.File{}, fmt.Errorf("a resource of %d bytes that is not a RateLimitConfig: %w", len(body), err)
	}
	var m rlsconf.RateLimitConfig
	if err := proto.Unmarshal(body, &m); err != nil {
		return config.File{}, fmt.Errorf("a resource that is not a RateLimitConfig: %w", err)
	}
	// A resource has no lines: its name is the place that errors name.
	c.domain, c.at, c.path = m.GetDomain(), config.Place{File: "xds:" + shortenTo(m.GetName(), 200)}, nil
	f := config.File{Place: c.at, Domain: m.GetDomain()}
	var err error
	if f.Defaults, err = c.inherited(); err == nil {
		f.Descriptors, err = c.descriptors(m.GetDescriptors())
	}
	if err != nil {
		return config.File{}, fmt.Errorf("%s: %w", c.at.File, err)
	}
	return f, nil
}

// descriptors converts them and all below them. It stops where there is one more
// than there may be: the store refuses all of them then, as it does those of files.
func (c *converter) descriptors(all []*rlsconf.RateLimitDescriptor) ([]config.Descriptor, error) {
	if len(all) == 0 {
		return nil, nil
	}
	// One more than may be is converted, so that the check of all rules sees that there are too
	// many.
	out := make([]config.Descriptor, 0, min(len(all), c.caps.Rules+1-c.rules))
	for _, m := range all {
		if c.rules > c.caps.Rules {
			break
		}
		c.rules++
		d, err := c.descriptor(m)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func (c *converter) descriptor(m *rlsconf.RateLimitDescriptor) (config.Descriptor, error) {
	d := config.Descriptor{
		Place: c.at, Key: m.GetKey(), Value: m.GetValue(), Limit: c.limit(m.GetRateLimit()),
		Shadow: m.GetShadowMode(), Detailed: m.GetDetailedMetric(),
	}
	c.path = append(c.path, d.Segment())
	err := unknown(&d, m.ProtoReflect().GetUnknown())
	if err == nil {
		d.Inherited, err = c.inherited()
	}
	if err != nil {
		return d, fmt.Errorf("descriptor %s: %w", shortenTo(strings.Join(c.path, "."), 200), err)
	}
	if d.Descriptors, err = c.descriptors(m.GetDescriptors()); err != nil {
		return d, err
	}
	c.path = c.path[:len(c.path)-1]
	return d, nil
}

func (c *converter) limit(m *rlsconf.RateLimitPolicy) *config.RateLimit {
	if m == nil {
		return nil
	}
	l := &config.RateLimit{Place: c.at, Unlimited: m.GetUnlimited(), Name: m.GetName()}
	// A file that says unlimited may say neither a unit nor a number.
	if !l.Unlimited {
		l.Unit, l.Requests = unitOf(m.GetUnit()), ratelimit.Tokens(m.GetRequestsPerUnit())
	}
	for _, r := range m.GetReplaces() {
		l.Replaces = append(l.Replaces, config.Replacement{Place: c.at, Name: r.GetName()})
	}
	return l
}

// inherited is what a file adds to the descriptor that is converted, or to its
// domain.
func (c *converter) inherited() (config.Inherited, error) {
	in, err := c.more.of(c.domain, c.path)
	// Without an addition the place is the resource.
	if in.Place == (config.Place{}) {
		in.Place = c.at
	}
	return in, err
}

// unitOf is a unit's name. The published types lack month, year and week, which
// have the numbers of Envoy's answers.
func unitOf(u rlsconf.RateLimitUnit) string {
	if u < 1 || u > rlsconf.RateLimitUnit(ratelimit.Week) {
		return fmt.Sprintf("unit %d", u) // no rule may have it
	}
	return ratelimit.Unit(u).String()
}

// unknown reads the fields that the types lack, and leaves out others. Of a field that is there twice, the
// last counts, as in every message.
func unknown(d *config.Descriptor, b []byte) error {
	meta, given := []byte(nil), false
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
			d.Quota = v != 0
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
	if !given {
		return nil
	}
	var s structpb.Struct
	if err := proto.Unmarshal(meta, &s); err != nil {
		return fmt.Errorf("metadata: %w", err)
	}
	d.Metadata = s.AsMap() // the values of JSON: a NaN is a string in it
	return nil
}

// filesOf converts the resources of a push, and says of the first few that are bad
// why. Files are in the order of their names: a server may send them in any.
func filesOf(resources []*anypb.Any, more *Additions, caps config.Caps) ([]config.File, error) {
	c := newConverter(more, caps)
	files := make([]config.File, 0, len(resources))
	var errs []error
	for _, r := range resources {
		file, err := c.file(r)
		if err != nil {
			if errs = append(errs, err); len(errs) == maxErrors {
				break
			}
			continue
		}
		files = append(files, file)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	slices.SortStableFunc(files, func(a, b config.File) int { return strings.Compare(a.Place.File, b.Place.File) })
	return files, nil
}

// maxErrors are those that one push is refused with.
const maxErrors = 20
