package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Sections are those of a settings file, and the groups of flags in the help. The order is that of the help and of the
// page. A flag names its section in its tag group.
var Sections = []kong.Group{
	{Key: "rules", Title: "Rules:"},
	{Key: "ports", Title: "Ports and connections:"},
	{Key: "answers", Title: "Answers:"},
	{Key: "coordination", Title: "Coordination (defaults of rules):"},
	{Key: "store", Title: "Store (shared by all nodes of a fleet):"},
	{Key: "peers", Title: "Peers (owners of keys, for mode routing):"},
	{Key: "limits", Title: "Resources:"},
	{Key: "log", Title: "Logs and metrics:"},
}

// File is a flag that names a settings file. It reads the file into [Values]. It is a type of its own because kong
// calls a method of the flag's type.
type File string

// BeforeResolve is called by kong when all flags are known. That is early enough: kong asks the resolver, which is the
// same Values, only afterwards.
func (File) BeforeResolve(ctx *kong.Context, trace *kong.Path, values *Values) (err error) {
	values.file, _ = ctx.FlagValue(trace.Flag).(File)
	node := ctx.Selected()
	// check reads the file of a server, and has few of its settings itself.
	if i := slices.IndexFunc(ctx.Model.Children, func(n *kong.Node) bool { return n.Name == "serve" }); i >= 0 {
		node = ctx.Model.Children[i]
	}
	values.of, err = read(string(values.file), node)
	return err
}

// Values are what the file says, by the names in the environment. Bind the same Values to a parser, and make them its
// resolver.
type Values struct {
	file File
	of   map[string]value
}

// value is what a file says of a setting.
type value struct {
	text string
	line int
}

// Validate implements [kong.Resolver].
func (*Values) Validate(*kong.Application) error { return nil }

// Resolve implements [kong.Resolver]. A setting that the environment has keeps its value. A value from the command line
// also stays: kong asks no resolver for a flag that was given. An empty variable counts as unset.
func (v *Values) Resolve(_ *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	for _, env := range flag.Envs {
		if x, ok := v.of[env]; ok && os.Getenv(env) == "" {
			return x.text, nil
		}
	}
	return nil, nil //nolint:nilnil // kong's word for "not mine"
}

// read reads a file, and refuses sections and names that the command of this node does not have. All faults of a file are reported
// at once, each with its line. Example of a file: store: {redis_url: "redis:6379"}.
func read(name string, node *kong.Node) (map[string]value, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("--settings: %w", err)
	}
	var root, second yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(text))
	if err := documents.Decode(&root); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--settings %s: %w", name, err)
	}
	// A second document would be passed over in silence, and with it settings that the operator relies on.
	if err := documents.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("--settings %s:%d: here starts a second document: a settings file has one", name, max(1, second.Line))
	}
	values := map[string]value{}
	if len(root.Content) == 0 { // an empty file
		return values, nil
	}
	known := map[string][]string{} // by section, with the names in the environment
	for _, s := range sectionsOf(node) {
		known[s.Key] = nil
		for _, flag := range s.Flags {
			known[s.Key] = append(known[s.Key], flag.Envs...)
		}
	}
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
		each(body, bad, func(key, of *yaml.Node) {
			env := strings.ToUpper(key.Value)
			_, twice := values[env]
			switch {
			case !slices.Contains(names, env):
				bad(key, "section %q has no setting %q%s", section.Value, key.Value, strings.ToLower(ratelimit.DidYouMean(env, names)))
			case twice:
				bad(key, "%s is set twice", key.Value)
			case of.Kind != yaml.ScalarNode:
				bad(of, "%s must be a single value: write lists with commas", key.Value)
			// A name without a value is unset, as in redis_auth: with nothing behind it.
			case of.Tag != "!!null":
				values[env] = value{of.Value, of.Line}
			}
		})
	})
	return values, errors.Join(errs...)
}

// each calls see with the pairs of a map. A mapping node has its keys and values by turns.
func each(n *yaml.Node, bad func(*yaml.Node, string, ...any), see func(key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		bad(n, "this must be a map of names")
		return
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		see(n.Content[i], n.Content[i+1])
	}
}

// section is a section with its settings.
type section struct {
	kong.Group
	Flags []*kong.Flag
}

// sectionsOf are the settings of a command.
func sectionsOf(node *kong.Node) (all []section) {
	for _, g := range Sections {
		s := section{Group: g}
		for _, flag := range node.Flags {
			if flag.Group != nil && flag.Group.Key == g.Key {
				s.Flags = append(s.Flags, flag)
			}
		}
		all = append(all, s)
	}
	return all
}

func sectionNames() (names []string) {
	for _, g := range Sections {
		names = append(names, g.Key)
	}
	return names
}
