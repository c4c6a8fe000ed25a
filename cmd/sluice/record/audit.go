package record

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/sluice/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/audit"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Command is the command that replays the record.
type Command struct {
	Files  []string    `arg:"" optional:"" type:"existingfile" help:"Files of nodes (AUDIT_FILE). Default: the record in the store."`
	Store  store.Flags `embed:""`
	Rule   string      `help:"Part of the name of a rule."`
	Key    string      `help:"Part of the name of an account."`
	Events bool        `help:"Also print each event as JSON lines."`
	JSON   bool        `name:"json" help:"Print the windows as JSON lines."`
}

// Help is what `sluice audit --help` says below its summary.
func (*Command) Help() string {
	return `Examples:

  sluice audit node1.jsonl node2.jsonl                 the files of AUDIT_FILE, of any number of nodes
  REDIS_URL=redis:6379 sluice audit --rule edge.login  the record in Redis`
}

// HideForServe hides the flags for the wait of serve for its store: audit reads the record once. The flag of the store's
// URL has another effect when it is unset.
func HideForServe(app *kong.Kong) error {
	for _, n := range app.Model.Children {
		if n.Name != "audit" {
			continue
		}
		for _, f := range n.Flags {
			for _, serves := range []string{"redis-startup", "redis-health", "redis-persecond-pool", "redis-pool"} {
				f.Hidden = f.Hidden || strings.HasPrefix(f.Name, serves)
			}
			f.Help, _, _ = strings.Cut(f.Help, " Default:")
			f.Help = strings.TrimSuffix(f.Help, " Decisions wait for the store_deadline of their rule.")
		}
	}
	return nil
}

// Run prints the most that each window admitted, and fails if that exceeds the rule's declared bound.
func (c *Command) Run(s cli.Streams) error {
	all, trimmed, err := c.read()
	if err != nil {
		return err
	}
	for _, t := range trimmed {
		fmt.Fprintln(s.Err, "sluice:", t)
	}
	events := len(all)
	all = slices.DeleteFunc(all, func(e account.Event) bool {
		return !strings.Contains(e.Rule, c.Rule) || !strings.Contains(e.Key, c.Key)
	})
	if c.Events {
		for i := range all {
			if err := s.JSONLine(&all[i]); err != nil {
				return err
			}
		}
	}
	windows := audit.Replay(all)
	changes := slices.DeleteFunc(all, func(e account.Event) bool { return e.Kind != account.WasOverride })
	if len(windows)+len(changes) == 0 {
		return fmt.Errorf("the record is empty, or --rule %q and --key %q leave out its %d events: check them, that a rule has coordination: {audit: true}, "+
			"and that REDIS_URL and CACHE_KEY_PREFIX are those of the nodes", c.Rule, c.Key, events)
	}
	if err := c.print(s, windows, changes); err != nil {
		return err
	}
	broken := 0
	for _, w := range windows {
		if !w.Held() {
			broken++
		}
	}
	if broken > 0 {
		return fmt.Errorf("%d of %d windows exceeded their limit and the declared bound", broken, len(windows))
	}
	return nil
}

// print prints the usage of each window, and the changes of overrides.
func (c *Command) print(s cli.Streams, windows []*audit.Window, changes []account.Event) (err error) {
	if !c.JSON {
		return errors.Join(printWindows(s.Out, windows), printChanges(s.Out, changes))
	}
	for _, w := range windows {
		err = errors.Join(err, s.JSONLine(struct {
			*audit.Window
			Held bool
		}{w, w.Held()}))
	}
	for i := range changes {
		err = errors.Join(err, s.JSONLine(&changes[i]))
	}
	return err
}

// printWindows prints the usage of each window, and the causes of usage beyond its limit.
func printWindows(out io.Writer, windows []*audit.Window) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RULE\tACCOUNT\tWINDOW ENDS\tLIMIT\tUSED AT MOST\tBEYOND IT\tCHARGED AFTER THE FACT\tOVER-ADMITTED\tMAY BE\tHOLDERS\tMESSAGES\tREFUSED\tRECOVERIES\t")
	var debt ratelimit.Tokens
	for _, w := range windows {
		ends, used, verdict := w.Ends.Format(time.RFC3339), fmt.Sprint(w.Taken), "held"
		if w.Window == 0 {
			ends, used = "(bucket)", used+" since "+w.Begins.Format(time.RFC3339)
		}
		if !w.Held() {
			verdict = "BROKEN"
		}
		debt += w.Debt
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\n", w.Rule, w.Key, ends, w.Limit, used,
			w.Beyond, w.Debt, w.Over, w.Bound, w.Holders, w.Events, w.Refused, w.Recoveries, verdict)
	}
	if err := t.Flush(); err != nil || debt == 0 {
		return err
	}
	_, err := fmt.Fprintf(out, "Charged after the fact beyond the limits: %d. Such charges are booked whole.\n", debt)
	return err
}

// printChanges prints the changes of overrides, with author, time and reason.
func printChanges(out io.Writer, changes []account.Event) error {
	if len(changes) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "\nRULE\tACCOUNT\tOVERRIDE SET\tLIMIT\tEXPIRES\tBY\tREASON")
	for i := range changes {
		e, expires := &changes[i], "never"
		if e.Ends != 0 {
			expires = time.UnixMicro(int64(e.Ends)).UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\t%s\t%s\n", e.Rule, e.Key, time.UnixMicro(int64(e.At)).UTC().Format(time.RFC3339Nano),
			e.Limit, expires, e.Holder, e.Reason)
	}
	return t.Flush()
}

// read returns all events, and the known gaps.
func (c *Command) read() (all []account.Event, missing []string, err error) {
	for _, name := range c.Files {
		gaps, err := readFile(name, &all)
		if missing = append(missing, gaps...); err != nil {
			return all, nil, err
		}
	}
	if len(c.Files) > 0 {
		return all, missing, nil
	}
	if !c.Store.Shared() {
		return all, nil, errors.New("set STORE_URL or REDIS_URL to the store of the nodes, or name the files of AUDIT_FILE")
	}
	o := store.Options{Flags: c.Store, Log: slog.New(slog.DiscardHandler)}
	for _, open := range []func(store.Options) (store.Store, error){store.Open, store.PerSecond} {
		s, err := open(o)
		if err != nil {
			return all, nil, err
		}
		if s == nil {
			continue
		}
		defer s.Close()
		gaps, err := s.Events(context.Background(), func(e *account.Event) { all = append(all, *e) })
		if missing = append(missing, gaps...); err != nil {
			return all, nil, fmt.Errorf("reading the record: %s: %w", s.Advise(err), err)
		}
	}
	return all, missing, nil
}

// readFile reads the events of a file, and notes lines that a full disk or a crash has cut off.
func readFile(name string, all *[]account.Event) (missing []string, err error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	before, lines := len(*all), bufio.NewScanner(f)
	lines.Buffer(nil, auditBytes) // after a crash, the end of a file may be zeros
	for n := 1; lines.Scan(); n++ {
		var e account.Event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil || e.Kind == "" {
			missing = append(missing, fmt.Sprintf("%s:%d is not an event of AUDIT_FILE", name, n))
			continue
		}
		*all = append(*all, e)
	}
	if len(*all) == before && len(missing) > 0 {
		return nil, errors.New(missing[0])
	}
	return missing, lines.Err()
}
