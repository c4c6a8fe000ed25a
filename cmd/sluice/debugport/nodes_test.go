package debugport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/bench/sluicetest"
	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// address is the default of --debug.
var address = kong.Vars{"debug": "127.0.0.1:1"}

func host(s *httptest.Server) string { return strings.TrimPrefix(s.URL, "http://") }

// showing is a node whose console shows a state with so many decisions more at each look.
func showing(t *testing.T, rules string, decisions uint64, others ...string) *httptest.Server {
	t.Helper()
	looks := uint64(0)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		looks++
		var v console.State
		v.Config.Fingerprint, v.Config.Good = rules, true
		v.Calls = looks * decisions
		v.Rules = []metrics.RuleState{{Domain: "d", Rule: "five", Limit: "5 per year", Decisions: looks * decisions, Admitted: looks * decisions, OverByPolicy: decisions, Sources: map[string]uint64{"lease": looks * decisions}}}
		for _, other := range others {
			v.Nodes = append(v.Nodes, console.Node{Debug: other})
		}
		_ = json.NewEncoder(w).Encode(v)
	}))
	t.Cleanup(s.Close)
	return s
}

// The table sums nodes, goes on when one dies, and says who has other rules, for people and for programs.
func TestTop(t *testing.T) {
	a, b, other := showing(t, "abc", 10), showing(t, "abc", 30), showing(t, "xyz", 1)
	code, out, errs := sluicetest.Run(new(Top), []string{host(a), host(b), "--every=100ms", "--times=1"}, address)
	if code != 0 || !strings.Contains(out, "2 of 2 nodes") || !strings.Contains(out, "d.five") || !strings.Contains(out, "5 per year") ||
		strings.Count(out, "\nrules abc\n") != 1 {
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	var text strings.Builder
	terminal, _ := os.Open(os.DevNull) // of errors alone, as for a pipe
	err := (&Top{Debug: []string{host(showing(t, "abc", 1))}, Every: 100 * time.Millisecond, Times: 1}).Run(cli.Streams{Out: &text, Err: terminal})
	if err != nil || strings.Contains(text.String(), "\x1b") {
		t.Errorf("in a pipe: %v\n%q", err, &text)
	}
	text.Reset()
	debug := []string{host(a), host(b), host(other)}
	before := lookAt(debug, false, nil)
	b.Close()
	now := lookAt(debug, false, before)
	now.at = before.at.Add(7 * time.Second)
	v := now.since(before)
	if err := v.write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"2 of 3 nodes", "NODES HAVE DIFFERENT RULES", "  xyz on " + host(other) + "\n",
		host(b) + " DOES NOT ANSWER: connect: connection refused, last seen 7s ago", "d.five",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	text.Reset()
	waits := Summary{Nodes: []Node{{Debug: "new", LastAnswer: now.at}}}
	if err := waits.write(&text); err != nil || strings.Count(text.String(), "\n") != 3 { // sums, and the heads of columns
		t.Errorf("a node that waits for its first rules is shown as %s", &text)
	}
	// Another 10 at a and 1 at the third node in 7 s; what b had is still in the sums.
	if len(v.Nodes) != 3 || v.Nodes[1].Answers || v.Nodes[1].Error == "" || len(v.Sets) != 2 || v.Calls != 11./7 || v.Rules[0].AdmittedRate != 11./7 ||
		v.Rules[0].Decisions != 4*10+3*30+2*1 || v.Rules[0].Sources["lease"] != v.Rules[0].Decisions || v.Rules[0].OverByPolicy != 41 {
		t.Errorf("%+v", v)
	}
	one := showing(t, "abc", 1, host(a))
	code, out, errs = sluicetest.Run(new(Top), []string{"--json", "--all", host(one), "--every=100ms", "--times=2"}, address)
	var read Summary
	if code != 0 || strings.Count(out, "\n") != 2 || json.Unmarshal([]byte(strings.Split(out, "\n")[1]), &read) != nil || len(read.Nodes) != 2 ||
		math.Round(read.Calls*read.Seconds) != 11 { // since the table before: 1 and 10
		t.Errorf("%d %s\n%s", code, errs, out)
	}
	if code, _, errs := sluicetest.Run(new(Top), []string{"--times=1", "--rules=-1", host(a)}, address); code != 1 ||
		!strings.Contains(errs, "--rules -1, must not be negative") {
		t.Errorf("of less than no rule: %d %s", code, errs)
	}
	if code, _, errs := sluicetest.Run(new(Top), []string{"--times=1"}, address); code != 1 || !strings.Contains(errs, "does not answer") {
		t.Errorf("of no node: %d %s", code, errs)
	}
}

// A trouble is shown with its cause, and for programs. A node that never answered was seen by another one.
func TestTopShowsCauses(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	slow := console.Problem{Severity: console.Bad, What: "10 calls a second get no decision", Detail: "A bad domain.", Runbook: "errors"}
	state := console.State{Now: at, Problems: []console.Problem{slow}, Nodes: []console.Node{{Debug: "b:6070", Seen: 41, Silent: true}}}
	state.Errors = 100
	was := look{at: at.Add(-10 * time.Second), nodes: []Node{{Debug: "a:6070", LastAnswer: at}}}
	now := look{at: at, nodes: []Node{
		{Debug: "a:6070", LastAnswer: at, State: state}, {Debug: "b:6070", Err: fmt.Errorf("get: %w", context.DeadlineExceeded)},
	}}
	v := now.since(&was)
	var text strings.Builder
	if err := v.write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"1 of 2 nodes", "10 errors", "a:6070: 10 calls a second get no decision. A bad domain (runbook: errors)",
		"b:6070 DOES NOT ANSWER: no reply in 5s, last seen 41s ago (runbook: node-down)",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("no %q in\n%s", want, &text)
		}
	}
	if v.Failed != 10 || !slices.Equal(v.Nodes[0].Problems, state.Problems) {
		t.Errorf("for programs, there are %v errors a second, and %v", v.Failed, v.Nodes[0].Problems)
	}
}

