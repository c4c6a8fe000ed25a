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

const quoted = 3 // words of a promise: enough to find its sentence, which the row links to

var (
	held   = regexp.MustCompile(`<!-- held by ([^>]*) -->`)
	titles = regexp.MustCompile(`(?m)^(#+) (.*)$`)
	marks  = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// packages are the packages of each test, by its name.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)[A-Z]\w*)\(`)
	all := map[string][]string{}
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		dir := "./" + strings.TrimPrefix(filepath.ToSlash(filepath.Dir(path)), "../")
		for _, m := range function.FindAllStringSubmatch(string(text), -1) {
			if !slices.Contains(all[m[1]], dir) {
				all[m[1]] = append(all[m[1]], dir)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// command runs the tests that a comment names.
func command(t *testing.T, page, names string, in map[string][]string) string {
	t.Helper()
	dirs := map[string]bool{}
	var patterns []string
	for name := range strings.SplitSeq(names, ", ") {
		prefix, several := strings.CutSuffix(name, "...")
		found := false
		for test, where := range in {
			if test == prefix || several && strings.HasPrefix(test, prefix) {
				for _, dir := range where {
					dirs[dir], found = true, true
				}
			}
		}
		if !found {
			t.Errorf("%s is held by %s, which is no test", page, name)
		}
		patterns = append(patterns, prefix)
	}
	run := "-run '" + strings.Join(patterns, "|") + "'"
	if strings.HasPrefix(names, "Benchmark") {
		run = "-run '^$' -bench '" + strings.Join(patterns, "|") + "'"
	}
	ours, others := "", ""
	for _, dir := range slices.Sorted(maps.Keys(dirs)) {
		if _, err := os.Stat("../" + dir + "/go.mod"); err == nil { // a module of its own
			others += " && go test -C " + dir + " " + run + " ."
		} else {
			ours += " " + dir
		}
	}
	if ours != "" {
		others = " && go test" + ours + " " + run + others
	}
	return strings.TrimPrefix(others, " && ")
}

// promised is the sentence before a comment, or the title of its section where the comment stands alone.
func promised(before, title string) string {
	if strings.HasSuffix(before, "\n\n") {
		return title
	}
	before = before[max(strings.LastIndex(before, "\n\n"), strings.LastIndex(before, "-->"), strings.LastIndex(before, "\n|"), strings.LastIndex(before, "\n- "), 0):]
	before = linked.ReplaceAllString(strings.TrimPrefix(before, "-->"), "$1")
	all := strings.Split(strings.Trim(strings.Join(strings.Fields(strings.NewReplacer("|", " ", "**", "", "- ", " ").Replace(before)), " "), ". "), ". ")
	words := strings.Fields(all[len(all)-1])
	if len(words) > quoted {
		return strings.Join(words[:quoted], " ") + "..."
	}
	return strings.Join(words, " ")
}

// evidence lists each promise of a page with the command that runs its tests. Where a section has a comment of its own, its row
// stands for the sentences whose tests it names too.
func evidence(t *testing.T, page, text string, in map[string][]string) (rows string) {
	t.Helper()
	sections := map[string][]string{} // the tests of comments that stand alone, by anchor
	titled := func(before string) (title, anchor string) {
		for _, h := range titles.FindAllStringSubmatch(before, -1) {
			title = linked.ReplaceAllString(h[2], "$1")
			anchor = strings.ReplaceAll(marks.ReplaceAllString(strings.ToLower(title), ""), " ", "-")
		}
		return title, anchor
	}
	all := held.FindAllStringSubmatchIndex(text, -1)
	for _, m := range all {
		if _, anchor := titled(text[:m[0]]); strings.HasSuffix(text[:m[0]], "\n\n") {
			sections[anchor] = append(sections[anchor], strings.Split(text[m[2]:m[3]], ", ")...)
		}
	}
	for _, m := range all {
		title, anchor := titled(text[:m[0]])
		alone, names := strings.HasSuffix(text[:m[0]], "\n\n"), strings.Split(text[m[2]:m[3]], ", ")
		run := command(t, page, text[m[2]:m[3]], in)
		if missing := func(name string) bool { return !slices.Contains(sections[anchor], name) }; alone || slices.ContainsFunc(names, missing) {
			rows += "- [" + promised(text[:m[0]], title) + "](../" + page + "#" + anchor + "): `" + run + "`\n"
		}
	}
	if rows != "" {
		rows = "\n## " + strings.TrimPrefix(page, "../") + "\n\n" + rows
	}
	return rows
}

const evidencePage = "reference/evidence.md"

// The page of evidence is generated from promises.txt: go test ./docs -run Evidence -rewrite.
func TestEvidence(t *testing.T) {
	names, err := filepath.Glob("*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	in := packages(t)
	var rows strings.Builder
	for _, page := range append(names, "../README.md", "../deploy/README.md") {
		if text, err := os.ReadFile(page); err != nil {
			t.Fatal(err)
		} else if page != evidencePage {
			name := filepath.ToSlash(filepath.Join("docs", page))
			rows.WriteString(evidence(t, page, withPromises(t, name, string(text)), in))
		}
	}
	want := "# Evidence\n\nThe promises of these pages, each with the command that runs its tests. `go test ./docs -run Evidence -rewrite` writes this page.\n\n" +
		"<!-- written by go test ./docs -run Evidence -rewrite -->\n" + rows.String() + "\n<!-- end -->\n"
	if *rewrite {
		if err := os.WriteFile(evidencePage, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(evidencePage); err != nil || string(got) != want {
		t.Errorf("docs/reference/evidence.md is not what pages promise (%v): go test ./docs -run Evidence -rewrite", err)
	}
}
