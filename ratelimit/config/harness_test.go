package config

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-gate/sluice/ratelimit"
)

const goodFile = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 7}\n"

func options() Options { return Options{Coordination: ratelimit.DefaultCoordination()} }

func parseText(texts ...string) (*Rules, Problems) {
	var files []Text
	for i, text := range texts {
		files = append(files, Text{Name: fmt.Sprintf("f%d.yaml", i+1), Data: []byte(text)})
	}
	rules, _, problems := Parse(files, options())
	return rules, problems
}

func mustParse(t testing.TB, texts ...string) *Rules {
	t.Helper()
	rules, problems := parseText(texts...)
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err := errors.Join(err, os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func newStore(source Source) *Store {
	return NewStore(source, options(), slog.New(slog.DiscardHandler))
}

// changing is a source whose texts tests replace.
type changing struct {
	Static
	err error
}

func (c *changing) Read() ([]Text, error) { return []Text(c.Static), c.err }
