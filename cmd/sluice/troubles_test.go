package main

import (
	"encoding/json"
	goflag "flag"
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

var exercise = goflag.String("exercise", "", "a directory: TestTroubles describes each fleet in a file there, and keeps "+
	"its trouble for half an hour, or until there is a file of that name with .done; unset: each is cured at once")

// problem is one of the console's.
type problem struct{ What, Detail, Runbook string }

// problems are those that the console of a node names.
func (s *sluice) problems(debug string) []problem {
	_, text := s.get(debug + "/console/state")
	var state struct{ Problems []problem }
	if err := json.Unmarshal([]byte(text), &state); err != nil {
		s.Fatalf("%v: %s", err, text)
	}
	return state.Problems
}

// Each trouble has the right lead within a minute, in the console and in top, and no wrong one. There is none before
// it, and after its cure.
func TestTroubles(t *testing.T) {
	t.Parallel()
	const rules = `domain: d
coordination: {store_deadline: 100ms, on_store_failure: closed}
descriptors:
  - {key: user, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: tokens, rate_limit: {unit: day, requests_per_unit: 1000}}
  - {key: model, hold: {amount: 2}, rate_limit: {unit: day, requests_per_unit: 1000}}
`
	// troubled is a fleet in a trouble. Its store is behind a proxy.
	type troubled struct {
		*fleet
		server farStore
	}
	// trouble is a thing that goes wrong, and the lead by which an operator finds it.
	type trouble struct {
		lead  string   // the console's first problem, by its runbook
		says  []string // its text has these
		also  []string // problems that may follow from it
		cause func(*troubled)
		ask   func(x *troubled, i int) // nil: a request under a limit
		cure  func(*troubled)          // nil: there is none within a minute
	}
	troubles := map[string]trouble{
		"a slow store": {
			lead: "store-slow", says: []string{"A reply of the store takes ", "store_deadline of the rules is 100 ms", "The fastest took at least"},
			also:  []string{"slow", "fallback-active"}, // on a busy machine some replies are too late
			cause: func(x *troubled) { x.server.proxy.Delay(70 * time.Millisecond) },
			cure:  func(x *troubled) { x.server.proxy.Delay(0) },
		},
		"a dead node": {
			lead: "node-down", says: []string{"1 of 2 nodes are silent"},
			cause: func(x *troubled) { x.nodes[1].ends(syscall.SIGKILL) },
			cure: func(x *troubled) { // it is taken out of the list
				first := x.nodes[0]
				_, text := first.get(first.debug + "/console/state")
				var listed struct {
					Nodes []struct {
						Name   string
						Silent bool
					}
				}
				if err := json.Unmarshal([]byte(text), &listed); err != nil {
					t.Fatal(err)
				}
				for _, n := range listed.Nodes {
					if !n.Silent {
						continue
					}
					answer, text := first.do("POST", first.debug+"/admin/remove?node="+n.Name, "", "Authorization", "Bearer hunter2")
					if answer.StatusCode != http.StatusOK {
						t.Errorf("%s: %s", answer.Status, text)
					}
				}
			},
		},
		"an outage in the middle of a window": {
			lead: "store-breaker-open", says: []string{"The store has not answered", "Its address is "},
			also:  []string{"fallback-active", "slow"},
			cause: func(x *troubled) { x.server.Signal(syscall.SIGSTOP) },
			cure:  func(x *troubled) { x.server.Signal(syscall.SIGCONT) },
		},
		"a key that no rule has": {
			lead: "unlimited", says: []string{"no rule of d has the key usr"},
			cause: func(*troubled) {},
			ask:   func(x *troubled, i int) { x.nodes[0].admits(1, "usr", fmt.Sprint(i)) },
		},
		"requests without descriptors": {
			lead: "unlimited", says: []string{"have no descriptors", "domain d ("},
			cause: func(*troubled) {},
			ask: func(x *troubled, _ int) {
				if _, err := x.nodes[0].send(asking()); err == nil {
					x.Error("a request without descriptors is answered")
				}
			},
		},
		"a budget emptied by errors": {
			lead: "holds-without-cost", says: []string{"d.model (", "with on_unknown: charge, each charges its hold"},
			cause: func(*troubled) {},
			ask: func(x *troubled, i int) { // by a gateway that does not send the status of the response
				value := fmt.Sprint(i % 10)
				hold, ok := x.nodes[0].holds("model", value, 1)
				if !ok {
					return
				}
				if _, err := x.nodes[0].send(asking(descriptor(0, "model", value, "sluice_end", "true", "sluice_hold", hold))); err != nil {
					t.Error(err)
				}
			},
		},
		"a limit without charges": {
			lead: "silent-limit", says: []string{"d.tokens (", "checks and no charge"},
			cause: func(*troubled) {},
			ask:   func(x *troubled, i int) { x.nodes[0].admits(0, "tokens", fmt.Sprint(i%10)) },
		},
	}
	busy := !strings.HasPrefix(goflag.Lookup("test.run").Value.String(), "^TestTroubles") // other tests run, too
	for i, name := range slices.Sorted(maps.Keys(troubles)) {
		trouble := troubles[name]
		if *exercise != "" { // paths, which the console shows, have the name of the test
			name = fmt.Sprintf("fleet-%d", i)
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := newFarStore(t, aRedis(t))
			x := &troubled{newFleet(t, 2, setup{rules: rules, store: server}), server}
			asked := 0
			usual := func(x *troubled, i int) { x.nodes[0].admits(1, "user", fmt.Sprint(i)) }
			ask := usual
			shown := func(is func([]problem) bool) func() bool {
				return func() bool {
					asked++
					ask(x, asked)
					return is(slices.DeleteFunc(x.nodes[0].problems(x.nodes[0].debug), func(p problem) bool {
						machine := []string{"slow", "fallback-active", "store-slow"}
						return busy && p.Runbook != trouble.lead && slices.Contains(machine, p.Runbook) // it is
					}))
				}
			}
			first := x.nodes[0]
			first.eventually("both nodes are there", func() bool { return first.seen() == 2 })
			for range 50 {
				first.eventually("there is no problem", shown(func(all []problem) bool { return len(all) == 0 }))
			}
			trouble.cause(x)
			if trouble.ask != nil {
				ask = trouble.ask
			}
			said := ""
			first.eventually("the trouble is named", shown(func(all []problem) bool {
				for _, p := range all {
					if p.Runbook != trouble.lead && !slices.Contains(trouble.also, p.Runbook) {
						t.Fatalf("a wrong lead: %+v", p)
					}
				}
				if len(all) > 0 {
					said = all[0].What + ": " + all[0].Detail
				}
				return len(all) > 0 && all[0].Runbook == trouble.lead
			}))
			for _, want := range trouble.says {
				if !strings.Contains(said, want) {
					t.Errorf("it says %q, without %q", said, want)
				}
			}
			_, out, errs := runLine("top", "--all", first.debug, "--times=1")
			if !strings.Contains(out, "(runbook: "+trouble.lead+")") {
				t.Errorf("top does not name it:\n%s%s", out, errs)
			}
			if *exercise != "" {
				file := filepath.Join(*exercise, filepath.Base(t.Name()))
				writeFile(t, file, fmt.Sprintf("The debug ports of its nodes are %s %s.\nRules: %s\nRedis: %s\n",
					first.debug, x.nodes[1].debug, x.file, server.storeServer.URL()))
				for end := time.Now().Add(30 * time.Minute); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
					if _, err := os.Stat(file + ".done"); err == nil {
						break
					}
					asked++
					ask(x, asked)
				}
			}
			ask = usual
			if trouble.cure != nil {
				trouble.cure(x)
				first.eventually("it is over", shown(func(all []problem) bool { return len(all) == 0 }))
			}
		})
	}
}
