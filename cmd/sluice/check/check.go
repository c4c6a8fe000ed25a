package check

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// Command validates rules as a server does, and declares what they promise.
//
// check reads rules and judges them without a server: it opens no port and connects to no store. The steps are in
// Command.Run. findings.go prints problems, declare.go the worst case, regions.go and rlqs.go further tables, and
// override.go adds rules of --override.
type Command struct {
	Path           string                `arg:"" optional:"" help:"A file, a directory read recursively, or - for a file on standard input."`
	From           string                `placeholder:"OLD" help:"The previous rules. Print the changes, and their effects on usage and leases during a rollout."`
	Strict         bool                  `help:"Fail on warnings too."`
	JSON           bool                  `name:"json" help:"Print findings, bounds and changes as JSON."`
	SARIF          bool                  `name:"sarif" help:"Print findings as SARIF 2.1.0, for code hosts."`
	Schema         bool                  `help:"Print the JSON Schema of rule files, for editors."`
	Details        bool                  `help:"Also print the debt, under-admission, waits and store operations of each rule."`
	Nodes          int                   `default:"3" help:"Number of nodes of the fleet."`
	Store          string                `placeholder:"NAME" help:"Shared store: redis, postgres, etcd, or memory (as --no-store). Also print the cost of a loss of its data, of a failover and of a claim. Default: redis."`
	Cost           int64                 `placeholder:"N" help:"Maximum cost of a request, for rules with a hold. With --in-flight: print their over-admission as a number, not as a formula."`
	InFlight       int64                 `placeholder:"N" help:"Concurrent requests of a key, for --cost."`
	Override       []string              `sep:"none" placeholder:"DESCRIPTOR=LIMIT" help:"Also print the worst case with this override, such as api_key=alice=1000, or with a domain edge?tier=pro&api_key=bob=unlimited. Repeat it for more."`
	NoStore        bool                  `help:"Nodes share no store: each counts alone."`
	File           settings.File         `name:"settings" placeholder:"FILE" help:"Settings file of the server, whose settings of rules count here, too."`
	IgnoreDotFiles bool                  `env:"RUNTIME_IGNOREDOTFILES" name:"runtime-ignoredotfiles" help:"Setting of the server: see sluice serve --help."`
	MergeDomains   bool                  `env:"MERGE_DOMAIN_CONFIG" name:"merge-domain-config" help:"Setting of the server: see sluice serve --help."`
	CalendarMonths bool                  `env:"USE_CALENDAR_MONTH_RATE_LIMIT" name:"use-calendar-month-rate-limit" help:"Setting of the server: see sluice serve --help."`
	Coordination   settings.Coordination `embed:"" group:"coordination"`
	MaxMemory      string                `env:"MAX_MEMORY" name:"max-memory" default:"2GiB" help:"Memory of the nodes. The maximum size of rules follows from it."`
	Quotas         quotaFlags            `embed:""`
	Distance       regionFlags           `embed:""`

	in      io.Reader      // standard input; tests set another
	promise *store.Promise // of Store; nil: Redis is not named, or there is no store
	caps    config.Caps    // of MaxMemory
}

// Version is that of the program, in SARIF.
type Version string

// Each error has exit code 1. A wrong command line has 2.
var (
	errCheckFailed = errors.New("the rules have problems: a server would refuse them and keep its rules")
	errFatal       = errors.New("the rules have errors: a server would load them, and they do the opposite of their purpose")
	errStrict      = errors.New("the rules have warnings, which fail with --strict")
)

// Run validates, and says so with the exit code. The steps: read and compile the rules, add those of --override,
// compare with --from, print, and choose the error. Results go to Out and findings to Err, so that a pipe gets the
// table alone.
func (c *Command) Run(s cli.Streams, version Version) error {
	if c.Schema {
		_, err := s.Out.Write(config.Schema())
		return err
	}
	options, err := c.options()
	if err != nil {
		return err
	}
	r, err := c.checked(c.Path, options)
	if err != nil {
		return err
	}
	// Bad rules are printed as findings, and have no worst case.
	if r.rules != nil {
		r.overridden, err = overridden(r.rules, c.Override)
		if err != nil {
			return err
		}
	}
	if c.From != "" {
		before, err := c.checked(c.From, options)
		if err != nil {
			return fmt.Errorf("--from: %w", err)
		}
		// Bad previous rules are an error of the command: no comparison with them has a meaning.
		if before.rules == nil {
			return fmt.Errorf("--from: the previous rules are bad:\n%w", before.problems)
		}
		r.before = before.rules
		r.warnings = append(r.warnings, c.renamed(r)...)
	}
	if err := c.print(s, r, version); err != nil {
		return err
	}
	// The tables of RLQS and of regions are computed also if they are not printed, because they may fail the command.
	out := s.Out
	if c.JSON || c.SARIF || r.before != nil { // they have no place for more, and it fails all the same
		out = io.Discard
	}
	if c.Quotas.RLQS && r.rules != nil {
		if err := c.Quotas.declare(out, r.rules); err != nil {
			return err
		}
	}
	if c.Distance.Regions > 1 && r.rules != nil {
		if err := c.Distance.declare(out, r.rules, c.Nodes); err != nil {
			return err
		}
	}
	switch {
	case len(r.problems) > 0:
		return errCheckFailed
	case slices.ContainsFunc(r.warnings, func(p *config.Problem) bool { return p.Kind.Fatal() }):
		return errFatal
	// Fatal warnings fail in any case, and come before.
	case c.Strict && len(r.warnings) > 0:
		return errStrict
	}
	return nil
}

