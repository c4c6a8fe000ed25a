package main

import (
	"fmt"
	"os"
	"strings"
)

// equivalents are the keys of mutants that no test can kill.
type equivalents map[string]bool

// readEquivalents reads a list of entries, with an empty line between them:
//
//	leasing/account/account.go (*Account).settle #2
//	- what the lines are
//	+ what the mutant makes of them
//	= Why nobody could tell the difference.
//
// Lines that start with # are remarks.
func readEquivalents(file string) (equivalents, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all := equivalents{}
	for block := range strings.SplitSeq(string(text), "\n\n") {
		var entry []string
		for line := range strings.Lines(block) {
			line = strings.TrimSpace(line)
			if line != "" && line[0] != '#' {
				entry = append(entry, line)
			}
		}
		if len(entry) == 0 {
			continue
		}
		if len(entry) < 4 || !strings.HasPrefix(entry[1], "- ") || !strings.HasPrefix(entry[2], "+") || !strings.HasPrefix(entry[3], "= ") {
			return nil, fmt.Errorf("%s: the entry %q is no mutant: write its file and function, a line with -, one with +, and the reason after =", file, entry[0])
		}
		key := strings.TrimSpace(strings.Join(entry[:3], "\n"))
		if all[key] {
			return nil, fmt.Errorf("%s: %q is listed twice: take one entry out", file, entry[0])
		}
		all[key] = true
	}
	return all, nil
}

// stale are the entries that no mutant has.
func (e equivalents) stale(all []*mutant) []string {
	known := map[string]bool{}
	for _, m := range all {
		known[m.key()] = true
	}
	var names []string
	for key := range e {
		if !known[key] {
			names = append(names, key)
		}
	}
	return names
}
