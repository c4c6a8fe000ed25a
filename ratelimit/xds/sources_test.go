package xds

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rlsconf "github.com/envoyproxy/go-control-plane/ratelimit/config/ratelimit/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// said is the same rules twice: as texts, and as the messages of a push.
type said struct {
	texts  []string
	pushed []*rlsconf.RateLimitConfig
}

// source loads what is said from one kind of source.
type source func(t *testing.T, s said, o config.Options) (*config.Store, error)

var sources = map[string]source{
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

func newStore(s config.Source, o config.Options) *config.Store {
	return config.NewStore(s, o, slog.New(slog.DiscardHandler))
}

// rulesOf are a store's rules in words.
func rulesOf(s *config.Store) string {
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

// deepSaid is descriptors in one another.
func deepSaid(depth int) said {
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
func wideSaid(domains int) said {
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
func one(text string, d *rlsconf.RateLimitDescriptor) said {
	return said{[]string{"domain: d\ndescriptors:\n- " + text + "\n"}, []*rlsconf.RateLimitConfig{domain("d", d)}}
}

// From whichever source, the same rules are put in force, or are refused by the same bound with the same words.
func TestSourcesAgree(t *testing.T) {
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
