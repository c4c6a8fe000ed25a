package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
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
// tokens that were spent.
func TestChanges(t *testing.T) {
	before := ""
	datadriven.RunTest(t, "testdata/changes.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "before" {
			before = in.Input
			return ""
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
			fmt.Fprintln(&out, strings.Count(log.String(), "event=rules_renamed"), "logged")
		}
		if same := rules.Fingerprint() == old.Fingerprint(); same != (len(changes) == 0) {
			t.Errorf("the same fingerprint: %t", same)
		}
		return out.String()
	})
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

// Whether a budget goes on or counts anew is a matter of its key, and Effects says it.
func TestEffectsSayWhichBudgetsGoOn(t *testing.T) {
	const before = `domain: d
descriptors:
- key: k
  value: v*
  algorithm: token_bucket
  rate_limit: {unit: day, requests_per_unit: 100}
`
	texts := map[string]string{
		"requests_per_unit": strings.Replace(before, "100", "50", 1),
		"burst":             strings.Replace(before, "  rate", "  burst: 7\n  rate", 1),
		"unit_multiplier":   strings.Replace(before, "unit: day", "unit: day, unit_multiplier: 2", 1),
		"unit":              strings.Replace(before, "day", "hour", 1),
		"algorithm":         strings.Replace(before, "token_bucket", "fixed_window", 1),
		"share_threshold":   strings.Replace(before, "  rate", "  share_threshold: true\n  rate", 1),
	}
	for field, text := range map[string]string{
		"mode": "approx", "lease.size": "9",
		"reclaim": "eager", "drift_budget": "3%", "max_nodes": "3", "check_timeout": "3ms",
		"store_deadline":   "9ms",
		"on_store_failure": "open", "on_deny": "charge", "audit": "true",
	} {
		setting := field + ": " + text
		if name, of := strings.CutPrefix(field, "lease."); of {
			setting = "lease: {" + name + ": " + text + "}"
		}
		texts[field] = strings.Replace(before, "  rate", "  coordination: {"+setting+"}\n  rate", 1)
	}
	for _, flag := range []string{"shadow_mode", "quota_mode", "detailed_metric", "value_to_metric"} {
		texts[flag] = strings.Replace(before, "  rate", "  "+flag+": true\n  rate", 1)
	}
	texts["max_override"] = strings.Replace(before, "  rate", "  max_override: 900\n  rate", 1)
	texts["hold"] = strings.Replace(before, "  rate", "  hold: {amount: 3, on: [0]}\n  rate", 1)
	texts["metadata"] = strings.Replace(before, "  rate", "  metadata: {a: 1}\n  rate", 1)
	texts["name"] = strings.Replace(before, "{unit", "{name: n, unit", 1)
	texts["replaces"] = strings.Replace(before, "{unit", "{replaces: [{name: n}], unit", 1)
	texts["unlimited"] = strings.Replace(before, "{unit: day, requests_per_unit: 100}", "{unlimited: true}", 1)
	month := strings.NewReplacer("token_bucket", "fixed_window",
		"unit: day", "unit: month, billing: {day: 15, time_zone: Asia/Tokyo}")
	texts["billing.day"], texts["billing.time_zone"] = month.Replace(before), month.Replace(before)
	key := func(text string) []byte {
		_, key := mustParse(t, text).Domain("d").Match([]Entry{{"k", "v1"}}, nil)
		return key
	}
	var placed []string // the names of all settings that a change may be of
	for _, s := range mustParse(t, before).spots() {
		for _, f := range s.fields {
			if s.ruled {
				placed = append(placed, f.Name)
			}
		}
	}
	for _, f := range placed {
		text, ok := texts[f]
		if !ok {
			t.Errorf("%s is not tried here", f)
			continue
		}
		found := false
		for _, change := range Changes(mustParse(t, before), mustParse(t, text)) {
			for _, e := range EffectsOf(&change) {
				if !slices.Contains(e.Fields, f) {
					continue // burst follows requests_per_unit, unlimited has no unit
				}
				found = true
				if anew := !bytes.Equal(key(before), key(text)); anew != e.Anew && f != "unlimited" {
					t.Errorf("%s: counts anew: %t, and Effects says %t", f, anew, e.Anew)
				}
			}
		}
		if !found {
			t.Errorf("%s: no effect is known of\n%s", f, text)
		}
	}
}

