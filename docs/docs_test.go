// Package docs holds the pages for users to the tests, links, commands and figures that there are, and to the style guide of
// CONTRIBUTING.md.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

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

// files calls f with each file of the repository that has one of these ends.
func files(t *testing.T, f func(path string), ends ...string) {
	t.Helper()
	err := filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != top:
			return filepath.SkipDir
		case slices.Contains(ends, filepath.Ext(path)):
			f(strings.TrimPrefix(filepath.ToSlash(path), top))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// pages are the pages for users, by their path.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	files(t, func(path string) {
		if dir := filepath.Dir(path); dir == "." || strings.HasPrefix(dir, "docs") || strings.HasPrefix(dir, "deploy") {
			all[path] = read(t, path)
		}
	}, ".md")
	if len(all) < 30 {
		t.Fatalf("%d pages", len(all))
	}
	return all
}

// tests are the directories of each test, by its name. A script of cmd/sluice is a test.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	function := regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)[A-Z]\w*)\(`)
	all := map[string][]string{}
	files(t, func(path string) {
		dir, base := filepath.Split(path)
		if script, ok := strings.CutSuffix(base, ".txtar"); ok && strings.HasSuffix(dir, "/testdata/scripts/") {
			all["TestScripts/"+script] = []string{strings.TrimSuffix(dir, "/testdata/scripts/")}
		}
		if strings.HasSuffix(base, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(read(t, path), -1) {
				all[m[1]] = append(all[m[1]], filepath.Dir(path))
			}
		}
	}, ".go", ".txtar")
	return all
}

// A line of promises.txt has a page, the end of a sentence there, and the tests that hold it.
func TestEvidence(t *testing.T) {
	all, exist := pages(t), tests(t)
	for line := range strings.Lines(read(t, "docs/promises.txt")) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 3 {
			t.Fatalf("docs/promises.txt: %q has not three fields", line)
		}
		if n := strings.Count(all[f[0]], f[1]); n != 1 {
			t.Errorf("docs/promises.txt: %s has %q %d times, must have it once: write how its sentence ends now", f[0], f[1], n)
		}
		for name := range strings.SplitSeq(f[2], ", ") {
			if exist[name] == nil {
				t.Errorf("docs/promises.txt: %s is held by %s, which is no test", f[0], name)
			}
		}
	}
}

// A go test command of a page or the Makefile finds tests in each of its packages: go test itself prints only "no tests to
// run", and ok.
func TestCommandsFindTheirTests(t *testing.T) {
	names := tests(t)
	command := regexp.MustCompile("go test ([^`\\n&]*)")
	pattern := regexp.MustCompile(`-(run|bench|fuzz) '?([^' ]+)'?`)
	directory := regexp.MustCompile(`(?:^| )\./([\w/.]+)`)
	texts := pages(t)
	makefile := strings.ReplaceAll(read(t, "Makefile"), "$$'", "$'")
	texts["Makefile"] = strings.ReplaceAll(makefile, "$(GO) test", "go test")
	seen := 0
	for page, text := range texts {
		for _, m := range command.FindAllStringSubmatch(strings.ReplaceAll(text, `\|`, "|"), -1) {
			for _, dir := range directory.FindAllStringSubmatch(m[1], -1) {
				if _, err := os.Stat(top + strings.TrimSuffix(dir[1], "/...")); err != nil && dir[1] != "..." {
					t.Errorf("%s: go test %s names ./%s, which is not there", page, m[1], dir[1])
				}
				for _, p := range pattern.FindAllStringSubmatch(m[1], -1) {
					if p[2] != "^$" && !strings.Contains(p[2], "$$") {
						seen++
						found(t, names, page, dir[1], p[2])
					}
				}
			}
		}
	}
	for _, m := range regexp.MustCompile(`([a-z/]+):(Fuzz[A-Za-z]+)`).FindAllStringSubmatch(makefile, -1) {
		seen++
		found(t, names, "the Makefile's list", strings.TrimPrefix(m[1], "/"), "^"+m[2]+"$")
	}
	if seen < 20 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// found fails if a pattern of -run, -bench or -fuzz finds nothing in a package, or below it.
func found(t *testing.T, names map[string][]string, page, dir, pattern string) {
	t.Helper()
	first, _, _ := strings.Cut(pattern, "/")
	name, err := regexp.Compile(first)
	if err != nil {
		t.Errorf("%s: %q is no pattern: %v", page, pattern, err)
		return
	}
	dir, below := strings.CutSuffix(dir, "/...")
	for test, dirs := range names {
		in := func(d string) bool { return d == dir || below && strings.HasPrefix(d, dir+"/") || dir == "..." }
		if name.MatchString(test) && slices.ContainsFunc(dirs, in) {
			return
		}
	}
	t.Errorf("%s: %q finds nothing in ./%s", page, pattern, dir)
}

// Each link leads to a file and a section that are there, and each make target that a page names is one.
func TestLinksLeadSomewhere(t *testing.T) {
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	target := regexp.MustCompile("(?m)(?:`|^    )make ([a-z0-9-]+)")
	makefile, all := read(t, "Makefile"), pages(t)
	for page, text := range all {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to := page
			if file != "" {
				to = filepath.ToSlash(filepath.Join(filepath.Dir(page), file))
			}
			if _, err := os.Stat(top + to); err != nil {
				t.Errorf("%s links to %s, which is not there", page, m[1])
			} else if anchor != "" && strings.HasSuffix(to, ".md") && !slices.Contains(headings(all[to]), anchor) {
				t.Errorf("%s links to %s, which has no section %q", page, m[1], anchor)
			}
		}
		for _, m := range target.FindAllStringSubmatch(text, -1) {
			if !strings.Contains(makefile, "\n"+m[1]+":") {
				t.Errorf("%s names make %s, which is no target", page, m[1])
			}
		}
	}
}

