package config

import (
	"fmt"
	"slices"
)

// written returns a draft as texts: its own, or the YAML that means the same as its
// files. The bytes of the texts tell one draft from another, they are measured
// against the bounds, and the copy on disk holds them. Files are compiled as they
// are, and not from their texts. It stops at a file that is beyond the bounds.
func (d Draft) written(caps Caps) ([]Text, Problems) {
	if len(d.Files) == 0 {
		return d.Texts, nil
	}
	var problems Problems
	texts := make([]Text, 0, len(d.Files))
	sum := 0
	for i := range d.Files {
		f := &d.Files[i]
		text, err := WriteFile(f, caps.FileBytes)
		if sum += len(text); err == nil && sum > caps.TotalBytes {
			err = fmt.Errorf("with it all files have %d bytes, and the maximum is %d: use fewer rules, or raise "+
				"MAX_MEMORY", sum, caps.TotalBytes)
		}
		texts = append(texts, Text{f.Place.File, text})
		if err != nil {
			problems.add(f.Place, "error loading config file: %v", err)
			return texts, problems
		}
	}
	return texts, nil
}

// check holds files that a source has decoded against the bounds that texts are
// held against while they are decoded: size, tokens, depth, and how many
// descriptors there are.
func (d *decoder) check(files []File, texts []Text, caps Caps) {
	left := caps.Tokens
	for i := range files {
		n, beyond := caps.check(texts[i].Data, left)
		if beyond != "" {
			d.problems.add(files[i].Place, "error loading config file: %s", beyond)
			return
		}
		left -= n
		if files[i].Defaults.depth(0) > maxDepth || !d.shallow(files[i].Descriptors, 1) {
			d.problems.add(files[i].Place, "error loading config file: it is nested deeper than %d: use fewer levels",
				maxDepth)
			return
		}
		if d.rules > d.most {
			return
		}
	}
}

// shallow tells whether descriptors would be within maxDepth in a text, given the
// depth at which their list stands. It stops where there are more descriptors than
// there may be.
func (d *decoder) shallow(all []Descriptor, list int) bool {
	for i := range all {
		x := &all[i]
		if !d.another(x.Place) {
			return true
		}
		if x.depth(list+1) > maxDepth || !d.shallow(x.Descriptors, list+2) {
			return false
		}
	}
	return true
}

// depth is the depth of the deepest node of a descriptor's own fields, given the
// depth of its map. The keys and values of a map are one deeper than the map, and
// so are the items of a list.
func (d *Descriptor) depth(at int) int {
	deepest := max(at+1, d.Inherited.depth(at))
	if d.Limit != nil {
		deepest = max(deepest, at+2)
		if len(d.Limit.Replaces) > 0 {
			deepest = max(deepest, at+4)
		}
	}
	if d.Metadata != nil {
		deepest = max(deepest, depthOf(d.Metadata, at+1))
	}
	return deepest
}

func (in *Inherited) depth(at int) int {
	switch {
	case slices.ContainsFunc(in.Coordination, Setting.ofLease):
		return at + 3
	case len(in.Coordination) > 0:
		return at + 2
	}
	return at + 1
}

// depthOf is the depth of the deepest node of a value.
func depthOf(v any, at int) int {
	deepest := at
	switch v := v.(type) {
	case map[string]any:
		for _, item := range v {
			deepest = max(deepest, depthOf(item, at+1))
		}
	case []any:
		for _, item := range v {
			deepest = max(deepest, depthOf(item, at+1))
		}
	}
	return deepest
}
