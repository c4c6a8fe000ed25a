package docs

import (
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
)

// asked is the arguments of a go test command.
type asked struct {
	packages []string
	patterns map[string]string // by the beginning of the names that they are about
}

// commandOf reads the words of a go test command.
func commandOf(words string) (a asked) {
	a.patterns = map[string]string{}
	fields := strings.Fields(words)
	for i := 0; i < len(fields); i++ {
		word := strings.Trim(fields[i], `'"`)
		about, takes := map[string]string{"-run": "Test", "-bench": "Benchmark", "-fuzz": "Fuzz"}[word]
		switch {
		case takes && i+1 < len(fields):
			i++
			if pattern := strings.Trim(fields[i], `'"`); pattern != "^$" && pattern != "." && !strings.Contains(pattern, "$$") {
				a.patterns[about] = pattern
			}
		case strings.HasPrefix(word, "./") && !strings.Contains(word, "$"): // a variable names several, see below
			a.packages = append(a.packages, strings.TrimPrefix(word, "./"))
		case strings.HasPrefix(word, "-") || word == "":
		case len(a.packages) > 0: // what follows is of the test, or of the shell
			return a
		}
	}
	return a
}

// A go test command of a page or the Makefile finds tests in each of its packages. go test itself prints only
// "no tests to run", and ok.
func TestCommandsFindTheirTests(t *testing.T) {
	tests := packages(t)
	command := regexp.MustCompile("go test ([^`\\n]*)")
	texts := pages(t)
	texts["Makefile"] = regexp.MustCompile(`\$\(GO\) test`).ReplaceAllString(strings.ReplaceAll(read(t, "Makefile"), "$$'", "$'"), "go test")
	texts["CONTRIBUTING.md"], texts["ARCHITECTURE.md"] = read(t, "CONTRIBUTING.md"), read(t, "ARCHITECTURE.md")
	seen := 0
	for page, text := range texts {
		text = strings.ReplaceAll(text, `\|`, "|") // in a table
		for _, m := range command.FindAllStringSubmatch(text, -1) {
			a := commandOf(m[1])
			for _, dir := range a.packages {
				for about, pattern := range a.patterns {
					seen++
					if !findsOne(t, tests, dir, about, pattern) {
						t.Errorf("%s: go test %s finds no %s %q in ./%s", page, m[1], about, pattern, dir)
					}
				}
				if _, err := os.Stat(top + dir + "/go.mod"); err == nil && !strings.Contains(m[1], "-C ./"+dir) {
					t.Errorf("%s: go test %s names ./%s, which is a module of its own", page, m[1], dir)
				}
				if _, err := os.Stat(top + strings.TrimSuffix(dir, "/...")); err != nil && dir != "..." {
					t.Errorf("%s: go test %s names ./%s, which is not there", page, m[1], dir)
				}
			}
		}
	}
	// The Makefile's lists of fuzz targets: package:target.
	for _, m := range regexp.MustCompile(`([a-z/]+):(Fuzz[A-Za-z]+)`).FindAllStringSubmatch(texts["Makefile"], -1) {
		seen++
		if dir := strings.TrimPrefix(m[1], "/"); !findsOne(t, tests, dir, "Fuzz", "^"+m[2]+"$") {
			t.Errorf("the Makefile names %s of %s, which is not there", m[2], dir)
		}
	}
	if seen < 20 {
		t.Errorf("only %d commands were seen", seen)
	}
}

// Help of the Makefile has the defaults of its variables, and deps-list names each package that deps installs.
func TestMakefileTellsBefore(t *testing.T) {
	makefile := read(t, "Makefile")
	_, list, _ := strings.Cut(makefile, "\ndeps-list:")
	for _, m := range regexp.MustCompile(`## .*\b([A-Z]{4,}) (?:times )?\((\w+)`).FindAllStringSubmatch(makefile, -1) {
		if !strings.Contains(makefile, "\n"+m[1]+" ?= "+m[2]+"\n") {
			t.Errorf("help says that %s is %s", m[1], m[2])
		}
	}
	for _, m := range regexp.MustCompile(`\$\(call install,[^,]*,([a-z-]+),`).FindAllStringSubmatch(makefile, -1) {
		if !strings.Contains(list, m[1]) {
			t.Errorf("deps installs %s, and deps-list does not say so", m[1])
		}
	}
}

// findsOne reports whether a pattern of -run, -bench or -fuzz finds anything in a
// package, or below it.
func findsOne(t *testing.T, tests map[string][]string, dir, about, pattern string) bool {
	t.Helper()
	first, _, _ := strings.Cut(pattern, "/")
	name, err := regexp.Compile(first)
	if err != nil {
		t.Errorf("%q is no pattern: %v", pattern, err)
		return true
	}
	for test, dirs := range tests {
		seeds := about == "Test" && strings.HasPrefix(test, "Fuzz") // -run plays the seeds of fuzz targets
		if !strings.HasPrefix(test, about) && !seeds || !name.MatchString(test) {
			continue
		}
		for _, in := range dirs {
			in = strings.TrimPrefix(in, "./")
			below := strings.HasSuffix(dir, "...") && strings.HasPrefix(in+"/", strings.TrimSuffix(dir, "..."))
			if below || in == path.Clean(dir) {
				return true
			}
		}
	}
	return false
}