// headings are a page's anchors, as GitHub makes them.
func headings(text string) (anchors []string) {
	title := regexp.MustCompile(`(?m)^#+ (.*)$`)
	marks := regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
	for _, m := range title.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		plain := strings.ToLower(linked.ReplaceAllString(strings.TrimSpace(m[1]), "$1"))
		anchors = append(anchors, strings.ReplaceAll(marks.ReplaceAllString(plain, ""), " ", "-"))
	}
	return anchors
}

// Help of the Makefile has the defaults of its variables, and deps-list names each package that deps installs.
func TestMakefileTellsBefore(t *testing.T) {
	makefile := read(t, "Makefile")
	_, list, _ := strings.Cut(makefile, "\ndeps-list:")
	for _, m := range regexp.MustCompile(`## .*\b([A-Z]{4,}) (?:times )?\((\w+)`).FindAllStringSubmatch(makefile, -1) {
		if !strings.Contains(makefile, "\n"+m[1]+" ?= "+m[2]+"\n") {
			t.Errorf("help says that %s is %s", m[1], m[2])
		}
	}
	for _, m := range regexp.MustCompile(`\$\(call install,[^,]*,([a-z-]+),`).FindAllStringSubmatch(makefile, -1) {
		if !strings.Contains(list, m[1]) {
			t.Errorf("deps installs %s, and deps-list does not say so", m[1])
		}
	}
}

const (
	longest     = 30 // words of a sentence
	mostClauses = 60 // with what, and with the denials below, in all pages
)

var (
	habits = regexp.MustCompile(`(?i)\b(?:hears?|heard|hearing|believes?|believed|forgets?|forgot|forgotten|knew|nobody|somebody|besides|beside|` +
		`but for|so too|asked for|asks for|to be had|whoever|(?:is|are|was|were) told|ask over|ledgers?)\b`)
	minds  = regexp.MustCompile(`(?i)\b(\w+) (?:does not know|knows?|wants?)\b`)
	what   = regexp.MustCompile(`(?i)\bwhat\b`)
	denies = regexp.MustCompile(`(?i)\b(?:nobody|nothing|none)\b`)

	code     = regexp.MustCompile("(?ms)^```.*?^```|^    .*?$|<!--.*?-->")
	span     = regexp.MustCompile("`[^`]*`|'[a-z_]+'")
	linked   = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	starts   = regexp.MustCompile(`(?m)^\s*(?:[-*] |\d+\. |#+ |\|)`)
	ends     = regexp.MustCompile(`[.!?][)"*]*(?:\s+|$)|\n\n|\s\|`)
	sayings  = regexp.MustCompile(`^(?:Debug|Info|Warn|Error|Log)(?:Context)?$`)
	mistakes = regexp.MustCompile(`^(?:errors\.New|fmt\.Errorf)$`)

	ledger  = regexp.MustCompile(`(?i)\bledgers?\b`)
	first   = regexp.MustCompile(`^(?:beside|believed|forg[eo]t|hears?|heard)\b`)
	dialect = regexp.MustCompile(`(?i:\bledgers?\b)|(?m)^[ \t]+\S.*$|\[[^\]]*\]|\b(?:Beside|Forget|Heard?|Want)\b`)
)

// sentences cuts Markdown into sentences. A code span counts as one word; a cell of a table and a heading stand alone.
func sentences(text string) (all []string) {
	text = span.ReplaceAllString(code.ReplaceAllString(text, "\n\n"), "X")
	text = starts.ReplaceAllString(linked.ReplaceAllString(text, "$1"), "\n\n")
	for _, s := range ends.Split(text, -1) {
		if s = strings.Join(strings.Fields(s), " "); s != "" {
			all = append(all, s)
		}
	}
	return all
}

