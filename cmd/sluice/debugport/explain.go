package debugport

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
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

func printExplanation(out io.Writer, e *console.Explanation) error {
	t := cli.Columns(out)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	if e.Trouble != "" {
		row("store trouble", "%s", e.Trouble)
	}
	if e.Sentence != "" {
		row("in a sentence", "%s", e.Sentence)
	}
	row("next request", "%s", e.Next)
	if e.WholeAgain > 0 {
		row("resets", "in %v", e.WholeAgain.Round(time.Second))
	}
	for _, step := range e.Steps {
		row("matched", "%s by %s: %s", step.Entry, cmp.Or(step.Matched, "nothing"), step.Why)
	}
	if e.Rule != "" {
		row("rule", "%s.%s", e.Domain, e.Rule)
	}
	if e.Limit != "" {
		row("limit", "%s%s, mode %s, on_store_failure %s", e.Limit, originOf(e), e.Mode, e.OnFailure)
		if !e.Begins.IsZero() {
			row("next month", "begins %s", e.Begins.Format(time.RFC3339))
		}
		when := ""
		if e.Trouble != "" {
			when = "while the store answers, "
		}
		row("over-admission", "%s%s", when, e.Declared)
	}
	if h := e.Holds; h != nil {
		row("hold", "%s: the next request holds %d", e.Hold.Hold, h.Next)
		row("", "over-admission by holds: %s", e.Hold.Over)
		row("", "all keys of the rule, at this node: %d requests held %d tokens; holds of %d tokens were settled and cost %d", h.Requests, h.Tokens, h.Settled, h.Cost)
	}
	if e.Look != nil {
		explainKey(row, e.Look)
	}
	if e.RLQS != "" && e.EnvoysInAll > 0 {
		row("envoys", "assignment over RLQS: %s", e.RLQS)
	}
	for _, h := range e.Envoys {
		row("envoy", "%s: charged %d, of which %d are in use and %d unproven; %.1f requests a second", h.Name, h.Charged, h.InUse, h.Unproven, h.PerSecond)
	}
	if more := e.EnvoysInAll - len(e.Envoys); more > 0 {
		row("envoys", "and %d more", more)
	}
	return t.Flush()
}

// rower writes a row of a name and a text.
type rower = func(name, format string, args ...any)

// explainKey writes the state of a key at the node and at the store.
func explainKey(row rower, v *ratelimit.Look) {
	row("account", "%s", v.Account)
	if v.Owner != "" {
		row("owner", "%s", v.Owner)
	}
	if l := v.Lease; l != nil {
		row("lease here", "window %d: granted %d, spent %d, unspent %d; %s, answered %v ago", l.Window, l.Granted, l.Spent, l.Unspent, expiry(l.Expires), l.Answered.Round(time.Millisecond))
	} else {
		row("lease here", "none")
	}
	switch {
	case v.LedgerError != "":
		row("store", "cannot be read: %s", ratelimit.OneLine(v.LedgerError))
	case v.Ledger == nil:
		row("store", "no account: the key is unused")
	default:
		explainAccount(row, v.Ledger)
	}
}

func explainAccount(row rower, a *ratelimit.AccountLook) {
	row("store", "%d of %d left in window %d", max(0, a.Free), a.Limit, a.Window)
	if a.Free < 0 {
		row("debt", "%d tokens charged beyond the limit, by refused requests or charges after the fact", -a.Free)
	}
	for _, h := range a.Holders {
		where := cmp.Or(h.Node, fmt.Sprintf("a node that is not registered (%x)", uint64(h.Holder)))
		if h.Here {
			where = strings.TrimSpace(h.Node + " (this node)")
		}
		row("holder", "%s, fence %d: granted %d, spent %d, outstanding %d", where, h.Fence, h.Granted, h.Spent, h.Outstanding)
	}
}

// originOf says which override a limit comes from, "" if it is the rule's.
func originOf(e *console.Explanation) string {
	if e.LimitFrom != "override" {
		return ""
	}
	until := ""
	if !e.OverrideExpires.IsZero() {
		until = " until " + e.OverrideExpires.Format(time.RFC3339)
	}
	return fmt.Sprintf(" by an override of %s%s (the rule has %s)", e.OverrideSet.Format(time.RFC3339), until, e.RuleLimit)
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
