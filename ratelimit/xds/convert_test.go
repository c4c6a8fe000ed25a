package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
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

func TestPushesMeanWhatMessagesSay(t *testing.T) {
	// newer gives descriptors the fields that the published types lack.
	var newer func(t *testing.T, all []*rlsconf.RateLimitDescriptor, said any)
	newer = func(t *testing.T, all []*rlsconf.RateLimitDescriptor, said any) {
		for i, d := range all {
			of := said.([]any)[i].(map[string]any)
			newer(t, d.GetDescriptors(), of["descriptors"])
			var b []byte
			if of["quota_mode"] != nil {
				b = protowire.AppendVarint(protowire.AppendTag(b, quotaMode, protowire.VarintType), 1)
			}
			if meta, ok := of["metadata"].(map[string]any); ok {
				s, _ := structpb.NewStruct(meta)
				body, err := proto.Marshal(s)
				if err != nil {
					t.Fatal(err)
				}
				b = protowire.AppendBytes(protowire.AppendTag(b, metadataField, protowire.BytesType), body)
			}
			if of["newest"] != nil {
				b = protowire.AppendVarint(protowire.AppendTag(b, 99, protowire.VarintType), 1)
			}
			d.ProtoReflect().SetUnknown(b)
		}
	}
	// converted writes what becomes of messages, one a line as JSON: the texts, and the rules that they are.
	converted := func(t *testing.T, out *strings.Builder, pushed string, more *Additions) error {
		var resources []*anypb.Any
		for line := range strings.SplitSeq(pushed, "\n") {
			var said map[string]any
			m := &rlsconf.RateLimitConfig{}
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Fatal(err)
			}
			if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal([]byte(line), m); err != nil {
				t.Fatal(err)
			}
			newer(t, m.GetDescriptors(), said["descriptors"])
			body, err := anypb.New(m)
			if err != nil {
				t.Fatal(err)
			}
			resources = append(resources, body)
		}
		texts, err := textsOf(resources, more, config.DefaultCaps())
		if err != nil {
			return err
		}
		for range 20 { // or a push that changes nothing would be a new one
			again, err := textsOf(resources, more, config.DefaultCaps())
			if err != nil || fmt.Sprint(again) != fmt.Sprint(texts) {
				t.Fatalf("converted twice: %v\n%v\n%v", err, texts, again)
			}
		}
		for _, text := range texts {
			fmt.Fprintf(out, "%s", text.Data)
		}
		rules, _, problems := config.Parse(texts, options())
		if problems != nil {
			return problems
		}
		for _, r := range rules.All() {
			c := r.Coordination
			fmt.Fprintf(out, "=> %s.%s: %s, %s among %d, shadow %t, quota %t, %v\n", r.Domain, r.Path, r.Limit, c.Mode,
				c.MaxNodes, r.Shadow, r.Quota, r.Metadata)
		}
		return nil
	}
	datadriven.RunTest(t, "testdata/pushes.txt", func(t *testing.T, in *datadriven.TestData) string {
		additions, pushed, _ := strings.Cut(in.Input, "\n==\n")
		file := filepath.Join(t.TempDir(), "more.yaml")
		writeFile(t, file, additions)
		out := &strings.Builder{}
		more, err := ReadAdditions(file)
		if err == nil && pushed != "" {
			err = converted(t, out, pushed, more)
		}
		if err != nil {
			fmt.Fprintln(out, err)
		}
		return strings.ReplaceAll(out.String(), file, "FILE")
	})
}

