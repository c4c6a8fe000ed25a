package debugport

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"text/template"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// Explain is the command that asks a node what a descriptor would get, and why.
type Explain struct {
	descriptorArgs
	Debug string `default:"${debug}" placeholder:"HOST:PORT" help:"Debug port of a node, HOST:PORT."`
	JSON  bool   `name:"json" help:"Print JSON."`
}

// Help is what `sluice explain --help` says below its summary.
func (*Explain) Help() string {
	return `Examples:

  sluice explain edge api_key=abc
  sluice explain --debug node1:6070 edge remote_address=10.0.0.1 path=/login
  sluice explain --json edge api_key=abc | jq .next`
}

// Run prints the explanation.
func (c *Explain) Run(s cli.Streams) error {
	var answer json.RawMessage
	if err := (port{address: c.Debug}).call(http.MethodGet, "/explain?"+c.query(), nil, &answer); err != nil {
		return err
	}
	if c.JSON {
		_, err := fmt.Fprintf(s.Out, "%s\n", answer)
		return err
	}
	var e console.Explanation
	if err := json.Unmarshal(answer, &e); err != nil {
		return fmt.Errorf("%s answers with another form: %w", c.Debug, err)
	}
	return printExplanation(s.Out, &e)
}

//go:embed explain.txt
var explainText string

// explanation shows what a node says, a row for each thing: cells end with tabs.
var explanation = template.Must(template.New("explain").Funcs(template.FuncMap{
	"beyond":       func(free ratelimit.Tokens) ratelimit.Tokens { return -free },
	"date":         func(at time.Time) string { return at.Format(time.RFC3339) },
	"expiry":       expiry,
	"line":         ratelimit.OneLine,
	"milliseconds": func(d time.Duration) time.Duration { return d.Round(time.Millisecond) },
	"more":         func(all, shown int) int { return all - shown },
	"seconds":      func(d time.Duration) time.Duration { return d.Round(time.Second) },
}).Parse(explainText))

func printExplanation(out io.Writer, e *console.Explanation) error {
	t := cli.Columns(out)
	return errors.Join(explanation.Execute(t, e), t.Flush())
}

// expiry says when a lease expires. One without an expiry has none at the store, and one far away here.
func expiry(in time.Duration) string {
	const never = 100 * 366 * 24 * time.Hour
	switch {
	case in == 0 || in > never:
		return "it ends with its window"
	case in < 0:
		return "it has ended"
	}
	return fmt.Sprint("it ends in ", in.Round(time.Millisecond))
}
