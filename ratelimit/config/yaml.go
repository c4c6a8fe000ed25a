package config

import (
	"errors"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Bounds of one file. Aliases make small files large: maxNodes counts what
// they expand to.
const (
	maxFileSize = 32 << 20
	maxNodes    = 1_000_000
	maxDepth    = 200
)

// value is a YAML node with aliases and merges resolved.
type value struct {
	kind   kind
	text   string // of a scalar
	place  Place
	fields []field // of a mapping
	items  []value // of a sequence
}

type kind uint8

const (
	null kind = iota
	str
	integer
	number
	boolean
	mapping
	sequence
)

var kindNames = [...]string{"nothing", "a string", "a whole number", "a number", "true or false", "a map", "a list"}

func (k kind) String() string { return kindNames[k] }

type field struct {
	key   string
	place Place
	value value
}

// parse reads one document. Its problems are in the file's syntax. A reload
// must not end the process: should the YAML library panic, that is a problem
// of the file too.
func parse(file string, text []byte) (v value, problems Problems) {
	defer func() {
		if r := recover(); r != nil {
			v, problems = value{}, nil
			problems.add(Place{File: file}, "error loading config file: the YAML library failed on it: %v", r)
		}
	}()
	if len(text) > maxFileSize {
		problems.add(Place{File: file}, "error loading config file: it is %d bytes, the most is %d", len(text), maxFileSize)
		return value{}, problems
	}
	tree, err := parser.ParseBytes(text, 0)
	if err != nil {
		problems = append(problems, syntaxProblem(file, err))
		return value{}, problems
	}
	r := resolver{file: file, anchors: map[string]ast.Node{}}
	var docs []value
	for _, doc := range tree.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType || doc.Body.Type() == ast.DirectiveType {
			continue
		}
		docs = append(docs, r.resolve(doc.Body, 0))
	}
	switch {
	case len(docs) > 1:
		r.problems.add(docs[1].place, "error loading config file: one file holds one domain, and here starts a second document")
	case len(docs) == 1:
		return docs[0], r.problems
	}
	return value{place: Place{File: file}}, r.problems
}

func syntaxProblem(file string, err error) *Problem {
	at := Place{File: file}
	message := err.Error()
	if syntax, ok := errors.AsType[*yaml.SyntaxError](err); ok {
		at.Line, at.Column = syntax.Token.Position.Line, syntax.Token.Position.Column
		message = syntax.Message
	}
	return &Problem{at, "error loading config file: " + message}
}

type resolver struct {
	file     string
	anchors  map[string]ast.Node
	nodes    int
	full     bool
	problems Problems
}

func (r *resolver) place(t *token.Token) Place {
	if t == nil || t.Position == nil {
		return Place{File: r.file}
	}
	return Place{r.file, t.Position.Line, t.Position.Column}
}

func (r *resolver) resolve(n ast.Node, depth int) value {
	if n == nil {
		return value{place: Place{File: r.file}}
	}
	v := value{place: r.place(n.GetToken())}
	if r.nodes++; r.nodes > maxNodes || depth > maxDepth {
		if !r.full {
			r.problems.add(v.place, "error loading config file: it expands to more than %d nodes, or is nested deeper than %d", maxNodes, maxDepth)
		}
		r.full = true
		return v
	}
	switch n := n.(type) {
	case *ast.AnchorNode:
		r.anchors[n.Name.GetToken().Value] = n.Value
		return r.resolve(n.Value, depth+1)
	case *ast.AliasNode:
		return r.alias(n, depth)
	case *ast.TagNode:
		return r.resolve(n.Value, depth+1)
	case *ast.MappingNode:
		v.kind = mapping
		if len(n.Values) > 0 {
			v.place = r.place(n.Values[0].Key.GetToken())
		}
		r.entries(&v, n.Values, depth)
	case *ast.MappingValueNode:
		v.kind, v.place = mapping, r.place(n.Key.GetToken())
		r.entries(&v, []*ast.MappingValueNode{n}, depth)
	case *ast.SequenceNode:
		v.kind = sequence
		for _, item := range n.Values {
			v.items = append(v.items, r.resolve(item, depth+1))
		}
	default:
		r.scalar(&v, n)
	}
	return v
}

func (r *resolver) alias(n *ast.AliasNode, depth int) value {
	name := n.Value.GetToken().Value
	target, ok := r.anchors[name]
	if !ok {
		at := r.place(n.GetToken())
		r.problems.add(at, "error loading config file: unknown anchor '%s' referenced", name)
		return value{place: at}
	}
	return r.resolve(target, depth+1)
}

func (r *resolver) entries(v *value, entries []*ast.MappingValueNode, depth int) {
	var merged []field
	for _, e := range entries {
		if r.full {
			return
		}
		if e.Key.Type() == ast.MergeKeyType {
			m := r.resolve(e.Value, depth+1)
			if m.kind == sequence {
				for _, item := range m.items {
					merged = append(merged, item.fields...)
				}
			}
			merged = append(merged, m.fields...)
			continue
		}
		at := r.place(e.Key.GetToken())
		key := r.resolve(e.Key, depth+1)
		if key.kind != str {
			r.problems.add(at, "config error, key is not of type string: %s", key.text)
		}
		v.fields = append(v.fields, field{key.text, at, r.resolve(e.Value, depth+1)})
	}
	for _, f := range merged {
		if v.get(f.key) == nil {
			v.fields = append(v.fields, f)
		}
	}
}

func (r *resolver) scalar(v *value, n ast.Node) {
	switch n := n.(type) {
	case *ast.NullNode:
		v.kind = null
	case *ast.StringNode:
		v.kind, v.text = str, n.Value
	case *ast.LiteralNode:
		v.kind, v.text = str, n.Value.Value
	case *ast.MappingKeyNode:
		v.kind, v.text = str, strings.TrimSpace(n.Value.String())
	case *ast.IntegerNode:
		v.kind, v.text = integer, n.GetToken().Value
	case *ast.BoolNode:
		v.kind, v.text = boolean, n.GetToken().Value
	case *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		v.kind, v.text = number, n.GetToken().Value
	default:
		r.problems.add(v.place, "error loading config file: %s is not allowed here", n.Type())
	}
}

func (v *value) get(key string) *field {
	for i := range v.fields {
		if v.fields[i].key == key {
			return &v.fields[i]
		}
	}
	return nil
}
