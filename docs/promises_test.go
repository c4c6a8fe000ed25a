package docs

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// promise is what makes a sentence one that can be found to be false.
var promise = regexp.MustCompile(`(?i)\b(never|always|at most|no more than|at the latest|exact|exactly|cannot|impossible|guarantee[sd]?|nothing|` +
	`no (?:request|call|claim|key|token|allocation|lock|node|reply)s?|whatever|however many|bounded|unbounded|within|survives?|every|in any case)\b`)

// shown is what shows it: a test, or a command. So does a link to a page or a
// section that has one of these.
var (
	shown = regexp.MustCompile("(?:`|held by )(?:Test|Benchmark|Fuzz)[A-Z]|go (?:test|run) |(?m:`|^    )make [a-z]|sluicelab (?:bench|sim|what-if)\\b|sluice check\\b|sluice serve --help")
	leads = regexp.MustCompile(`\]\(([^)#]*)#?([^)]*)\)`)
)

// shows reports whether a text of a page names what shows a promise.
func shows(all map[string]string, page, text string) bool {
	if shown.MatchString(text) {
		return true
	}
	for _, m := range leads.FindAllStringSubmatch(text, -1) {
		target := page
		if m[1] != "" {
			target = filepath.ToSlash(filepath.Join(filepath.Dir(page), m[1]))
		}
		if shown.MatchString(sectionOf(all[target], m[2])) {
			return true
		}
	}
	return false
}

// sectionOf is the part of a page below a heading, up to the next one of its level;
// without an anchor, the page.
func sectionOf(text, anchor string) string {
	if anchor == "" {
		return text
	}
	part, depth := "", 0
	for line := range strings.Lines(text) {
		level := len(line) - len(strings.TrimLeft(line, "#"))
		switch {
		case level > 0 && slices.Contains(headings(line), anchor):
			depth = level
		case level > 0 && level <= depth:
			return part
		case depth > 0:
			part += line
		}
	}
	return part
}

// proofs name the tests of a whole section: a comment that stands alone.
var proofs = regexp.MustCompile("^<!-- held by (?:Test|Benchmark|Fuzz)[A-Z]")

// denied begins what says that something is not promised, and what a title says of
// columns.
var denied = regexp.MustCompile(`^(?:\*\*)?(?:What is not promised|Not (?:promised|measured|searched|planted|declared))`)

// Whole pages, and sections, that promise nothing of Sluice, or whose every line
// another test holds. Each entry is needed: one that is not fails.
var notPromises = map[string]string{
	"docs/reference/settings.md":        "generated from the help; TestSettingsPage holds it",
	"docs/reference/protocol.md":        "TestPageExamples and its neighbours hold it, rule by rule",
	"docs/explain/peers.md":             "for developers; the tests of packages routing and leasing, and histories, play its rules",
	"docs/reference/dependencies.md":    "TestDependencies holds the table; who can choose what a module parses is an opinion",
	"docs/adr/README.md":                "for contributors; docs/reference/protocol.md and pages have the promises",
	"docs/reference/runbooks.md":        "advice for on-call engineers; TestAlerts holds a section for each alert",
	"docs/reference/metrics.md":         "TestHandbookNamesEveryMetric holds it; a line says what is counted, not how much it will be",
	"SECURITY.md":                       "promises of people",
	"docs/guides/migrating.md#Rules by": "says what messages of another project have room for",
}

// block is a paragraph, an item of a list, or a row of a table.
type block struct {
	line  int
	under string // the heading
	text  string
	intro string // of an item or a row: the paragraph before its list or table
}

var (
	item = regexp.MustCompile(`^(?:- |\d+\. |\|)`)
	rule = regexp.MustCompile(`^\|[:| ]*-[-:| ]*\|$`)
)

