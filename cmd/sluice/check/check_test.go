package check

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// printed runs the command.
func printed(args ...string) (code int, out, errs string) {
	return sluicetest.Run(new(Command), args, kong.Vars{"modes": ""}, kong.Bind(Version("v1.2.3")))
}

// checks runs the command; runs of spaces count as one.
func checks(args ...string) (int, string) {
	code, out, errs := printed(args...)
	return code, regexp.MustCompile(" +").ReplaceAllString(errs+out, " ")
}

func rules(limit int) string {
	return fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: year, requests_per_unit: %d}\n", limit)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const twoRules = "- key: a\n  coordination: {mode: approx, drift_budget: 3%, reclaim: eager, on_store_failure: open}\n" +
	"  rate_limit: {unit: day, requests_per_unit: 200}\n- key: u\n  rate_limit: {unlimited: true}\n"

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	writeFile(t, file, rules(100)+twoRules)
	code, out := checks(dir)
	for _, want := range []string{
		"these rules would be loaded, but see the 1 finding above\n",
		"a.yaml:7:22: warning: d.a: drift_budget 3% of 200 is 6 tokens, less than one for each of max_nodes 10",
		"on 3 nodes that share Redis",
		"RULE LIMIT MODE NORMAL REDIS FAILS REDIS DOWN DATA LOST\nd.a 200 per day approx 236 (118%) all requests",
		"\nd.k 100 per year leasing 100 199 (199%) 99 (99%) 105 (105%)",
		"d.u unlimited",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s", code, want, out)
		}
	}
	if code, out = checks(dir, "--no-store"); code != 0 || !strings.Contains(out, "d.k 100 per year leasing 300 (300%)") {
		t.Errorf("without a store: %d\n%s", code, out)
	}
	if code, out = checks(dir, "--details"); code != 0 || !strings.Contains(out, "d.a: 10 for each silent node") {
		t.Errorf("--details: %d\n%s", code, out)
	}
	// An outage lifts no ban, whatever the rule says.
	if code, out = checks(dir, "--override=a=x=0"); code != 0 || !strings.Contains(out, "d.a [a=x] 0 per day approx 0 0 0 0\n") {
		t.Errorf("--override of 0: %d\n%s", code, out)
	}
	if code, out = checks(dir, "--nodes=1"); code != 0 || !strings.Contains(out, "on 1 node that counts in its memory") {
		t.Errorf("on one node: %d\n%s", code, out)
	}
	if code, out = checks(dir, "--nodes=1", "--store=redis"); code != 0 || !strings.Contains(out, "on 1 node with Redis") ||
		!strings.Contains(out, "d.k 100 per year leasing 100 200 (200%) 100 105 (105%)") {
		t.Errorf("on one node with a store: %d\n%s", code, out)
	}
	if code, out = checks(dir, "--strict"); code != 1 || !strings.Contains(out, "fail with --strict") {
		t.Errorf("--strict: %d\n%s", code, out)
	}
	checksStores(t, dir)
	writeFile(t, filepath.Join(dir, "b.yaml"), "domain: d\nfoo: 1\n")
	code, out = checks(dir)
	for _, want := range []string{
		"b.yaml:1:9: error: duplicate domain 'd' in config file; the first is at " + file + ":1:9",
		"b.yaml:2:1: error: unknown key 'foo'", "\n 2 | foo: 1\n | ^\n",
	} {
		if code != 1 || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s", code, want, out)
		}
	}
	for args, want := range map[string]string{
		"--nodes=0 " + dir:               "2 sluice: --nodes is 0",
		"--cost=5 " + dir:                "2 sluice: --cost and --in-flight need each other",
		"--json --sarif " + dir:          "2 sluice: --json and --sarif exclude each other",
		"--no-store --store=etcd " + dir: "2 sluice: --store and --no-store exclude each other",
		"":                               "2 sluice: name the rules",
		"--from=/no/such " + dir:         "1 sluice: --from: config path",
		"--from=" + dir + " " + file:     "1 sluice: --from: the previous rules are bad",
	} {
		if code, out := checks(strings.Fields(args)...); !strings.HasPrefix(fmt.Sprint(code, " ", out), want) {
			t.Errorf("%s: %d\n%s", args, code, out)
		}
	}
}

