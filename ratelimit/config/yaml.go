// YAML as a tree with places. The library parses a document into nodes, and resolve copies these. Aliases and merges
// are replaced by what they stand for, so that later steps have none to handle. Each value keeps the place where it is
// written, also one that an alias brings.

package config

import (
	"bytes"
	"errors"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// yamlValue is a YAML node with aliases and merges resolved.
type yamlValue struct {
	kind   yamlKind
	text   string // of a scalar
	place  Place
	fields []yamlField // of a mapping
	items  []yamlValue // of a sequence
}

// yamlKind is the type of a value. The order counts: those up to boolean are scalars.
type yamlKind uint8

const (
	null yamlKind = iota
	str
	integer
	number
	boolean
	mapping
	sequence
)

var kindNames = [...]string{"nothing", "a string", "a whole number", "a number", "true or false", "a map", "a list"}

// String names the kind, for errors.
func (k yamlKind) String() string { return kindNames[k] }

// yamlField is a key with its value. Fields keep the order of the file.
type yamlField struct {
	key   string
	place Place
	value yamlValue
}

// parse reads one document. Its problems are syntax errors, or bounds. A reload must not end the
// process: a panic of the YAML library counts as a problem of the file. A stack overflow cannot be
// recovered: the library refuses nesting of 10,000 levels, and resolve refuses maxDepth.
//
// left is the number of remaining tokens. The tokens of the file are subtracted.
func parse(from Text, caps Caps, left *int) (v yamlValue, problems Problems) {
	file, text := from.Name, from.Data
	defer func() {
		if r := recover(); r != nil {
			v, problems = yamlValue{}, nil
			problems.add(Place{File: file}, "error loading config file: the YAML library failed on it: %v", r)
		}
	}()
	// Before the library sees the text: it builds its tree as a whole.
	n, beyond := caps.check(text, *left)
	if beyond != "" {
		problems.add(Place{File: file}, "error loading config file: %s", beyond)
		return yamlValue{}, problems
	}
	documents := yaml.NewDecoder(bytes.NewReader(text))
	r := resolver{file: file, lineless: from.Pushed, most: *left}
	// A file costs its tokens, or what its aliases have made of it: up to two nodes of each token.
	defer func() { *left = max(0, *left-max(n, r.nodes/2)) }()
	v.place.File = file
	found := false
	// The library parses one document at a time, so that empty ones cost a turn each.
	for range maxDocuments {
		var doc yaml.Node
		err := documents.Decode(&doc)
		switch {
		case errors.Is(err, io.EOF):
			return v, r.problems
		case err != nil:
			r.syntax(text, err)
			return yamlValue{}, r.problems
		// Empty documents are as a Helm template leaves them, between two lines of ---.
		case len(doc.Content) == 0 || doc.Content[0].ShortTag() == "!!null":
			continue
		case found:
			r.problems.add(r.place(doc.Content[0]), "error loading config file: one file holds one domain, and here "+
				"starts a second document")
			return v, r.problems
		}
		v, found = r.resolve(doc.Content[0], 0), true
	}
	r.problems.add(Place{File: file}, "error loading config file: it has more than %d documents, and one file holds "+
		"one domain", maxDocuments)
	return v, r.problems
}

// The library's errors are texts, such as "yaml: line 3: mapping values are not allowed in this context". Those
// about an anchor have no line.
var (
	atLine        = regexp.MustCompile(`^line (\d+): `)
	unknownAnchor = regexp.MustCompile(`^unknown anchor '(.*)' referenced$`)
)

// syntax reports an error of the library, with a hint for the line, and the anchor's place if that is unknown.
func (r *resolver) syntax(text []byte, err error) {
	at := Place{File: r.file}
	message := strings.TrimPrefix(err.Error(), "yaml: ")
	if m := atLine.FindStringSubmatch(message); m != nil {
		at.Line, _ = strconv.Atoi(m[1])
		message = message[len(m[0]):]
		message += syntaxHint(r.file, lineOf(text, at.Line), message)
	}
	if m := unknownAnchor.FindStringSubmatch(message); m != nil {
		at = placeInText(r.file, text, "*"+m[1])
	}
	r.problems.add(at, "error loading config file: %s", message)
}

// lineOf is a line of a text, or "" if there is no such line.
func lineOf(text []byte, number int) string {
	for line := range bytes.Lines(text) {
		number--
		if number == 0 {
			return strings.TrimRight(string(line), "\r\n")
		}
	}
	return ""
}

// placeInText is the first place of a word. It is an estimate: the word may also be in a comment before.
func placeInText(file string, text []byte, word string) Place {
	i := bytes.Index(text, []byte(word))
	if i < 0 {
		return Place{File: file}
	}
	before := text[:i]
	line := before[bytes.LastIndexByte(before, '\n')+1:]
	return Place{file, bytes.Count(before, []byte("\n")) + 1, utf8.RuneCount(line) + 1}
}

// resolver copies the nodes of one file.
type resolver struct {
	file     string
	lineless bool // places have no lines
	// nodes counts copies so far, and most is how many tokens are left for the file. full is set beyond it: then all
	// copying stops, and the problem is reported once.
	nodes    int
	most     int
	full     bool
	problems Problems
	// inMetadata is while the value of a key "metadata" is read.
	inMetadata bool
}

// place is where a node is written. A map's is its first key: that is where a reader looks.
func (r *resolver) place(n *yaml.Node) Place {
	if r.lineless {
		return Place{File: r.file}
	}
	if n.Kind == yaml.MappingNode && len(n.Content) > 0 {
		n = n.Content[0]
	}
	return Place{r.file, n.Line, n.Column}
}

// resolve copies a node with its aliases resolved. Aliases make small files large, and can form cycles: it counts nodes
// as it copies them, and bounds the depth. Beyond a bound it returns null values, quickly, for all that is left.
func (r *resolver) resolve(n *yaml.Node, depth int) yamlValue {
	v := yamlValue{place: r.place(n)}
	// The parser makes up to two nodes of a token, and one document: a key without a value has a node for nothing.
	r.nodes++
	if r.nodes > 2*r.most+1 || depth > maxDepth {
		if !r.full {
			r.problems.add(v.place, "error loading config file: with its aliases it has more tokens than the %d that "+
				"are left, or it is nested deeper than %d: use fewer rules, or fewer levels", r.most,
				maxDepth)
		}
		r.full = true
		return v
	}
	switch n.Kind {
	case yaml.AliasNode:
		return r.resolve(n.Alias, depth+1)
	case yaml.MappingNode:
		v.kind = mapping
		r.entries(&v, n.Content, depth)
	case yaml.SequenceNode:
		v.kind = sequence
		// The capacity is bounded: a list that an alias repeats must not allocate beyond the cap, which the copies then
		// reach.
		v.items = make([]yamlValue, 0, min(len(n.Content), 2*r.most+1-r.nodes))
		for _, item := range n.Content {
			if r.full {
				break
			}
			v.items = append(v.items, r.resolve(item, depth+1))
		}
	default:
		v.kind = str
		v.text = n.Value
		if kind, ok := kindOfTag[n.ShortTag()]; ok {
			v.kind = kind
		}
		if v.kind == null {
			v.text = ""
		}
	}
	return v
}

// kindOfTag has the kinds of scalars, by the tags that the library gives to plain ones. All others are strings, also
// times and binary data.
var kindOfTag = map[string]yamlKind{"!!null": null, "!!int": integer, "!!float": number, "!!bool": boolean}

// entries fills v from alternating keys and values. Merged fields (<<) apply unless v has them, wherever << stands. Of
// two merged fields, the first counts. A key that is there twice is an error, with both places: YAML would take one of
// the two limits.
func (r *resolver) entries(v *yamlValue, content []*yaml.Node, depth int) {
	var merged []yamlField
	known := make(map[string]Place, len(content)/2)
	v.fields = make([]yamlField, 0, len(content)/2)
	for i := 0; i+1 < len(content) && !r.full; i += 2 {
		if content[i].ShortTag() == "!!merge" {
			merged = append(merged, r.merge(content[i+1], depth)...)
			continue
		}
		at := r.place(content[i])
		key := r.resolve(content[i], depth+1)
		// Metadata may have numbers as keys, as in the original: they are texts.
		numbered := r.inMetadata && (key.kind == integer || key.kind == number)
		if key.kind != str && !numbered {
			r.problems.add(at, "config error, key is not of type string: %s", shorten(key.text))
		}
		if first, twice := known[key.text]; twice {
			r.problems.add(at, "error loading config file: mapping key %q already defined at [%d:%d]",
				shorten(key.text), first.Line, first.Column)
			continue
		}
		known[key.text] = at
		inMetadata := r.inMetadata
		r.inMetadata = inMetadata || key.text == "metadata"
		v.fields = append(v.fields, yamlField{key.text, at, r.resolve(content[i+1], depth+1)})
		r.inMetadata = inMetadata
	}
	for _, f := range merged {
		if _, ok := known[f.key]; !ok {
			known[f.key] = f.place
			v.fields = append(v.fields, f)
		}
	}
}

// merge returns the fields of a map, or of a list of maps, that << names. Their values are copies, which count as those
// of aliases do.
func (r *resolver) merge(n *yaml.Node, depth int) []yamlField {
	m := r.resolve(n, depth+1)
	merged := m.fields
	fits := m.kind == mapping || m.kind == sequence && n.Kind == yaml.SequenceNode // not an alias of a list
	for _, item := range m.items {
		merged = append(merged, item.fields...)
		fits = fits && item.kind == mapping
	}
	if !fits && !r.full {
		r.problems.add(r.place(n), "error loading config file: map merge requires map or sequence of maps as the "+
			"value: write <<: *name, or <<: [*name, *other], of anchors that stand before maps")
	}
	return merged
}

// get is the field of a map; nil: it has none.
func (v *yamlValue) get(key string) *yamlField {
	for i := range v.fields {
		if v.fields[i].key == key {
			return &v.fields[i]
		}
	}
	return nil
}

// syntaxHint is for a line that is no YAML, and its parser error. The line is the one that the parser names, which may
// be behind the mistake.
func syntaxHint(file, line, message string) string {
	value := strings.TrimSpace(line)
	if _, after, found := strings.Cut(value, ": "); found {
		value = strings.TrimSpace(after)
	}
	indent := line[:len(line)-len(strings.TrimLeft(line, " \t"))]
	switch {
	case strings.Contains(indent, "\t"):
		return "; YAML allows no tabs in the indentation: use spaces"
	// They begin an alias, an anchor, a directive, or nothing that YAML has.
	case value != "" && strings.ContainsRune("*&%@`!", rune(value[0])):
		return "; put a value that begins with " + value[:1] + " in quotes"
	case strings.Contains(message, "',' or"):
		return "; there, or on the next line, a brace or bracket is not closed, or a comma is missing"
	}
	return strayHint(file)
}