// renamed warns of rules that seem renamed: their usage starts anew. A name is a part of each key in the store. After a
// change of it, all keys have their whole limit again.
func (c *Command) renamed(r *checked) config.Problems {
	if r.rules == nil {
		return nil
	}
	text := config.Renamed(config.Changes(r.before, r.rules))
	if text == "" {
		return nil
	}
	return config.Problems{{Place: config.Place{File: c.Path}, Kind: config.NewName, Message: text}}
}

// print writes one of the forms: JSON, SARIF, or text with the changes or the worst case.
func (c *Command) print(s cli.Streams, r *checked, version Version) error {
	switch {
	case c.JSON:
		return s.JSON(r.asJSON(c))
	case c.SARIF:
		return s.JSON(r.sarif(version))
	}
	r.writeFindings(s.Err)
	if len(r.problems) > 0 {
		return nil
	}
	fmt.Fprintln(s.Out, r.summary())
	if r.before != nil {
		writeChanges(s.Out, config.Changes(r.before, r.rules))
		return nil
	}
	return declaration{Command: c, rules: slices.Concat(r.rules.All(), r.overridden), now: time.Now()}.write(s.Out)
}

// storage is where the fleet counts. One node without a named store counts in its memory, as serve does without
// REDIS_URL.
func (c *Command) storage() declare.Storage {
	if c.NoStore || c.Nodes == 1 && c.Store == "" || c.Store == "memory" {
		return declare.OwnMemory
	}
	return declare.SharedStore
}

// Validate refuses wrong command lines. kong calls it before Run. It also finds the promise of the store, which has the
// error of an unknown name.
func (c *Command) Validate() (err error) {
	switch {
	case c.Path == "" && !c.Schema:
		return errors.New("name the rules: sluice check FILE, DIR or -")
	case c.Nodes < 1 || c.Nodes > ratelimit.MaxMaxNodes:
		return fmt.Errorf("--nodes is %d, must be between 1 and %d", c.Nodes, ratelimit.MaxMaxNodes)
	case c.Cost < 0 || c.InFlight < 0:
		return fmt.Errorf("--cost is %d and --in-flight %d, must not be negative", c.Cost, c.InFlight)
	case (c.Cost > 0) != (c.InFlight > 0):
		return errors.New("--cost and --in-flight need each other: over-admission follows from both")
	case c.JSON && c.SARIF:
		return errors.New("--json and --sarif exclude each other")
	case c.NoStore && c.Store != "" && c.Store != "memory":
		return errors.New("--store and --no-store exclude each other")
	case c.Distance.Regions > 1 && c.storage() == declare.OwnMemory:
		return errors.New("--regions needs a store, which the regions share: leave out --no-store and --store=memory")
	case c.Quotas.Envoys < 1 || c.Quotas.Envoys > 100_000:
		return fmt.Errorf("--envoys is %d, must be between 1 and 100000", c.Quotas.Envoys)
	case c.Store != "" && c.Store != "memory":
		c.promise, err = store.PromiseOf(c.Store)
	}
	return cmp.Or(err, c.Distance.validate(c.Nodes))
}

// options are those of the server, whose settings check takes, too. The caps follow from MAX_MEMORY, as in a server. So
// check refuses rules that a node of that memory would refuse.
func (c *Command) options() (config.Options, error) {
	defaults, err := c.Coordination.Default()
	memory, bad := settings.MemoryOf(c.MaxMemory)
	c.caps = memory.Caps().Rules
	return config.Options{
		Coordination: defaults, MergeDomains: c.MergeDomains, CalendarMonths: c.CalendarMonths, Caps: c.caps,
	}, cli.Wrong(errors.Join(err, bad))
}

// checked are rules as a server reads them, and the findings.
type checked struct {
	path               string
	texts              []config.Text
	rules              *config.Rules // nil: they are bad
	warnings, problems config.Problems
	before             *config.Rules     // of --from; nil: there are none to compare with
	overridden         []*ratelimit.Rule // of --override
}

// checked reads and compiles the rules at a path. Names of files are relative to the working directory. An error is one
// of reading. Bad rules are in problems, and rules is nil then.
func (c *Command) checked(path string, o config.Options) (*checked, error) {
	texts, err := c.read(path)
	if err != nil {
		return nil, err
	}
	r := &checked{path: path, texts: texts}
	r.rules, r.warnings, r.problems = config.Parse(texts, o)
	// An empty directory is most often a mistyped path or an empty mount. A server would start, and limit nothing.
	if len(texts) == 0 {
		r.warnings = append(r.warnings, &config.Problem{
			Place: config.Place{File: path}, Kind: config.NoRules,
			Message: "there are no files in this directory: no request is limited",
		})
	}
	return r, nil
}

// A text from standard input has the name (stdin) in findings. Names from a tree are relative to it, so the path is put
// before them, as editors expect.
func (c *Command) read(path string) ([]config.Text, error) {
	if path == "-" {
		most := int64(c.caps.FileBytes)
		data, err := io.ReadAll(io.LimitReader(cmp.Or[io.Reader](c.in, os.Stdin), most+1)) // a longer one is refused by the bounds
		return []config.Text{{Name: "(stdin)", Data: data}}, err
	}
	tree := config.Tree{Path: path, IgnoreDotFiles: c.IgnoreDotFiles, Caps: c.caps}
	texts, err := tree.Read()
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	for i := range texts {
		t := &texts[i]
		t.Name = filepath.Join(path, t.Name)
		if !info.IsDir() {
			t.Name = path
		}
	}
	return texts, nil
}
