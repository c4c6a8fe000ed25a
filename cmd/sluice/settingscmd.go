package main

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/alecthomas/kong"
)

// settingsCmd has the flags of serve.
type settingsCmd struct {
	settings
	JSON     bool `name:"json" help:"Print JSON."`
	Schema   bool `name:"schema" help:"Print the JSON Schema of settings files, for editors."`
	Markdown bool `name:"markdown" hidden:"" help:"Print docs/settings.md."`
}

// Help is what `sluice settings --help` says below its summary.
func (*settingsCmd) Help() string {
	return `It takes the flags of serve, reads its environment, and starts nothing. Secrets are masked.

Examples:

  sluice settings --settings sluice.yaml       every setting in force, and the source of its value
  sluice settings --schema > settings.schema.json`
}

// setting is one that is in force.
type setting struct {
	Section string `json:"section"`
	Name    string `json:"name"`
	Value   string `json:"value"`
	From    string `json:"from"` // default, environment, flag, or the file's name and line
}

// Run prints the settings in force. It fails if a value is out of its bounds.
func (c *settingsCmd) Run(s streams, ctx *kong.Context, file *fileSettings) error {
	switch {
	case c.Schema:
		return writeJSON(s.out, settingsSchema(ctx.Selected()))
	case c.Markdown:
		return writeSettingsPage(s.out, ctx.Selected())
	}
	all := inForce(ctx, file)
	if c.JSON {
		if err := writeJSON(s.out, all); err != nil {
			return err
		}
	} else if err := writeInForce(s.out, all); err != nil {
		return err
	}
	own, err := c.memory(os.ReadFile)
	return errors.Join(err, c.validate(own), refused(os.LookupEnv))
}

// validate returns the refusals of serve, except those that need an open file or port.
func (c *settingsCmd) validate(own memory) error {
	c.caps = own.caps()
	_, err := c.Coordination.coordination()
	return errors.Join(c.settings.validate(), err)
}

