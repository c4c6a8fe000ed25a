package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/cmd/sluice/cli"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// The table of docs/reference/rules.md about fleets that change node by node is what `sluice check --from` says.
func TestDocsOfChanges(t *testing.T) {
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
	holdsTable(t, "docs/reference/rules.md", "effects", want.String())
}

// The table of docs/reference/bounds.md is what `sluice check` declares.
func TestDocsOfBounds(t *testing.T) {
	const nodes = 3
	var want strings.Builder
	want.WriteString("\n| coordination | over-admission, tokens | under-admission, each crashed node | longest wait | claims a second of a node | more claims | in an outage, first and last window | between | on data loss, tokens |\n|---|---|---|---|---|---|---|---|---|\n")
	for _, fields := range [][2]string{
		{},
		{"lease.size", "1"},
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
		b := r.Declare(nodes, ratelimit.SharedStore)
		o := b.StoreOps
		more := fmt.Sprintf("%d a window, %g/s while refused", o.Window, o.Refused)
		if o.Short > 0 {
			more += fmt.Sprintf(", %g/s while short", o.Short)
		}
		if o.Each > 0 {
			more += fmt.Sprintf(", one each %s", cli.Counted(int(o.Each), "token"))
		}
		if o.OwnerGoneEach > 0 {
			more += ", one each request without the owner"
		}
		wait := b.Wait.Longest.String()
		if b.Wait.Drifts {
			wait = fmt.Sprintf("%v (%v with a share)", b.Wait.Longest, b.Wait.WithShare)
		}
		out := b.OnOutage
		fmt.Fprintf(&want, "| %s | %d | %v, for %v | %s | %g (%s) | %s | %v | %v | %d |\n",
			name, b.Over.Tokens, b.Under.Crashed, b.Under.Lasts, wait, o.Steady, cli.Counted(o.Nodes, "node"), more, out.Edges, out.Fleet(), b.OnLoss)
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
