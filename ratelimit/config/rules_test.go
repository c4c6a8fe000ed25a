package config

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestRulesAreReadOrRefused(t *testing.T) {
	var last *Rules
	datadriven.RunTest(t, "testdata/rules.txt", func(t *testing.T, in *datadriven.TestData) string {
		o := options()
		o.MergeDomains, o.CalendarMonths = in.HasArg("merge"), in.HasArg("calendar")
		if in.HasArg("keyless") {
			o.NoHolds = errors.New("there are no keys")
		}
		for name, most := range map[string]*int{
			"bytes": &o.Caps.FileBytes, "all": &o.Caps.TotalBytes, "files": &o.Caps.Files, "tokens": &o.Caps.Tokens,
			"descriptors": &o.Caps.Rules,
		} {
			in.MaybeScanArgs(t, name, most)
		}
		var out strings.Builder
		switch in.Cmd {
		case "rules":
			last = said(&out, in.Input, o)
		case "each":
			text, values, _ := strings.Cut(in.Input, "\n\n")
			for value := range strings.SplitSeq(values, "\n") {
				fmt.Fprintln(&out, value)
				said(&out, strings.ReplaceAll(text, "$", value), o)
			}
		case "match":
			for text := range strings.SplitSeq(in.Input, "\n") {
				fmt.Fprintf(&out, "%s: %s\n", text, matched(last.Domain("d"), text))
			}
		case "match-unordered":
			for text := range strings.SplitSeq(in.Input, "\n") {
				fmt.Fprintf(&out, "%s: %s\n", text, matchedUnordered(t, last.Domain("d"), text))
			}
		}
		return out.String()
	})
}

// times is a line that stands for many.
var times = regexp.MustCompile(`(?m)^\d+ times .*$`)

// said reads files, with a line == between two, and writes what becomes of them.
func said(out *strings.Builder, input string, o Options) *Rules {
	input = times.ReplaceAllStringFunc(input, func(line string) string {
		n, text, _ := strings.Cut(line, " times ")
		many, _ := strconv.Atoi(n)
		return strings.TrimSuffix(strings.Repeat(text+"\n", many), "\n")
	})
	var files []Text
	for i, text := range strings.Split(input, "\n==\n") {
		files = append(files, Text{Name: fmt.Sprintf("f%d", i+1), Data: []byte(text)})
	}
	rules, warnings, problems := Parse(files, o)
	for _, p := range append(problems, warnings...) {
		fmt.Fprintf(out, "  %s: %v\n", p.Kind, p)
	}
	plain, usual := map[string]string{}, ratelimit.Limit{Ceiling: ratelimit.MaxLimit}
	for _, f := range fieldsOf(&ratelimit.Rule{Limit: usual, Coordination: o.Coordination}) {
		plain[f.Name] = f.Text
	}
	for _, r := range rules.All() {
		fmt.Fprintf(out, "  %s: %s", r.Path, r.Limit)
		for _, f := range fieldsOf(r) {
			if f.Text != plain[f.Name] && f.Name != "requests_per_unit" &&
				(f.Name != "unit" || r.Limit.Unit.OfCalendar()) {
				fmt.Fprintf(out, ", %s %s", f.Name, shown(f.Text))
			}
		}
		if r.Limit.Algorithm == ratelimit.Concurrency {
			fmt.Fprintf(out, ", hold %v", r.Hold)
		}
		fmt.Fprintln(out)
	}
	return rules
}

// matched is the rule of a descriptor.
func matched(d *Domain, text string) string {
	r, key := d.Match(entriesOf(text), nil)
	if r == nil {
		return fmt.Sprintf("no rule%s", key)
	}
	return r.Path
}

func entriesOf(text string) (entries []Entry) {
	for entry := range strings.SplitSeq(text, " ") {
		key, value, _ := strings.Cut(entry, "=")
		entries = append(entries, Entry{key, value})
	}
	return entries
}

// matchedUnordered is the rule of a descriptor whose entries have no order, as over RLQS: in each order the same, with
// the key of the same descriptor over RLS.
func matchedUnordered(t *testing.T, d *Domain, text string) (path string) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.Permutation(entriesOf(text)).Draw(t, "order")
		rule, key := d.MatchUnordered(entries, nil)
		is := "no rule"
		if rule != nil {
			is = rule.Path
			if again, want := d.Match(entries, nil); again != rule || !slices.Equal(key, want) {
				t.Fatalf("%s: the key is not that of the same descriptor over RLS", text)
			}
		}
		if path = cmp.Or(path, is); path != is {
			t.Fatalf("%s matches %s, and in another order %s", text, is, path)
		}
	})
	return path
}
