// Package cli runs the command lines of sluice and sluicelab.
//
// [Run] promises the same of each command. Help and results go to Out. Errors go to Err, after the name of the program.
// The exit code is 0, 1 of a command that failed, or 2 of a wrong command line. A command is a struct of kong whose
// method Run takes [Streams].
package cli

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"text/template"
	"time"

	"github.com/alecthomas/kong"
)

// Streams are where a command writes; tests read them.
type Streams struct{ Out, Err io.Writer }

// Progress is where a long run says how far it is: the terminal, or nil without one.
func (s Streams) Progress() io.Writer {
	if !Terminal(s.Err) {
		return nil
	}
	return s.Err
}

// Terminal reports whether a writer is one.
func Terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Columns aligns cells that end with tabs. Flush writes them. A cell needs its tab also at the end of a row. Otherwise
// it is not part of a column.
func Columns(out io.Writer) *tabwriter.Writer { return tabwriter.NewWriter(out, 0, 0, 2, ' ', 0) }

// Text is what a command prints for people: a template, with tabs after the cells of its rows.
type Text struct{ of *template.Template }

// NewText reads a template, which has functions for times, and more.
func NewText(text string, more template.FuncMap) Text {
	return Text{template.Must(template.New("text").Funcs(template.FuncMap{
		"date":    func(at time.Time) string { return at.Format(time.RFC3339) },
		"join":    func(names []string) string { return strings.Join(names, ", ") },
		"seconds": func(d time.Duration) time.Duration { return d.Round(time.Second) },
	}).Funcs(more).Parse(text))}
}

// Write fills in what is shown, and aligns the cells. An error of the template is one of this program: its fields are
// those of shown.
func (t Text) Write(out io.Writer, shown any) error {
	w := Columns(out)
	return errors.Join(t.of.Execute(w, shown), w.Flush())
}

// JSON writes v for programs, on several lines.
func (s Streams) JSON(v any) error {
	e := json.NewEncoder(s.Out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// JSONLine writes v for programs, as one line.
func (s Streams) JSONLine(v any) error { return json.NewEncoder(s.Out).Encode(v) }

// Run runs one command line of a program, whose commands are the fields of grammar. It returns the exit code. The
// steps: make a parser, parse, run the chosen command, print an error, and choose the code.
func Run(name string, grammar any, args []string, s Streams, options ...kong.Option) int {
	// kong calls Exit for --help and --version, and expects that the process ends. Here it returns, so that tests can
	// call Run. Then the result of Parse has no meaning.
	exit := -1
	parser, err := NewParser(name, grammar, s, append(options, kong.Exit(func(code int) { exit = code }))...)
	if err != nil {
		fmt.Fprintf(s.Err, "%s: %v\n", name, err)
		return 2
	}
	ctx, err := parser.Parse(args)
	if exit >= 0 { // help was printed
		return exit
	}
	if err != nil {
		fmt.Fprintf(s.Err, "%s: %v\n", name, err)
		return 2
	}
	err = ctx.Run()
	if err == nil {
		return 0
	}
	fmt.Fprintf(s.Err, "%s: %v\n", name, err)
	// A script can tell its own mistake from a failure of the service by the code.
	if _, ok := errors.AsType[wrong](err); ok {
		return 2
	}
	return 1
}

// wrong is an error of the command line or of a setting.
type wrong struct{ error }

// Unwrap is for [errors.Is].
func (w wrong) Unwrap() error { return w.error }

// Wrong marks an error of the command line or of a setting, with which [Run] returns 2; nil stays nil.
func Wrong(err error) error {
	if err == nil {
		return nil
	}
	return wrong{err}
}

// NewParser reads command lines as [Run] does, and runs none.
func NewParser(name string, grammar any, s Streams, options ...kong.Option) (*kong.Kong, error) {
	return kong.New(grammar, append(options, kong.Name(name), kong.Writers(s.Out, s.Err), kong.Bind(s),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true, NoExpandSubcommands: true}))...)
}

// Details are what the help of commands says below their summaries: each stands in the text below "# COMMAND". A text
// without a heading, before the first "# ", belongs to no command.
func Details(text string) kong.Option {
	return kong.PostBuild(func(k *kong.Kong) error {
		of := map[string]string{}
		for section := range strings.SplitSeq("\n"+text, "\n# ") {
			name, detail, _ := strings.Cut(section, "\n")
			of[name] = strings.TrimSpace(detail)
		}
		for _, n := range k.Model.Leaves(false) {
			n.Detail = cmp.Or(of[strings.TrimPrefix(n.FullPath(), k.Model.Name+" ")], n.Detail)
		}
		return nil
	})
}

// Counted is a number of things: 1 rule, 2 rules.
func Counted(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