// Whatever a node counts of a rule is summed, except what is of all nodes already.
func TestCountsOfRulesAreSums(t *testing.T) {
	var one metrics.RuleState
	counts := reflect.ValueOf(&one).Elem()
	for i := range counts.NumField() {
		if f := counts.Field(i); f.CanUint() {
			f.SetUint(1)
		} else if f.CanInt() {
			f.SetInt(1)
		}
	}
	sum := Rule{RuleState: one}
	sum.add(&one)
	for i := range counts.NumField() {
		name, f := counts.Type().Field(i).Name, reflect.ValueOf(sum.RuleState).Field(i)
		want := 2
		if slices.Contains([]string{"Tokens", "Declared", "Outage", "Highest", "Share", "DriftBudget"}, name) {
			want = 1
		}
		if (f.CanUint() || f.CanInt()) && fmt.Sprint(f) != fmt.Sprint(want) {
			t.Errorf("1 and 1 of %s at two nodes are shown as %v", name, f)
		}
	}
}

// Counts of before the first look are in no rate: of a node that answers late or starts again, and of a rule that a node
// did not name.
func TestRatesAreOfTheTimeBetweenTwoLooks(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	seen := func(debug string, started, calls int) Node {
		n := Node{Debug: debug, LastAnswer: at, State: console.State{Started: time.Unix(int64(started), 0)}}
		n.State.Calls, n.State.Rules = uint64(calls), []metrics.RuleState{{Domain: "d", Rule: "r", Admitted: uint64(calls)}}
		return n
	}
	looked := func(at time.Time, nodes ...Node) *look { return &look{at, nodes} }
	quiet := seen("busy", 1, 70000)
	quiet.State.Rules[0].Rule = "other"
	before := looked(at, seen("a", 1, 1000), Node{Debug: "late", Err: errors.New("away")}, seen("again", 1, 5000), quiet)
	now := looked(at.Add(time.Second), seen("a", 1, 1007), seen("late", 1, 90000), seen("again", 2, 3), Node{Debug: "silent"}, seen("busy", 1, 70000))
	if v := now.since(before); v.Calls != 7 || v.Rules[0].AdmittedRate != 7 {
		t.Errorf("7 calls of one node are shown as %v a second, and %v admitted", v.Calls, v.Rules[0].AdmittedRate)
	}
}

