package config

import (
	"cmp"
	"fmt"
	"unicode/utf8"
)

// Caps bound the size of rule files. They are not the bounds that a rule declares
// ([declare.Bounds]). Larger files are refused as a whole, by an error with the cap and the
// value, and the previous rules stay in force. The zero Caps are [DefaultCaps].
//
// Guarantee: reading files takes time and memory in proportion to the caps, for any content. Bytes
// are counted before a file is read, and tokens before it is parsed, so every structure is bounded.
type Caps struct {
	FileBytes  int // of one file
	TotalBytes int // of all files
	Files      int // and of directories as many
	Tokens     int // of YAML in all files, aliases expanded
	Rules      int // descriptors of all files, with a limit or without
}

// DefaultCaps leave room for ten thousands of rules: a descriptor with a value and a limit is about
// 100 bytes and six tokens. A load within them takes at most 360 MB of additional memory:
// 180 MB that are in use, and as much that the collector has not found yet (TestMemoryOfHostileFiles).
func DefaultCaps() Caps {
	return Caps{FileBytes: 8 << 20, TotalBytes: 16 << 20, Files: 1000, Tokens: 250_000, Rules: 50_000}
}

// Times multiplies the caps by a number, for a node with more memory. The size of one file, and the number of files,
// stay.
func (b Caps) Times(n int) Caps {
	b.TotalBytes *= n
	b.Tokens *= n
	b.Rules *= n
	return b
}

// OrDefault replaces zero values: there is no way to have no cap.
func (b Caps) OrDefault() Caps {
	d := DefaultCaps()
	return Caps{
		FileBytes:  cmp.Or(b.FileBytes, d.FileBytes),
		TotalBytes: cmp.Or(b.TotalBytes, d.TotalBytes),
		Files:      cmp.Or(b.Files, d.Files),
		Tokens:     cmp.Or(b.Tokens, d.Tokens),
		Rules:      cmp.Or(b.Rules, d.Rules),
	}
}

// Caps without a setting: rules that a person writes stay far below them.
const (
	maxDepth      = 200 // nested maps and lists; a descriptor is two of them
	maxDirectives = 8   // lines that start with %: the parser looks through all tags for each new one
	maxDocuments  = 100 // empty ones, before the one that counts
	maxPathBytes  = 64 << 20
	maxPatterns   = 1000 // of one key: each request tries them one after the other
)

// countTokens counts the possible starts of nodes in a text, and its directives. It may count too many
// (a colon inside a quoted text), and never too few: the parser makes at most two nodes of each.
func countTokens(text []byte) (n, directives int) {
	for i, c := range text {
		switch c {
		case '[', '{', ',', ':', '?':
			n++
		case '-':
			// A list item only before white space, including that of Unicode.
			if i+1 == len(text) || text[i+1] <= ' ' || text[i+1] >= utf8.RuneSelf {
				n++
			}
		case '%':
			// At the start of a line, also in UTF-16 and after Unicode's breaks.
			if i == 0 || text[i-1] == '\n' || text[i-1] == '\r' || text[i-1] == 0 || text[i-1] >= utf8.RuneSelf {
				directives++
			}
		}
	}
	return n, directives
}

// check names the cap that a text exceeds, or "". left is the number of tokens that earlier files left. It reads the
// text once, without allocations. It comes before the parser, which would take memory for all of a text.
func (b Caps) check(text []byte, left int) (n int, beyond string) {
	if len(text) > b.FileBytes {
		return 0, fmt.Sprintf("it has %d bytes, and the maximum is %d: split it into several files",
			len(text), b.FileBytes)
	}
	n, directives := countTokens(text)
	switch {
	case n > left:
		return n, fmt.Sprintf("it has %d tokens, and %d are left of the maximum of %d for all files: use "+
			"fewer rules, or raise MAX_MEMORY", n, left, b.Tokens)
	case directives > maxDirectives:
		return n, fmt.Sprintf("it has %d lines that start with %%, and the maximum is %d: remove them",
			directives, maxDirectives)
	}
	return n, ""
}

// all checks files together. Sources check while they read. This is for other callers.
func (b Caps) all(files []Text) error {
	if len(files) > b.Files {
		return fmt.Errorf("there are %d files, and the maximum is %d: join some", len(files), b.Files)
	}
	sum := 0
	for _, f := range files {
		sum += len(f.Data)
		if sum > b.TotalBytes {
			return fmt.Errorf("all files up to %s have %d bytes, and the maximum is %d: use fewer rules, or raise "+
				"MAX_MEMORY", cut(f.Name, maxName), sum, b.TotalBytes)
		}
	}
	return nil
}
