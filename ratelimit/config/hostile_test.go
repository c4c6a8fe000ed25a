package config

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// hostileShapes repeat one construct of YAML for n bytes. Each was found to cost
// some parser more than its length, or is what else there is in the language.
var hostileShapes = map[string]func(n int) string{
	"flow lists":         func(n int) string { return strings.Repeat("[", n) },
	"closed flow lists":  func(n int) string { return strings.Repeat("[", n/2) + strings.Repeat("]", n/2) },
	"flow maps":          func(n int) string { return strings.Repeat("{a: ", n/4) },
	"JSON maps":          func(n int) string { return strings.Repeat(`{"a":`, n/5) },
	"JSON lists of maps": func(n int) string { return strings.Repeat(`[{"a":`, n/6) },
	"complex keys":       func(n int) string { return strings.Repeat("? ", n/2) },
	"lines of them":      func(n int) string { return strings.Repeat("?\n", n/2) },
	"block lists":        func(n int) string { return strings.Repeat("- ", n/2) },
	"items":              func(n int) string { return strings.Repeat("-\n", n/2) },
	"commented items":    func(n int) string { return strings.Repeat("-\n #\n\n", n/6) },
	"flow items":         func(n int) string { return "[" + strings.Repeat("a,", n/2) + "]" },
	"commented in flow":  func(n int) string { return "[" + strings.Repeat("a, #\n", n/5) + "]" },
	"commas":             func(n int) string { return "[" + strings.Repeat(",", n) + "]" },
	"empty maps":         func(n int) string { return "[" + strings.Repeat("{},", n/3) + "]" },
	"values":             func(n int) string { return strings.Repeat(": ", n/2) },
	"keys":               func(n int) string { return numbered(n, "k%d: 1\n") },
	"the same key":       func(n int) string { return strings.Repeat("k: 1\n", n/5) },
	"commented keys":     func(n int) string { return numbered(n, "k%d: 1 # c\n# d\n") },
	"anchors":            func(n int) string { return strings.Repeat("&a ", n/3) },
	"anchored items":     func(n int) string { return numbered(n, "- &a%d x\n") },
	"aliases":            func(n int) string { return "- &a x\n" + strings.Repeat("- *a\n", n/5) },
	"an alias of itself": func(n int) string { return "&a [" + strings.Repeat("*a,", n/3) + "]" },
	"merges":             func(n int) string { return "a: &a {x: 1}\nb:\n" + strings.Repeat("  <<: *a\n", n/9) },
	"merges of many": func(n int) string {
		return "a: &a {" + numbered(n/2, "k%d: 1, ") + "}\nb:\n  <<: [" + strings.Repeat("*a,", n/6) + "]"
	},
	"a long scalar":       func(n int) string { return "a: " + strings.Repeat("x", n) },
	"words":               func(n int) string { return "a: " + strings.Repeat("x ", n/2) },
	"lines":               func(n int) string { return "a: " + strings.Repeat("x\n  ", n/4) },
	"an open quote":       func(n int) string { return `a: "` + strings.Repeat("x", n) },
	"escapes":             func(n int) string { return `a: "` + strings.Repeat(`\n`, n/2) + `"` },
	"single quotes":       func(n int) string { return "a: '" + strings.Repeat("''", n/2) + "'" },
	"a literal":           func(n int) string { return "a: |\n" + strings.Repeat("  x\n", n/4) },
	"blanks in a literal": func(n int) string { return "a: |\n" + strings.Repeat("\n", n) },
	"folded blanks":       func(n int) string { return "a: >\n" + strings.Repeat("\n  x\n", n/5) },
	"literals":            func(n int) string { return strings.Repeat("- |\n", n/4) },
	"deep blocks":         deep,
	"comments":            func(n int) string { return strings.Repeat("#\n\n", n/3) },
	"tags":                func(n int) string { return strings.Repeat("!a ", n/3) },
	"tagged items":        func(n int) string { return strings.Repeat("- !!str a\n", n/10) },
	"directives":          func(n int) string { return strings.Repeat("%YAML 1.2\n", n/10) },
	"tag directives":      func(n int) string { return numbered(n, "%%TAG !a%d! x\n") + "---\na" },
	"documents":           func(n int) string { return strings.Repeat("---\n", n/4) },
	"documents of text":   func(n int) string { return strings.Repeat("---\na\n", n/6) },
	"documents' ends":     func(n int) string { return strings.Repeat("...\n", n/4) },
	"newlines":            func(n int) string { return strings.Repeat("\n", n) },
	"tabs":                func(n int) string { return strings.Repeat("\t", n) },
	"NUL":                 func(n int) string { return strings.Repeat("\x00", n) },
	"a long key": func(n int) string {
		return "? " + strings.Repeat("x", n/2) + "\n:\n" +
			strings.Repeat("  - a\n", n/12)
	},
	"UTF-16":           func(n int) string { return "\xff\xfe" + strings.Repeat("-\x00\n\x00", n/4) },
	"Unicode's breaks": func(n int) string { return strings.Repeat("-\u0085", n/3) },
	"long keys in others": func(n int) string {
		return "domain: d\n" + nested(50, strings.Repeat("x", n/50))
	},
	"patterns": func(n int) string { return "domain: d\ndescriptors:\n" + numbered(n, "- key: k\n  value: a%d*\n") },
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

func deep(n int) string {
	var b strings.Builder
	for i := 0; b.Len() < n; i++ {
		b.WriteString(strings.Repeat(" ", i) + "a:\n")
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

// allocated is what Parse allocates in all, which says more than the time that it takes on a machine with other work.
func allocated(text string) (n uint64, took time.Duration) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	begun := time.Now()
	_, _, _ = Parse([]Text{{Name: "f", Data: []byte(text)}}, options())
	took = time.Since(begun)
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc, took
}

// Whatever construct a file repeats, it costs memory in proportion to its length, and its problems fit on a screen.
// (Names of descriptors are quadratic up to a bound: TestNamesAreBounded.)
func TestHostileFilesAreLinear(t *testing.T) {
	const n = 20_000
	for name, shape := range hostileShapes {
		t.Run(name, func(t *testing.T) {
			small, _ := allocated(shape(n))
			large, took := allocated(shape(4 * n))
			if large > 6*small+3<<20 || took > 10*time.Second {
				t.Errorf("%d bytes allocate %d, and %d allocate %d in %v", n, small, 4*n, large, took)
			}
			_, warnings, problems := Parse([]Text{{Name: "f", Data: []byte(shape(n))}}, options())
			if got := len(problems.Error()); got > 64<<10 || len(warnings) > maxProblems+1 {
				t.Errorf("problems of %d bytes, %d warnings", got, len(warnings))
			}
		})
	}
}

// Within the default bounds, the worst of these shapes needs at most 256 MB more than there is without it.
func TestMemoryOfHostileFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds")
	}
	most := DefaultCaps()
	for name, shape := range map[string]string{
		"commented items":   strings.Repeat("-\n #\n\n", most.Tokens),
		"commented in flow": "[" + strings.Repeat("a, #\n", most.Tokens-2) + "]",
		"rules": "domain: d\ndescriptors:\n" + numbered(most.Tokens*12,
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
		if got := <-peak - quiet; got > 256<<20 {
			t.Errorf("%s: %d MB", name, got>>20)
		} else {
			t.Logf("%s: %d bytes, %d MB, %d problems", name, len(shape), got>>20, len(problems))
		}
	}
}

func heap() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
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
			numbered(1000, "  - key: k%d\n"),
		"in one another": "domain: d\n" + nested(50, long[:100<<10]),
	} {
		rules, problems := parseText(text)
		if rules != nil || !strings.Contains(problems.Error(),
			fmt.Sprintf("are more than %d bytes: use shorter keys", maxPathBytes)) || len(problems.Error()) > 4<<10 {
			t.Errorf("%s: %.300s", name, problems.Error())
		}
	}
}

