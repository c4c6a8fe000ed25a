package settings

import (
	_ "embed"
	"io"
	"reflect"
	"slices"
	"strings"
	"text/template"

	"github.com/alecthomas/kong"
)

// Schema is the JSON Schema of a settings file. The type is one of three for most settings, because YAML reads 8080 and
// true as other types than text.
func Schema(node *kong.Node) map[string]any {
	properties := map[string]any{}
	for _, s := range sectionsOf(node) {
		fields := map[string]any{}
		for _, flag := range s.Flags {
			if len(flag.Envs) == 0 {
				continue
			}
			field := map[string]any{"description": flag.Help, "type": []string{"string", "number", "boolean"}}
			if flag.IsBool() {
				field["type"] = []string{"string", "boolean"}
			}
			if flag.HasDefault {
				field["default"] = flag.Default
			}
			fields[strings.ToLower(nameOf(flag))] = field
		}
		properties[s.Key] = map[string]any{
			"type": "object", "description": title(s), "additionalProperties": false, "properties": fields,
		}
	}
	return map[string]any{
		"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Settings of sluice serve",
		"type": "object", "additionalProperties": false, "properties": properties,
	}
}

// title is a section's title without the colon that the help has.
func title(s section) string { return strings.TrimSuffix(s.Title, ":") }

//go:embed page.md.tmpl
var pageText string

// page is docs/reference/settings.md.
var page = template.Must(template.New("page").Funcs(template.FuncMap{
	"title":  title,
	"effect": func(flag *kong.Flag) string { return strings.ReplaceAll(flag.Help, "|", `\|`) },
	"name": func(flag *kong.Flag) string {
		name := "`" + nameOf(flag) + "`"
		if slices.Contains(brief, nameOf(flag)) {
			name = "**" + name + "**"
		}
		return name
	},
	"fallback": func(flag *kong.Flag) string {
		if flag.Default == "" && flag.Target.Kind() == reflect.Bool { // no pointer to one, which may be unset
			return "false"
		}
		return flag.Default
	},
}).Parse(pageText))

// WritePage writes docs/reference/settings.md.
func WritePage(out io.Writer, node *kong.Node) error { return page.Execute(out, sectionsOf(node)) }
