// Package specpage reads the specification of the protocol, for tests that compare it with the code.
//
// Guarantee: the page has the values that a package's test passes to Constants, and no others. It does not understand
// sentences: a number that is not followed by the name of a constant is not compared.
//
// A constant is on the page as its value, then in brackets its package and name: 2 s (`ratelimit.YoungFor`). A list or
// a table to compare is between <!-- name --> and <!-- end -->.
package specpage

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// Path is the path of the page, from the top of the module.
const Path = "docs/reference/protocol.md"

// Page is its text. Reading does not change it.
type Page struct {
	testing.TB
	Text string
	file string
}

// Read reads the page, from a test of any package of the module.
func Read(tb testing.TB) *Page {
	tb.Helper()
	p := &Page{TB: tb, file: filepath.Join(Top(tb), filepath.FromSlash(Path))}
	text, err := os.ReadFile(p.file)
	if err != nil {
		tb.Fatal(err)
	}
	p.Text = string(text)
	return p
}

// Top is the folder of the module.
func Top(tb testing.TB) string {
	tb.Helper()
	dir, err := filepath.Abs(".")
	for err == nil {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		if filepath.Dir(dir) == dir {
			break
		}
		dir = filepath.Dir(dir)
	}
	tb.Fatal("there is no go.mod above: ", err)
	return ""
}

// Write replaces the page.
func (p *Page) Write() {
	p.Helper()
	if err := os.WriteFile(p.file, []byte(p.Text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// Between is the text between a mark and the next end.
func (p *Page) Between(mark string) string {
	p.Helper()
	_, rest, ok := strings.Cut(p.Text, "<!-- "+mark+" -->\n")
	text, _, ended := strings.Cut(rest, "<!-- end -->")
	if !ok || !ended {
		p.Fatalf("the page has no %q", mark)
	}
	return text
}

// Rows are the rows of the table at a mark, without its title, cell by cell.
func (p *Page) Rows(mark string) (rows [][]string) {
	p.Helper()
	return RowsOf(p.Between(mark))
}

// RowsOf are the rows of a table.
func RowsOf(table string) (rows [][]string) {
	for line := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		rows = append(rows, cells)
	}
	return rows[min(2, len(rows)):]
}

var quoted = regexp.MustCompile("`([^`]+)`")

// Quoted are the names between backticks in a text.
func Quoted(text string) (names []string) {
	for _, m := range quoted.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// Says fails the test if the page lacks these words.
func (p *Page) Says(words string) {
	p.Helper()
	if !strings.Contains(p.Text, words) {
		p.Errorf("the page lacks %q", words)
	}
}

var stated = regexp.MustCompile("([^\\s(]+)(?:\\s(µs|ms|s|m|h))?\\s\\(`([a-z]+)\\.([A-Za-z]+)`\\)")

// Constants compares the constants of some packages on the page with the code. Each value must be on the page, and no
// other.
func (p *Page) Constants(packages []string, values map[string][]string) {
	p.Helper()
	seen := map[string]bool{}
	for _, m := range stated.FindAllStringSubmatch(p.Text, -1) {
		if !slices.Contains(packages, m[3]) {
			continue
		}
		name, value := m[3]+"."+m[4], strings.TrimSpace(m[1]+" "+m[2])
		if !slices.Contains(values[name], value) {
			p.Errorf("the page says that %s is %q, and it is %q", name, value, values[name])
		}
		seen[name+" "+value] = true
	}
	for name, all := range values {
		for _, value := range all {
			if !seen[name+" "+value] {
				p.Errorf("the page does not say that %s is %s", name, value)
			}
		}
	}
}

// Packages are the packages whose constants the page has.
func (p *Page) Packages() (all []string) {
	for _, m := range stated.FindAllStringSubmatch(p.Text, -1) {
		if !slices.Contains(all, m[3]) {
			all = append(all, m[3])
		}
	}
	slices.Sort(all)
	return all
}

// Duration writes a duration as the page does: as a whole number of the largest possible unit.
func Duration(d time.Duration) string {
	for _, u := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "h"}, {time.Minute, "m"}, {time.Second, "s"}, {time.Millisecond, "ms"}} {
		if d >= u.of && d%u.of == 0 {
			return fmt.Sprintf("%d %s", d/u.of, u.name)
		}
	}
	return fmt.Sprintf("%d µs", d/time.Microsecond)
}

// Power writes a power of two as the page does.
func Power(n int64) string {
	for i := range 63 {
		if n == 1<<i {
			return fmt.Sprintf("2^%d", i)
		}
	}
	return fmt.Sprint(n)
}
