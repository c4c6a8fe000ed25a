package main

import (
	goflag "flag"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

var rewrite = goflag.Bool("rewrite", false, "write testdata/mistakes.md anew, with what check says now")

// testdata/mistakes.md is what check says of at least forty realistic mistakes, one a
// section. Every one of them fails under --strict.
func TestMistakes(t *testing.T) {
	// A section has files, and a command that is run on them.
	blocks, file := regexp.MustCompile("(?s)```(yaml|text)\n(.*?)```\n"), regexp.MustCompile(`^# (rules/\S+)\n`)
	page := read(t, "cmd/sluice/testdata/mistakes.md")
	sections := strings.Split(page, "\n### ")
	if n := len(sections) - 1; n < 40 {
		t.Errorf("%d mistakes", n)
	}
	out := sections[0]
	for _, section := range sections[1:] {
		title, _, _ := strings.Cut(section, "\n")
		t.Run(title, func(t *testing.T) {
			t.Chdir(t.TempDir())
			if err := os.Mkdir("rules", 0o755); err != nil {
				t.Fatal(err)
			}
			got := blocks.ReplaceAllStringFunc(section, func(block string) string {
				m := blocks.FindStringSubmatch(block)
				if m[1] == "yaml" {
					name, text := "rules.yaml", m[2]
					if named := file.FindStringSubmatch(text); named != nil {
						name, text = named[1], strings.TrimPrefix(text, named[0])
					}
					writeFile(t, name, text)
					return block
				}
				line, _, _ := strings.Cut(m[2], "\n")
				args := strings.Fields(strings.TrimPrefix(line, "$ sluice "))
				_, _, said := runLine(args...)
				if code, _, _ := runLine(append(args, "--strict")...); code != 1 {
					t.Errorf("with --strict the exit code is %d", code)
				}
				return "```text\n" + line + "\n" + strings.TrimSuffix(said, "\n") + "\n```\n"
			})
			if got != section && !*rewrite {
				t.Errorf("now it says:\n%s", got)
			}
			out += "\n### " + got
		})
	}
	if *rewrite {
		if err := os.WriteFile("testdata/mistakes.md", []byte(out), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The table of docs/reference/rules.md about fleets that change node by node is what `sluice check --from` says, without what it says of leases.
func TestDocsOfChanges(t *testing.T) {
	var want strings.Builder
	want.WriteString("\n| what changes | tokens spent | while nodes differ |\n|---|---|---|\n")
	for _, e := range config.Effects {
		fields := make([]string, len(e.Fields))
		for i, f := range e.Fields {
			switch config.ChangeKind(f) {
			case config.Added, config.Removed:
				fields[i] = "a rule is " + f
			case config.Reordered:
				fields[i] = "the patterns of a key are in another order"
			default:
				fields[i] = "`" + f + "`"
			}
		}
		fmt.Fprintf(&want, "| %s | %s | %s |\n", strings.Join(fields, ", "), e.Spent, e.Meanwhile)
	}
	want.WriteString("\n")
	holdsTable(t, "docs/reference/rules.md", "effects", want.String())
}

// The table of docs/reference/bounds.md is what `sluice check` declares.
func TestDocsOfBounds(t *testing.T) {
	const nodes = 3
	var want strings.Builder
	want.WriteString("\n| coordination | over-admission, tokens | under-admission, each crashed node | longest wait | in an outage, first and last window | between | on data loss, tokens |\n|---|---|---|---|---|---|---|\n")
	for _, fields := range [][2]string{
		{},
		{"lease.size", "100"},
		{"reclaim", "eager"},
		{"algorithm", "sliding_window"},
		{"algorithm", "token_bucket"},
		{"mode", "routing"},
		{"mode", "approx"},
		{"on_store_failure", "open"},
		{"on_store_failure", "closed"},
	} {
		r := &ratelimit.Rule{Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: 6000, Burst: 6000}, Coordination: ratelimit.DefaultCoordination()}
		name := fmt.Sprintf("`%s: %s`", fields[0], fields[1])
		switch fields[0] {
		case "":
			name = "none: mode `leasing`"
		case "algorithm":
			r.Limit.Algorithm = ratelimit.Algorithm(slices.Index(ratelimit.Algorithms[:], fields[1]))
		default:
			if err := r.Coordination.Set(fields[0], fields[1]); err != nil {
				t.Fatal(err)
			}
		}
		b := declare.Of(r, nodes, declare.SharedStore)
		wait := b.Wait.Longest.String()
		if b.Wait.Drifts {
			wait = fmt.Sprintf("%v (%v with a share)", b.Wait.Longest, b.Wait.WithShare)
		}
		out := b.OnOutage
		fmt.Fprintf(&want, "| %s | %d | %v, for %v | %s | %v | %v | %d |\n",
			name, b.Over.Tokens, b.Under.Crashed, b.Under.Lasts, wait, out.Edges, out.Fleet(), b.OnLoss)
	}
	want.WriteString("\n")
	holdsTable(t, "docs/reference/bounds.md", "bounds", want.String())
}

// holdsTable checks that what stands on a page between the marks of a table is what its
// test has written; with -rewrite it writes it.
func holdsTable(t *testing.T, page, name, want string) {
	t.Helper()
	begin, end := fmt.Sprintf("<!-- %s: written by go test ./cmd/sluice -run %s -rewrite -->\n", name, t.Name()), fmt.Sprintf("<!-- end of %s -->", name)
	before, rest, found := strings.Cut(read(t, page), begin)
	table, after, ended := strings.Cut(rest, end)
	switch {
	case !found || !ended:
		t.Fatalf("%s has no marks around its table of %s", page, name)
	case want == table:
	case !*rewrite:
		t.Errorf("the table should be\n%s", want)
	default:
		if err := os.WriteFile(top+page, []byte(before+begin+want+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// The server has just the modules of docs/guides/security.md, and nothing of what measures. A machine without a database
// of time zones has that of the binary.
func TestDependencies(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", `{{with .Module}}{{.Path}}{{end}}{{if eq .ImportPath "time/tzdata"}}zones{{end}}`, ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, doc, _ := strings.Cut(read(t, "docs/guides/security.md"), "## Contents of the binary")
	listed := map[string]bool{}
	for _, m := range regexp.MustCompile("(?:\n\\| |`)([a-z0-9.-]+/[^ `]+)[ `]").FindAllStringSubmatch(doc, -1) {
		listed[m[1]] = true
	}
	if !strings.Contains(string(out), "\nzones\n") {
		t.Error("the server does not have package time/tzdata")
	}
	for _, module := range strings.Fields(strings.ReplaceAll(string(out), "\nzones\n", "\n")) {
		if !listed[module] && module != "github.com/sluice-gate/sluice" {
			listed[module] = true
			t.Errorf("docs/guides/security.md has no %s: review it, and add it with who can choose what it parses", module)
		}
	}
	for module := range listed {
		if !strings.Contains(string(out), module+"\n") {
			t.Errorf("docs/guides/security.md lists %s, which the server does not have", module)
		}
	}
}
