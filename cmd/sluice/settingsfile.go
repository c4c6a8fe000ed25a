package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A settings file has a section for each group of settings, and in it names of the environment in lower case:
//
//	store: {redis_url: "redis:6379"}
//	ports: {grpc_port: 8081}
//
// The command line counts before the environment, and the environment before the file.

// settingsFile is where a command line names the file, and what the file says.
type settingsFile struct {
	SettingsFile string `group:"rules" name:"settings" placeholder:"FILE" help:"YAML file of settings, such as store: {redis_url: redis:6379}. The command 'sluice settings' prints the names and sections. Flags and the environment override it."`
}

// fileSettings reads the file that a command line names. It implements [kong.Resolver] for one command line.
type fileSettings struct {
	name   string
	err    error                // of reading it
	values map[string]fileValue // by the name in the environment
}

// fileValue is what a file says of a setting.
type fileValue struct {
	text string
	line int
}

// mostSettings are the most bytes of a settings file.
const mostSettings = 1 << 20

// Validate implements [kong.Resolver].
func (*fileSettings) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver]. A setting that the environment has keeps its value.
func (f *fileSettings) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	node := ctx.Selected()
	if name := named(ctx, node); name != f.name {
		f.name, f.values, f.err = name, nil, nil
		if name != "" {
			f.values, f.err = readSettings(name, node)
		}
	}
	if f.err != nil {
		return nil, &fileError{f.err}
	}
	for _, env := range flag.Envs {
		if os.Getenv(env) != "" {
			return nil, nil //nolint:nilnil // kong's word for "not mine"
		}
		if v, ok := f.values[env]; ok {
			return v.text, nil
		}
	}
	return nil, nil //nolint:nilnil // the same
}

// fileError is a fault of the file: of no single flag, as which kong reports it.
type fileError struct{ error }

// named is the file's name, "" if there is none.
func named(ctx *kong.Context, node *kong.Node) string {
	if node == nil {
		return ""
	}
	for _, flag := range node.Flags {
		if flag.Name == "settings" {
			name, _ := ctx.FlagValue(flag).(string)
			return name
		}
	}
	return ""
}

// readSettings reads a file, and refuses sections and names that the command does not have.
func readSettings(name string, node *kong.Node) (map[string]fileValue, error) {
	in, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--settings: %w", err)
	}
	defer func() { _ = in.Close() }() // it was only read
	text, err := io.ReadAll(io.LimitReader(in, mostSettings+1))
	if err != nil {
		return nil, fmt.Errorf("--settings %s: %w", name, err)
	}
	if len(text) > mostSettings {
		return nil, fmt.Errorf("--settings %s exceeds %d bytes", name, mostSettings)
	}
	var root yaml.Node
	if err := yaml.Unmarshal(text, &root); err != nil {
		return nil, fmt.Errorf("--settings %s: %w", name, err)
	}
	values := map[string]fileValue{}
	if len(root.Content) == 0 { // an empty file
		return values, nil
	}
	known := sections(node)
	var errs []error
	bad := func(at *yaml.Node, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--settings %s:%d: %s", name, at.Line, fmt.Sprintf(format, args...)))
	}
	each(root.Content[0], bad, func(section, body *yaml.Node) {
		names, ok := known[section.Value]
		if !ok {
			bad(section, "there is no section %q; it has %s%s", section.Value, strings.Join(sectionNames(), ", "), ratelimit.DidYouMean(section.Value, sectionNames()))
			return
		}
		each(body, bad, func(key, value *yaml.Node) {
			env := strings.ToUpper(key.Value)
			_, twice := values[env]
			_, ok := names[env]
			advice := withAdvice(env, value.Value)
			switch {
			case !ok && advice != "":
				bad(key, "%s is %q, and this release does not have it: %s", key.Value, value.Value, advice)
			case !ok:
				bad(key, "section %q has no setting %q%s", section.Value, key.Value, ratelimit.DidYouMean(key.Value, lowered(names)))
			case twice:
				bad(key, "%s is set twice", key.Value)
			case value.Kind != yaml.ScalarNode:
				bad(value, "%s must be a single value: write lists with commas", key.Value)
			case value.Tag != "!!null":
				values[env] = fileValue{value.Value, value.Line}
			}
		})
	})
	return values, errors.Join(errs...)
}

// each calls see with the pairs of a map.
func each(n *yaml.Node, bad func(*yaml.Node, string, ...any), see func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		bad(n, "this must be a map of names")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		see(n.Content[i], n.Content[i+1])
	}
}

// sections are the settings of a command by section and name in the environment.
func sections(node *kong.Node) map[string]map[string]*kong.Flag {
	all := map[string]map[string]*kong.Flag{}
	for _, name := range sectionNames() {
		all[name] = map[string]*kong.Flag{}
	}
	for _, flag := range node.Flags {
		if flag.Group != nil && len(flag.Envs) > 0 {
			all[flag.Group.Key][flag.Envs[0]] = flag
		}
	}
	return all
}

func sectionNames() (names []string) {
	for _, g := range groups {
		names = append(names, g.Key)
	}
	return names
}

func lowered(names map[string]*kong.Flag) (all []string) {
	for name := range names {
		all = append(all, strings.ToLower(name))
	}
	return all
}