// blocks cuts a page. Code, and what a command has written between comments, is
// left out; so are titles of tables.
func blocks(text string) (all []block) {
	var code, written, open bool // open: the last block may go on
	var under, intro string
	for i, line := range strings.Split(text, "\n") {
		bare := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(bare, "```"):
			code, open = !code, false
		case strings.HasPrefix(bare, "<!--") && !strings.HasPrefix(bare, "<!-- held by "):
			written, open = !strings.Contains(bare, "end"), false
		case code || written || bare == "" || strings.HasPrefix(line, "    "):
			open = false
		case strings.HasPrefix(line, "#"):
			under, intro, open = strings.TrimLeft(line, "# "), "", false
		case rule.MatchString(bare):
			all = all[:len(all)-1]
		case item.MatchString(bare):
			all, open = append(all, block{i + 1, under, bare, intro}), true
		case open:
			all[len(all)-1].text += " " + bare
			if all[len(all)-1].intro == "" {
				intro = all[len(all)-1].text
			}
		default:
			all, open = append(all, block{line: i + 1, under: under, text: bare}), true
			intro = bare
		}
	}
	return all
}

// Each paragraph, each item of a list and each row of a table that promises names
// what shows it, as <!-- held by TestX -->. So may the sentence before a list or a
// table, for all of it, and such a comment in a line of its own for a section.
func TestDocsShowWhatTheyPromise(t *testing.T) {
	needed := map[string]bool{}
	excused := func(page, under string) bool {
		for name := range notPromises {
			of, section, _ := strings.Cut(name, "#")
			if of == page && strings.HasPrefix(under, section) {
				needed[name] = true
				return true
			}
		}
		return false
	}
	promises, texts := 0, pages(t)
	for page, text := range texts {
		all := blocks(text)
		proven := map[string]bool{}
		for _, b := range all {
			proven[b.under] = proven[b.under] || proofs.MatchString(b.text)
		}
		for _, b := range all {
			found := promise.FindString(b.text)
			if found == "" || denied.MatchString(b.text) {
				continue
			}
			promises++
			if !shows(texts, page, b.text+"\n"+b.intro) && !proven[b.under] && !excused(page, b.under) {
				t.Errorf("%s:%d promises (%q), and names no test, command or section that shows it: %.400s", page, b.line, found, b.text)
			}
		}
	}
	if promises < 200 {
		t.Errorf("only %d promises were found", promises)
	}
	for name := range notPromises {
		if !needed[name] {
			t.Errorf("%s need not be excused", name)
		}
	}
}

// What the test above looks for is found, and what shows it counts: also a section
// to which a link leads, if that has something to show.
func TestPromisesAreFound(t *testing.T) {
	all := map[string]string{"docs/a.md": "# A\n\nA key is never over.\n\n## B\n\nA key is never over. <!-- held by TestA -->\n\n## C\n\nA key\nis never over.\n\n<!-- held by TestA -->\n\n" +
		"## D\n\nTwo things, by `TestA`:\n\n- nothing is lost\n- no call fails\n\n## E\n\nTwo things:\n\n- nothing is lost\n\n" +
		"| at most | b |\n|---|---|\n| always | c |\n\nMore.\n\n| | |\n|---|---|\n| a | b |\n\n    never in code\n\n```\nnever\n```\n\n<!-- made by a command -->\nnever\n<!-- end -->\n\n" +
		"Never ([b](b.md#shown)).\n\nNever ([b](b.md#told)).\n", "docs/b.md": "# B\n\n## Shown\n\n### So\n\n    make test\n\n## Told\n\nBy us.\n"}
	var lines []int
	proven := map[string]bool{}
	for _, b := range blocks(all["docs/a.md"]) {
		proven[b.under] = proven[b.under] || proofs.MatchString(b.text)
		if promise.MatchString(b.text) && !shows(all, "docs/a.md", b.text+"\n"+b.intro) {
			lines = append(lines, b.line)
		}
	}
	if !slices.Equal(lines, []int{3, 11, 27, 31, 51}) || len(proven) != 5 || !proven["C"] || proven["B"] {
		t.Errorf("promises are found in lines %v, and sections have tests: %v", lines, proven)
	}
}
