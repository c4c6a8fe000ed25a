package sim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

// bug is one of testdata/bugs.txt.
type bug struct {
	plant.Bug
	finder string
	seed   int
}

// readBugs reads bugs with empty lines between them.
func readBugs(t *testing.T) (all []bug) {
	t.Helper()
	text, err := os.ReadFile("testdata/bugs.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:] { // after the remarks
		lines := strings.Split(entry, "\n")
		var b bug
		head, name, _ := strings.Cut(lines[0], ": ")
		if _, err := fmt.Sscan(head, &b.finder, &b.seed); err != nil {
			t.Fatalf("%s: %v", lines[0], err)
		}
		b.Name, b.File = name, lines[1]
		texts := map[byte][]string{}
		for _, line := range lines[2:] {
			texts[line[0]] = append(texts[line[0]], strings.TrimPrefix(line[1:], " "))
		}
		b.Right, b.Wrong = strings.Join(texts['-'], "\n"), strings.Join(texts['+'], "\n")
		all = append(all, b)
	}
	return all
}

// A checker that cannot fail proves nothing. Each bug of testdata/bugs.txt is put into the product's own source, and must
// be found. Histories of fleets or of Envoys find most of them, each with the seed of one that finds it, to save time. The
// tests of package sublease find those in the account of one Envoy (books). Histories come too seldom to where two others
// show, and the tests of package rlqs find these (sessions). Without a bug, none of these fails.
func TestHistoriesFindBugs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	finders := map[string]struct {
		pkg  string
		args []string
	}{
		"fleets":   {"bench/sim", []string{"-test.run", "^TestHistories$/^fleets$"}},
		"Envoys":   {"bench/sim", []string{"-test.run", "^TestHistories$/^Envoys$"}},
		"books":    {"ratelimit/sublease", []string{"-rapid.checks", "5000", "-rapid.nofailfile"}},
		"sessions": {"ratelimit/rlqs", nil},
	}
	bugs := readBugs(t)
	var planted []plant.Bug
	for _, b := range bugs {
		planted = append(planted, b.Bug)
	}
	builds := map[string]func() (*plant.Binary, error){}
	for _, b := range bugs {
		by := finders[b.finder]
		if builds[by.pkg] == nil {
			into := t.TempDir()
			builds[by.pkg] = sync.OnceValues(func() (*plant.Binary, error) {
				return plant.Tests(t.Context(), "../..", by.pkg, into, planted)
			})
		}
		t.Run(b.finder+"/"+b.Name, func(t *testing.T) {
			t.Parallel()
			tests, err := builds[by.pkg]()
			if err != nil {
				t.Fatal(err)
			}
			play := func(name string, args ...string) (text string, failed bool) {
				args = append(append(args, by.args...), "-test.timeout", "30m")
				out, err := tests.Command(t.Context(), name, args...).CombinedOutput()
				return string(out), err != nil && strings.Contains(string(out), "--- FAIL")
			}
			var seed []string
			if b.seed > 0 {
				seed = []string{"-seed", strconv.Itoa(b.seed), "-histories", "1"}
			}
			if b.seed > int(*histories) { // TestHistories plays the others without a bug
				if text, failed := play("", seed...); failed {
					t.Fatalf("it fails without the bug: %s", text)
				}
			}
			text, failed := play(b.Name, seed...)
			if !failed && b.seed > 0 { // histories are made up otherwise now
				text, failed = play(b.Name, "-histories", "6000")
				t.Logf("write the seed that finds it into testdata/bugs.txt, and the test is fast again: %s", text)
			}
			if !failed {
				t.Fatalf("nothing finds it: %s", text)
			}
		})
	}
}