func TestNumbersThatJSONLacks(t *testing.T) {
	meta, err := proto.Marshal(&structpb.Struct{
		Fields: map[string]*structpb.Value{"rate": structpb.NewNumberValue(math.NaN())},
	})
	if err != nil {
		t.Fatal(err)
	}
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
		b, err := proto.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
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
	// deepDescriptor is descriptors in one another.
	deepDescriptor := func(depth int, innermost []byte) []byte {
		b := innermost
		for range depth {
			b = nest(4, b)
		}
		return nest(3, b)
	}
	const size = 2 << 20
	value := nest(6, nil)
	for range 300 {
		value = nest(6, nest(1, value))
	}
	for name, c := range map[string]struct {
		resource []byte
		want     string
	}{
		"empty descriptors": {
			repeat(nest(3, nil), size/2),
			"the push holds more than 250000 descriptors, limits and values of metadata",
		},
		"empty below one": {nest(3, repeat(nest(4, nil), size/2)), "raise MAX_MEMORY"},
		"limits":          {nest(3, repeat(nest(3, nil), size/2)), "raise MAX_MEMORY"},
		"replacements":    {nest(3, nest(3, repeat(nest(5, nil), size/2))), "raise MAX_MEMORY"},
		"metadata": {
			nest(3, nest(metadataField, repeat(nest(1, nil), size/2))),
			"raise MAX_MEMORY",
		},
		"lists in metadata": {nest(3, nest(metadataField,
			nest(1, nest(2, nest(6, repeat(nest(1, nil), size/2)))))), "raise MAX_MEMORY"},
		"deep descriptors": {deepDescriptor(10_000, nil), "nested more than 208 deep"},
		"deep metadata": {
			nest(3, nest(metadataField, nest(1, nest(2, value)))),
			"nested more than 208 deep",
		},
		"descriptors, 100 deep": {deepDescriptor(99, nil), "nested deeper than 200: use fewer rules, or fewer levels"},
		"wide": {
			repeat(nest(3, nil), 80_000),
			"all files together have more than 50000 descriptors, from this one on",
		},
		"wide below deep": {
			deepDescriptor(95, repeat(nest(4, nil), 80_000)),
			"as a file it exceeds 8388608 bytes: use fewer rules",
		},
		"a name": {append(nest(1, repeat([]byte("x"), size)),
			nest(3, protowire.AppendVarint(protowire.AppendTag(nil, quotaMode, protowire.VarintType), 1))...), ""},
		"cut off": {[]byte{0x1a, 0xff}, "that is not a RateLimitConfig"},
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

// From whichever source, the same rules are put in force, or are refused by the same bound with the same words.
func TestSourcesAgree(t *testing.T) {
	// said is the same rules twice: as texts, and as the messages of a push.
	type said struct {
		texts  []string
		pushed []*rlsconf.RateLimitConfig
	}
	sources := map[string]func(*testing.T, said, config.Options) (*config.Store, error){
		"directory": func(t *testing.T, s said, o config.Options) (*config.Store, error) {
			t.Helper()
			dir := t.TempDir()
			for i, text := range s.texts {
				writeFile(t, filepath.Join(dir, fmt.Sprintf("f%d.yaml", i)), text)
			}
			store := newStore(&config.Tree{Path: dir, Caps: o.Caps}, o)
			return store, store.Load()
		},
		"copy": func(t *testing.T, s said, o config.Options) (*config.Store, error) {
			t.Helper()
			on := struct {
				Format int           `json:"sluice_last_good"`
				Files  []config.Text `json:"files"`
			}{Format: 1}
			for i, text := range s.texts {
				on.Files = append(on.Files, config.Text{Name: fmt.Sprintf("f%d.yaml", i), Data: []byte(text)})
			}
			text, err := json.Marshal(on)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(t.TempDir(), "copy")
			writeFile(t, path, string(text))
			store := newStore(config.Static{}, o)
			return store, errors.Join(store.KeepLastGood(path), store.LoadLastGood(config.ErrNothingYet))
		},
		"push": func(t *testing.T, s said, o config.Options) (*config.Store, error) {
			t.Helper()
			c := NewClient(Options{Caps: o.Caps})
			push := &discovery.DiscoveryResponse{}
			for _, p := range s.pushed {
				body, err := anypb.New(p)
				if err != nil {
					t.Fatal(err)
				}
				push.Resources = append(push.Resources, body)
			}
			store := newStore(c, o)
			return store, c.take(push, store)
		},
	}
	// deepSaid is descriptors in one another.
	deepSaid := func(depth int) said {
		text, inner := "domain: d\n", limit("k", 1)
		for i := range depth {
			in := strings.Repeat("  ", i)
			text += in + "descriptors:\n" + in + "- key: k\n"
			if i > 0 {
				inner = &rlsconf.RateLimitDescriptor{Key: "k", Descriptors: []*rlsconf.RateLimitDescriptor{inner}}
			}
		}
		text += strings.Repeat("  ", depth) + "rate_limit: {unit: minute, requests_per_unit: 1}\n"
		return said{[]string{text}, []*rlsconf.RateLimitConfig{domain("d", inner)}}
	}
	// wideSaid is descriptors side by side, in domains of three each.
	wideSaid := func(domains int) said {
		var s said
		for i := range domains {
			name := fmt.Sprint("d", i)
			s.texts = append(s.texts, "domain: "+name+"\ndescriptors: [{key: a}, {key: b}, {key: c}]\n")
			s.pushed = append(s.pushed, domain(name, &rlsconf.RateLimitDescriptor{Key: "a"},
				&rlsconf.RateLimitDescriptor{Key: "b"}, &rlsconf.RateLimitDescriptor{Key: "c"}))
		}
		return s
	}
	// one is a domain of one descriptor.
	one := func(text string, d *rlsconf.RateLimitDescriptor) said {
		return said{[]string{"domain: d\ndescriptors:\n- " + text + "\n"}, []*rlsconf.RateLimitConfig{domain("d", d)}}
	}
	// rulesOf are a store's rules in words.
	rulesOf := func(s *config.Store) string {
		var all []string
		for _, r := range s.Rules().All() {
			line := fmt.Sprintf("%s.%s: %s", r.Domain, r.Path, r.Limit)
			if r.Unlimited {
				line = fmt.Sprintf("%s.%s: unlimited", r.Domain, r.Path)
			}
			if r.Name != "" || r.Replaces != nil || r.Shadow || r.MetricNames.Detailed {
				line += fmt.Sprintf(" %s%v %t %t", r.Name, r.Replaces, r.Shadow, r.MetricNames.Detailed)
			}
			all = append(all, line)
		}
		return strings.Join(all, "\n")
	}
	named := limit("b", 7)
	named.ShadowMode, named.DetailedMetric, named.RateLimit.Name = true, true, "n"
	named.RateLimit.Replaces = []*rlsconf.RateLimitReplace{{Name: "other"}}
	for name, c := range map[string]struct {
		said
		caps  config.Caps
		rules string
		wrong []string // parts of the error; none: it is loaded
	}{
		"no rules": {said: said{[]string{"domain: d"}, []*rlsconf.RateLimitConfig{domain("d")}}},
		"rules": {
			said: said{
				[]string{
					"domain: d\ndescriptors:\n- {key: a, value: 'x: [', rate_limit: {unit: minute, " +
						"requests_per_unit: 5}, descriptors: [" +
						"{key: b, shadow_mode: true, detailed_metric: true, rate_limit: {unit: minute, " +
						"requests_per_unit: 7, name: n, replaces: [{name: other}]}}]}\n",
					"domain: e\ndescriptors: [{key: free, rate_limit: {unlimited: true}}]\n",
				},
				[]*rlsconf.RateLimitConfig{
					domain("d", &rlsconf.RateLimitDescriptor{
						Key: "a", Value: "x: [", Descriptors: []*rlsconf.RateLimitDescriptor{named},
						RateLimit: &rlsconf.RateLimitPolicy{Unit: rlsconf.RateLimitUnit_MINUTE, RequestsPerUnit: 5},
					}),
					domain("e", &rlsconf.RateLimitDescriptor{
						Key:       "free",
						RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true},
					}),
				},
			},
			rules: "d.a_x: [: 5 per minute\nd.a_x: [.b: 7 per minute n[other] true true\ne.free: unlimited",
		},
		"99 deep":       {said: deepSaid(99), rules: "d." + strings.Repeat("k.", 98) + "k: 1 per minute"},
		"100 deep":      {said: deepSaid(100), wrong: []string{"nested deeper than 200"}},
		"as many rules": {said: wideSaid(2), caps: config.Caps{Rules: 6}},
		"many rules": {
			said: wideSaid(2), caps: config.Caps{Rules: 5},
			wrong: []string{"config error, all files together have more than 5 descriptors, from this one on: " +
				"use fewer, with patterns or values of requests, or raise MAX_MEMORY"},
		},
		"as many files": {said: wideSaid(3), caps: config.Caps{Files: 3}},
		"many files":    {said: wideSaid(3), caps: config.Caps{Files: 2}, wrong: []string{"join some"}},
		"tokens":        {said: wideSaid(3), caps: config.Caps{Tokens: 10}, wrong: []string{"raise MAX_MEMORY"}},
		"unlimited units": {
			said: one("{key: k, rate_limit: {unlimited: true, unit: minute}}", &rlsconf.RateLimitDescriptor{
				Key: "k", RateLimit: &rlsconf.RateLimitPolicy{Unlimited: true, Unit: rlsconf.RateLimitUnit_MINUTE},
			}),
			wrong: []string{"should not specify rate limit unit when unlimited"},
		},
		"a large file": {
			said: one("key: "+strings.Repeat("k", 1000),
				&rlsconf.RateLimitDescriptor{Key: strings.Repeat("k", 1000)}), caps: config.Caps{FileBytes: 1000},
			wrong: []string{"1000"},
		},
		"large files": {
			said: wideSaid(20), caps: config.Caps{TotalBytes: 900},
			wrong: []string{"with it all files have", "the maximum is 900: use fewer rules, or raise MAX_MEMORY"},
		},
	} {
		for kind, load := range sources {
			t.Run(name+"/"+kind, func(t *testing.T) {
				o := options()
				o.Caps = c.caps
				store, err := load(t, c.said, o)
				if len(c.wrong) == 0 {
					if err != nil || rulesOf(store) != c.rules {
						t.Errorf("%v:\n%s\nwant\n%s", err, rulesOf(store), c.rules)
					}
					return
				}
				if err == nil || store.Rules() != nil {
					t.Fatalf("these were loaded:\n%s", rulesOf(store))
				}
				for _, want := range c.wrong {
					if kind != "directory" { // it is bounded as a whole before, and says so in its own words
						want = strings.Replace(want, "with it all files have", "all files up to", 1)
					}
					if !strings.Contains(err.Error(), want) {
						t.Errorf("%v\nwant %s", err, want)
					}
				}
			})
		}
	}
}

// What was pushed is in the copy, and a node that starts without its server has
// the same rules again, also those that messages do not say.
func TestCopyOfAPush(t *testing.T) {
	more := filepath.Join(t.TempDir(), "more.yaml")
	writeFile(t, more, "rules:\n  - {domain: d, descriptor: [k], algorithm: token_bucket, burst: 50, coordination: "+
		"{mode: approx, lease: {size: 3}}}\n")
	additions, err := ReadAdditions(more)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "copy")
	body, err := anypb.New(domain("d", limit("k", 5), &rlsconf.RateLimitDescriptor{
		Key:         "deep\u0085",
		Descriptors: []*rlsconf.RateLimitDescriptor{limit("\x00", 2)},
	}))
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(Options{Additions: additions})
	first := newStore(c, options())
	if err := errors.Join(first.KeepLastGood(path), c.take(&discovery.DiscoveryResponse{Resources: []*anypb.Any{body}},
		first)); err != nil {
		t.Fatal(err)
	}
	second := newStore(NewClient(Options{}), options())
	why := errors.Join(second.KeepLastGood(path), second.Load())
	if err := second.LoadLastGood(why); !errors.Is(why, config.ErrNothingYet) || err != nil {
		t.Fatal(why, err)
	}
	got, want := second.Rules().All(), first.Rules().All()
	if len(got) != 2 || got[0].Limit.Burst != 50 {
		t.Fatalf("%+v", got)
	}
	for i := range got {
		got[i].Counters, want[i].Counters = nil, nil
	}
	equal(t, path, got, want)
	text, err := os.ReadFile(path)
	if err != nil || strings.Count(string(text), "xds:d") != 1 {
		t.Errorf("the copy does not say whose rules it holds: %v\n%s", err, text)
	}
}
