package config

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// ReadInherited reads algorithm, burst and coordination from what a YAML or JSON
// library has made of them, with the same errors as in a rules file. All errors
// have the same place. The last result is an error about values that neither
// language knows.
func ReadInherited(at Place, said map[string]any) (Inherited, Problems, error) {
	tree, err := treeOf(at, said)
	if err != nil {
		return Inherited{}, nil, err
	}
	in := Inherited{Place: at}
	var d decoder
	fill(&d, &in, &tree, inheritedFields)
	return in, d.problems, nil
}

// treeOf is the tree that parse would have made of a value. Fields are in the order
// of their names, for a Go map has no order.
func treeOf(at Place, v any) (value, error) {
	out := value{place: at}
	switch v := v.(type) {
	case nil:
	case string:
		out.kind, out.text = str, v
	case bool:
		out.kind, out.text = boolean, strconv.FormatBool(v)
	case int, int64, uint32, uint64:
		out.kind, out.text = integer, fmt.Sprint(v)
	case float64:
		out.kind, out.text = number, strconv.FormatFloat(v, 'f', -1, 64)
	case fmt.Stringer: // a date
		out.kind, out.text = str, v.String()
	case []any:
		out.kind = sequence
		for _, item := range v {
			below, err := treeOf(at, item)
			if err != nil {
				return value{}, err
			}
			out.items = append(out.items, below)
		}
	case map[string]any:
		out.kind = mapping
		for _, key := range slices.Sorted(maps.Keys(v)) {
			below, err := treeOf(at, v[key])
			if err != nil {
				return value{}, err
			}
			out.fields = append(out.fields, field{key, at, below})
		}
	default:
		return value{}, fmt.Errorf("a %T is no value of a setting", v)
	}
	return out, nil
}
