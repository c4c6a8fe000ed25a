package config

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
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
