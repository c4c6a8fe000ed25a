package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
	"pgregory.net/rapid"

	"github.com/sluice-gate/sluice/ratelimit"
)

func TestRulesAreReadOrRefused(t *testing.T) {
	entriesOf := func(text string) (entries []Entry) {
		for entry := range strings.SplitSeq(text, " ") {
			key, value, _ := strings.Cut(entry, "=")
			entries = append(entries, Entry{key, value})
		}
		return entries
	}
	// matchedUnordered is the rule of a descriptor whose entries have no order, as over RLQS: in each order the same,
	// with the key of the same descriptor over RLS.
	matchedUnordered := func(t *testing.T, d *Domain, text string) (path string) {
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
			if path == "" {
				path = is
			}
			if path != is {
				t.Fatalf("%s matches %s, and in another order %s", text, is, path)
			}
		})
		return path
	}
	// said reads files, with a line == between two, and writes what becomes of them.
	said := func(out *strings.Builder, input string, o Options) *Rules {
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
				rule, key := last.Domain("d").Match(entriesOf(text), nil)
				path := "no rule" + string(key)
				if rule != nil {
					path = rule.Path
				}
				fmt.Fprintf(&out, "%s: %s\n", text, path)
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

// Requests that bring the same limit are under the same rule, and however many limits
// they bring, a bounded number of rules is kept.
func TestOverrideRulesAreShared(t *testing.T) {
	d := &Domain{Name: "d", Defaults: ratelimit.DefaultCoordination()}
	limit := func(n int) ratelimit.Limit {
		return ratelimit.Limit{Unit: ratelimit.Minute, Requests: ratelimit.Tokens(n)}
	}
	one := d.OverrideRule(limit(7))
	if one.Limit != limit(7) || !one.Override || one.Domain != "d" {
		t.Errorf("%+v", one)
	}
	if d.OverrideRule(limit(7)) != one || d.OverrideRule(limit(8)) == one {
		t.Error("rules go by something else than limits")
	}
	for n := range 10 * mostOverrides {
		if d.OverrideRule(limit(n)); len(d.brought.rules) > mostOverrides {
			t.Fatalf("%d rules are kept", len(d.brought.rules))
		}
	}
}

func FuzzPattern(f *testing.F) {
	// slowMatch fills in which ends of p match which ends of s.
	slowMatch := func(p, s string) bool {
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

// For any file, there are rules or problems. The tokens that are counted before parsing bound the parser's work.
// Problems have a bounded size. Accepted files have the meaning that the YAML library reads.
func FuzzParse(f *testing.F) {
	type typedLimit struct {
		Requests uint32 `yaml:"requests_per_unit"`
		Unit     string `yaml:"unit"`
	}
	type typedDescriptor struct {
		Key         string            `yaml:"key"`
		Value       string            `yaml:"value"`
		Limit       *typedLimit       `yaml:"rate_limit"`
		Descriptors []typedDescriptor `yaml:"descriptors"`
	}
	// typed is a rules file as the YAML library itself fills it in, which is another way than over our tree.
	type typed struct {
		Domain      string            `yaml:"domain"`
		Descriptors []typedDescriptor `yaml:"descriptors"`
	}
	var count func(n *yaml.Node) int
	count = func(n *yaml.Node) int {
		sum := 1
		for _, c := range n.Content {
			sum += count(c)
		}
		return sum
	}
	// limits are those of all descriptors that have one, in order.
	var limits func(all []typedDescriptor) (out []*typedLimit)
	limits = func(all []typedDescriptor) (out []*typedLimit) {
		for _, d := range all {
			if d.Limit != nil {
				out = append(out, d.Limit)
			}
			out = append(out, limits(d.Descriptors)...)
		}
		return out
	}
	compare := func(t *testing.T, rules *Rules, doc *yaml.Node) {
		var theirs typed
		if len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null" {
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

// The schema has the fields that files may have, and no other; and what is published is what is printed. That it judges
// files as a check does, deploy/check tests with a library for schemas.
func TestSchemaHasEveryField(t *testing.T) {
	published, err := os.ReadFile("../../docs/reference/rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(Schema()), string(published)); diff != "" {
		t.Errorf("sluice check --schema > docs/reference/rules.schema.json: -printed +published\n%s", diff)
	}
	type part struct {
		Properties  map[string]*part
		Items       *part
		Definitions map[string]*part
	}
	var file part
	if err := json.Unmarshal(Schema(), &file); err != nil {
		t.Fatal(err)
	}
	names := func(p *part) []string { return slices.Sorted(maps.Keys(p.Properties)) }
	read := func(known fields) []string { return slices.Sorted(maps.Keys(known)) }
	var d decoder
	descriptor, coordination := file.Definitions["descriptor"], file.Definitions["coordination"]
	limit := descriptor.Properties["rate_limit"]
	for what, c := range map[string]struct{ got, want []string }{
		"a file":       {names(&file), read(d.fileFields(new(File)))},
		"a descriptor": {names(descriptor), read(d.descriptorFields(new(Descriptor)))},
		"a limit":      {names(limit), read(d.limitFields(new(RateLimit)))},
		"a hold":       {names(descriptor.Properties["hold"]), read(d.holdFields(new(Hold)))},
		"billing":      {names(limit.Properties["billing"]), read(d.billingFields(new(Billing)))},
		"replaces":     {names(limit.Properties["replaces"].Items), read(d.replacesFields(new(Replacement)))},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("%s: -fields +schema\n%s", what, diff)
		}
	}
	var settings []string // of coordination
	for name, p := range coordination.Properties {
		for _, of := range names(p) {
			settings = append(settings, name+"."+of)
		}
		if len(p.Properties) == 0 {
			settings = append(settings, name)
		}
	}
	slices.Sort(settings)
	if diff := cmp.Diff(slices.Sorted(slices.Values(ratelimit.CoordinationFields)), settings); diff != "" {
		t.Errorf("coordination: -fields +schema\n%s", diff)
	}
}

func TestExcerpt(t *testing.T) {
	long := strings.Repeat("x", 200) + "here" + strings.Repeat("y", 200)
	text := []byte("domain: d\r\n\tkey: \x1b[31m\n" + long + "\n")
	for _, c := range []struct {
		at   Place
		want string
	}{
		{Place{"f", 1, 9}, "    1 | domain: d\n      |         ^\n"},
		{Place{"f", 1, 0}, "    1 | domain: d\n"},
		{Place{"f", 1, 99}, "    1 | domain: d\n      |          ^\n"},
		{Place{"f", 2, 2}, "    2 |  key: \ufffd[31m\n      |  ^\n"},
		{Place{"f", 0, 0}, ""},
		{Place{"f", 9, 1}, ""},
	} {
		if got := Excerpt(text, c.at); got != c.want {
			t.Errorf("%v:\n%s\nwant\n%s", c.at, got, c.want)
		}
	}
	lines := strings.Split(Excerpt(text, Place{"f", 3, 201}), "\n")
	caret := strings.IndexByte(lines[1], '^')
	if len(lines[0]) > 120 || !strings.HasPrefix(lines[0][caret:], "here") {
		t.Errorf("of a long line:\n%s\n%s", lines[0], lines[1])
	}
}

// repeated is so many bytes of a text, in which %d is its number.
func repeated(n int, text string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strings.ReplaceAll(text, "%d", strconv.Itoa(i)))
	}
	return b.String()
}

// nested is descriptors in one another.
func nested(depth int, key string) string {
	var b strings.Builder
	for i := range depth {
		in := strings.Repeat("  ", i)
		b.WriteString(in + "descriptors:\n" + in + "- key: " + key + "\n")
	}
	return b.String()
}

// Whatever construct a file repeats, it costs memory in proportion to its length, and its problems fit on a screen.
// (Names of descriptors are quadratic up to a bound: TestNamesAreBounded.)
func TestHostileFilesAreLinear(t *testing.T) {
	shapes := map[string]func(n int) string{
		"closed lists": func(n int) string { return repeated(n/2, "[") + repeated(n/2, "]") },
		"merges of many": func(n int) string {
			return "a: &a {" + repeated(n/2, "k%d: 1, ") + "}\nb:\n  <<: [" + repeated(n/2, "*a,") + "]"
		},
		"deep blocks": func(n int) string {
			var b strings.Builder
			for i := 0; b.Len() < n; i++ {
				b.WriteString(strings.Repeat(" ", i) + "a:\n")
			}
			return b.String()
		},
		"a long key": func(n int) string { return "? " + repeated(n/2, "x") + "\n:\n" + repeated(n/2, "  - a\n") },
		"long keys":  func(n int) string { return "domain: d\n" + nested(50, repeated(n/50, "x")) },
	}
	list, err := os.ReadFile("testdata/hostile.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		var before, text, after string
		if n, _ := fmt.Sscanf(line, "%q %q %q", &before, &text, &after); n == 3 {
			shapes[line] = func(n int) string { return before + repeated(n, text) + after }
		}
	}
	// What Parse allocates in all says more than the time that it takes on a machine with other work.
	allocated := func(text string) (n uint64, problems string, warnings int) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, warned, refused := Parse([]Text{{Name: "f", Data: []byte(text)}}, options())
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc, refused.Error(), len(warned)
	}
	const n = 10_000
	for name, shape := range shapes {
		t.Run(name, func(t *testing.T) {
			small, problems, warnings := allocated(shape(n))
			large, _, _ := allocated(shape(4 * n))
			if large > 6*small+3<<20 {
				t.Errorf("%d bytes allocate %d, and %d allocate %d", n, small, 4*n, large)
			}
			if len(problems) > 64<<10 || warnings > maxProblems+1 {
				t.Errorf("problems of %d bytes, %d warnings", len(problems), warnings)
			}
		})
	}
	if len(shapes) < 50 {
		t.Errorf("%d constructs are tried", len(shapes))
	}
}

// Within a fifth of the default bounds, the worst of these shapes has at most 36 MB in use at once, and 8,000 honest
// rules are within them. What the collector finds alive counts: garbage depends on the machine's other work.
func TestMemoryOfHostileFiles(t *testing.T) {
	live := func() uint64 {
		s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(s)
		return s[0].Value.Uint64()
	}
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	o, whole := options(), DefaultCaps()
	o.Caps.Tokens, o.Caps.Rules = whole.Tokens/5, whole.Rules/5
	rule := "  - key: path\n    value: /api/v1/customers/%d\n" +
		"    rate_limit:\n      unit: minute\n      requests_per_unit: %d\n"
	for name, shape := range map[string]string{
		"commented items":   strings.Repeat("-\n #\n\n", o.Caps.Tokens),
		"commented in flow": "[" + strings.Repeat("a, #\n", o.Caps.Tokens-2) + "]",
		"rules":             "# Comments are free.\ndomain: d\ndescriptors:\n" + repeated(8000*(len(rule)+5), rule),
	} {
		stop, peak := make(chan struct{}), make(chan uint64)
		runtime.GC()
		quiet := live()
		go func() {
			top := uint64(0)
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-stop:
					tick.Stop()
					peak <- top
					return
				case <-tick.C:
					top = max(top, live())
				}
			}
		}()
		rules, _, problems := Parse([]Text{{Name: "f", Data: []byte(shape)}}, o)
		close(stop)
		if got := <-peak - quiet; got > 36<<20 {
			t.Errorf("%s: %d MB", name, got>>20)
		} else {
			t.Logf("%s: %d bytes, %d MB, %d problems", name, len(shape), got>>20, len(problems))
		}
		if n := len(rules.All()); name == "rules" && (problems != nil || n < 8000) {
			t.Errorf("%d honest rules: %v", n, problems)
		}
	}
}

