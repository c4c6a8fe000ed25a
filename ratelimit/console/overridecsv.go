package console

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

const csvType = "text/csv"

// CSVColumns are the columns of an exported list. An import needs descriptor and limit, and for all domains at once
// also domain, in any order. It ignores set.
var CSVColumns = []string{"domain", "descriptor", "limit", "unit", "expires", "reason", "by", "set"}

// CSVRow is an override as a row.
func (v *Overridden) CSVRow() []string {
	expires := ""
	if !v.Expires.IsZero() {
		expires = v.Expires.Format(time.RFC3339Nano)
	}
	return []string{
		v.Domain, v.Descriptor, v.Limit.String(), v.Unit, expires, v.Reason, v.By, v.Set.Format(time.RFC3339Nano),
	}
}

// writeCSV answers a page of n. The header Link leads to the next.
func writeCSV(w http.ResponseWriter, v *Page, n int) error {
	secure(w, csvType+"; charset=utf-8")
	if v.Next != "" {
		next := url.Values{"after": {v.Next}, "limit": {strconv.Itoa(n)}}
		w.Header().Set("Link", "<?"+next.Encode()+`>; rel="next"`)
	}
	out := csv.NewWriter(w)
	_ = out.Write(CSVColumns)
	for i := range v.Overrides {
		_ = out.Write(v.Overrides[i].CSVRow())
	}
	out.Flush() // errors mean that the client has gone
	return nil
}

// Bounds of an import.
const (
	importBody   = 4 << 20 // bytes
	ImportRows   = 10_000
	importTime   = time.Minute
	importAtOnce = 8   // rows that are set at the same time
	importErrors = 100 // reported errors
)

// Imported is the result of an import. Lines without an error are set.
type Imported struct {
	Set    int           `json:"set"`
	Failed int           `json:"failed"`
	Errors []ImportError `json:"errors"` // the first hundred, by line
}

// ImportError describes a line that is not set.
type ImportError struct {
	Line  int    `json:"line"` // from 1, of the header
	Error string `json:"error"`
}

// importing is one import. It sets several rows at the same time.
type importing struct {
	*console
	from    *http.Request
	domain  string // "": rows say it
	by      string // default of rows
	columns []string
	keys    map[string]int // lines by key
	mu      sync.Mutex
	done    Imported // guarded by mu
}

// importOverrides sets the overrides of a CSV file, each separately.
func (c *console) importOverrides(w http.ResponseWriter, r *http.Request) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != csvType {
		return refusing(http.StatusUnsupportedMediaType, "an import is %s, and Content-Type is %.60q", csvType,
			r.Header.Get("Content-Type"))
	}
	select {
	case c.importing <- struct{}{}:
		defer func() { <-c.importing }()
	default:
		tooMany(w, "another import runs at this node")
		return nil
	}
	by, err := author(r)
	if err != nil {
		return err
	}
	// Read the body first: its deadline is shorter than the time to set the rows.
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, importBody))
	if err != nil {
		return refusing(http.StatusRequestEntityTooLarge,
			"the body is not complete, or exceeds %d bytes: split it (%v)",
			importBody, err)
	}
	rows := csv.NewReader(strings.NewReader(string(text)))
	rows.ReuseRecord = true
	i := &importing{console: c, from: r, domain: r.PathValue("domain"), by: by, keys: map[string]int{}}
	i.done.Errors = []ImportError{}
	if err := i.header(rows); err != nil {
		return refusing(http.StatusBadRequest, "%v", err)
	}
	ctx, cancel := context.WithTimeout(r.Context(), importTime)
	defer cancel()
	failed := i.run(ctx, rows)
	slices.SortFunc(i.done.Errors, func(a, b ImportError) int { return a.Line - b.Line })
	i.done.Errors = i.done.Errors[:min(len(i.done.Errors), importErrors)]
	code := http.StatusOK
	switch {
	case failed != nil:
		code = http.StatusServiceUnavailable
	case i.done.Failed > 0:
		code = http.StatusUnprocessableEntity
	}
	answerWith(w, code, &i.done)
	return nil
}

