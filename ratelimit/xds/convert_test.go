package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
)

// Pushes become the texts and rules of testdata/pushes.txt. The sources are the push, a directory with its texts, and
// the copy that a node has kept of it. From each, the same rules are in force, or the same bound refuses them.
func TestSourcesAgree(t *testing.T) {
	// newer gives descriptors the fields that the published types lack.
	var newer func(all []*rlsconf.RateLimitDescriptor, said any)
	newer = func(all []*rlsconf.RateLimitDescriptor, said any) {
		for i, d := range all {
			of := said.([]any)[i].(map[string]any)
			newer(d.GetDescriptors(), of["descriptors"])
			var b []byte
			if of["quota_mode"] != nil {
				b = protowire.AppendVarint(protowire.AppendTag(b, quotaMode, protowire.VarintType), 1)
			}
			if meta, ok := of["metadata"].(map[string]any); ok {
				s, _ := structpb.NewStruct(meta)
				b = append(b, nest(metadataField, wired(t, s))...)
			}
			if of["newest"] != nil {
				b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1)
			}
			d.ProtoReflect().SetUnknown(b)
		}
	}
	// pushOf is the push of messages, one a line as JSON. A text with *N is there N times.
	many := regexp.MustCompile(`<(.*?)>\*(\d+)`)
	pushOf := func(text string) []*anypb.Any {
		var resources []*anypb.Any
		for line := range strings.SplitSeq(text, "\n") {
			line = many.ReplaceAllStringFunc(line, func(x string) string {
				parts := many.FindStringSubmatch(x)
				n, _ := strconv.Atoi(parts[2])
				return strings.Repeat(parts[1], n)
			})
			var said map[string]any
			m := &rlsconf.RateLimitConfig{}
			err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), m)
			if err := errors.Join(err, json.Unmarshal([]byte(line), &said)); err != nil {
				t.Fatal(err)
			}
			newer(m.GetDescriptors(), said["descriptors"])
			resources = append(resources, resourceOf(t, m))
		}
		return resources
	}
	// loaded writes the rules that each source puts in force, or why it refuses them.
	loaded := func(t *testing.T, out *strings.Builder, push []*anypb.Any, texts []config.Text, o config.Options,
		more *Additions,
	) {
		dir, path := t.TempDir(), filepath.Join(t.TempDir(), "copy")
		for _, text := range texts {
			writeFile(t, filepath.Join(dir, text.Name), string(text.Data))
		}
		first := NewClient(Options{Additions: more}) // of a node without bounds, which keeps a copy
		keeps := newStore(first, options())
		err := errors.Join(keeps.KeepLastGood(path), first.take(&discovery.DiscoveryResponse{Resources: push}, keeps))
		known := err == nil
		client := NewClient(Options{Additions: more, Caps: o.Caps})
		pushed, read := newStore(client, o), newStore(&config.Tree{Path: dir, Caps: o.Caps}, o)
		again := newStore(NewClient(Options{}), o)
		var want []*ratelimit.Rule
		for _, x := range []struct {
			source string
			store  *config.Store
			load   func() error
		}{
			{"push", pushed, func() error {
				return client.take(&discovery.DiscoveryResponse{Resources: push}, pushed)
			}},
			{"directory", read, read.Load},
			{"copy", again, func() error {
				return errors.Join(again.KeepLastGood(path), again.LoadLastGood(again.Load()))
			}},
		} {
			if x.source == "copy" && !known {
				break // no node has had these rules
			}
			if err := x.load(); err != nil {
				said := strings.NewReplacer(dir, "DIR", path, "COPY").Replace(err.Error())
				said = strings.TrimPrefix(said, "no rules have arrived yet\n"+
					"and the last good rules in COPY are bad, too:\n")
				first, _, _ := strings.Cut(said, "\n")
				fmt.Fprintf(out, "%s: %s\n", x.source, first)
				continue
			}
			rules := x.store.Rules().All()
			for _, r := range rules {
				r.Counters = nil
				if c := r.Coordination; x.source == "push" {
					fmt.Fprintf(out, "=> %s.%+q: %s, %s among %d, shadow %t, quota %t, %v\n",
						r.Domain, r.Path, r.Limit, c.Mode,
						c.MaxNodes, r.Shadow, r.Quota, r.Metadata)
				}
			}
			if x.source == "push" {
				want = rules
			}
			equal(t, x.source, rules, want)
		}
	}
	datadriven.RunTest(t, "testdata/pushes.txt", func(t *testing.T, in *datadriven.TestData) string {
		additions, pushed, _ := strings.Cut(in.Input, "\n==\n")
		if in.Cmd == "bounded" {
			additions, pushed = "", in.Input
		}
		o := options()
		for name, most := range map[string]*int{
			"bytes": &o.Caps.FileBytes, "all": &o.Caps.TotalBytes, "files": &o.Caps.Files, "tokens": &o.Caps.Tokens,
			"descriptors": &o.Caps.Rules,
		} {
			in.MaybeScanArgs(t, name, most)
		}
		file := filepath.Join(t.TempDir(), "more.yaml")
		writeFile(t, file, additions)
		more, err := ReadAdditions(file)
		out := &strings.Builder{}
		if err == nil && pushed != "" {
			var texts []config.Text
			push := pushOf(pushed)
			texts, err = textsOf(push, more, config.DefaultCaps())
			for range 20 { // or a push that changes nothing would be a new one
				if again, _ := textsOf(push, more, config.DefaultCaps()); fmt.Sprint(again) != fmt.Sprint(texts) {
					t.Fatalf("converted twice:\n%v\n%v", texts, again)
				}
			}
			for _, text := range texts {
				if in.Cmd == "push" {
					out.Write(text.Data)
				}
			}
			if err == nil {
				loaded(t, out, push, texts, o, more)
			}
		}
		if err != nil {
			fmt.Fprintln(out, err)
		}
		return strings.ReplaceAll(out.String(), file, "FILE")
	})
}

