package upkeep

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

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
