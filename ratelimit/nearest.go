package ratelimit

import "strings"

// Nearest returns the known name that given most probably means, or "" if none is close enough or two are
// equally close. Names are compared in lower case and without '-', '_' and spaces. A beginning of a single
// known name counts as that name ("sec" of "second"). It costs len(given) x the lengths of all known names.
// Texts longer than 40 bytes are not compared.
func Nearest(given string, known []string) string {
	plain := plainName(given)
	if plain == "" || len(plain) > 40 {
		return ""
	}
	// A third of the letters may differ, and at least one.
	best, least, twice := "", max(1, len(plain)/3)+1, false
	for _, name := range known {
		d := editDistance(plain, plainName(name))
		switch {
		case d < least:
			best = name
			least = d
			twice = false
		case d == least && best != "":
			twice = true
		}
	}
	if best != "" && !twice {
		return best
	}
	return onlyBeginning(plain, known)
}

// onlyBeginning is the one known name that begins so, "" if there are several.
func onlyBeginning(plain string, known []string) string {
	found := ""
	for _, name := range known {
		if strings.HasPrefix(plainName(name), plain) {
			if found != "" {
				return ""
			}
			found = name
		}
	}
	return found
}

var nameNoise = strings.NewReplacer("-", "", "_", "", " ", "")

func plainName(s string) string { return nameNoise.Replace(strings.ToLower(s)) }

// editDistance is how many bytes have to be added, removed, changed or swapped with their neighbour to make b of a
// (optimal string alignment). last is the row of the table above, and before the one above that, which only a swap
// needs.
func editDistance(a, b string) int {
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			changed := last[j]
			if a[i] != b[j] {
				changed++
			}
			row[j+1] = min(changed, last[j+1]+1, row[j]+1)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], before[j-1]+1)
			}
		}
		before, last, row = last, row, before
	}
	return last[len(b)]
}

// DidYouMean is "; did you mean 'name'?" for the nearest of the known names, or "".
func DidYouMean(given string, known []string) string {
	if name := Nearest(given, known); name != "" {
		return "; did you mean '" + name + "'?"
	}
	return ""
}