// A store says which rules are in force since when, what is wrong with what is newer, and logs what a load has changed.
func TestStatus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rules.yaml")
	write := func(text string) { writeFile(t, path, text) }
	var log bytes.Buffer
	s := NewStore(&Tree{Path: path}, options(), slog.New(slog.NewTextHandler(&log, nil)))
	if (s.Status() != Status{}) {
		t.Errorf("before the first load: %+v", s.Status())
	}
	begun := time.Now()
	write(goodFile)
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	first := s.Status()
	if !first.Good || first.Source != path || first.Fingerprint != s.Rules().Fingerprint() ||
		len(first.Fingerprint) != 12 || first.Loaded.Before(begun) || first.Error != "" ||
		strings.Contains(log.String(), "rule_changed") {
		t.Errorf("after the first: %+v\n%s", first, log.String())
	}
	write("domain: [\n")
	for range 2 { // looking again changes nothing
		if err := s.Load(); err == nil {
			t.Fatal("bad rules were loaded")
		}
		bad := s.Status()
		if bad.Good || !strings.Contains(bad.Error, "rules.yaml:1: ") || bad.Failed.Before(begun) ||
			bad.Fingerprint != first.Fingerprint || bad.Loaded != first.Loaded {
			t.Errorf("with a bad file: %+v", bad)
		}
	}
	s.Refuse(errors.New("a push"))
	if got := s.Status(); got.Good || got.Error != "a push" {
		t.Errorf("after a push that could not be read: %+v", got)
	}
	write(strings.Replace(goodFile, "unit: 7", "unit: 30", 1))
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	if got := s.Status(); !got.Good || got.Error != "" || !got.Failed.IsZero() || got.Fingerprint == first.Fingerprint {
		t.Errorf("once it is mended: %+v", got)
	}
	want := `event=rule_changed rule=d.k change="requests_per_unit 7 -> 30"`
	if strings.Count(log.String(), "rule_changed") != 1 || !strings.Contains(log.String(), want) {
		t.Errorf("no %s in\n%s", want, log.String())
	}
	s.Refuse(errors.New("a push"))
	if err := s.Load(); err != nil || !s.Status().Good {
		t.Errorf("the same good rules again, after a push that could not be read: %v, %+v", err, s.Status())
	}
}

// Many changes are logged in part, and counted.
func TestManyChangesAreLoggedInPart(t *testing.T) {
	var log bytes.Buffer
	changes := make([]Change, 25)
	for i := range changes {
		changes[i] = Change{Rule: fmt.Sprintf("d.k%d", i), Kind: Added, Limit: "1 per day"}
	}
	logChanges(slog.New(slog.NewTextHandler(&log, nil)), changes)
	if n := strings.Count(log.String(), "\n"); n != logged+1 || !strings.Contains(log.String(), "more=5") {
		t.Errorf("%d lines:\n%s", n, log.String())
	}
	changes = nil
	for i := range 100 {
		changes = append(changes, Change{Rule: fmt.Sprint("d.a", i), Kind: Removed, Limit: "1 per day"},
			Change{Rule: fmt.Sprint("d.b", i), Kind: Added, Limit: "1 per day"})
	}
	if got := Renamed(changes); !strings.Contains(got, "100 (such as d.a0 -> d.b0, d.a1 -> d.b1, d.a2 -> d.b2).") {
		t.Error(got)
	}
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
	placed := []string{"Domain", "Path", "Keys", "Override", "Counters", "MetricNames.Shared"}
	if _, err := ratelimit.NewCalendar(15, time.UTC); err != nil { // so that there is one to set
		t.Fatal(err)
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

// changed gives a field another value.
func changed(v reflect.Value) {
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

// share_threshold is in the place of a rule.
func TestFingerprintHasSharedLimits(t *testing.T) {
	text := "{domain: d, descriptors: [{key: k, value: a*, share_threshold: %v, " +
		"rate_limit: {unit: day, requests_per_unit: 1}}]}"
	shared, alone := mustParse(t, fmt.Sprintf(text, true)), mustParse(t, fmt.Sprintf(text, false))
	if shared.Fingerprint() == alone.Fingerprint() || len(Changes(shared, alone)) == 0 {
		t.Error("share_threshold is not compared")
	}
}
