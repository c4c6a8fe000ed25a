package config

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/ratelimit"
)

func options() Options { return Options{Coordination: ratelimit.DefaultCoordination()} }

func parseText(texts ...string) (*Rules, Problems) {
	var files []Text
	for i, text := range texts {
		files = append(files, Text{Name: fmt.Sprintf("f%d.yaml", i+1), Data: []byte(text)})
	}
	rules, _, problems := Parse(files, options())
	return rules, problems
}

func mustParse(t testing.TB, texts ...string) *Rules {
	t.Helper()
	rules, problems := parseText(texts...)
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

// The wording is envoyproxy/ratelimit's: users search for it. The place is ours.
func TestProblems(t *testing.T) {
	for name, c := range map[string]struct {
		texts []string
		want  []string
	}{
		"empty": {[]string{""}, []string{"f1.yaml: config file cannot have empty domain"}},
		"no domain": {
			[]string{"descriptors: []"},
			[]string{"f1.yaml:1:1: config file cannot have empty domain"},
		},
		"two domains": {
			[]string{"domain: a", "domain: a"},
			[]string{"f2.yaml:1:9: duplicate domain 'a' in config file"},
		},
		"two documents": {
			[]string{"domain: a\n---\ndomain: b\n"},
			[]string{"f1.yaml:3:1: error loading config file: one file holds one domain, and here starts a second " +
				"document"},
		},
		"all of a file at once": {
			[]string{`domain: d
descriptors:
  - value: v
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: k
    value: v
    rate_limit:
      unit: fortnight
      requests_per_unit: 1
  - key: k
    value: v
    ratelimit: {}
`},
			[]string{
				"f1.yaml:3:5: descriptor has empty key",
				"f1.yaml:8:13: invalid rate limit unit 'fortnight'",
				"f1.yaml:10:5: duplicate descriptor composite key 'd.k_v'",
				"f1.yaml:12:5: config error, unknown key 'ratelimit'",
			},
		},
		"nested duplicates": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - key: b\n  - key: b\n"},
			[]string{"f1.yaml:6:5: duplicate descriptor composite key 'd.a.b'"},
		},
		"unlimited with a unit": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true, unit: hour}\n"},
			[]string{"f1.yaml:4:39: should not specify rate limit unit when unlimited"},
		},
		"share_threshold": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  value: b\n  share_threshold: true\n"},
			[]string{"f1.yaml:3:3: share_threshold can only be used with wildcard values (containing '*'), but found " +
				"key 'a_b'"},
		},
		"replaces": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 1, name: n, " +
				"replaces: [{name: n}, {}, {name: ''}]}\n"},
			[]string{
				"f1.yaml:4:70: replaces should not contain name of same descriptor",
				"f1.yaml:4:80: should not have an empty replaces entry",
				"f1.yaml:4:85: should not have an empty replaces entry",
			},
		},
		"types": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  shadow_mode: maybe\n  rate_limit: {unit: day, " +
				"requests_per_unit: 1.5}\n- nonsense\n- 1: 2\n"},
			[]string{
				`f1.yaml:4:16: error loading config file: shadow_mode must be true or false, not "maybe"`,
				`f1.yaml:5:46: error loading config file: requests_per_unit must be a whole number ` +
					`from 0 to 1000000000000, not "1.5"`,
				"f1.yaml:6:3: config error, yaml file contains list of type other than map: nonsense",
				"f1.yaml:7:3: config error, key is not of type string: 1",
				"f1.yaml:7:3: config error, unknown key '1'",
				"f1.yaml:7:3: descriptor has empty key",
			},
		},
		"syntax": {
			[]string{"domain: [\n"},
			[]string{"f1.yaml:1: error loading config file: did not find expected node content"},
		},
		"limits": {
			[]string{"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: " +
				"1000000000001}\n- " +
				"key: b\n  rate_limit: {unit: day, requests_per_unit: -1}\n"},
			[]string{
				`f1.yaml:4:46: error loading config file: requests_per_unit must be a whole number ` +
					`from 0 to 1000000000000, not "1000000000001"`,
				`f1.yaml:6:46: error loading config file: requests_per_unit must be a whole number ` +
					`from 0 to 1000000000000, not "-1"`,
			},
		},
		"ours": {
			[]string{`domain: d
algorithm: leaky
coordination:
  mode: gossip
  lease: {size: x, siz: 3}
  max_nodes: 0
  check_timeout: 3s
descriptors:
- key: a
  burst: 5
  rate_limit: {unit: day, requests_per_unit: 1, algorithm: token_bucket}
- key: b
  coordination: {drift_budget: 200%, lease: {max: 2}, low_watermark: 1%}
- key: c
  coordination: {on_store_failure: cached}
`},
			[]string{
				`f1.yaml:2:12: error loading config file: algorithm must be one of ` +
					`fixed_window, sliding_window, token_bucket, not "leaky"`,
				`f1.yaml:4:9: config error, coordination: mode: "gossip" is not one of leasing, routing, approx`,
				`f1.yaml:5:17: config error, coordination: lease.size: "x" is not a whole number from 1 to ` +
					`1000000000000`,
				"f1.yaml:5:20: config error, unknown key 'siz'; did you mean 'size'? Known here: size, reserve",
				`f1.yaml:6:14: config error, coordination: max_nodes: "0" is not a whole number from 1 to ` +
					`1000000000000`,
				"f1.yaml:7:18: config error, coordination: check_timeout is 3s, must be between 0s and 1s",
				"f1.yaml:9:3: config error, burst applies to algorithm: token_bucket, and this is fixed_window",
				"f1.yaml:11:49: config error, unknown key 'algorithm'; it belongs in the descriptor, next to " +
					"rate_limit",
				`f1.yaml:13:32: config error, coordination: drift_budget: "200%" is not a percentage ` +
					`from 0% to 100%, with at most four decimals`,
				"f1.yaml:13:46: config error, coordination: this release does not have lease.max; remove it: " +
					"write lease: {size: N}",
				"f1.yaml:13:55: config error, coordination: this release does not have low_watermark; remove it: " +
					"requests without a lease wait",
				`f1.yaml:15:36: config error, coordination: on_store_failure: "cached" is not in this release: ` +
					`write local`,
			},
		},
		"unknown anchor": {
			[]string{"domain: d\ndescriptors: *nowhere\n"},
			[]string{"f1.yaml:2:14: error loading config file: "},
		},
		"a bomb": {
			[]string{bomb()},
			[]string{"error loading config file: with its aliases it has more tokens than the 250000 that are left"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, problems := parseText(c.texts...)
			got := strings.Split(problems.Error(), "\n")
			if len(got) != len(c.want) {
				t.Fatalf("got %d problems:\n%s\nwant:\n%s", len(got), problems.Error(), strings.Join(c.want, "\n"))
			}
			for i := range got {
				if !strings.Contains(got[i], c.want[i]) {
					t.Errorf("got  %s\nwant %s", got[i], c.want[i])
				}
			}
		})
	}
}

