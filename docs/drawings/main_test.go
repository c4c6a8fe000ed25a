package main

import (
	"os"
	"testing"
)

// The drawings in the repository are those that the program writes.
func TestDrawings(t *testing.T) {
	for name, draw := range drawings {
		if is, err := os.ReadFile(name); err != nil || string(is) != draw().svg() {
			t.Errorf("%s is not up to date (%v): go run ./docs/drawings docs/drawings", name, err)
		}
	}
}
