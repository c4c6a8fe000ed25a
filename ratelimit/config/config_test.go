package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/fsnotify/fsnotify"
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

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err := errors.Join(err, os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func mustParse(t testing.TB, texts ...string) *Rules {
	t.Helper()
	rules, problems := parseText(texts...)
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

const matchFile = `
domain: d
descriptors:
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
`

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

func TestMatchAllocatesNothing(t *testing.T) {
	d := mustParse(t, matchFile).Domain("d")
	entries := []Entry{{"node", "some value"}, {"leaf", "other value"}}
	buf := make([]byte, 0, 512)
	if n := testing.AllocsPerRun(1000, func() {
		d.Match(entries, buf)
		d.MatchUnordered(entries, buf)
	}); n != 0 {
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
	write := func(name, text string) { writeFile(t, filepath.Join(dir, name), text) }
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
	swapped := &Tree{Path: filepath.Join(dir, "..data", "no"), Root: filepath.Join(dir, "..data")}
	if _, err := swapped.Read(); err == nil || !swapped.changed() {
		t.Errorf("a path that is not there yet: %v, and another look at it: %t", err, swapped.changed())
	}
}

// A swap of the root leaves no directory of before watched: a process may watch only so many.
func TestOnlyRulesInUseAreWatched(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	root := filepath.Join(dir, "current")
	for _, release := range []string{"1", "2"} {
		err := errors.Join(os.Mkdir(filepath.Join(dir, release), 0o700), os.RemoveAll(root), os.Symlink(release, root))
		if err != nil {
			t.Fatal(err)
		}
		(&Tree{Path: root, Root: root}).addAll(w)
	}
	got := slices.Sorted(slices.Values(w.WatchList()))
	if diff := cmp.Diff([]string{dir, filepath.Join(dir, "2")}, got); diff != "" {
		t.Errorf("watched are -want +got\n%s", diff)
	}
}

// Metadata may have numbers as keys, which are texts. Nothing else may.
func TestNumbersAsKeysOfMetadata(t *testing.T) {
	const file = "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 5}\n  "
	for text, want := range map[string]string{
		"metadata: {429: slow, b: {1.5: [{2: y}]}}": "",
		"metadata: {true: slow}":                    "key is not of type string: true",
		"metadata: {1: x, '1': y}":                  "mapping key \"1\" already defined",
		"7: x":                                      "key is not of type string: 7",
		"metadata: {1: x}\n  8: x":                  "key is not of type string: 8",
	} {
		files := Static{{Name: "r.yaml", Data: []byte(file + text + "\n")}}
		s := NewStore(files, options(), slog.New(slog.DiscardHandler))
		err := s.Load()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if err == nil {
			rule, _ := s.Rules().Domain("d").Match([]Entry{{Key: "a", Value: "x"}}, nil)
			if rule.Metadata["429"] != "slow" {
				t.Errorf("%v", rule.Metadata)
			}
		}
	}
}
