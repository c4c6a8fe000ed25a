package main

import (
	"strings"
	"testing"
)

// Logs of tests and output of benchmarks become rows under their names. Failures are reported.
//
// A line belongs to the test that prints it, for any order of ends. A part without output is not listed if
// the whole test is.
func TestResults(t *testing.T) {
	const printed = `=== RUN   TestOne
    one_test.go:73: 3 nodes: admitted 1001 of 1000
    one_test.go:73: 3 nodes: admitted 5 | of 5
--- PASS: TestOne (1.28s)
--- PASS: TestQuiet (0.00s)
    --- PASS: TestParts/a (0.00s)
=== RUN   TestFirst
=== RUN   TestSecond
=== CONT  TestFirst
    two_test.go:1: of the first
=== NAME  TestSecond/a
    two_test.go:2: of the second's part
--- PASS: TestSecond (0.1s)
    --- PASS: TestSecond/a (0.1s)
    --- PASS: TestSecond/b (0.1s)
=== NAME  TestFirst
    two_test.go:3: of the first, too
--- PASS: TestFirst (0.2s)
BenchmarkTake/keys=1-2         	24892316	        95.64 ns/op	       0 B/op
PASS
ok  	example	1.3s
`
	results, failed, err := read(strings.NewReader(printed))
	if failed || err != nil {
		t.Fatal(failed, err)
	}
	var b strings.Builder
	write(&b, results)
	const want = "| shown by | measured |\n|---|---|\n" +
		"| `TestOne` | 3 nodes: admitted 1001 of 1000 |\n" +
		"|  | 3 nodes: admitted 5 \\| of 5 |\n" +
		"| `TestQuiet` | holds |\n" +
		"| `TestParts/a` | holds |\n" +
		"| `TestFirst` | of the first |\n" +
		"|  | of the first, too |\n" +
		"| `TestSecond/a` | of the second's part |\n" +
		"| `BenchmarkTake/keys=1` | 95.64 ns/op, 0 B/op |\n"
	if b.String() != want {
		t.Errorf("got\n%swant\n%s", b.String(), want)
	}
	for _, bad := range []string{"--- FAIL: TestOne (0.1s)\nFAIL\n", "panic: no\n", "FAIL\texample [build failed]\n"} {
		if _, failed, _ := read(strings.NewReader(bad)); !failed {
			t.Errorf("%q is no failure", bad)
		}
	}
}
