package main

import (
	"fmt"
	"os"
	"strings"
)

// equivalents are mutants that no test can kill, each with its reason, by key.
type equivalents map[string]string

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
	var entry []string
	take := func(line int) error {
		if len(entry) == 0 {
			return nil
		}
		defer func() { entry = nil }()
		if len(entry) < 4 || !strings.HasPrefix(entry[1], "- ") || !strings.HasPrefix(entry[2], "+") || !strings.HasPrefix(entry[3], "= ") {
			return fmt.Errorf("%s:%d: the entry that ends here is no mutant: write its file and function, a line with -, one with +, and the reason after =", file, line)
		}
		key := strings.TrimSpace(strings.Join(entry[:3], "\n"))
		if all[key] != "" {
			return fmt.Errorf("%s:%d: %q is listed twice: take one entry out", file, line, entry[0])
		}
		all[key] = strings.ReplaceAll(strings.Join(entry[3:], " ")[2:], " = ", " ")
		return nil
	}
	line := 0
	for s := range strings.Lines(string(text)) {
		line++
		switch s = strings.TrimSpace(s); {
		case s == "":
			if err := take(line); err != nil {
				return nil, err
			}
		case s[0] != '#':
			entry = append(entry, s)
		}
	}
	return all, take(line)
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
