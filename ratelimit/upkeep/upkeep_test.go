package upkeep

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// A file is read when it has changed, and a bad one until it is good: the last good value stays meanwhile.
func TestValueFollowsItsFiles(t *testing.T) {
	file, fails, reads := filepath.Join(t.TempDir(), "f"), 0, 0
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := false // for a reason that no file shows
	v := &FileValue[string]{Files: []string{file}, Least: time.Second, Failed: func(error) { fails++ }}
	v.Read = func(time.Time) (string, error) {
		reads++
		text, err := os.ReadFile(file)
		if broken {
			err = errors.New("broken")
		}
		return string(text), err
	}
	now := time.Unix(1_800_000_000, 0)
	if err := v.Load(now); err == nil {
		t.Error("a missing file is good")
	}
	write("a")
	if err := v.Load(now); err != nil {
		t.Fatal(err)
	}
	for i, step := range []struct {
		do           func()
		want         string
		reads, fails int
	}{
		{func() {}, "a", 0, 0},
		{func() { write("bc"); now = now.Add(-time.Second / 2) }, "a", 0, 0}, // it was looked at a moment ago
		{func() {}, "bc", 1, 0},
		{func() { write("def"); broken = true }, "bc", 1, 1},
		{func() {}, "bc", 1, 1},
		{func() { broken = false }, "def", 1, 0},
		{func() { _ = os.Remove(file) }, "def", 1, 1},
	} {
		now, reads, fails = now.Add(time.Second), 0, 0
		step.do()
		if got := v.Get(now); got != step.want || reads != step.reads || fails != step.fails {
			t.Errorf("step %d: %q after %d readings, of which %d failed, want %+v", i, got, reads, fails, step)
		}
	}
}

// The first error of a kind is reported at once, and later ones once in a while with their number. Kinds beyond the
// bound count together.
func TestByKind(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	var told []string
	note := ByKind(func() time.Time { return now }, time.Minute, error.Error, func(err error, count int) {
		told = append(told, fmt.Sprint(err, " ", count))
	})
	for range 150 { // seconds
		note(errors.New("refused"))
		note(errors.New("refused"))
		now = now.Add(time.Second)
	}
	note(errors.New("late"))
	if want := []string{"refused 1", "refused 120", "refused 120", "late 1"}; !slices.Equal(told, want) {
		t.Errorf("told: %q, must be %q", told, want)
	}
	told = nil
	for i := range 3 * kinds {
		note(fmt.Errorf("error %d", i))
	}
	if len(told) != kinds-1 { // two kinds are known, and all others beyond the bound are one
		t.Errorf("of %d kinds, %d are told apart: %q", 3*kinds, len(told), told)
	}
}
