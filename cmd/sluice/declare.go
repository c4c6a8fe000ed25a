package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// declaration is the worst case that rules promise, as a table for people.
type declaration struct {
	rules   []*ratelimit.Rule
	nodes   int
	storage ratelimit.Storage
	store   *store.Promise // that was named; nil: none was
	now     time.Time
}

// screen is how wide a table may be, in columns.
const screen = 120

func (d declaration) write(out io.Writer) error {
	if len(d.rules) == 0 {
		return nil
	}
	fmt.Fprintf(out, "\nWorst case for each key and window, %s (--nodes):\n\n", d.fleet())
	var table strings.Builder
	if err := d.table(&table, true); err != nil {
		return err
	}
	if widest(table.String()) > screen { // names get lines of their own
		table.Reset()
		if err := d.table(&table, false); err != nil {
			return err
		}
	}
	if _, err := io.WriteString(out, table.String()); err != nil {
		return err
	}
	d.notes(out)
	return nil
}

func (d declaration) fleet() string {
	switch {
	case d.nodes == 1:
		return "on 1 node that counts in its memory"
	case d.storage == ratelimit.OwnMemory:
		return fmt.Sprintf("on %d nodes without a store", d.nodes)
	}
	kind := "a Redis"
	if d.store != nil {
		kind = d.store.Kind
	}
	return fmt.Sprintf("on %d nodes that share %s", d.nodes, kind)
}

// of is what a rule declares on a store; nil: on a Redis, or on none.
func boundsOn(r *ratelimit.Rule, nodes int, storage ratelimit.Storage, on *store.Promise) ratelimit.Bounds {
	b := r.Declare(nodes, storage)
	if on != nil && on.Keeps {
		b.OnLoss = 0
	}
	return b
}

func (d declaration) of(r *ratelimit.Rule) ratelimit.Bounds {
	return boundsOn(r, d.nodes, d.storage, d.store)
}

// table has what is short. With named, a rule's name is its row's first cell; else
// it stands above its row.
func (d declaration) table(out io.Writer, named bool) error {
	var cells strings.Builder
	w := tabwriter.NewWriter(&cells, 0, 0, 2, ' ', 0)
	names := []string{"RULE"}
	for _, r := range d.rules {
		names = append(names, r.Domain+"."+r.Path)
	}
	row := func(i int, cells ...string) {
		if named {
			cells = append([]string{names[i]}, cells...)
		}
		fmt.Fprintln(w, strings.Join(cells, "\t"))
	}
	row(0, "LIMIT", "MODE", "OVER-ADMISSION", "IN AN OUTAGE", "ON DATA LOSS")
	for i, r := range d.rules {
		row(i+1, d.cells(r)...)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	i := 0
	for line := range strings.Lines(cells.String()) {
		if !named {
			line = names[i] + "\n  " + line
		}
		i++
		if _, err := io.WriteString(out, line); err != nil {
			return err
		}
	}
	return nil
}

// cells are those of a rule's row.
func (d declaration) cells(r *ratelimit.Rule) []string {
	b := d.of(r)
	if b.Unlimited {
		return []string{"unlimited", "-", "-", "-", "-"}
	}
	over := strconv.FormatInt(int64(b.Over.Tokens), 10)
	if b.Over.Tokens > 0 {
		over += fmt.Sprintf(" (%.4g%%)", b.Over.Percent(r.Limit.Capacity()))
	}
	lost := "no store"
	if d.storage == ratelimit.SharedStore {
		lost = strconv.FormatInt(int64(b.OnLoss), 10)
	}
	return []string{r.Limit.String(), r.Coordination.Mode.String(), over, b.OnOutage.String(), lost}
}

func widest(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(line)-1)
	}
	return columns
}