// checksStores checks rules on each kind of store. What it costs to lose data there is a figure of the table.
func checksStores(t *testing.T, dir string) {
	t.Helper()
	for name, want := range map[string][]string{
		"redis": {"on 3 nodes that share Redis", "d.k 100 per year leasing 100 199 (199%) 99 (99%) 105 (105%)", "round trips: 1,", "within 2.375s", "for 2s more"},
		"postgres": {
			"on 3 nodes that share PostgreSQL", "d.k 100 per year leasing 100 199 (199%) 99 (99%) 100", "round trips: 2,",
			"one row for each account and lease", "within 2.375s", "synchronous_commit=on", "for 2s more",
		},
		"etcd":   {"that share etcd", "d.k 100 per year leasing 100 199 (199%) 99 (99%) 100", "round trips: 2,", "within 2.375s", "continue at once"},
		"memory": {"on 3 nodes without a store", "each node counts alone"},
	} {
		code, out := checks(dir, "--details", "--store="+name)
		out = strings.Join(strings.Fields(out), " ") // lines are wrapped
		for _, text := range want {
			if code != 0 || !strings.Contains(out, text) {
				t.Errorf("--store %s: %d, no %q in\n%s", name, code, text, out)
			}
		}
		var v checkReport
		code, out = checks(dir, "--json", "--store="+name)
		if err := json.Unmarshal([]byte(out), &v); err != nil || code != 0 {
			t.Fatal(code, err, out)
		}
		loss := map[string]ratelimit.Tokens{"redis": 5}[name]
		if got := v.Rules[0]; got.Loss != loss || got.Bounds.OnLoss != loss || (v.Store == nil) != (name == "memory") {
			t.Errorf("--store %s: %+v of %+v", name, got, v.Store)
		}
	}
	if code, out := checks(dir, "--store=mysql"); code != 2 || !strings.Contains(out, "must be memory or one of redis, rediss, postgres") {
		t.Errorf("an unknown store: %d\n%s", code, out)
	}
}

// A screen of 120 columns shows all but the messages, however long names are.
func TestCheckIsNarrow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, rules(100)+"- key: "+strings.Repeat("long", 20)+"\n  algorithm: token_bucket\n  coordination: {on_store_failure: closed}\n"+
		"  rate_limit: {unit: day, requests_per_unit: 4000000000}\n"+twoRules)
	if code, out, _ := printed(file); code != 0 || widest(out) > screen {
		t.Errorf("%d, %d columns:\n%s", code, widest(out), out)
	}
}

// The figures of a bucket are its burst, and the text says that the refill comes on top, and that refusals
// under on_deny: charge can use it up.
func TestCheckNamesTheRefill(t *testing.T) {
	const refill, charged, lost = "A token_bucket admits its refill in that time, too.",
		"on_deny: charge: while more is requested than refills", "on_deny: refund: a cost that is reported afterwards"
	file := filepath.Join(t.TempDir(), "a.yaml")
	for _, c := range []struct {
		fields                string
		refill, charged, lost bool
	}{
		{"", false, false, false},
		{"  algorithm: token_bucket\n", true, false, true},
		{"  algorithm: token_bucket\n  hold: {amount: 5}\n", true, false, false},
		{"  algorithm: sliding_window\n", false, false, true},
		{"  algorithm: sliding_window\n  coordination: {on_deny: charge}\n", false, true, false},
		{"  algorithm: token_bucket\n  coordination: {on_deny: charge}\n", true, true, false},
	} {
		writeFile(t, file, rules(60)+c.fields)
		code, out := checks(file)
		out = strings.Join(strings.Fields(out), " ")
		if code != 0 || strings.Contains(out, refill) != c.refill || strings.Contains(out, charged) != c.charged ||
			strings.Contains(out, lost) != c.lost {
			t.Errorf("%q: %d\n%s", c.fields, code, out)
		}
	}
}

