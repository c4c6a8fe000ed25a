package settings

import (
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/cli"
)

// Setting is one that is in force.
type Setting struct {
	Section string `json:"section"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	From    string `json:"from"` // default, environment, flag, or the file's name and line
}

// InForce are the settings of the command line, section by section. Secrets are masked. The source of a value is not
// known by kong, so it is found again in the order that kong has: flag, environment, file, default.
func InForce(ctx *kong.Context, file *Values) (all []Setting) {
	given := map[*kong.Flag]bool{}
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved {
			given[p.Flag] = true
		}
	}
	for _, s := range sectionsOf(ctx.Selected()) {
		for _, flag := range s.Flags {
			x := Setting{Section: s.Key, Name: nameOf(flag), Value: masked(flag, valueText(ctx.FlagValue(flag))), From: "default"}
			for _, env := range flag.Envs {
				text, set := os.LookupEnv(env)
				switch v, ok := file.of[env]; {
				case ok && text == "":
					x.From = fmt.Sprintf("%s:%d", file.file, v.line)
				case set:
					x.From = "environment"
				}
			}
			if given[flag] {
				x.From = "flag"
			}
			all = append(all, x)
		}
	}
	return all
}

// valueText is a value for people; "" of a flag that may be unset, and is.
func valueText(value any) string {
	if b, ok := value.(*bool); ok {
		if b == nil {
			return ""
		}
		value = *b
	}
	return fmt.Sprint(value)
}

// nameOf is the name in the environment, or of the flag if there is none.
func nameOf(flag *kong.Flag) string {
	if len(flag.Envs) > 0 {
		return flag.Envs[0]
	}
	return "--" + flag.Name
}

// masked hides passwords and tokens. It hides by the end of a name, so that a new secret with such a name is hidden
// from its first day. Headers may have a token of the management server.
func masked(flag *kong.Flag, value string) string {
	name := nameOf(flag)
	switch {
	case value == "":
		return ""
	case name == "HOLD_KEYS" || strings.HasSuffix(name, "_SECRET") || strings.HasSuffix(name, "_TOKEN") ||
		strings.HasSuffix(name, "_AUTH") || strings.HasSuffix(name, "_HEADERS"):
		return "(set)"
	case strings.HasSuffix(name, "_URL"):
		return MaskedURL(value)
	}
	return value
}

// MaskedURL is the address of a store without its passwords. It handles three forms: a URL, a list of addresses, and a
// DSN of PostgreSQL (host=... password=...). In doubt it hides too much.
func MaskedURL(value string) string {
	u, err := url.Parse(value)
	if at := strings.LastIndex(value, "@"); at >= 0 && (err != nil || u.User == nil || strings.Count(value, "@") > 1) {
		return "(set)" + value[at:] // not one URL, and maybe passwords
	}
	switch secret := strings.Contains(value, "password"); {
	case secret && (err != nil || u.Host == ""): // not a URL
		return "(set)"
	case err != nil || u.User == nil && !secret:
		return value
	}
	// Redacted hides the password before the @ only.
	q := u.Query()
	for name := range q { // PostgreSQL's clients take password and sslpassword there, too
		if strings.HasSuffix(name, "password") {
			q.Set(name, "xxxxx")
			u.RawQuery = q.Encode()
		}
	}
	return u.Redacted()
}

// Write writes settings as a table.
func Write(out io.Writer, all []Setting) error {
	w := cli.Columns(out)
	fmt.Fprintln(w, "SECTION\tSETTING\tVALUE\tFROM")
	for _, x := range all {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Section, x.Name, cmp.Or(x.Value, "-"), x.From)
	}
	return w.Flush()
}