// notes are what takes a sentence. A sentence that is true of several rules is said
// once.
func (d declaration) notes(out io.Writer) {
	for _, about := range []struct {
		title string
		of    func(ratelimit.Bounds) string
	}{
		{"over-admission", func(b ratelimit.Bounds) string { return b.Over.Note() }},
		{"debt", func(b ratelimit.Bounds) string { return b.Debt.String() }},
		{"under-admission", func(b ratelimit.Bounds) string { return b.Under.String() }},
		{"longest wait", func(b ratelimit.Bounds) string { return b.Wait.String() }},
		{"store operations", func(b ratelimit.Bounds) string { return b.StoreOps.String() }},
	} {
		d.note(out, about.title, about.of)
	}
	if d.store != nil {
		fmt.Fprintf(out, "\nthe store, %s:\n", d.store.Kind)
		for _, line := range d.store.Lines() {
			writeWrapped(out, "  ", line)
		}
	}
	d.billing(out)
	if d.storage == ratelimit.SharedStore {
		fmt.Fprintln(out)
		writeWrapped(out, "", "In an outage: tokens that all nodes admit in a window while the store does not answer. On data "+
			"loss: tokens beyond the limit for each loss of the store's data, plus the usage of crashed nodes. Without a "+
			"store each node counts alone (--no-store).")
	}
}

// cutsShown are how many billing months are announced.
const cutsShown = 3

// billing says when the next billing months begin, on the clocks of their zones: whoever
// has meant another zone, or another day of a short month, sees it here.
func (d declaration) billing(out io.Writer) {
	said := false
	for _, r := range d.rules {
		if r.Unlimited || r.Limit.Calendar == 0 {
			continue
		}
		if !said {
			fmt.Fprintf(out, "\nthe next billing months begin:\n")
			said = true
		}
		writeWrapped(out, "  ", r.Domain+"."+r.Path+": "+strings.Join(nextMonths(r, d.now), ", "))
	}
}

// nextMonths are when a rule's next billing months begin.
func nextMonths(r *ratelimit.Rule, now time.Time) []string {
	texts := make([]string, cutsShown)
	for i, at := range r.Limit.Calendar.Begins(now, cutsShown) {
		texts[i] = at.Format(time.RFC3339)
	}
	return texts
}

func (d declaration) note(out io.Writer, title string, of func(ratelimit.Bounds) string) {
	var texts []string
	whose := map[string][]string{}
	limited := 0
	for _, r := range d.rules {
		b := d.of(r)
		if b.Unlimited {
			continue
		}
		limited++
		text := of(b)
		if whose[text] == nil {
			texts = append(texts, text)
		}
		whose[text] = append(whose[text], r.Domain+"."+r.Path)
	}
	said := false
	for _, text := range texts {
		if text == "" {
			continue
		}
		if !said {
			fmt.Fprintf(out, "\n%s:\n", title)
			said = true
		}
		of := "every rule"
		if names := whose[text]; len(names) < limited {
			of = strings.Join(names[:min(3, len(names))], ", ")
			if more := len(names) - 3; more > 0 {
				of += fmt.Sprintf(" and %d more", more)
			}
		}
		writeWrapped(out, "  ", of+": "+text)
	}
}

// writeWrapped writes a text in lines that fit the screen, all but the first indented
// further.
func writeWrapped(out io.Writer, indent, text string) {
	line := indent
	for word := range strings.FieldsSeq(text) {
		if line != indent && utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > screen {
			fmt.Fprintln(out, line)
			indent = strings.TrimSuffix(indent, "    ") + "    "
			line = indent
		}
		if line != indent {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}

// writeChanges says what a fleet that gets new rules node by node goes through.
func writeChanges(out io.Writer, changes []config.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(out, "\nNo changes: nodes with old and new rules decide alike.")
		return
	}
	fmt.Fprintf(out, "\n%s, with the effects on a fleet that shares a store and gets the new rules node by node:\n",
		counted(len(changes), "change"))
	for i := range changes {
		c := &changes[i]
		fmt.Fprintln(out)
		writeWrapped(out, "", c.Rule+": "+c.What())
		for _, e := range config.EffectsOf(c) {
			writeWrapped(out, "  ", "tokens spent "+e.Spent+".")
			writeWrapped(out, "  ", "leases out: "+e.Leases+".")
			writeWrapped(out, "  ", "while nodes differ: "+e.Meanwhile+".")
		}
	}
}
