package config

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

// "before" has rules, and a "change" of them what is replaced, and by what. With effects, each says what becomes of
// tokens that were spent. In "budgets", each line is a change: the key tells whether a budget goes on, and so do its
// effects. All settings of a rule are among them.
func TestChanges(t *testing.T) {
	before, tried := "", map[string]bool{}
	budgets := func(t *testing.T, changes string) string {
		key := func(r *Rules) string {
			_, key := r.Domain("d").Match([]Entry{{"k", "v1"}}, nil)
			return string(key)
		}
		var out strings.Builder
		for line := range strings.SplitSeq(changes, "\n") {
			from, to, _ := strings.Cut(line, " => ")
			old, rules := mustParse(t, before), mustParse(t, strings.Replace(before, from, to, 1))
			for _, change := range Changes(old, rules) {
				goesOn := "goes on"
				if key(old) != key(rules) {
					goesOn = "begins anew"
				}
				for _, e := range EffectsOf(&change) {
					for _, f := range change.Fields {
						tried[f.Field] = tried[f.Field] || slices.Contains(e.Fields, f.Field)
					}
					if e.Anew != (goesOn != "goes on") && !slices.Contains(e.Fields, "unlimited") {
						t.Errorf("%s: the budget %s, and Effects says otherwise", line, goesOn)
					}
				}
				fmt.Fprintf(&out, "%s: it %s\n", change.What(), goesOn)
			}
		}
		return out.String()
	}
	datadriven.RunTest(t, "testdata/changes.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "before" {
			before = in.Input
			return ""
		}
		if in.Cmd == "budgets" {
			return budgets(t, in.Input)
		}
		from, to, _ := strings.Cut(in.Input, "\n==\n")
		times := 1
		if in.HasArg("all") {
			times = -1
		}
		old, rules := mustParse(t, before), mustParse(t, strings.Replace(before, from, to, times))
		var out strings.Builder
		changes := Changes(old, rules)
		for _, change := range changes {
			fmt.Fprintf(&out, "%s: %s\n", change.Rule, change.What())
			effects := EffectsOf(&change)
			if len(effects) == 0 && change.Limit != "a domain" {
				t.Errorf("nothing is known of what %v does", change)
			}
			for _, e := range effects {
				if in.HasArg("effects") {
					fmt.Fprintf(&out, "  tokens spent %s\n", e.Spent)
				}
			}
		}
		if in.HasArg("renamed") {
			fmt.Fprintln(&out, cmp.Or(Renamed(changes), "no renames"))
			var log bytes.Buffer
			logChanges(slog.New(slog.NewTextHandler(&log, nil)), changes)
			fmt.Fprintf(&out, "%d logged, of %d lines\n", strings.Count(log.String(), "event=rules_renamed"),
				strings.Count(log.String(), "\n"))
		}
		if same := rules.Fingerprint() == old.Fingerprint(); same != (len(changes) == 0) {
			t.Errorf("the same fingerprint: %t", same)
		}
		return out.String()
	})
	for _, s := range mustParse(t, before).spots() {
		for _, f := range s.fields {
			if s.ruled && !tried[f.Name] {
				t.Errorf("testdata/changes.txt changes no budget's %s", f.Name)
			}
		}
	}
}

// There are changes if and only if the fingerprints differ; without any, every request is decided alike.
func TestChangesFingerprintsAndMatchesAgree(t *testing.T) {
	// drawRules draws few enough keys, values and limits that two draws are often alike.
	drawRules := func(t *rapid.T, name string) string {
		text := "domain: " + rapid.SampledFrom([]string{"d", "e"}).Draw(t, name+" domain") + "\ndescriptors:\n"
		written := map[string]bool{}
		var level func(indent string, depth int, above string)
		level = func(indent string, depth int, above string) {
			for range rapid.IntRange(1, 3).Draw(t, name+" descriptors") {
				key := rapid.SampledFrom([]string{"a", "a_b"}).Draw(t, name+" key")
				value := rapid.SampledFrom([]string{"", "b", "b*", "*"}).Draw(t, name+" value")
				at := above + "|" + key + "=" + value
				if written[at] {
					continue
				}
				written[at] = true
				text += fmt.Sprintf("%s- key: %s\n%s  value: %q\n", indent, key, indent, value)
				if rapid.Bool().Draw(t, name+" limited") {
					const day = "unit: day, requests_per_unit: "
					limits := []string{day + "1", day + "2", "concurrency: 1"}
					limit := rapid.SampledFrom(limits).Draw(t, name+" limit")
					text += fmt.Sprintf("%s  rate_limit: {%s}\n", indent, limit)
				}
				if depth < 2 && rapid.Bool().Draw(t, name+" deeper") {
					text += indent + "  descriptors:\n"
					level(indent+"  ", depth+1, at)
				}
			}
		}
		level("", 0, "")
		return text
	}
	decisions := func(r *Rules) string { // the rules for all descriptors that drawRules has rules for
		var b strings.Builder
		var ask func(d *Domain, entries []Entry)
		ask = func(d *Domain, entries []Entry) {
			if rule, key := d.Match(entries, nil); rule != nil {
				fmt.Fprintf(&b, "%v %v %x\n", entries, rule.Limit, key)
			}
			if len(entries) == 3 {
				return
			}
			for _, key := range []string{"a", "a_b"} {
				for _, value := range []string{"", "b", "bc", "x"} {
					ask(d, append(slices.Clip(entries), Entry{key, value}))
				}
			}
		}
		for _, name := range []string{"d", "e"} {
			if d := r.Domain(name); d != nil {
				ask(d, nil)
			}
		}
		return b.String()
	}
	rapid.Check(t, func(t *rapid.T) {
		texts := [2]string{drawRules(t, "old"), drawRules(t, "new")}
		if rapid.Bool().Draw(t, "nearly the same") {
			texts[1] = strings.Replace(texts[0], "unit: 1", "unit: 2", 1)
		}
		var rules [2]*Rules
		for i, text := range texts {
			parsed, _, problems := Parse([]Text{{Name: "f", Data: []byte(text)}}, options())
			if problems != nil {
				t.Fatalf("%v\n%s", problems, text)
			}
			rules[i] = parsed
		}
		changes := Changes(rules[0], rules[1])
		if same := rules[0].Fingerprint() == rules[1].Fingerprint(); same != (len(changes) == 0) {
			t.Fatalf("the same fingerprint: %t, and the changes are %+v\n%s\n%s", same, changes, texts[0], texts[1])
		}
		if len(changes) == 0 && decisions(rules[0]) != decisions(rules[1]) {
			t.Fatalf("no changes, and other decisions\n%s\n%s", texts[0], texts[1])
		}
	})
}