func bomb() string {
	var b strings.Builder
	b.WriteString("domain: d\nmetadata:\n  a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 12; i++ {
		fmt.Fprintf(&b, "  a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i-1), 10),
			","))
	}
	return b.String()
}

const matchFile = `
domain: d
descriptors:
  - key: path
    value: /exact
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: path
    value: /a*
    rate_limit: {unit: second, requests_per_unit: 2}
  - key: path
    value: /ab*
    rate_limit: {unit: second, requests_per_unit: 3}
  - key: path
    value: "*/mid*dle/*"
    rate_limit: {unit: second, requests_per_unit: 4}
    share_threshold: true
  - key: path
    rate_limit: {unit: second, requests_per_unit: 5}
  - key: tier
    value: "*"
    rate_limit: {unit: second, requests_per_unit: 6}
  - key: node
    descriptors:
      - key: leaf
        rate_limit: {unit: MINUTE, requests_per_unit: 7}
  - key: path
    value: /abc
    descriptors:
      - key: only_below
        rate_limit: {unit: second, requests_per_unit: 8}
`

func TestMatch(t *testing.T) {
	d := mustParse(t, matchFile).Domain("d")
	for _, c := range []struct {
		entries []Entry
		want    ratelimit.Tokens // requests_per_unit; 0: no rule
	}{
		{[]Entry{{"path", "/exact"}}, 1},
		{[]Entry{{"path", "/abx"}}, 2}, // first in the file, though the second is longer
		{[]Entry{{"path", "/a"}}, 2},
		{[]Entry{{"path", "/x/middle/y"}}, 4},
		{[]Entry{{"path", "/mid/dle/"}}, 4},
		{[]Entry{{"path", "/mid/dle"}}, 5},
		{[]Entry{{"path", ""}}, 5},
		{[]Entry{{"path", "/abc"}}, 0},                        // the exact value wins and has no limit: no going back
		{[]Entry{{"path", "/abc"}, {"only_below", "x"}}, 8},   //
		{[]Entry{{"path", "/exact"}, {"path", "/exact"}}, 0},  // deeper than the rules
		{[]Entry{{"tier", ""}}, 6},                            //
		{[]Entry{{"tier_gold", "x"}}, 0},                      // there, tier's wildcard captures it
		{[]Entry{{"node", "x"}}, 0},                           // a node without a limit
		{[]Entry{{"node", "x"}, {"leaf", "y"}}, 7},            //
		{[]Entry{{"leaf", "y"}}, 0},                           //
		{[]Entry{{"node", "x"}, {"leaf", "y"}, {"z", ""}}, 0}, //
		{nil, 0},
	} {
		rule, key := d.Match(c.entries, nil)
		switch {
		case rule == nil && c.want != 0, rule != nil && rule.Limit.Requests != c.want:
			t.Errorf("%v: got %+v, want limit %d", c.entries, rule, c.want)
		case rule == nil && key != nil:
			t.Errorf("%v: no rule, but a key", c.entries)
		}
	}
}