// A request tries the patterns of a key one after the other. With as many as a file can have, a value of 252 KB whose
// every byte begins a part takes about 0.1 s.
func TestPatternsAreBounded(t *testing.T) {
	text := "domain: d\ndescriptors:\n"
	for i := range maxPatterns {
		text += fmt.Sprintf("- {key: k, value: '*a%d*'}\n", i)
	}
	rules, problems := parseText(text)
	if rules == nil {
		t.Fatal(problems)
	}
	domain, value := rules.Domain("d"), strings.Repeat("a", 252<<10)
	if _, key := domain.Match([]Entry{{Key: "k", Value: value}}, nil); len(key) > 0 {
		t.Errorf("it matches: %s", key)
	}
	rules, problems = parseText(text + "- {key: k, value: 'a*'}\n")
	if rules != nil || !strings.Contains(problems.Error(), fmt.Sprintf("has more than %d patterns", maxPatterns)) {
		t.Errorf("one more: %v", problems)
	}
}

// The names of descriptors hold those above them: a quadratic size that no number of descriptors bounds.
func TestNamesAreBounded(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, text := range map[string]string{
		"below a long key": "domain: d\ndescriptors:\n- key: " + long + "\n  descriptors:\n" +
			repeated(1000, "  - key: k%d\n"),
		"in one another": "domain: d\n" + nested(50, long[:100<<10]),
	} {
		rules, problems := parseText(text)
		if rules != nil || !strings.Contains(problems.Error(),
			fmt.Sprintf("are more than %d bytes: use shorter keys", maxPathBytes)) || len(problems.Error()) > 4<<10 {
			t.Errorf("%s: %.300s", name, problems.Error())
		}
	}
}