// The entry of a node before its last restart is no other node. All others are asked, however many.
func TestRestartedNodeIsNoOther(t *testing.T) {
	again := look{nodes: []Node{{Debug: "localhost:6070", State: console.State{Nodes: []console.Node{
		{Debug: "a:6070", Here: true}, {Debug: "a:6070"}, {Debug: "b:6070"},
	}}}}}
	if others := again.others(nil); !slices.Equal(others, []string{"b:6070"}) {
		t.Errorf("beside a there are %v", others)
	}
	for i := range 1000 {
		again.nodes[0].State.Nodes = append(again.nodes[0].State.Nodes, console.Node{Debug: fmt.Sprint(i)})
	}
	if n := len(again.others(nil)); n != 1001 {
		t.Errorf("of 1001 others, %d are asked", n)
	}
}

// A node that has ended keeps its row for a minute, and not as long as top runs. While the named node restarts, the others
// are asked as before: they have not left.
func TestTopForgetsNodesThatLeft(t *testing.T) {
	second := showing(t, "abc", 1)
	first := showing(t, "abc", 1, host(second))
	before := lookAt([]string{host(first)}, true, nil)
	first.Close()
	now := lookAt([]string{host(first)}, true, before)
	if len(now.nodes) != 2 || now.nodes[0].Err == nil || now.nodes[1].Err != nil {
		t.Errorf("while one of two nodes restarts, top has %+v", now.nodes)
	}
	for after, rows := range map[time.Duration]int{leftFor - 1: 1, leftFor: 0} {
		later := look{at: now.at.Add(after)}
		if later.remember(&look{nodes: now.nodes[1:]}); len(later.nodes) != rows {
			t.Errorf("%v after its last answer, a node that left has %d rows", after, len(later.nodes))
		}
	}
}

// admin calls the nodes that are named, or with --all those that the first one has seen, with the token of the
// environment. A node that does not answer keeps no other from dropping its lease, and the command says so and fails. A
// reset has all drop the key before, at once.
func TestAdminCallsEachNode(t *testing.T) {
	t.Setenv("ADMIN_TOKEN", "hunter2")
	for what, want := range map[string][]string{
		"reset": {"first /admin/drop", "last /admin/drop", "first /admin/reset", "last /admin/drop"},
		"drop":  {"first /admin/drop", "last /admin/drop"},
	} {
		for code, seen := range []bool{true, false} {
			var mu sync.Mutex
			var got, all []string
			node := func(name string) {
				s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					mu.Lock()
					defer mu.Unlock()
					if r.URL.Path == "/console/state" {
						fmt.Fprintf(w, `{"nodes": [{"debug": %q, "here": true}, {"debug": %q}]}`, all[0], all[1])
						return
					}
					if r.Header.Get("Authorization") == "Bearer hunter2" {
						got = append(got, name+" "+r.URL.Path)
					}
					_, _ = w.Write([]byte(`{"done": "it"}`))
				}))
				t.Cleanup(s.Close)
				all = append(all, host(s))
			}
			node("first")
			node("last")
			args, failed := []string{what, "--all", "--debug", all[0]}, ""
			if !seen {
				args, failed = []string{what, "--debug", all[0] + ",127.0.0.1:1," + all[1]}, "127.0.0.1:1"
			}
			is, _, errs := sluicetest.Run(new(Admin), append(args, "d", "a=b"), address)
			slices.Sort(got[:min(2, len(got))])
			if is != code || !strings.Contains(errs, failed) || !slices.Equal(got, want) {
				t.Errorf("%q ends with %d and %s, and calls %q instead of %q", args, is, errs, got, want)
			}
		}
	}
	var both sync.WaitGroup // all nodes are asked at once: each of two answers when both have been asked
	both.Add(2)
	hangs := func() string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			both.Done()
			both.Wait()
			_, _ = w.Write([]byte(`{"done": "it"}`))
		}))
		t.Cleanup(s.Close)
		return host(s)
	}
	if code, _, errs := sluicetest.Run(new(Admin), []string{"drop", "--token=t", "--debug", hangs() + "," + hangs(), "d", "a=b"}, address); code != 0 {
		t.Errorf("a node that hangs delays the drop of the other: %s", errs)
	}
}