// Defaults of the server count, and the names of files do not.
func TestFingerprintIsOfWhatIsInForce(t *testing.T) {
	o := options()
	parse := func(name string) string {
		r, _, problems := Parse([]Text{{Name: name, Data: []byte(goodFile)}}, o)
		if problems != nil {
			t.Fatal(problems)
		}
		return r.Fingerprint()
	}
	a, b := parse("a.yaml"), parse("b.yaml")
	o.Coordination.Mode = ratelimit.Approx
	c := parse("a.yaml")
	o = options()
	o.CalendarMonths = true
	if d := parse("a.yaml"); a != b || a == c || d != a {
		t.Error(a, b, c, d)
	}
	below := mustParse(t, "{domain: d, descriptors: [{key: k, descriptors: [{key: l}, {key: m}]}]}")
	beside := mustParse(t, `{domain: d, descriptors: [{key: k, descriptors: [{key: m}]}, {key: "k\0l"}]}`)
	if below.Fingerprint() == beside.Fingerprint() || len(Changes(below, beside)) == 0 {
		t.Error("a key with a separator is taken for two levels")
	}
	if got := (*Rules)(nil).Fingerprint(); got != "" {
		t.Errorf("of no rules: %q", got)
	}
}

// Each field of a rule that a file can set is among those that a fingerprint and a reload compare. The others are the
// rule's place, or the request's.
func TestFingerprintHasEachField(t *testing.T) {
	placed := []string{"Domain", "Path", "Keys", "Override", "Overridden", "Counters", "MetricNames.Shared"}
	if _, err := ratelimit.NewCalendar(15, time.UTC); err != nil { // so that there is one to set
		t.Fatal(err)
	}
	// changed gives a field another value.
	changed := func(v reflect.Value) {
		switch {
		case v.CanInt():
			v.SetInt(v.Int() + int64(time.Second))
		case v.CanUint():
			v.SetUint(v.Uint() + 1)
		case v.CanFloat():
			v.SetFloat(v.Float() + 0.25)
		case v.Kind() == reflect.Bool:
			v.SetBool(!v.Bool())
		case v.Kind() == reflect.String:
			v.SetString(v.String() + "x")
		case v.Kind() == reflect.Slice:
			v.Set(reflect.Append(v, reflect.New(v.Type().Elem()).Elem()))
		default:
			v.Set(reflect.ValueOf(map[string]any{"a": "b"}))
		}
	}
	usual := func(from ratelimit.HoldFrom) *ratelimit.Rule {
		return &ratelimit.Rule{
			Limit:        ratelimit.Limit{Unit: ratelimit.Minute, Requests: 60, Multiplier: 2},
			Coordination: ratelimit.DefaultCoordination(),
			Hold:         &ratelimit.Hold{From: from, Amount: 1, Quantile: 0.5, Max: 9, TTL: time.Minute},
		}
	}
	changes := func(from ratelimit.HoldFrom, at func(*ratelimit.Rule) reflect.Value) bool {
		r := usual(from)
		changed(at(r))
		return !slices.Equal(fieldsOf(r), fieldsOf(usual(from)))
	}
	var try func(name string, at func(*ratelimit.Rule) reflect.Value)
	try = func(name string, at func(*ratelimit.Rule) reflect.Value) {
		v := at(usual(ratelimit.HoldAmount))
		switch {
		case slices.Contains(placed, name):
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				below := strings.TrimPrefix(name+"."+v.Type().Field(i).Name, ".")
				try(below, func(r *ratelimit.Rule) reflect.Value { return reflect.Indirect(at(r).Field(i)) })
			}
		case !changes(ratelimit.HoldAmount, at) && !changes(ratelimit.HoldLearned, at):
			t.Errorf("fieldsOf lacks %s: add it to fingerprint.go", name)
		}
	}
	try("", func(r *ratelimit.Rule) reflect.Value { return reflect.ValueOf(r).Elem() })
}