func TestCheckForPrograms(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, rules(100)+"- key: z\n  rate_limit: {unit: day}\n- key: a\n  vlaue: b\n")
	_, out, _ := printed("--json", file)
	var v checkReport
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	want := finding{Severity: "error", Kind: config.Invalid, File: file, Line: 8, Column: 3}
	got := v.Findings[0]
	if message := got.Message; !strings.Contains(message, "did you mean 'value'?") {
		t.Error(message)
	}
	if got.Message = ""; got != want || v.Good || v.Fingerprint != "" {
		t.Errorf("%+v", v)
	}
	_, out, _ = printed("--sarif", file)
	flat := strings.Join(strings.Fields(out), "")
	for _, want := range []string{
		`"version":"2.1.0"`, `"name":"sluice"`, `"ruleId":"invalid"`, `"level":"error"`, `"uri":"` + file + `"`,
		`"startColumn":3,"startLine":8`, `"id":"` + string(config.Kinds[len(config.Kinds)-1].Kind) + `"`,
	} {
		if !json.Valid([]byte(out)) || !strings.Contains(flat, want) {
			t.Errorf("no %s in\n%s", want, out)
		}
	}
	writeFile(t, file, rules(100)+"- key: z\n  rate_limit: {unit: day}\n")
	code, out, _ := printed("--json", file)
	v = checkReport{}
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	if code != 1 || !v.Good || v.Findings[0].Severity != "error" || len(v.Fingerprint) != 12 || v.Nodes != 3 || len(v.Rules) != 2 || v.Findings[0].Kind != config.ZeroLimit {
		t.Errorf("%d %+v", code, v)
	}
	if d := v.Rules[0]; d.Rule != "d.k" || d.Limit != "100 per year" || d.Bounds.OnOutage.Edges.Tokens != 199 ||
		d.Outage != "199 in the windows in which it begins and ends, and 99 (33 a node) between" || d.Loss != 5 {
		t.Errorf("%+v", d)
	}
}

// The number for a cost and requests in flight is printed for people and for programs.
func TestCheckDeclaresHoldsAsANumber(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, rules(100)+"  hold: {amount: 5, on: [0]}\n- key: slots\n  rate_limit: {concurrency: 32}\n")
	for _, form := range []string{"--details", "--json"} {
		_, out := checks("--cost=9", "--in-flight=3", form, file)
		if !strings.Contains(strings.Join(strings.Fields(out), " "), "at most 12 with 3 in flight that cost at most 9") ||
			strings.Count(out, "--in-flight") != 1 {
			t.Errorf("%s:\n%s", form, out)
		}
	}
	// The slots need keys that only nodes have, and only those that share a store: check cannot refuse the rules.
	for flag, needed := range map[string]bool{"--store=redis": true, "--no-store": false} {
		if _, out := checks(flag, file); strings.Contains(out, "unless HOLD_KEYS or PEERS is set") != needed {
			t.Errorf("%s:\n%s", flag, out)
		}
	}
}