// inForce are the settings of the command, section by section.
func inForce(ctx *kong.Context, file *fileSettings) (all []setting) {
	given := map[*kong.Flag]bool{}
	for _, p := range ctx.Path {
		if p.Flag != nil && !p.Resolved {
			given[p.Flag] = true
		}
	}
	for _, g := range groups {
		for _, flag := range ctx.Selected().Flags {
			if flag.Group == nil || flag.Group.Key != g.Key {
				continue
			}
			x := setting{Section: g.Key, Name: settingName(flag), Value: masked(flag, valueText(ctx.FlagValue(flag))), From: "default"}
			for _, env := range flag.Envs {
				v, ok := file.values[env]
				switch {
				case given[flag]:
					x.From = "flag"
				case os.Getenv(env) != "":
					x.From = "environment"
				case ok:
					x.From = fmt.Sprintf("%s:%d", file.name, v.line)
				}
			}
			if len(flag.Envs) == 0 && given[flag] {
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

func settingName(flag *kong.Flag) string {
	if len(flag.Envs) > 0 {
		return flag.Envs[0]
	}
	return "--" + flag.Name
}

// masked hides passwords and tokens.
func masked(flag *kong.Flag, value string) string {
	name := settingName(flag)
	switch {
	case value == "":
		return ""
	case name == "HOLD_KEYS" || strings.HasSuffix(name, "_SECRET") || strings.HasSuffix(name, "_TOKEN") ||
		strings.HasSuffix(name, "_AUTH") || strings.HasSuffix(name, "_HEADERS"):
		return "(set)"
	case strings.HasSuffix(name, "_URL"):
		u, err := url.Parse(value)
		if err == nil && (u.User != nil || u.Query().Has("password")) {
			if q := u.Query(); q.Has("password") { // PostgreSQL's clients take it there, too
				q.Set("password", "xxxxx")
				u.RawQuery = q.Encode()
			}
			return u.Redacted()
		}
		if at := strings.LastIndex(value, "@"); at >= 0 { // not a URL, and maybe a password
			return "(set)" + value[at:]
		}
	}
	return value
}

func writeInForce(out io.Writer, all []setting) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "SECTION\tSETTING\tVALUE\tFROM")
	for _, x := range all {
		value := x.Value
		if value == "" {
			value = "-"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", x.Section, x.Name, value, x.From)
	}
	return w.Flush()
}

// settingsSchema is the JSON Schema of a settings file.
func settingsSchema(node *kong.Node) map[string]any {
	properties := map[string]any{}
	known := sections(node)
	for _, g := range groups {
		fields := map[string]any{}
		for name, flag := range known[g.Key] {
			field := map[string]any{"description": flag.Help, "type": []string{"string", "number", "boolean"}}
			if flag.IsBool() {
				field["type"] = []string{"string", "boolean"}
			}
			if flag.HasDefault {
				field["default"] = flag.Default
			}
			fields[strings.ToLower(name)] = field
		}
		properties[g.Key] = map[string]any{
			"type": "object", "description": strings.TrimSuffix(g.Title, ":"), "additionalProperties": false, "properties": fields,
		}
	}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Settings of sluice serve",
		"type": "object", "additionalProperties": false, "properties": properties,
	}
}

// writeSettingsPage is docs/settings.md.
func writeSettingsPage(out io.Writer, node *kong.Node) error {
	var b strings.Builder
	b.WriteString(`# Settings

This page is for operators, and is generated (` + "`make settings`" + `). Each setting is a flag, an environment variable, or a line in a file:

    sluice serve --settings sluice.yaml

` + "```yaml" + `
store:
  redis_url: redis:6379
ports:
  grpc_port: 8081
` + "```" + `

Flags override the environment, and the environment overrides the file. Names in a file are those of the environment in lower case. ` + "`sluice settings`" + ` prints the settings in force and the source of each value, and with ` + "`--schema`" + ` a JSON Schema for editors. ` + "`sluice serve --help`" + ` shows the settings in bold.
`)
	for _, g := range groups {
		fmt.Fprintf(&b, "\n## %s\n\nSection `%s`.\n\n| setting | default | effect |\n|---|---|---|\n", strings.TrimSuffix(g.Title, ":"), g.Key)
		for _, flag := range node.Flags {
			if flag.Group == nil || flag.Group.Key != g.Key {
				continue
			}
			name, fallback := "`"+settingName(flag)+"`", ""
			if slices.Contains(mainSettings, settingName(flag)) {
				name = "**" + name + "**"
			}
			if flag.Default != "" {
				fallback = "`" + flag.Default + "`"
			} else if flag.IsBool() {
				fallback = "`false`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, fallback, strings.ReplaceAll(flag.Help, "|", `\|`))
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// mainSettings are those that serve --help shows; --help-all shows all.
var mainSettings = []string{
	"--config", "--settings", "CONFIG_TYPE", "CONFIG_GRPC_XDS_SERVER_URL", "CONFIG_LAST_GOOD_FILE",
	"PORT", "GRPC_PORT", "DEBUG_HOST", "DEBUG_PORT", "GRPC_SERVER_USE_TLS", "GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY",
	"ADMIN_TOKEN", "DRAIN_TIME", "SHADOW_MODE", "LIMIT_RESPONSE_HEADERS_ENABLED",
	"COORDINATION_MODE", "COORDINATION_MAX_NODES", "COORDINATION_ON_STORE_FAILURE",
	"STORE_URL", "REDIS_URL", "REDIS_TYPE", "REDIS_AUTH", "REDIS_TLS", "CACHE_KEY_PREFIX",
	"PEERS", "PEER_ADDR", "PEER_SECRET", "MAX_MEMORY", "LOG_LEVEL", "LOG_FORMAT",
}

// briefHelp prints the help of serve without the settings that few need.
func briefHelp(options kong.HelpOptions, ctx *kong.Context) error {
	node := ctx.Selected()
	if node == nil || node.Name != "serve" {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	hidden := 0
	for _, flag := range node.Flags {
		if !flag.Hidden && flag.Group != nil && !slices.Contains(mainSettings, settingName(flag)) {
			flag.Hidden = true
			hidden++
		}
	}
	if err := kong.DefaultHelpPrinter(options, ctx); err != nil {
		return err
	}
	_, err := fmt.Fprintf(ctx.Stdout, "\n%d more settings: sluice serve --help-all, or docs/settings.md\n", hidden)
	return err
}

// helpAll prints the help of a command with all of its settings.
type helpAll bool

// IgnoreDefault has kong call BeforeReset only if the flag is given.
func (helpAll) IgnoreDefault() {}

// BeforeReset is called by kong before anything else.
func (helpAll) BeforeReset(ctx *kong.Context) error {
	if err := kong.DefaultHelpPrinter(kong.HelpOptions{Compact: true, FlagsLast: true, ValueFormatter: kong.DefaultHelpValueFormatter}, ctx); err != nil {
		return err
	}
	ctx.Exit(0)
	return nil
}
