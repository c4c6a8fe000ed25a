package debugport

import (
	_ "embed"
	"encoding/json"
	"fmt"
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

// Run prints the explanation. JSON is passed on as the node sent it, also fields that this release does not have.
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
	return explanation.Write(s.Out, &e)
}

//go:embed explain.txt
var explainText string

// explanation shows what a node says, a row for each thing.
var explanation = cli.NewText(explainText, template.FuncMap{
	"beyond":       func(free ratelimit.Tokens) ratelimit.Tokens { return -free },
	"expiry":       expiry,
	"line":         ratelimit.OneLine,
	"milliseconds": func(d time.Duration) time.Duration { return d.Round(time.Millisecond) },
	"more":         func(all, shown int) int { return all - shown },
})

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
