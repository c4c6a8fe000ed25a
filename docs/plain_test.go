// Package docs holds what users read to the style guide of CONTRIBUTING.md, and to the tests, links and commands that there are.
package docs

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write docs/reference/evidence.md anew")

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
	named   = regexp.MustCompile(`^(?:beside|believed|forg[eo]t|hears?|heard)\b`)
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

// texts are the pages for users, and what each Go file shows them: help, logs and errors.
func texts(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for _, glob := range []string{"../README.md", "../SECURITY.md", "../deploy/*.md", "../deploy/kubernetes/*.md", "*/*.md"} {
		names, err := filepath.Glob(glob)
		if err != nil {
			t.Fatalf("%s: %v", glob, err)
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if name == "reference/protocol.md" { // it is for implementers, who name the ledger
				text = ledger.ReplaceAll(text, []byte("store"))
			}
			if name != evidencePage { // it quotes the others
				all[filepath.ToSlash(filepath.Join("docs", name))] = string(text)
			}
		}
	}
	for _, root := range []string{"cmd", "leasing", "approx", "routing", "ratelimit"} {
		err := filepath.WalkDir("../"+root, func(path string, d os.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go") {
				if said := says(t, path); said != "" {
					all[strings.TrimPrefix(filepath.ToSlash(path), "../")] = said
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	alerts, err := os.ReadFile("../deploy/prometheus/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^ +(?:summary|description): (.*)$`).FindAllStringSubmatch(string(alerts), -1) {
		all["deploy/prometheus/alerts.yaml"] += m[1] + "\n\n"
	}
	return all
}

// says is a file's help texts, log messages and errors.
func says(t *testing.T, path string) (all string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
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

// Pages, help, logs, errors and alerts keep to the style guide.
func TestPlainEnglish(t *testing.T) {
	clauses, denials := 0, 0
	for name, text := range texts(t) {
		if found := faults(text); len(found) > 0 {
			t.Errorf("%s breaks the style guide in CONTRIBUTING.md:\n\t%s", name, strings.Join(found, "\n\t"))
		}
		if strings.HasSuffix(name, ".md") {
			plain := strings.Join(sentences(text), "\n")
			clauses += len(what.FindAllString(plain, -1))
			denials += len(denies.FindAllString(plain, -1))
		}
	}
	if clauses > mostClauses || denials > mostClauses {
		t.Errorf("pages say what %d times, and nobody, nothing and none %d times, of %d", clauses, denials, mostClauses)
	}
}

// comments are all comments of a file. Names of code pass: the name at the start of a comment, and those with a capital.
func comments(t *testing.T, path string) (all string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Comments {
		all += named.ReplaceAllString(g.Text(), "X") + "\n\n"
	}
	return all
}

// Comments keep to the style guide, except that they may name the ledger.
func TestPlainComments(t *testing.T) {
	err := filepath.WalkDir("..", func(path string, d os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && path != ".."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".pb.go"):
			return nil
		}
		text := dialect.ReplaceAllString(comments(t, path), "X")
		if found := faults(text); len(found) > 0 {
			t.Errorf("%s breaks the style guide in CONTRIBUTING.md:\n\t%s", path, strings.Join(found, "\n\t"))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