// A change says what it does to a fleet that gets it node by node.
func TestCheckFrom(t *testing.T) {
	dir := t.TempDir()
	before, after := filepath.Join(dir, "before.yaml"), filepath.Join(dir, "after.yaml")
	writeFile(t, before, rules(100)+twoRules)
	writeFile(t, after, strings.Replace(rules(50), "year", "day", 1)+strings.Replace(twoRules, "mode: approx, drift_budget: 3%", "mode: leasing", 1))
	code, out := checks("--from", before, after)
	for _, want := range []string{
		"2 changes", "d.k: requests_per_unit 100 -> 50, unit year -> day",
		"tokens spent are dropped: the new rule starts a new account",
		"d.a: mode approx -> leasing, drift_budget 3% -> 1%",
	} {
		if code != 0 || !strings.Contains(out, want) {
			t.Errorf("%d, no %q in\n%s", code, want, out)
		}
	}
	if code, out := checks("--from", before, before); code != 0 || !strings.Contains(out, "No changes") {
		t.Errorf("%d\n%s", code, out)
	}
	writeFile(t, before, rules(100))
	writeFile(t, after, strings.Replace(rules(100), "domain: d", "domain: renamed", 1))
	code, out = checks("--strict", "--from", before, after)
	if want := "after.yaml: warning: rules that seem renamed: 1 (such as d.k -> renamed.k)."; code != 1 || !strings.Contains(out, want) {
		t.Errorf("%d, no %q in\n%s", code, want, out)
	}
	writeFile(t, before, rules(100)+twoRules)
	writeFile(t, after, rules(50)+strings.Replace(twoRules, "mode: approx, drift_budget: 3%", "mode: leasing", 1))
	_, out = checks("--json", "--from", before, after)
	var v checkReport
	if err := json.Unmarshal([]byte(out), &v); err != nil || len(v.Changes) != 2 || v.Changes[0].Fields == nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// A file on standard input is checked as any other.
func TestCheckOfStandardInput(t *testing.T) {
	c := &Command{in: strings.NewReader(rules(7) + "- {key: z, rate_limit: {unit: dya}}\n")}
	code, _, errs := sluicetest.Run(c, []string{"-"}, kong.Vars{"modes": ""}, kong.Bind(Version("")))
	if code != 1 || !strings.Contains(errs, "(stdin):5:31: error: invalid rate limit unit 'dya'; did you mean 'day'?") {
		t.Errorf("%d\n%s", code, errs)
	}
}

// What does the opposite of what rules are for fails the check, though a server loads it.
func TestCheckFailsWhatDoesTheOpposite(t *testing.T) {
	empty := t.TempDir()
	if code, out := checks(empty); code != 1 || !strings.Contains(out, "error: there are no files in this directory") {
		t.Errorf("an empty directory: %d\n%s", code, out)
	}
	file := filepath.Join(empty, "a.yaml")
	for rule, want := range map[string]string{
		"{key: remote_address, value: 10.0.0.0/8, rate_limit: {unit: day, requests_per_unit: 1}}":  `error: d.remote_address_10.0.0.0/8: the value "10.0.0.0/8" is a range`,
		"{key: c, coordination: {mode: foo, max_nodes: 0, bar: 1}, rate_limit: {unlimited: true}}": "error: max_nodes: \"0\" is not",
	} {
		writeFile(t, file, rules(100)+"- "+rule+"\n")
		if code, out := checks(file); code != 1 || !strings.Contains(out, want) || strings.Contains(out, "error: config error") {
			t.Errorf("%s: %d, no %q in\n%s", rule, code, want, out)
		}
	}
	writeFile(t, file, rules(100)+"- {key: masked_remote_address, value: 10.0.0.0/8, rate_limit: &r {unit: day, requests_per_unit: 1}}\n- {key: remote_address_match, value: 10.0.0.0/8, rate_limit: *r}\n")
	if code, out := checks(file); code != 0 {
		t.Errorf("ranges that Envoy sends: %d\n%s", code, out)
	}
}

const billedRules = `domain: d
descriptors:
  - key: billed
    rate_limit: {unit: month, requests_per_unit: 5, billing: {day: 31, time_zone: America/Havana}}
  - {key: other, rate_limit: {unit: month, requests_per_unit: 5}}
`

// Check says when the next billing months begin, on the clocks of their zones.
func TestCheckSaysWhenMonthsBegin(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	writeFile(t, file, billedRules)
	r, err := (&Command{}).checked(file, config.Options{})
	if err != nil || r.problems != nil {
		t.Fatal(err, r.problems)
	}
	var out strings.Builder
	d := declaration{Command: &Command{Nodes: 3, NoStore: true}, rules: r.rules.All(), now: time.Date(2028, 2, 28, 0, 0, 0, 0, time.UTC)}
	if err := d.write(&out); err != nil {
		t.Fatal(err)
	}
	want := "\nthe next billing months begin:\n" +
		"  d.billed: 2028-02-29T00:00:00-05:00, 2028-03-31T00:00:00-04:00, 2028-04-30T00:00:00-04:00\n"
	if !strings.Contains(out.String(), want) || strings.Count(out.String(), "begin") != 1 {
		t.Errorf("no %q in\n%s", want, out.String())
	}
	var v checkReport
	if _, out := checks("--json", file); json.Unmarshal([]byte(out), &v) != nil || len(v.Rules) != 2 || len(v.Rules[0].NextMonths) != 3 || v.Rules[1].NextMonths != nil {
		t.Errorf("as JSON: %s", out)
	}
	for _, text := range v.Rules[0].NextMonths {
		if at, err := time.Parse(time.RFC3339, text); err != nil || at.Before(time.Now()) || at.Day() < 28 {
			t.Errorf("a month begins at %s (%v)", text, err)
		}
	}
}
