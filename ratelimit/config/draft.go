package config

import (
	"fmt"
	"slices"
)

// written returns a draft as texts: its own, or YAML of its files. Its bytes identify the draft,
// count against the bounds, and are stored in the copy on disk. Files are compiled directly, and
// not from these texts. It stops at a file beyond the bounds.
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

// check applies to files of a source the bounds that decoding applies to texts: size, tokens, depth
// and the number of descriptors.
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

// shallow tells whether descriptors stay within maxDepth in a text, given the depth of their list.
// It stops at more descriptors than the cap.
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

// depth is the depth of the deepest node of a descriptor's own fields, given the depth of its map.
// The keys and values of a map, and the items of a list, are one level deeper.
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
