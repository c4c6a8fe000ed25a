package debugport

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// Limit is the command that changes limits of keys at run time.
type Limit struct {
	Set    limitSet    `cmd:"" help:"Set the limit of a key. It counts within a second, on every node."`
	Get    limitGet    `cmd:"" help:"Print the override of a key: limit, expiry, author and reason."`
	List   limitList   `cmd:"" help:"List overrides."`
	Rm     limitRm     `cmd:"" help:"Remove an override. The limit of the rule is in force again."`
	Export limitExport `cmd:"" help:"Write overrides as CSV, for import."`
	Import limitImport `cmd:"" help:"Set the overrides of a CSV file, each line by itself."`
}

// limitFlags are the node to ask, and the token.
type limitFlags struct {
	Debug string `default:"${debug}" placeholder:"HOST:PORT" help:"Debug port of a node, HOST:PORT. Any node of the fleet serves."`
	Token string `env:"ADMIN_TOKEN" required:"" help:"ADMIN_TOKEN of the node."`
}

// authorFlags say who makes a change.
type authorFlags struct {
	By string `env:"USER" placeholder:"NAME" help:"Author of the change, for the record and the log (default: the name of the user)."`
}

// versionFlags say which override is replaced.
type versionFlags struct {
	IfVersion string `placeholder:"VERSION" help:"Version of the override to replace, as get prints it. If the override has another version, nothing changes."`
}

const overridesPath = "/v1/overrides"

// path is that of one override. Example: /v1/overrides/edge?entry=api_key%3Dalice.
func (d *descriptorArgs) path() string {
	return overridesPath + "/" + url.PathEscape(d.Domain) + "?" + url.Values{"entry": d.Entries}.Encode()
}

// call requests a path of the node.
func (f *limitFlags) call(method, path string, body, into any, headers ...string) error {
	return port{f.Debug, f.Token}.call(method, path, body, into, headers...)
}

// limitSet is the command limit set. Its first argument is the limit, then come the domain and the entries.
type limitSet struct {
	Limit string `arg:"" help:"Requests for each unit of the rule: a whole number, 0 to refuse all, or unlimited."`
	descriptorArgs
	Expires   string       `placeholder:"TIME" help:"End of the override: a duration such as 24h, or a time such as 2027-01-31T00:00:00Z (default: never)."`
	Unit      string       `placeholder:"UNIT" help:"Unit of the limit. The command fails if the rule has another (default: that of the rule)."`
	Reason    string       `placeholder:"TEXT" help:"Reason of the change, at most 256 bytes."`
	New       bool         `help:"Set it only if the key has no override."`
	Reset     bool         `help:"Also reset the usage of the key in this window, at all nodes."`
	JSON      bool         `name:"json" help:"Print JSON."`
	IfVersion versionFlags `embed:""`
	authorFlags
	limitFlags
}

// Run sets one. Conditions are headers of HTTP: If-None-Match: * only if there is no override, and If-Match with a
// version only if it is still that one. The author is in From.
func (c *limitSet) Run(s cli.Streams) error {
	limit, err := console.ParseOverrideLimit(c.Limit)
	if err != nil {
		return err
	}
	body := console.OverrideChange{Limit: &limit, Unit: c.Unit, Expires: c.Expires, Reason: c.Reason}
	var o console.Overridden
	if err := c.call(http.MethodPut, c.path(), body, &o, "From", c.By, "If-None-Match", map[bool]string{true: "*"}[c.New], "If-Match", c.IfVersion.tag()); err != nil {
		return err
	}
	if err := printOverride(s, &o, c.JSON); err != nil {
		return err
	}
	// It resets through the same node, and has all others drop their leases, as admin reset --all does.
	if c.Reset {
		return (&adminReset{adminFlags{c.descriptorArgs, []string{c.Debug}, true, c.Token}}).Run(s)
	}
	return c.noteUsed(s)
}