func TestKeysNeverCollideUnlessShared(t *testing.T) {
	d := mustParse(t, matchFile, `
domain: e
descriptors:
- key: a
  rate_limit: {unit: day, requests_per_unit: 1}
  descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]
`)
	long := strings.Repeat("x", 500)
	distinct := []struct {
		domain  string
		entries []Entry
	}{
		{"d", []Entry{{"path", "/1"}}},
		{"d", []Entry{{"path", "/2"}}},
		{"d", []Entry{{"path", long}}},
		{"d", []Entry{{"path", long + "y"}}},
		{"d", []Entry{{"node", "a_leaf_b"}, {"leaf", "c"}}},
		{"d", []Entry{{"node", "a"}, {"leaf", "b_leaf_c"}}},
		{"e", []Entry{{"a", "1"}, {"b", ""}}},
		{"e", []Entry{{"a", "1\x00\x01b"}, {"b", ""}}},
		{"e", []Entry{{"a", "1"}}},
		{"d", []Entry{{"path", "/x/middle/y"}}},
		{"d", []Entry{{"tier", "*/mid*dle/*"}}},
	}
	seen := map[string]int{}
	for i, c := range distinct {
		rule, key := d.Domain(c.domain).Match(c.entries, nil)
		if rule == nil || len(key) > ratelimit.MaxKeyLen {
			t.Fatalf("%v: rule %v, key of %d bytes", c, rule, len(key))
		}
		if j, ok := seen[string(key)]; ok {
			t.Errorf("%v and %v share a key", c, distinct[j])
		}
		seen[string(key)] = i
	}
	_, shared := d.Domain("d").Match([]Entry{{"path", "/y/middle/z"}}, nil)
	if _, ok := seen[string(shared)]; !ok {
		t.Error("values under one share_threshold do not share their key")
	}
}

