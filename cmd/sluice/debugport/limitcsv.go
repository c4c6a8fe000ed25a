package debugport

import (
	"bufio"
	"cmp"
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/cmd/sluice/cli"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// csvColumns are the columns of an export. An import needs the first three, in any order, and ignores set.
var csvColumns = []string{"domain", "descriptor", "limit", "unit", "expires", "reason", "by", "set"}

type limitExport struct {
	Domain string `arg:"" optional:"" help:"Domain of the rules (default: all)."`
	limitFlags
}

// Help is what `sluice limit export --help` says below its summary.
func (*limitExport) Help() string {
	return `Examples:

  ADMIN_TOKEN=... sluice limit export > overrides.csv
  sluice limit export --token=... edge > edge.csv`
}

// Run writes CSV. It cannot contain keys whose name is a digest, and reports their number. A key has one line: overrides
// from before a change of its rule come last, the newest first, if the key has no other.
func (c *limitExport) Run(s cli.Streams) error {
	out := csv.NewWriter(s.Out)
	_ = out.Write(csvColumns) // Flush and Error say it
	digests, written, idle := 0, map[string]bool{}, []console.Overridden(nil)
	write := func(o *console.Overridden) error {
		key := o.Domain + "?" + o.Descriptor
		if written[key] {
			return nil
		}
		written[key] = true
		expires := ""
		if !o.Expires.IsZero() {
			expires = o.Expires.Format(time.RFC3339Nano)
		}
		return out.Write([]string{
			o.Domain, o.Descriptor, o.Limit.String(), o.Unit, expires, o.Reason, o.By, o.Set.Format(time.RFC3339Nano),
		})
	}
	err := c.pages(c.Domain, "", func(o *console.Overridden) error {
		switch {
		case o.Domain == "":
			digests++
		case o.InForce == "":
			idle = append(idle, *o)
		default:
			return write(o)
		}
		return nil
	})
	slices.SortStableFunc(idle, func(a, b console.Overridden) int { return b.Set.Compare(a.Set) })
	for i := range idle {
		err = errors.Join(err, write(&idle[i]))
	}
	out.Flush()
	if digests > 0 {
		fmt.Fprintf(s.Err, "sluice: %s left out: the key is longer than 128 bytes, and the store has only its digest\n", cli.Counted(digests, "override"))
	}
	return errors.Join(err, out.Error())
}

type limitImport struct {
	File string `arg:"" help:"A CSV file with a line of column names, or - for standard input. Columns: domain, descriptor and limit, and optional unit, expires, reason and by."`
	authorFlags
	limitFlags

	in io.Reader // standard input; tests set another
}

// Help is what `sluice limit import --help` says below its summary.
func (*limitImport) Help() string {
	return `Examples:

  ADMIN_TOKEN=... sluice limit import overrides.csv
  cat overrides.csv | sluice limit import --token=... --debug node1:6070 -

A line that is refused is printed with its number, and the others are set. The exit code is 1 then. A second import of the same file changes nothing but times.`
}

// importAtOnce is how many lines are set at the same time.
const importAtOnce = 8

// importing is one import of a file.
type importing struct {
	*limitImport
	rows    *bufio.Reader
	line    int // of the last row
	columns []string
	lines   map[string]int // by key
	err     io.Writer
	mu      sync.Mutex
	set     int // guarded by mu
	refused int // guarded by mu
}

// Run sets each line by itself, and says which were refused.
func (c *limitImport) Run(s cli.Streams) error {
	in := cmp.Or[io.Reader](c.in, os.Stdin)
	if c.File != "-" {
		file, err := os.Open(c.File)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	i := &importing{limitImport: c, rows: bufio.NewReader(in), lines: map[string]int{}, err: s.Err}
	var err error
	if i.columns, err = i.row(); err == nil {
		err = checkColumns(i.columns)
	}
	if err != nil {
		return fmt.Errorf("%s has no line of column names: %w", c.File, err)
	}
	if err := i.run(); err != nil {
		return fmt.Errorf("%w; %s set before: import the file again", err, cli.Counted(i.set, "override"))
	}
	fmt.Fprintf(s.Out, "%s set, %s refused\n", cli.Counted(i.set, "override"), cli.Counted(i.refused, "line"))
	if i.refused > 0 {
		return errors.New("lines were refused: correct them, and import the file again")
	}
	return nil
}

func checkColumns(names []string) error {
	for _, needed := range csvColumns[:3] {
		if !slices.Contains(names, needed) {
			return fmt.Errorf("the column %s is missing", needed)
		}
	}
	for at, name := range names {
		if !slices.Contains(csvColumns, name) || slices.Contains(names[:at], name) {
			return fmt.Errorf("%.40q is an unknown or repeated column: use %s", name, strings.Join(csvColumns, ", "))
		}
	}
	return nil
}

// row is the next line with text. Each is read by itself, so that a stray quote takes no other line with it.
func (i *importing) row() (fields []string, err error) {
	for {
		text, end := i.rows.ReadString('\n')
		if text == "" && end != nil {
			return nil, end
		}
		i.line++
		text = strings.TrimPrefix(text, "\ufeff") // of programs for tables
		if fields, err = csv.NewReader(strings.NewReader(text)).Read(); !errors.Is(err, io.EOF) {
			return fields, err
		}
	}
}

// run sets all rows. It stops at an error that is of no single row.
func (i *importing) run() error {
	g, ctx := errgroup.WithContext(context.Background())
	g.SetLimit(importAtOnce)
	for ctx.Err() == nil {
		fields, err := i.row()
		if errors.Is(err, io.EOF) {
			break
		}
		if bad, ok := errors.AsType[*csv.ParseError](err); ok {
			i.refuse(i.line, bad.Err)
			continue
		}
		if err != nil {
			return errors.Join(fmt.Errorf("after line %d: %w", i.line, err), g.Wait())
		}
		if len(fields) != len(i.columns) {
			i.refuse(i.line, csv.ErrFieldCount)
			continue
		}
		row, line := map[string]string{}, i.line
		for at, name := range i.columns {
			row[name] = fields[at]
		}
		path, body, err := i.change(line, row)
		if err != nil {
			i.refuse(line, err)
			continue
		}
		g.Go(func() error { return i.put(line, path, body, cmp.Or(row["by"], i.By)) })
	}
	return g.Wait()
}

// change is the path and the body of a row's request.
func (i *importing) change(line int, row map[string]string) (path string, body console.OverrideChange, err error) {
	entries, err := console.ParseDescriptor(row["descriptor"])
	if err != nil {
		return "", body, err
	}
	path = overridesPath + "/" + url.PathEscape(row["domain"]) + "?" + console.DescriptorText(entries)
	if first, twice := i.lines[path]; twice {
		return "", body, fmt.Errorf("line %d has the same key", first)
	}
	i.lines[path] = line
	limit, err := console.ParseOverrideLimit(row["limit"])
	return path, console.OverrideChange{Limit: &limit, Unit: row["unit"], Expires: row["expires"], Reason: row["reason"]}, err
}

// put sets the override of a line.
func (i *importing) put(line int, path string, body console.OverrideChange, by string) error {
	var o console.Overridden
	err := i.call(http.MethodPut, path, body, &o, "From", by)
	if no, ok := errors.AsType[*refusal](err); ok && slices.Contains(ofTheLine, no.code) {
		i.refuse(line, err)
		return nil
	}
	if err != nil {
		return err
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.set++
	return nil
}

// ofTheLine are the answers that refuse a line, and say nothing of others.
var ofTheLine = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity}

// refuse prints why a line is not set.
func (i *importing) refuse(line int, why error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.refused++
	fmt.Fprintf(i.err, "%s:%d: %v\n", i.File, line, why)
}
