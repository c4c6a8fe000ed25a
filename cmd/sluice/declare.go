package main

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// declaration is the worst case that rules promise, as a table for people.
type declaration struct {
	rules   []*ratelimit.Rule
	nodes   int
	storage ratelimit.Storage
	now     time.Time
	// What requests cost at most, and how many are in flight at once: of rules that hold. 0: nobody says.
	cost, inFlight ratelimit.Tokens
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
	return fmt.Sprintf("on %d nodes that share a Redis", d.nodes)
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
	b := r.Declare(d.nodes, d.storage)
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
	d.holds(out)
	d.billing(out)
	if d.storage == ratelimit.SharedStore {
		fmt.Fprintln(out)
		writeWrapped(out, "", "In an outage: what all nodes admit in a window while the store does not answer. On data "+
			"loss: what they admit beyond the limit each time that the store loses its data, beside what nodes had spent "+
			"that cannot tell it. Without a store each node counts alone (--no-store).")
	}
}

// holds says what rules promise whose requests hold an estimate.
func (d declaration) holds(out io.Writer) {
	said := false
	for _, r := range d.rules {
		b, ok := r.DeclareHold()
		if !ok {
			continue
		}
		if !said {
			fmt.Fprintf(out, "\nholds, beside the above:\n")
			said = true
		}
		text := fmt.Sprintf("%s.%s: hold %s. Over-admission: %s", r.Domain, r.Path, b.Hold, b.Over)
		if d.cost > 0 && d.inFlight > 0 {
			text += fmt.Sprintf("; at most %d with %d in flight that cost at most %d (--cost, --in-flight)",
				b.HeldOver(d.cost, d.inFlight), d.inFlight, d.cost)
		}
		writeWrapped(out, "  ", text+". Lost: "+b.Stranded+".")
		if b.Blind != "" {
			writeWrapped(out, "    ", "Without an id: "+b.Blind+".")
		}
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
		b := r.Declare(d.nodes, d.storage)
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
		fmt.Fprintln(out, "\nNothing changes: nodes with the one and nodes with the other decide alike.")
		return
	}
	fmt.Fprintf(out, "\n%s, and what each does to a fleet that shares a store and gets the new rules node by node:\n",
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
