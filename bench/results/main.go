// Command results reads the output of go test -v, and writes the measurements of tests and benchmarks as a
// table in Markdown: `make bench-approx` and others. It fails if a test did.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

// result is one measurement of a test or benchmark.
type result struct{ name, measured string }

var (
	logged    = regexp.MustCompile(`^\s*[a-z0-9_]+_test\.go:\d+: (.*)$`)
	speaks    = regexp.MustCompile(`^=== (?:RUN|CONT|NAME)\s+(Test\S+)$`)
	ended     = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (Test\S+) \(`)
	benchmark = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\t\s*(.*)$`)
	broken    = regexp.MustCompile(`^(FAIL|panic:|--- FAIL|\s+--- FAIL)`)
)

// read collects results. The lines that tests log are apart by test, also those of
// tests that run at the same time: the lines in between say who speaks. A test without
// a figure, and without parts that have one, is a row that says how it ended.
func read(from io.Reader) (results []result, failed bool, err error) {
	var names []string                // in the order in which they first spoke or ended
	measured := map[string][]string{} // by name
	add := func(name string, what ...string) {
		if _, known := measured[name]; !known {
			names = append(names, name)
		}
		measured[name] = append(measured[name], what...)
	}
	how := map[string]string{}
	speaker := ""
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		failed = failed || broken.MatchString(line)
		if m := speaks.FindStringSubmatch(line); m != nil {
			speaker = m[1]
		} else if m := logged.FindStringSubmatch(line); m != nil {
			add(speaker, m[1])
		} else if m := benchmark.FindStringSubmatch(line); m != nil {
			add(m[1], strings.Join(strings.FieldsFunc(m[2], func(r rune) bool { return r == '\t' }), ", "))
		} else if m := ended.FindStringSubmatch(line); m != nil {
			add(m[2])
			how[m[2]] = map[string]string{"PASS": "holds", "FAIL": "FAILED", "SKIP": "skipped"}[m[1]]
		}
	}
	for _, name := range names {
		whole, _, isPart := strings.Cut(name, "/")
		_, ofOne := how[whole]
		switch {
		case len(measured[name]) > 0:
			for _, what := range measured[name] {
				results = append(results, result{name, what})
			}
		case !isPart && !partsSpeak(name, measured) || isPart && !ofOne || how[name] == "FAILED":
			results = append(results, result{name, how[name]})
		}
	}
	return results, failed, lines.Err()
}

// partsSpeak tells whether a part of the test has a figure.
func partsSpeak(name string, measured map[string][]string) bool {
	for part, what := range measured {
		if strings.HasPrefix(part, name+"/") && len(what) > 0 {
			return true
		}
	}
	return false
}

// write prints a table; a name that repeats is printed once.
func write(to io.Writer, results []result) {
	fmt.Fprintln(to, "| shown by | measured |\n|---|---|")
	before := ""
	for _, r := range results {
		name := "`" + r.name + "`"
		if r.name == before || r.name == "" {
			name = ""
		}
		before = r.name
		measured := strings.Join(strings.Fields(r.measured), " ")
		fmt.Fprintf(to, "| %s | %s |\n", name, strings.ReplaceAll(measured, "|", `\|`))
	}
}

func main() {
	results, failed, err := read(os.Stdin)
	write(os.Stdout, results)
	if err != nil {
		fmt.Fprintln(os.Stderr, "results:", err)
	}
	if failed {
		fmt.Fprintln(os.Stderr, "results: a test failed")
	}
	if err != nil || failed || len(results) == 0 {
		os.Exit(1)
	}
}
