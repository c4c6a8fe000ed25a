package settings

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Schema is the JSON Schema of a settings file.
func Schema(node *kong.Node) map[string]any {
	properties := map[string]any{}
	known := sections(node)
	for _, g := range Sections {
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

// WritePage writes docs/reference/settings.md.
func WritePage(out io.Writer, node *kong.Node) error {
	var b strings.Builder
	b.WriteString(`# Settings

This page is generated (` + "`make settings`" + `). Each setting is a flag, an environment variable, or a line in a file:

    sluice serve --settings sluice.yaml

` + "```yaml" + `
store:
  redis_url: redis:6379
ports:
  grpc_port: 8081
` + "```" + `

Flags override the environment, and the environment overrides the file. Names in a file are those of the environment in lower case. ` + "`sluice settings`" + ` prints the settings in force and the source of each value, and with ` + "`--schema`" + ` a JSON Schema for editors. ` + "`sluice serve --help`" + ` shows only the settings in bold.
`)
	for _, g := range Sections {
		fmt.Fprintf(&b, "\n## %s\n\nSection `%s`.\n\n| setting | default | effect |\n|---|---|---|\n", strings.TrimSuffix(g.Title, ":"), g.Key)
		for _, flag := range node.Flags {
			if flag.Group == nil || flag.Group.Key != g.Key {
				continue
			}
			name, fallback := "`"+nameOf(flag)+"`", ""
			if slices.Contains(brief, nameOf(flag)) {
				name = "**" + name + "**"
			}
			if flag.Default != "" {
				fallback = "`" + flag.Default + "`"
			} else if flag.Target.Kind() == reflect.Bool { // no pointer to one, which may be unset
				fallback = "`false`"
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", name, fallback, strings.ReplaceAll(flag.Help, "|", `\|`))
		}
	}
	_, err := io.WriteString(out, b.String())
	return err
}
