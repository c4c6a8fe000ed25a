package check

import (
	"cmp"
	_ "embed"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"
	"unicode/utf8"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// declaration is the worst case that rules promise, as a table for people. The numbers come from package declare. This
// file only arranges them for a screen.
type declaration struct {
	*Command
	rules []*ratelimit.Rule
	now   time.Time
	// owners says that owners of keys may not answer.
	owners bool
}

// screen is how wide a table may be, in columns.
const screen = 120

// write prints the table, its legend, and then sections for what needs sentences. Nothing is printed without rules.
func (d declaration) write(out io.Writer) error {
	if len(d.rules) == 0 {
		return nil
	}
	d.owners = slices.ContainsFunc(d.rules, func(r *ratelimit.Rule) bool {
		return d.bounds(r).OnOutage.Of == declare.OwnerOutage
	})
	about := map[string]any{
		"Nodes": d.Nodes, "Kind": d.kind(), "Shared": d.storage() == declare.SharedStore, "Owners": d.owners,
		"Details": d.Details, "Charges": d.refills(ratelimit.DenyCharges), "Refunds": d.refills(ratelimit.DenyRefunds),
		"Buckets": slices.ContainsFunc(d.rules, func(r *ratelimit.Rule) bool { return r.Limit.Algorithm == ratelimit.TokenBucket }),
	}
	says := func(name string) string {
		var b strings.Builder
		_ = declarationTexts.ExecuteTemplate(&b, name, about) // a Builder takes everything
		return b.String()
	}
	if _, err := fmt.Fprintf(out, "\nWorst case for each key and window, %s (--nodes):\n\n%s\n", says("fleet"), d.table()); err != nil {
		return err
	}
	writeWrapped(out, "", says("legend"))
	section(out, "holds, in addition", d.holds())
	if d.Details {
		d.notes(out)
	}
	section(out, "the next billing months begin", d.billing())
	return nil
}

//go:embed declaration.txt
var declarationText string

// declarationTexts are what fleet the worst case is of, and what the columns of its table mean.
var declarationTexts = template.Must(template.New("declaration").Parse(declarationText))

// bounds are those of a rule on the store. A store that keeps grants loses none in a failover, so the column DATA LOST
// equals NORMAL.
func (c *Command) bounds(r *ratelimit.Rule) declare.Bounds {
	b := declare.Of(r, c.Nodes, c.storage())
	if c.promise != nil && c.promise.Keeps {
		b.OnLoss = 0
	}
	return b
}

// allDemand is more than any rule admits that has a bound. Half of the largest number leaves room to add drift without
// an overflow.
const allDemand = ratelimit.Tokens(math.MaxInt64 / 2)

// outageOf is an amount in tokens.
func outageOf(n declare.Amount) ratelimit.Tokens {
	if !n.Bounded() {
		return allDemand
	}
	return n.Tokens
}

// table has the rules with the largest risk first. If it is wider than a screen, names and modes stand above their
// rows. The columns about the store are there only with one. Without it, owners may still fail in mode routing.
func (d declaration) table() string {
	head := []string{"RULE", "LIMIT", "MODE", "NORMAL"}
	if d.storage() == declare.SharedStore {
		kind := strings.ToUpper(d.kind())
		head = append(head, kind+" FAILS", kind+" DOWN", "DATA LOST")
	} else if d.owners {
		head = append(head, "OWNER FAILS", "OWNER DOWN")
	}
	var all []row
	for _, r := range d.rules {
		all = append(all, d.row(r))
	}
	slices.SortStableFunc(all, func(a, b row) int { return cmp.Compare(b.risk, a.risk) })
	rows := [][]string{head}
	for _, r := range all {
		rows = append(rows, r.cells)
	}
	// The narrow form is easier to read, so it is used whenever it fits.
	if text := aligned(rows); widest(text) <= screen {
		return text
	}
	// The wide form: a line with the name and the mode, and below it the cells of the row. RULE and MODE leave the
	// columns.
	var names []string
	for i, row := range rows {
		name := row[0]
		rows[i] = row[1:]
		if len(row) > 2 {
			name += "  " + row[2]
			rows[i] = slices.Delete(row[1:], 1, 2)
		}
		names = append(names, name)
	}
	var b strings.Builder
	for line := range strings.Lines(aligned(rows)) {
		b.WriteString(names[0] + "\n  " + line)
		names = names[1:]
	}
	return b.String()
}

// aligned are rows with their cells below each other.
func aligned(rows [][]string) string {
	var b strings.Builder
	w := cli.Columns(&b)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a Builder takes everything
	return b.String()
}

// row is what all nodes admit at most of a rule in a window.
type row struct {
	cells []string
	risk  float64 // the most of them, in parts of the limit
}

// row computes four totals. normal is the limit and its over-admission, and lost the same after a loss of data. fails
// is a window in which an outage begins or ends, and down one without any answer.
func (d declaration) row(r *ratelimit.Rule) row {
	b := d.bounds(r)
	if b.Unlimited {
		return row{[]string{r.FullName(), "unlimited"}, -1}
	}
	limit := r.Limit.Capacity()
	normal := limit + b.Over.Tokens
	lost := normal + b.OnLoss
	fails := outageOf(b.OnOutage.Edges)
	down := min(allDemand, outageOf(b.OnOutage.Fleet())+b.Over.Drift) // without any answer
	// Which cells follow depends on the head of the table, so that each row has as many.
	cells := []string{r.FullName(), r.Limit.String(), r.Coordination.Mode.String(), atMost(normal, limit)}
	switch {
	case b.OnOutage.Of != declare.NoOutage:
		cells = append(cells, atMost(fails, limit), atMost(down, limit))
	case d.storage() == declare.SharedStore || d.owners:
		cells = append(cells, "-", "-")
	}
	if d.storage() == declare.SharedStore {
		cells = append(cells, atMost(lost, limit))
	}
	return row{cells, float64(max(lost, fails, down)) / float64(max(1, limit))}
}

// atMost is a number of tokens, and which part of the limit that is. Example: 6,600 (110%).
func atMost(n, limit ratelimit.Tokens) string {
	switch {
	case n == allDemand:
		return "all requests"
	case n == limit || limit == 0:
		return grouped(int64(n))
	}
	return fmt.Sprintf("%s (%.4g%%)", grouped(int64(n)), 100*float64(n)/float64(limit))
}

// grouped is a number with a comma between each three digits. It must not be negative: a minus sign would count as a
// digit.
func grouped(n int64) string {
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// refills reports whether a rule without a hold, whose tokens return with time, treats refused requests so. The legend
// explains only the kinds that occur.
func (d declaration) refills(deny ratelimit.OnDeny) bool {
	return slices.ContainsFunc(d.rules, func(r *ratelimit.Rule) bool {
		return !r.Unlimited && r.Hold == nil && r.Limit.Algorithm != ratelimit.FixedWindow && r.Coordination.OnDeny == deny
	})
}

// kind is what the store is called. Redis is the default store, also in the name of the columns.
func (d declaration) kind() string {
	if d.promise != nil {
		return d.promise.Kind
	}
	return "Redis"
}

// widest is the length of the longest line, in characters without the line end.
func widest(text string) (columns int) {
	for line := range strings.Lines(text) {
		columns = max(columns, utf8.RuneCountInString(line)-1)
	}
	return columns
}

// notes are what takes a sentence. A sentence that is true of several rules is said once. A column would be too narrow
// for them.
func (d declaration) notes(out io.Writer) {
	for _, about := range []struct {
		title string
		of    func(declare.Bounds) string
	}{
		{"over-admission", func(b declare.Bounds) string { return b.Over.Note() }},
		{"debt", func(b declare.Bounds) string { return b.Debt.String() }},
		{"under-admission", func(b declare.Bounds) string { return b.Under.String() }},
		{"longest wait", func(b declare.Bounds) string { return b.Wait.String() }},
		{"store operations", func(b declare.Bounds) string { return b.StoreOps.String() }},
	} {
		section(out, about.title, d.note(about.of))
	}
	if d.promise != nil {
		section(out, "the store, "+d.promise.Kind, d.promise.Lines())
	}
}

// section prints lines below a title, if there are any.
func section(out io.Writer, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(out, "\n%s:\n", title)
	}
	for _, line := range lines {
		writeWrapped(out, "  ", line)
	}
}

// heldOver is the over-admission of holds, with the number for --cost and --in-flight, which are given together. A slot
// has no cost.
func (c *Command) heldOver(r *ratelimit.Rule, b *declare.HoldBounds) string {
	if c.Cost == 0 || r.Limit.Algorithm == ratelimit.Concurrency {
		return b.Over
	}
	return fmt.Sprintf("%s; at most %d with %d in flight that cost at most %d (--cost, --in-flight)", b.Over,
		b.HeldOver(ratelimit.Tokens(c.Cost), ratelimit.Tokens(c.InFlight)), c.InFlight, c.Cost)
}

// holds are the promises of rules with holds, and the setting without which nodes do not load them.
func (d declaration) holds() (lines []string) {
	signed := false
	for _, r := range d.rules {
		b, ok := declare.HoldOf(r)
		if !ok {
			continue
		}
		signed = signed || r.Hold.Identified()
		text := fmt.Sprintf("%s: hold %s. Over-admission: %s", r.FullName(), b.Hold, d.heldOver(r, &b))
		text += ". Lost: " + b.Stranded + "."
		if b.Blind != "" {
			text += " Without an id: " + b.Blind + "."
		}
		lines = append(lines, text)
	}
	if signed && d.storage() == declare.SharedStore {
		lines = append(lines, "Nodes refuse rules whose holds have an id, and concurrency limits, unless HOLD_KEYS or PEERS is set.")
	}
	return lines
}

// cutsShown are how many billing months are announced.
const cutsShown = 3

// billing is when the next billing months begin, on the clocks of their zones. Authors who meant another
// zone, or another day of a short month, see it here.
func (d declaration) billing() (lines []string) {
	for _, r := range d.rules {
		if !r.Unlimited && r.Limit.Calendar != 0 {
			lines = append(lines, r.FullName()+": "+strings.Join(nextMonths(r, d.now), ", "))
		}
	}
	return lines
}

// nextMonths are when a rule's next billing months begin. They are counted from now, in RFC 3339 with the offset of the
// zone.
func nextMonths(r *ratelimit.Rule, now time.Time) []string {
	texts := make([]string, cutsShown)
	for i, at := range r.Limit.Calendar.Begins(now, cutsShown) {
		texts[i] = at.Format(time.RFC3339)
	}
	return texts
}

// note has the sentences that are true of rules, and the rules. note groups rules by their sentence, in the order of
// their first rule. Up to three names are printed, and the number of the others.
func (d declaration) note(of func(declare.Bounds) string) (lines []string) {
	var texts []string
	whose := map[string][]string{}
	limited := 0
	for _, r := range d.rules {
		b := d.bounds(r)
		if b.Unlimited {
			continue
		}
		limited++
		text := of(b)
		if whose[text] == nil {
			texts = append(texts, text)
		}
		whose[text] = append(whose[text], r.FullName())
	}
	for _, text := range texts {
		if text == "" {
			continue
		}
		of := "every rule"
		// A sentence of all limited rules needs no names.
		if names := whose[text]; len(names) < limited {
			of = strings.Join(names[:min(3, len(names))], ", ")
			if more := len(names) - 3; more > 0 {
				of += fmt.Sprintf(" and %d more", more)
			}
		}
		lines = append(lines, of+": "+text)
	}
	return lines
}

// writeWrapped writes a text in lines that fit the screen, all but the first indented further.
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

// writeChanges says what a fleet that gets new rules node by node goes through. Each change is followed by its effects:
// on spent tokens, on leases at nodes, and on decisions while nodes have different rules.
func writeChanges(out io.Writer, changes []config.Change) {
	if len(changes) == 0 {
		fmt.Fprintln(out, "\nNo changes: nodes with old and new rules decide alike.")
		return
	}
	fmt.Fprintf(out, "\n%s, with the effects on a fleet that shares a store and gets the new rules node by node:\n",
		cli.Counted(len(changes), "change"))
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