// header reads the names of the columns.
func (i *importing) header(rows *csv.Reader) error {
	names, err := rows.Read()
	if err != nil {
		return fmt.Errorf("the first line does not name columns: %w", err)
	}
	i.columns = slices.Clone(names)
	needed := []string{"descriptor", "limit"}
	if i.domain == "" {
		needed = append(needed, "domain")
	}
	for _, name := range needed {
		if !slices.Contains(names, name) {
			return fmt.Errorf("the first line has no column %s: it names columns, of %s", name,
				strings.Join(CSVColumns, ", "))
		}
	}
	for at, name := range names {
		if !slices.Contains(CSVColumns, name) || slices.Contains(names[:at], name) {
			return fmt.Errorf("%.40q is an unknown or repeated column: use %s", name, strings.Join(CSVColumns, ", "))
		}
	}
	return nil
}

// run sets all rows. It stops at an error, which is of the store.
func (i *importing) run(ctx context.Context, rows *csv.Reader) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(importAtOnce)
	for n := 0; ctx.Err() == nil; n++ {
		fields, err := rows.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if bad := new(csv.ParseError); errors.As(err, &bad) {
			i.wrong(bad.StartLine, bad.Err)
			continue
		}
		line, _ := rows.FieldPos(0)
		if n == ImportRows {
			i.wrong(line, fmt.Errorf("one import has at most %d rows: send this and those that follow in another",
				ImportRows))
			break
		}
		row := map[string]string{}
		for at, name := range i.columns {
			row[name] = fields[at]
		}
		a, descriptor, o, err := i.row(line, row)
		if err != nil {
			i.Metrics.Overrides.Count(metrics.OverrideRefused)
			i.wrong(line, err)
			continue
		}
		g.Go(func() error { return i.set(ctx, line, a, descriptor, &o) })
	}
	return g.Wait()
}

// row is the change of a line.
func (i *importing) row(line int, row map[string]string) (a *ratelimit.Ask, descriptor string, o ratelimit.Override,
	err error,
) {
	domain := row["domain"]
	if domain == "" {
		domain = i.domain
	}
	if i.domain != "" && domain != i.domain {
		return nil, "", o, fmt.Errorf("the domain is %.60q, and the import is of %.60q", domain, i.domain)
	}
	if descriptor = row["descriptor"]; strings.HasPrefix(descriptor, "#") {
		return nil, "", o, fmt.Errorf("%.60q is the digest of a key that was too long: write the descriptor itself",
			descriptor)
	}
	entries, err := ParseDescriptor(descriptor)
	if err == nil {
		a, err = i.key(domain, entries)
	}
	if err != nil {
		return nil, "", o, err
	}
	if first, twice := i.keys[string(a.Key)]; twice {
		return nil, "", o, fmt.Errorf("line %d has the same key", first)
	}
	i.keys[string(a.Key)] = line
	limit, err := ParseOverrideLimit(row["limit"])
	if err != nil {
		return nil, "", o, err
	}
	change := OverrideChange{Limit: &limit, Unit: row["unit"], Expires: row["expires"], Reason: row["reason"]}
	if o, err = change.override(&a.Rule.Limit, time.Now()); err != nil {
		return nil, "", o, err
	}
	if o.By = row["by"]; o.By == "" {
		o.By = i.by
	}
	return a, descriptorText(entries), o, overrideText("by", o.By)
}

// set sets one row, and returns an error if the store does not answer.
func (i *importing) set(
	ctx context.Context, line int, a *ratelimit.Ask, descriptor string, o *ratelimit.Override,
) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := i.setOverride(ctx, a, descriptor, o, ratelimit.Match{Any: true}, i.from, i.by)
	if err != nil {
		i.wrong(line, err)
		if !errors.Is(err, ratelimit.ErrOverrides) {
			return err
		}
		return nil
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.done.Set++
	return nil
}

// wrong notes the error of a line.
func (i *importing) wrong(line int, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.done.Failed++
	// Some more errors than the reported ones are kept, because rows can fail after later ones.
	if len(i.done.Errors) < importErrors+importAtOnce {
		i.done.Errors = append(i.done.Errors, ImportError{line, ratelimit.OneLine(err.Error())})
	}
}