// Each line of a file is a request of its own: a bad line costs only itself, and is named. The store's silence ends all.
func TestImportSetsEachLine(t *testing.T) {
	var mu sync.Mutex
	var got []string
	status := http.StatusOK
	node := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, fmt.Sprint(r.Method, " ", r.URL, " ", r.Header.Get("From"), " ", string(body)))
		if strings.Contains(r.URL.RawQuery, "none") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"error":"no rule matches"}`)
			return
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, "{}")
	}))
	defer node.Close()
	file := filepath.Join(t.TempDir(), "o.csv")
	imported := func(text string) (int, string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := sluicetest.Run(new(Limit), []string{"import", "--token=t", "--by=ann", "--debug", strings.TrimPrefix(node.URL, "http://"), file}, address)
		return code, out + errs
	}
	code, said := imported("limit,descriptor,domain,by,reason\n1,a=b,d,,\"x, y\"\n\n2,none=1,d,,\n3,a=b,d,,\n4,c\n5, a=c,d,,\nx,a=d,d,,\n0,a=+&c=%26,e f,bob,\n")
	slices.Sort(got)
	want := []string{
		`PUT /v1/overrides/d?a=b ann {"limit":1,"reason":"x, y"}`,
		`PUT /v1/overrides/d?a=b ann {"limit":3,"reason":""}`,
		`PUT /v1/overrides/d?none=1 ann {"limit":2,"reason":""}`,
		`PUT /v1/overrides/e%20f?a=%2B&c=%26 bob {"limit":0,"reason":""}`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("requests\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, part := range []string{
		"3 overrides set, 4 lines refused", ":4: " + strings.TrimPrefix(node.URL, "http://") + ": no rule matches",
		":6: wrong number of fields", ":7: the descriptor is", ":8: limit is",
	} {
		if code != 1 || !strings.Contains(said, part) {
			t.Errorf("exit code %d, and it prints\n%s\nwithout %s", code, said, part)
		}
	}
	for text, part := range map[string]string{
		"":                                      "no line of column names",
		"domain,limit\n":                        "the column descriptor is missing",
		"domain,descriptor,limit,limit\n":       "unknown or repeated column",
		"domain,descriptor,limit,<script>\n":    "unknown or repeated column",
		"domain,descriptor,limit\nd,a=b,1\n":    "1 override set, 0 lines refused",
		"domain,descriptor,limit\nd,\"a=b,1\nx": "extraneous or missing",
	} {
		if _, said := imported(text); !strings.Contains(said, part) {
			t.Errorf("%q prints %s, must be %s", text, said, part)
		}
	}
	// A stray quote costs its own line only, and a mark of the encoding at the beginning of a file nothing.
	code, said = imported("\ufeffdomain,descriptor,limit,reason\r\nd,a=b,1,\"ticket 1\r\nd,a=c,2,\r\nd,a=d,3,\"ticket 2\r\nd,a=e,4,\"x\"\r\n")
	if code != 1 || !strings.Contains(said, "2 overrides set, 2 lines refused") || !strings.Contains(said, ":2: ") ||
		!strings.Contains(said, ":4: ") {
		t.Errorf("of a file with two stray quotes: %d %s", code, said)
	}
	code, said = imported("domain,descriptor,limit\nd,a=" + strings.Repeat("b", 1<<17) + ",x\nd,a=c,2")
	if code != 1 || !strings.Contains(said, "1 override set, 1 line refused") {
		t.Errorf("of a file with a long line: %d %s", code, said)
	}
	mu.Lock()
	status = http.StatusServiceUnavailable
	mu.Unlock()
	many := "domain,descriptor,limit\n" + "d,a=b,1\n" + "d,a=c,1\n"
	if code, said := imported(many); code != 1 || !strings.Contains(said, "0 overrides set before: import the file again") {
		t.Errorf("without a store it ends with %d and %s", code, said)
	}
}
