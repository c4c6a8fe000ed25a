package docs

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// pages are README and docs, by their path from the top.
func pages(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, glob := range []string{"README.md", "SECURITY.md", "docs/*/*.md", "deploy/*.md", "deploy/kubernetes/*.md"} {
		names, err := filepath.Glob(top + glob)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			name = strings.TrimPrefix(filepath.ToSlash(name), top)
			texts[name] = withPromises(t, name, read(t, name))
		}
	}
	if len(texts) < 40 {
		t.Fatalf("%d pages", len(texts))
	}
	return texts
}

// top is the repository.
const top = "../"

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(top + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A promise names the test that shows it, and there is such a test. Names that
// end in "..." stand for all that begin so.
func TestDocsNameTestsThatExist(t *testing.T) {
	names := slices.Collect(maps.Keys(packages(t)))
	if len(names) < 500 {
		t.Fatalf("%d tests", len(names))
	}
	named := regexp.MustCompile("(?:`|held by |, )((?:Test|Benchmark|Fuzz)[A-Z][A-Za-z0-9_]*)(\\.\\.\\.)?(?:`|,| -->)")
	seen := 0
	for page, text := range pages(t) {
		for _, m := range named.FindAllStringSubmatch(text, -1) {
			seen++
			begins := func(name string) bool { return strings.HasPrefix(name, m[1]) }
			if ok := slices.Contains(names, m[1]); !ok && (m[2] == "" || !slices.ContainsFunc(names, begins)) {
				t.Errorf("%s names %s, and there is no such test", page, m[1])
			}
		}
	}
	if seen < 100 {
		t.Errorf("only %d tests are named", seen)
	}
}

// headings are a page's anchors, as GitHub makes them.
func headings(text string) (anchors []string) {
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") && !code {
			title = linked.ReplaceAllString(strings.TrimSpace(title), "$1")
			anchors = append(anchors, strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(title), ""), " ", "-"))
		}
	}
	return anchors
}

// Every link of every page leads to a file, and to a section, that is there.
func TestDocsLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	for page, text := range pages(t) {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
			if file == "" {
				target = page
			}
			info, err := os.Stat(top + target)
			if err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
				continue
			}
			if anchor != "" && !info.IsDir() && strings.HasSuffix(target, ".md") && !slices.Contains(headings(read(t, target)), anchor) {
				t.Errorf("%s links to %s, which has no section %q", page, m[1], anchor)
			}
		}
	}
}

// Every make target that a page names is one.
func TestDocsNameTargetsThatExist(t *testing.T) {
	makefile := read(t, "Makefile")
	target := regexp.MustCompile("(?m)(?:`|^    )make ([a-z-]+)")
	for page, text := range pages(t) {
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names make %s, which is no target", page, m[1])
			}
		}
	}
}

// Pages show what tests print as tables, not as it was printed.
func TestDocsHaveTables(t *testing.T) {
	raw := regexp.MustCompile(`(?m)^\s*[a-z0-9_]+_test\.go:\d+: |^\s*--- (?:PASS|FAIL)|^Benchmark\S+\s+\d+\s`)
	for page, text := range pages(t) {
		if m := raw.FindString(text); m != "" {
			t.Errorf("%s has raw output of tests, %q: write a table", page, m)
		}
	}
}