func TestNumbersThatJSONLacks(t *testing.T) {
	meta := wired(t, &structpb.Struct{
		Fields: map[string]*structpb.Value{"rate": structpb.NewNumberValue(math.NaN())},
	})
	read, err := convertOne(&anypb.Any{
		TypeUrl: TypeURL, Value: nest(3, append(nest(1, []byte("k")), nest(metadataField, meta)...)),
	}, nil)
	if err != nil || !strings.Contains(string(read.Data), `{"rate":"NaN"}`) {
		t.Errorf("metadata that JSON cannot say: %v\n%s", err, read.Data)
	}
}

// Any resource is refused, or has the meaning of its message, which is read here in another way.
func FuzzResource(f *testing.F) {
	// direct is the meaning of descriptors, without fields that the types lack.
	var direct func(all []*rlsconf.RateLimitDescriptor) []config.Descriptor
	direct = func(all []*rlsconf.RateLimitDescriptor) []config.Descriptor {
		var out []config.Descriptor
		for _, d := range all {
			x := config.Descriptor{
				Key: d.Key, Value: d.Value, Shadow: d.ShadowMode, Detailed: d.DetailedMetric,
				Descriptors: direct(d.Descriptors),
			}
			if p := d.RateLimit; p != nil {
				x.Limit = &config.RateLimit{Unlimited: p.Unlimited, Name: p.Name}
				if !p.Unlimited {
					x.Limit.Unit, x.Limit.Requests = unitOf(p.Unit), ratelimit.Tokens(p.RequestsPerUnit)
				}
				for _, r := range p.Replaces {
					x.Limit.Replaces = append(x.Limit.Replaces, config.Replacement{Name: r.GetName()})
				}
			}
			out = append(out, x)
		}
		return out
	}
	inner := limit("api_key", 100)
	inner.ShadowMode, inner.DetailedMetric, inner.RateLimit.Name = true, true, "gold"
	inner.RateLimit.Replaces = []*rlsconf.RateLimitReplace{{Name: "other"}}
	inner.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType),
		1))
	for _, c := range []*rlsconf.RateLimitConfig{
		domain("d", limit("k", 5), &rlsconf.RateLimitDescriptor{
			Key: "tier", Value: "go*ld",
			Descriptors: []*rlsconf.RateLimitDescriptor{inner},
		}),
		domain("d: [\u0085\x7f\"", &rlsconf.RateLimitDescriptor{
			Key: "yes", Value: "0x10",
			RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true},
		}),
	} {
		f.Add(wired(f, c))
	}
	f.Add(nest(3, nest(metadataField, nest(1, append(nest(1, []byte("k\u2028")),
		nest(2, nest(3, []byte("\x00\x7f\ufeff")))...)))))
	o := options()
	run := func(t *testing.T, b []byte) {
		text, err := convertOne(&anypb.Any{TypeUrl: TypeURL, Value: b}, nil)
		var c rlsconf.RateLimitConfig
		parseErr := proto.Unmarshal(b, &c)
		if parseErr != nil {
			if err == nil {
				t.Fatalf("read what protobuf refuses: %v", parseErr)
			}
			return
		}
		if err != nil {
			if len(err.Error()) > 600 {
				t.Fatalf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(text.Data) > 200*len(b)+100 {
			t.Fatalf("%d bytes became %d", len(b), len(text.Data))
		}
		got, _, problems := config.Parse([]config.Text{text}, o)
		want, _, wrong := config.Compile([]config.File{{Domain: c.Domain, Descriptors: direct(c.Descriptors)}}, o)
		if len(problems) == 0 && len(wrong) > 0 || len(problems) > 0 && len(wrong) == 0 &&
			!strings.Contains(problems.Error(), "nested deeper") {
			t.Fatalf("converted: %v\ndirectly: %v\n%s", problems, wrong, text.Data)
		}
		if len(problems) > 0 {
			return
		}
		x, y := got.All(), want.All()
		for i := range min(len(x), len(y)) { // fields that the types lack
			y[i].Quota, y[i].Metadata = x[i].Quota, x[i].Metadata
		}
		equal(t, string(text.Data), x, y)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 2<<10 {
			return
		}
		fuzztest.Bytes(b, func(b []byte) { run(t, b) })
	})
}

