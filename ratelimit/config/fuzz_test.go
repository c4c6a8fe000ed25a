package config

import (
	"bytes"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// typed is a rules file as the YAML library itself fills it in, which is another way than over our tree.
type typed struct {
	Domain      string            `yaml:"domain"`
	Descriptors []typedDescriptor `yaml:"descriptors"`
}

type typedDescriptor struct {
	Key         string            `yaml:"key"`
	Value       string            `yaml:"value"`
	Limit       *typedLimit       `yaml:"rate_limit"`
	Descriptors []typedDescriptor `yaml:"descriptors"`
}

type typedLimit struct {
	Requests uint32 `yaml:"requests_per_unit"`
	Unit     string `yaml:"unit"`
}

// limits are those of all descriptors that have one, in order.
func limits(all []typedDescriptor) (out []*typedLimit) {
	for _, d := range all {
		if d.Limit != nil {
			out = append(out, d.Limit)
		}
		out = append(out, limits(d.Descriptors)...)
	}
	return out
}

// For any file, there are rules or problems. The tokens that are counted before parsing bound the parser's work.
// Problems have a bounded size. Accepted files have the meaning that the YAML library reads.
func FuzzParse(f *testing.F) {
	f.Add([]byte("domain: a\ndescriptors:\n- <<: [*x, {key: y}]\n  ? {a: b}\n"))
	f.Add([]byte("domain: d\ndescriptors: [&b {key: a, value: 17, rate_limit: {unit: Hour, requests_per_unit: " +
		"0x10}}, {<<: *b, value: on}]\n"))
	f.Add([]byte("%YAML 1.1\n---\n\"domain\": !!str \"d\\n\"\n...\n# end\n"))
	f.Add([]byte("domain: d\ncoordination: {mode: approx, lease: {size: 3}}\nalgorithm: token_bucket\nburst: 9\n"))
	f.Add([]byte("domain: d\ndescriptors:\n- key: a\n  value: x*\n  share_threshold: yes\n  metadata: {a: [1, 2.5, " +
		"~]}\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n    replaces: [{name: b}]\n"))
	f.Add([]byte("- |\n  a\n- >-\n b\n? 'c'\n"))
	o := options()
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 1<<10 {
			return
		}
		rules, _, problems := Parse([]Text{{Name: "f", Data: text}}, o)
		if (rules == nil) == (problems == nil) {
			t.Fatalf("rules %v and problems %v", rules, problems)
		}
		for _, p := range problems {
			if p.Place.File == "" || p.Message == "" || len(p.Message) > maxMessage {
				t.Fatalf("a problem that says nothing, or too much: %+v", p)
			}
			if strings.Contains(p.Message, "the YAML library failed") {
				t.Fatal(p)
			}
		}
		var doc yaml.Node
		if yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc) != nil {
			if rules != nil {
				t.Fatal("the library refuses it")
			}
			return
		}
		if n, _ := countTokens(text); count(&doc) > 2*n+2 {
			t.Fatalf("%d nodes of %d tokens", count(&doc), n)
		}
		if rules != nil && !bytes.Contains(text, []byte("!")) { // tags: the library takes some more seriously
			compare(t, rules, &doc)
		}
	})
}

func count(n *yaml.Node) int {
	sum := 1
	for _, c := range n.Content {
		sum += count(c)
	}
	return sum
}

func compare(t *testing.T, rules *Rules, doc *yaml.Node) {
	var theirs typed
	if isNull(doc) {
		return // an empty document before the one that counts
	}
	if err := doc.Decode(&theirs); err != nil {
		t.Fatalf("accepted, and the library refuses it: %v", err)
	}
	if rules.Domain(theirs.Domain) == nil {
		t.Fatalf("no domain %q", theirs.Domain)
	}
	want, got := limits(theirs.Descriptors), rules.All()
	if len(got) != len(want) {
		t.Fatalf("%d rules, want %d", len(got), len(want))
	}
	for i, r := range got {
		if !r.Unlimited && (r.Limit.Requests != ratelimit.Tokens(want[i].Requests) ||
			!strings.EqualFold(r.Limit.Unit.String(), want[i].Unit)) {
			t.Fatalf("rule %d is %v, want %+v", i, r.Limit, want[i])
		}
	}
}

func isNull(doc *yaml.Node) bool {
	return len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null"
}
