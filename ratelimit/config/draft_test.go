package config

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

// asText builds the texts that files are, which the decoder reads.
func asText(t *testing.T, files []File, o Options) (*Rules, Problems) {
	t.Helper()
	var texts []Text
	for i := range files {
		text, err := WriteFile(&files[i], 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, Text{files[i].Place.File, text})
	}
	rules, _, problems := Parse(texts, o)
	return rules, problems
}

// Descriptors are too deep, and too much, just where the same ones in a text are,
// whatever stands in the innermost.
func TestFilesAreBoundedAsTexts(t *testing.T) {
	bucket, burst := ratelimit.TokenBucket, ratelimit.Tokens(5)
	lease := []Setting{
		{Field: "mode", Text: "approx"},
		{Field: "lease.ttl", Text: "1s"},
		{Field: "lease.ttl", Text: "3s"},
	}
	for name, innermost := range map[string]Descriptor{
		"a key":   {Key: "k"},
		"a limit": {Key: "k", Value: "v", Limit: &RateLimit{Requests: 1, Unit: "day", Name: "n"}},
		"replacements": {Key: "k", Limit: &RateLimit{
			Requests: 1, Unit: "day",
			Replaces: []Replacement{{Name: "n"}},
		}},
		"empty metadata": {Key: "k", Metadata: map[string]any{}},
		"metadata":       {Key: "k", Metadata: map[string]any{"a": map[string]any{"b": []any{1.0, "x", nil, true}}}},
		"a bucket":       {Key: "k", Inherited: Inherited{Algorithm: &bucket, Burst: &burst}},
		"overrides":      {Key: "k", Inherited: Inherited{Overrides: new(true), MaxOverride: &burst}},
		"a mode":         {Key: "k", Inherited: Inherited{Coordination: lease[:1]}},
		"a lease":        {Key: "k", Inherited: Inherited{Coordination: lease}},
		"flags": {
			Key: "k", Value: "*", Shadow: true, Quota: true, Detailed: true, ValueToMetric: true,
			ShareThreshold: true,
		},
		"a list of a depth": {Key: "k", Metadata: map[string]any{"a": []any{[]any{[]any{}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			accepted := 0
			for depth := 90; depth <= 101; depth++ {
				d := innermost
				for range depth - 1 {
					d = Descriptor{Key: "k", Descriptors: []Descriptor{d}}
				}
				files := []File{{Place: Place{File: "f"}, Domain: "d", Descriptors: []Descriptor{d}}}
				rules, _, problems := Build(Draft{Files: files}, options())
				text, textProblems := asText(t, files, options())
				if (rules == nil) != (text == nil) {
					t.Errorf("%d deep: %v, as a text %v", depth, problems, textProblems)
				}
				if rules == nil && !strings.Contains(problems.Error(), "nested deeper than 200") {
					t.Errorf("%d deep: %v", depth, problems)
				}
				if rules != nil {
					accepted++
					sameRules(t, rules.All(), text.All())
				}
			}
			if accepted < 5 || accepted > 10 {
				t.Errorf("%d of 12 depths are accepted", accepted)
			}
		})
	}
	for tokens := 1; tokens < 30; tokens++ {
		o := options()
		o.Caps.Tokens = tokens
		files := make([]File, 3)
		for i := range files {
			name := fmt.Sprint("d", i)
			files[i] = File{Place: Place{File: name}, Domain: name, Descriptors: []Descriptor{{Key: "a"}, {Key: "b"}}}
		}
		rules, _, problems := Build(Draft{Files: files}, o)
		text, textProblems := asText(t, files, o)
		if (rules == nil) != (text == nil) || rules == nil && problems[0].Error() != textProblems[0].Error() {
			t.Errorf("%d tokens: %v, as texts %v", tokens, problems, textProblems)
		}
	}
}

func sameRules(t *testing.T, got, want []*ratelimit.Rule) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%d rules, as a text %d", len(got), len(want))
	}
	for i := range got {
		a, b := *got[i], *want[i]
		a.Counters, b.Counters = nil, nil
		if x, y := fmt.Sprintf("%+v", a), fmt.Sprintf("%+v", b); x != y {
			t.Errorf("%s\nas a text\n%s", x, y)
		}
	}
}
