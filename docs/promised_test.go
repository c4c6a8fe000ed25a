package docs

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// promisesFile ties sentences of pages to their tests, so that the pages' source has the text alone. Each line has a
// page, the end of a sentence there, and the tests; "alone" says that they are of the paragraphs, list or table before.
const promisesFile = "promises.txt"

// withPromises is a page with its promises as comments behind their sentences, as the other tests here read them.
func withPromises(t *testing.T, page, text string) string {
	t.Helper()
	type comment struct {
		at   int
		text string
	}
	var all []comment
	for line := range strings.Lines(string(readFile(t, promisesFile))) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 4 {
			t.Fatalf("docs/%s: %q has not four fields", promisesFile, line)
		}
		if f[0] != page {
			continue
		}
		if n := strings.Count(text, f[1]); n != 1 {
			t.Errorf("docs/%s: %s has %q %d times, must have it once: write how its sentence ends now", promisesFile, page, f[1], n)
			continue
		}
		before := map[string]string{"inline": " ", "alone": "\n\n"}[f[2]]
		all = append(all, comment{strings.Index(text, f[1]) + len(f[1]), before + "<!-- held by " + f[3] + " -->"})
	}
	slices.SortStableFunc(all, func(a, b comment) int { return b.at - a.at }) // the last first
	for _, c := range all {
		text = text[:c.at] + c.text + text[c.at:]
	}
	return text
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}
