package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit/config"
)

// The table of docs/rules.md about fleets that change node by node is what
// `sluice check --from` says.
func TestDocsOfChanges(t *testing.T) {
	const begin, end = "<!-- effects: written by go test ./cmd/sluice -run TestDocsOfChanges -rewrite -->\n", "<!-- end of effects -->"
	page := read(t, "docs/rules.md")
	before, rest, found := strings.Cut(page, begin)
	table, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("docs/rules.md has no marks around its table of effects")
	}
	var want strings.Builder
	want.WriteString("\n| what changes | tokens spent | leases out | while nodes differ |\n|---|---|---|---|\n")
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
		fmt.Fprintf(&want, "| %s | %s | %s | %s |\n", strings.Join(fields, ", "), e.Spent, e.Leases, e.Meanwhile)
	}
	want.WriteString("\n")
	if want.String() == table {
		return
	}
	if !*rewrite {
		t.Errorf("the table should be\n%s", want.String())
		return
	}
	if err := os.WriteFile(top+"docs/rules.md", []byte(before+begin+want.String()+end+after), 0o600); err != nil {
		t.Fatal(err)
	}
}
