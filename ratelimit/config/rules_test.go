package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestRulesAreReadOrRefused(t *testing.T) {
	var last *Rules
	datadriven.RunTest(t, "testdata/rules.txt", func(_ *testing.T, in *datadriven.TestData) string {
		o := options()
		o.MergeDomains, o.CalendarMonths = in.HasArg("merge"), in.HasArg("calendar")
		if in.HasArg("keyless") {
			o.NoHolds = errors.New("there are no keys")
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
		}
		return out.String()
	})
}

// said reads files, with a line == between two, and writes what becomes of them.
func said(out *strings.Builder, input string, o Options) *Rules {
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
		fmt.Fprintf(out, "%s\n", map[bool]string{true: ", carries debt"}[r.Limit.Carries])
	}
	return rules
}

// matched is the rule of a descriptor.
func matched(d *Domain, text string) string {
	brought := ratelimit.Limit{Unit: ratelimit.Day, Requests: 3}
	if text == OverridePath {
		return fmt.Sprintf("carries debt: %t", d.OverrideRule(brought).Limit.Carries)
	}
	var entries []Entry
	for entry := range strings.SplitSeq(text, " ") {
		key, value, _ := strings.Cut(entry, "=")
		entries = append(entries, Entry{key, value})
	}
	r, key := d.Match(entries, nil)
	if r == nil {
		return fmt.Sprintf("no rule%s", key)
	}
	return r.Path
}
