// Command results reads what go test -v prints, and writes what the tests and
// benchmarks measured as a table in Markdown: `make bench-approx` and others. It
// fails if a test did.
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
	ended     = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): (Test\S+) \(`)
	benchmark = regexp.MustCompile(`^(Benchmark\S+?)(?:-\d+)?\s+\d+\t\s*(.*)$`)
	broken    = regexp.MustCompile(`^(FAIL|panic:|--- FAIL|\s+--- FAIL)`)
)

// read collects results. Lines that a test logs come before the line that says how
// it ended, which names it; those of a test with parts come before its parts.
func read(from io.Reader) (results []result, failed bool, err error) {
	unnamed := 0 // results from here on wait for their name
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		failed = failed || broken.MatchString(line)
		if m := logged.FindStringSubmatch(line); m != nil {
			results = append(results, result{measured: m[1]})
		} else if m := benchmark.FindStringSubmatch(line); m != nil {
			results = append(results, result{m[1], strings.Join(strings.FieldsFunc(m[2], func(r rune) bool { return r == '\t' }), ", ")})
		} else if m := ended.FindStringSubmatch(line); m != nil {
			for i := unnamed; i < len(results); i++ {
				if results[i].name == "" {
					results[i].name = m[2]
				}
			}
			if unnamed == len(results) {
				results = append(results, result{m[2], map[string]string{"PASS": "holds", "FAIL": "FAILED", "SKIP": "skipped"}[m[1]]})
			}
			unnamed = len(results)
		}
	}
	return results, failed, lines.Err()
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