// noteUsed says that the usage of this window exceeds the new limit, and how to reset it. The override is set, also if
// the usage is unknown. A person who raises a limit expects requests to pass at once.
func (c *limitSet) noteUsed(s cli.Streams) error {
	var e console.Explanation
	err := c.call(http.MethodGet, "/explain?"+c.query(), nil, &e)
	// Only a refusal by the limit is worth a note. Other answers say that the key can continue.
	if err != nil || e.Look == nil || !strings.HasPrefix(e.Next, "OVER_LIMIT") {
		return nil //nolint:nilerr // explain is another question
	}
	_, err = fmt.Fprintf(s.Err, "sluice: the usage of this window is above the new limit: the next request is refused, for up to %v. To start from 0 now, "+
		"repeat the command with --reset\n", e.WholeAgain.Round(time.Second))
	return err
}

// tag is If-Match, "" without a version.
func (v versionFlags) tag() string {
	if v.IfVersion == "" {
		return ""
	}
	return `"` + v.IfVersion + `"`
}

// limitGet is the command limit get.
type limitGet struct {
	descriptorArgs
	JSON bool `name:"json" help:"Print JSON."`
	limitFlags
}

// Run prints one.
func (c *limitGet) Run(s cli.Streams) error {
	var o console.Overridden
	if err := c.call(http.MethodGet, c.path(), nil, &o); err != nil {
		return err
	}
	return printOverride(s, &o, c.JSON)
}

// printOverride prints an override as the node answered it: after a set, that is the record in the store.
func printOverride(s cli.Streams, o *console.Overridden, asJSON bool) error {
	if asJSON {
		return s.JSON(o)
	}
	return overrideText.Write(s.Out, o)
}

var overrideText = cli.NewText(`key	{{.Domain}} {{.Descriptor}}
limit	{{.Limit}}
in force	{{or .InForce "no: no rule has this key, or its rule has another period or no overrides"}}
expires	{{if .Expires.IsZero}}never{{else}}{{date .Expires}}{{end}}
set	{{date .Set}} by {{.By}}
reason	{{.Reason}}
version	{{.Version}}
`, nil)

// limitRm is the command limit rm.
type limitRm struct {
	descriptorArgs
	IfVersion versionFlags `embed:""`
	authorFlags
	limitFlags
}

// Run removes one.
func (c *limitRm) Run(s cli.Streams) error {
	var answer done
	if err := c.call(http.MethodDelete, c.path(), nil, &answer, "From", c.By, "If-Match", c.IfVersion.tag()); err != nil {
		return err
	}
	_, err := fmt.Fprintln(s.Out, answer.Done)
	return err
}

// pages calls each with the overrides of a domain, or of all. A page has at most 10,000, and its Next is the key to
// continue after. Overrides that are set meanwhile may be missing.
func (f *limitFlags) pages(domain, prefix string, each func(*console.Overridden) error) error {
	path := overridesPath
	if domain != "" {
		path += "/" + url.PathEscape(domain)
	}
	for after := ""; ; {
		q := url.Values{"limit": {"10000"}, "prefix": {prefix}, "after": {after}}
		var page console.Page
		if err := f.call(http.MethodGet, path+"?"+q.Encode(), nil, &page); err != nil {
			return err
		}
		for i := range page.Overrides {
			if err := each(&page.Overrides[i]); err != nil {
				return err
			}
		}
		after = page.Next
		if after == "" {
			return nil
		}
	}
}

// limitList is the command limit list. A long list comes in pages, and is printed as one table.
type limitList struct {
	Domain string `arg:"" optional:"" help:"Domain of the rules (default: all)."`
	Prefix string `placeholder:"TEXT" help:"Beginning of the descriptors to list, such as api_key=al. It needs a domain (default: all descriptors)."`
	JSON   bool   `name:"json" help:"Print JSON, a line for each override."`
	limitFlags
}

// Run lists.
func (c *limitList) Run(s cli.Streams) error {
	if c.JSON {
		return c.pages(c.Domain, c.Prefix, func(o *console.Overridden) error { return s.JSONLine(o) })
	}
	t := cli.Columns(s.Out)
	fmt.Fprintln(t, "DOMAIN\tDESCRIPTOR\tLIMIT\tIN FORCE\tEXPIRES\tBY\tREASON")
	err := c.pages(c.Domain, c.Prefix, func(o *console.Overridden) error {
		expires := "never"
		if !o.Expires.IsZero() {
			expires = o.Expires.Format(time.RFC3339)
		}
		_, err := fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", o.Domain, o.Descriptor, o.Limit, cmp.Or(o.InForce, "no"), expires, o.By, o.Reason)
		return err
	})
	return errors.Join(err, t.Flush())
}