func TestInheritance(t *testing.T) {
	rules := mustParse(t, `
domain: d
algorithm: token_bucket
burst: 9
coordination: {mode: approx, drift_budget: 5%, lease: {size: 3}}
descriptors:
  - key: a
    rate_limit: {unit: second, requests_per_unit: 1}
    coordination: {mode: routing}
    descriptors:
      - key: b
        algorithm: sliding_window
        coordination: {on_deny: refund, lease: {size: 7}}
        rate_limit: {unit: second, requests_per_unit: 1}
  - key: c
    algorithm: fixed_window
    rate_limit: {unit: second, requests_per_unit: 1}
`).All()
	var got []string
	for _, r := range rules {
		c := r.Coordination
		got = append(got, fmt.Sprintf("%s: %s, %s %s size %d %s", r.Path, r.Limit, c.Mode, c.DriftBudget,
			c.Lease.Fixed, c.OnDeny))
	}
	want := []string{
		"a: 1 per second, bucket of 9, routing 5% size 3 charge",
		"a.b: 1 per second, sliding, routing 5% size 7 refund",
		"c: 1 per second, approx 5% size 3 charge",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestYAMLAsTheirsReadsIt(t *testing.T) {
	rules := mustParse(t, `
domain: d
descriptors:
  - &base
    key: a
    value: 17
    shadow_mode: yes
    metadata: {nested: {list: [1, two, true, null]}}
    rate_limit: {unit: Hour, requests_per_unit: 0x10, name: n}
  - <<: *base
    value: on
`).All()
	if len(rules) != 2 || !rules[1].Shadow || rules[1].Limit.Requests != 16 || rules[0].Path != "a_17" ||
		rules[1].Path != "a_on" {
		t.Fatalf("%+v", rules)
	}
	want := map[string]any{"nested": map[string]any{"list": []any{1.0, "two", true, nil}}}
	if d := cmp.Diff(want, rules[1].Metadata); d != "" {
		t.Error(d)
	}
}

// What is no map cannot be merged; nor can an alias of a list, which the library does not take either.
func TestOnlyMapsAreMerged(t *testing.T) {
	for _, merged := range []string{"2", "", "[3, {key: y}]", "*list", "[*list]"} {
		text := "domain: d\ndescriptors:\n- {key: x, metadata: {list: &list [{value: b}]}}\n- key: y\n  <<: " +
			merged + "\n"
		_, _, problems := Parse([]Text{{Name: "f.yaml", Data: []byte(text)}}, options())
		if len(problems) != 1 || !strings.Contains(problems.Error(),
			"error loading config file: map merge requires map or sequence of maps as the value") {
			t.Errorf("%q: %v", merged, problems)
		}
	}
}

// There, a known key in the wrong place is ignored: here too, with a warning.
func TestMisplacedKeysAreWarnedAbout(t *testing.T) {
	text := "domain: d\ndescriptors:\n- key: a\n  unit: second\n  rate_limit: {unit: second, requests_per_unit: 1, " +
		"shadow_mode: true}\n"
	_, warnings, problems := Parse([]Text{{Name: "f.yaml", Data: []byte(text)}}, options())
	if problems != nil || len(warnings) != 2 {
		t.Fatalf("%v, %v", warnings, problems)
	}
	if !strings.Contains(warnings[1].Error(), "f.yaml:4:3: 'unit' has no effect here") &&
		!strings.Contains(warnings[0].Error(), "f.yaml:4:3: 'unit' has no effect here") {
		t.Error(warnings)
	}
}

func TestMergeDomains(t *testing.T) {
	o := options()
	o.MergeDomains = true
	rules, _, problems := Parse([]Text{
		{Name: "1", Data: []byte("domain: d\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1}}]")},
		{Name: "2", Data: []byte("domain: d\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]")},
	}, o)
	if problems != nil || len(rules.All()) != 2 {
		t.Fatalf("%v %v", rules, problems)
	}
}

func TestMatchAllocatesNothing(t *testing.T) {
	d := mustParse(t, matchFile).Domain("d")
	entries := []Entry{{"node", "some value"}, {"leaf", "other value"}}
	buf := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(1000, func() { d.Match(entries, buf) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzPattern(f *testing.F) {
	f.Add("a*b*c", "aXbYc")
	f.Add("*aa*a*", "aaa")
	f.Fuzz(func(t *testing.T, text, s string) {
		if len(text) > 20 || len(s) > 20 || !strings.Contains(text, "*") {
			return
		}
		if got, want := newPattern(text).matches(s), slowMatch(text, s); got != want {
			t.Errorf("%q matches %q: %v, want %v", text, s, got, want)
		}
	})
}

// slowMatch fills in which ends of p match which ends of s.
func slowMatch(p, s string) bool {
	match := make([]bool, len(s)+1) // of the rest of p with s[i:]
	match[len(s)] = true
	for i := len(p) - 1; i >= 0; i-- {
		next := make([]bool, len(s)+1)
		for j := len(s); j >= 0; j-- {
			if p[i] == '*' {
				next[j] = match[j] || j < len(s) && next[j+1]
			} else {
				next[j] = j < len(s) && p[i] == s[j] && match[j+1]
			}
		}
		match = next
	}
	return match[0]
}

func TestTree(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// What a Kubernetes ConfigMap looks like.
	write("..2026_11_20/a.yaml", "a")
	for link, to := range map[string]string{
		"..data": "..2026_11_20", "a.yaml": "..data/a.yaml", "sub/loop": "..",
		"gone": "nowhere",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	write("sub/deep/b", "b")
	write(".hidden", "h")
	names := func(tree *Tree) (names []string) {
		texts, err := tree.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range texts {
			names = append(names, f.Name)
		}
		slices.Sort(names)
		return names
	}
	if d := cmp.Diff([]string{".hidden", "a.yaml", "sub/deep/b"}, names(&Tree{Path: dir})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a.yaml", "sub/deep/b"}, names(&Tree{Path: dir, IgnoreDotFiles: true})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{".hidden"}, names(&Tree{Path: filepath.Join(dir, ".hidden")})); d != "" {
		t.Error(d)
	}
	if _, err := (&Tree{Path: filepath.Join(dir, "no")}).Read(); err == nil {
		t.Error("no error for a path that is not there")
	}
}

// Where the root is a link, files that are written one by one are no change: only
// the swap of the link is.
func TestTreeBehindALink(t *testing.T) {
	dir := t.TempDir()
	root := filepath.Join(dir, "current")
	for _, version := range []string{"v1", "v2"} {
		if err := os.MkdirAll(filepath.Join(dir, version, "config"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	link := func(to string) {
		t.Helper()
		_ = os.Remove(root)
		if err := os.Symlink(filepath.Join(dir, to), root); err != nil {
			t.Fatal(err)
		}
	}
	link("v1")
	tree := &Tree{Path: filepath.Join(root, "config"), Root: root}
	if !tree.changed() {
		t.Error("a tree that was never read has not changed")
	}
	if _, err := tree.Read(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "config", "a.yaml"), []byte("domain: d"), 0o600); err != nil {
		t.Fatal(err)
	}
	if tree.changed() {
		t.Error("a file that was written is a change")
	}
	link("v2")
	if !tree.changed() {
		t.Error("the swap is no change")
	}
	if plain := (&Tree{Path: filepath.Join(dir, "v1")}); !plain.changed() {
		t.Error("without a link, some look is no change")
	}
}