// Resources of 2 MB that would become hundreds are refused before they are built, by an error that fits a line.
func TestHostileResources(t *testing.T) {
	// within puts a message into others, as these fields.
	within := func(b []byte, fields ...protowire.Number) []byte {
		for _, field := range slices.Backward(fields) {
			b = nest(field, b)
		}
		return b
	}
	const size = 2 << 20
	empties := func(field protowire.Number) []byte { return repeat(nest(field, nil), size/2) }
	deep := slices.Repeat([]protowire.Number{4}, 10_000)
	values := slices.Repeat([]protowire.Number{6, 1}, 300)
	for name, c := range map[string]struct {
		resource []byte
		want     string
	}{
		"empty descriptors": {empties(3), "the push holds more than 250000 descriptors, limits and values of metadata"},
		"empty below one":   {within(empties(4), 3), "raise MAX_MEMORY"},
		"limits":            {within(empties(3), 3), "raise MAX_MEMORY"},
		"replacements":      {within(empties(5), 3, 3), "raise MAX_MEMORY"},
		"metadata":          {within(empties(1), 3, metadataField), "raise MAX_MEMORY"},
		"lists in metadata": {within(empties(1), 3, metadataField, 1, 2, 6), "raise MAX_MEMORY"},
		"deep descriptors":  {nest(3, within(nil, deep...)), "nested more than 208 deep"},
		"deep metadata":     {within(within(nil, values...), 3, metadataField, 1, 2), "nested more than 208 deep"},
		"wide":              {repeat(nest(3, nil), 80_000), "more than 50000 descriptors, from this one on"},
		"wide below deep": {
			nest(3, within(repeat(nest(4, nil), 80_000), deep[:95]...)),
			"as a file it exceeds 8388608 bytes: use fewer rules",
		},
		"a name": {append(nest(1, repeat([]byte("x"), size)),
			nest(3, protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType), 1))...), ""},
		"a long domain": {nest(2, repeat([]byte("\x01"), 9<<20)), "as a file it exceeds 8388608 bytes"},
		"cut off":       {[]byte{0x1a, 0xff}, "that is not a RateLimitConfig"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			texts, err := textsOf([]*anypb.Any{{TypeUrl: TypeURL, Value: c.resource}}, nil, config.DefaultCaps())
			runtime.ReadMemStats(&after)
			if err == nil {
				if n := strings.Count(string(texts[0].Data), "key:"); n > config.DefaultCaps().Rules+1 {
					t.Errorf("%d descriptors were converted", n)
				}
			}
			if err == nil && c.want != "" {
				_, _, problems := config.Parse(texts, options())
				err = problems[0]
			}
			switch {
			case c.want == "" && (err != nil || len(texts[0].Name) > 300):
				t.Errorf("%v, a name of %d bytes", err, len(texts[0].Name))
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 400):
				t.Errorf("%.500v, want %s", err, c.want)
			}
			if got := after.TotalAlloc - before.TotalAlloc; got > 96<<20 {
				t.Errorf("%d bytes of resources took %d MB", len(c.resource), got>>20)
			}
		})
	}
	all, err := textsOf(make([]*anypb.Any, 1000), nil, config.DefaultCaps())
	if err == nil || all != nil || len(err.Error()) > 4<<10 {
		t.Errorf("many bad resources: an error of %d bytes", len(err.Error()))
	}
}

// A response of empty resources is not even built.
func TestHostileResponse(t *testing.T) {
	var refused []error
	c := newCodec(config.DefaultCaps(), func(err error) { refused = append(refused, err) })
	for name, b := range map[string][]byte{
		"resources":     repeat(nest(2, nil), 1<<20),
		"their errors":  repeat(nest(7, nil), 1<<20),
		"their details": nest(7, nest(2, repeat(nest(3, nil), 1<<20))),
	} {
		refused = nil
		err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &discovery.DiscoveryResponse{})
		if err == nil || len(refused) != 1 || !strings.Contains(err.Error(),
			"the maximum of resources is 1000") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
