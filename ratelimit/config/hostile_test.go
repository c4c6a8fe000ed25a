package config

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

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
	const n = 20_000
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

// Within the default bounds, the worst of these shapes has at most 180 MB in use at once. An eager collector shows
// that: garbage depends on the machine's other work.
func TestMemoryOfHostileFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	most := DefaultCaps()
	for name, shape := range map[string]string{
		"commented items":   strings.Repeat("-\n #\n\n", most.Tokens),
		"commented in flow": "[" + strings.Repeat("a, #\n", most.Tokens-2) + "]",
		"rules": "domain: d\ndescriptors:\n" + repeated(most.Tokens*12,
			"- key: k\n  value: v%d\n  rate_limit:\n    unit: day\n    requests_per_unit: 1\n"),
	} {
		peak := make(chan uint64)
		stop := make(chan struct{})
		runtime.GC()
		quiet := heap()
		go func() {
			top := uint64(0)
			for tick := time.NewTicker(2 * time.Millisecond); ; {
				select {
				case <-stop:
					tick.Stop()
					peak <- top
					return
				case <-tick.C:
					top = max(top, heap())
				}
			}
		}()
		_, _, problems := Parse([]Text{{Name: "f", Data: []byte(shape)}}, options())
		close(stop)
		if got := <-peak - quiet; got > 180<<20 {
			t.Errorf("%s: %d MB", name, got>>20)
		} else {
			t.Logf("%s: %d bytes, %d MB, %d problems", name, len(shape), got>>20, len(problems))
		}
	}
}

// Ten thousands of rules, and as many values of one key, are within the default bounds.
func TestHonestFilesAreWithinBounds(t *testing.T) {
	var b strings.Builder
	b.WriteString("# A comment: it, and what is in it, is free of charge in sum.\ndomain: d\ndescriptors:\n")
	for i := range 40_000 {
		fmt.Fprintf(&b, "  - key: path\n    value: /api/v1/customers/%d\n    rate_limit:\n      unit: minute\n      "+
			"requests_per_unit: %d\n", i, i)
	}
	rules, problems := parseText(b.String())
	if problems != nil || len(rules.All()) != 40_000 {
		t.Fatalf("%d rules, %v", len(rules.All()), problems)
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