// A tree is not read further than the bounds allow.
func TestTreeIsBounded(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{"a": "123", "b/c": "456", "b/d/e/f": ""} {
		writeFile(t, filepath.Join(dir, file), text)
	}
	for _, c := range []struct {
		path string
		caps Caps
		want string // "": all is read
	}{
		{"", Caps{FileBytes: 2}, "it exceeds 2 bytes: split it into several files"},
		{"a", Caps{FileBytes: 2}, "split it into several files"},
		{"", Caps{TotalBytes: 5}, "with it all files have 6 bytes, and the maximum is 5: use fewer rules, or raise"},
		{"b", Caps{Files: 1}, "more than 2 names of files and directories"},
		{"", Caps{Files: 3, FileBytes: 3, TotalBytes: 6}, ""},
	} {
		texts, err := (&Tree{Path: filepath.Join(dir, c.path), Caps: c.caps}).Read()
		switch {
		case c.want == "" && (err != nil || len(texts) != 3):
			t.Errorf("%v, %v", texts, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", c.caps, err, c.want)
		}
	}
	many := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		writeFile(t, filepath.Join(many, name), "")
	}
	if _, err := (&Tree{Path: many, Caps: Caps{Files: 2}}).Read(); err == nil ||
		!strings.Contains(err.Error(), "the maximum is 2 files: join some") {
		t.Errorf("of three files: %v", err)
	}
}
