package debugport

import (
	"bufio"
	"cmp"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// csvColumns are the columns of an export. An import needs the first three, in any order, and ignores set.
var csvColumns = []string{"domain", "descriptor", "limit", "unit", "expires", "reason", "by", "set"}

// limitExport is the command limit export.
type limitExport struct {
	Domain string `arg:"" optional:"" help:"Domain of the rules (default: all)."`
	limitFlags
}

// Run writes CSV.
func (c *limitExport) Run(s cli.Streams) error {
	out := csv.NewWriter(s.Out)
	_ = out.Write(csvColumns) // Flush and Error say it
	err := c.pages(c.Domain, "", func(o *console.Overridden) error {
		expires := ""
		if !o.Expires.IsZero() {
			expires = o.Expires.Format(time.RFC3339Nano)
		}
		return out.Write([]string{
			o.Domain, o.Descriptor, o.Limit.String(), o.Unit, expires, o.Reason, o.By, o.Set.Format(time.RFC3339Nano),
		})
	})
	out.Flush()
	return errors.Join(err, out.Error())
}

// limitImport is the command limit import. Example of a line: edge,api_key=alice,5000,minute,,launch,,
type limitImport struct {
	File string `arg:"" help:"A CSV file with a line of column names, or - for standard input. Columns: domain, descriptor and limit, and optional unit, expires, reason and by."`
	authorFlags
	limitFlags

	in io.Reader // standard input; tests set another
}

// Run sets each line by itself, and says which were refused. Each is read by itself, so that a stray quote takes no
// other line with it. It stops at an error that all other lines would meet, too: a node that is away, or a wrong token.
// Set lines stay, and an import of the same file is harmless.
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
	var columns []string
	set, refused := 0, 0
	lines := bufio.NewReader(in)
	// The last line may have no line end: then ReadString returns its text and io.EOF.
	for line, end := 1, error(nil); end == nil; line++ {
		var text string
		text, end = lines.ReadString('\n')
		fields, err := csv.NewReader(strings.NewReader(strings.TrimPrefix(text, "\ufeff"))).Read() // of programs for tables
		switch {
		case errors.Is(err, io.EOF): // an empty line
			continue
		case columns == nil:
			columns = fields
			if err == nil {
				err = checkColumns(fields)
			}
			if err != nil {
				return fmt.Errorf("%s has no line of column names: %w", c.File, err)
			}
			continue
		case err == nil:
			err = c.put(columns, fields)
			if no, ok := errors.AsType[*refusal](err); ok && !slices.Contains(ofTheLine, no.code) || errors.Is(err, errAway) {
				return fmt.Errorf("%w; %s set before: import the file again", err, cli.Counted(set, "override"))
			}
		}
		if err == nil {
			set++
			continue
		}
		refused++
		fmt.Fprintf(s.Err, "%s:%d: %v\n", c.File, line, err)
	}
	if columns == nil {
		return fmt.Errorf("%s has no line of column names", c.File)
	}
	fmt.Fprintf(s.Out, "%s set, %s refused\n", cli.Counted(set, "override"), cli.Counted(refused, "line"))
	// Each refused line was printed with its number, as compilers do.
	if refused > 0 {
		return errors.New("lines were refused: correct them, and import the file again")
	}
	return nil
}

// ofTheLine are the answers that refuse a line, and say nothing of others. 400: its values are bad. 404: no rule has
// its key. 422: its rule does not allow it, or its time is over.
var ofTheLine = []int{http.StatusBadRequest, http.StatusNotFound, http.StatusUnprocessableEntity}

// An unknown column is refused: a mistyped expires would make all overrides last for ever.
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

// put sets the override of a line. The author of a line is its column by, or else that of the command.
func (c *limitImport) put(columns, fields []string) error {
	if len(fields) != len(columns) {
		return csv.ErrFieldCount
	}
	row := map[string]string{}
	for at, name := range columns {
		row[name] = fields[at]
	}
	// The descriptor is read and written again, so that each spelling of it becomes the same path.
	entries, err := console.ParseDescriptor(row["descriptor"])
	if err != nil {
		return err
	}
	limit, err := console.ParseOverrideLimit(row["limit"])
	if err != nil {
		return err
	}
	path := overridesPath + "/" + url.PathEscape(row["domain"]) + "?" + console.DescriptorText(entries)
	body := console.OverrideChange{Limit: &limit, Unit: row["unit"], Expires: row["expires"], Reason: row["reason"]}
	return c.call(http.MethodPut, path, body, new(console.Overridden), "From", cmp.Or(row["by"], c.By))
}