// faults are the sentences that break the guide, each with its reason.
func faults(text string) (all []string) {
	for _, s := range sentences(text) {
		if n := len(strings.Fields(s)); n > longest {
			all = append(all, fmt.Sprintf("%d words: %s", n, s))
		}
		for _, m := range habits.FindAllString(s, -1) {
			all = append(all, fmt.Sprintf("%q: %s", m, s))
		}
		for _, m := range minds.FindAllStringSubmatch(s, -1) {
			if who := strings.ToLower(m[1]); !slices.Contains([]string{"you", "to", "must", "who", "should", "well"}, who) {
				all = append(all, fmt.Sprintf("%q: %s", m[0], s))
			}
		}
	}
	return all
}

// says is a file's help texts, log messages and errors.
func says(t *testing.T, path string) (all string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), top+path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	add := func(quoted string) {
		if text, err := strconv.Unquote(quoted); err == nil {
			all += text + "\n\n"
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Field:
			if n.Tag != nil {
				tag, _ := strconv.Unquote(n.Tag.Value)
				all += reflect.StructTag(tag).Get("help") + "\n\n"
			}
		case *ast.CallExpr:
			s, ok := n.Fun.(*ast.SelectorExpr)
			if !ok {
				break
			}
			from, _ := s.X.(*ast.Ident)
			if sayings.MatchString(s.Sel.Name) || from != nil && mistakes.MatchString(from.Name+"."+s.Sel.Name) {
				ast.Inspect(n, func(n ast.Node) bool {
					if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
						add(lit.Value)
					}
					return true
				})
			}
		}
		return true
	})
	return strings.TrimSpace(all)
}

// comments are all comments of a file. Names of code pass: the name at the start of a comment, and those with a capital.
func comments(t *testing.T, path string) (all string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), top+path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Comments {
		all += first.ReplaceAllString(g.Text(), "X") + "\n\n"
	}
	return dialect.ReplaceAllString(all, "X")
}

// Pages, help, logs, errors, alerts and comments keep to the style guide. The page on the protocol explains the
// ledger, and comments name it.
func TestPlainEnglish(t *testing.T) {
	all, plain := pages(t), ""
	for _, page := range []string{"CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md"} {
		delete(all, page)
	}
	all["docs/reference/protocol.md"] = ledger.ReplaceAllString(all["docs/reference/protocol.md"], "store")
	for _, text := range all {
		plain += strings.Join(sentences(text), "\n")
	}
	files(t, func(path string) {
		if strings.HasSuffix(path, ".pb.go") || strings.Contains(path, "/testdata/") {
			return
		}
		all["the comments of "+path] = comments(t, path)
		if root, _, _ := strings.Cut(path, "/"); root != "bench" && root != "deploy" && root != "docs" && !strings.HasSuffix(path, "_test.go") {
			all[path] = says(t, path)
		}
	}, ".go")
	for _, m := range regexp.MustCompile(`(?m)^ +(?:summary|description): (.*)$`).FindAllStringSubmatch(read(t, "deploy/prometheus/alerts.yaml"), -1) {
		all["deploy/prometheus/alerts.yaml"] += m[1] + "\n\n"
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if found := faults(all[name]); len(found) > 0 {
			t.Errorf("%s breaks the style guide in CONTRIBUTING.md:\n\t%s", name, strings.Join(found, "\n\t"))
		}
	}
	if clauses, denials := len(what.FindAllString(plain, -1)), len(denies.FindAllString(plain, -1)); clauses > mostClauses || denials > mostClauses {
		t.Errorf("pages say what %d times, and nobody, nothing and none %d times, of %d", clauses, denials, mostClauses)
	}
}

// Each habit is found, and plain sentences are left alone.
func TestPlainEnglishFindsHabits(t *testing.T) {
	long := strings.Repeat("word ", 31)
	for text, want := range map[string]int{
		"Redis was heard.": 1, "Nodes are told, whoever asks.": 2, "The node knows it. You know it.": 1, "A node wants more; you want to run it.": 1, long + ".": 1, "A key that is asked for.": 1,
		"- " + long: 1, "The ledger.": 1, "Nobody. Besides, none.": 2, "`ledger` and sluice_ledger_total": 0, "```\nnobody\n```\n": 0, "<!-- ledger -->": 0,
		"| " + strings.Repeat("a ", 20) + " | " + strings.Repeat("b ", 20) + " |": 0, strings.Repeat("a ", 20) + ". " + strings.Repeat("b ", 20): 0,
	} {
		if got := faults(text); len(got) != want {
			t.Errorf("%q has %d faults, not %d: %q", text, len(got), want, got)
		}
	}
}
