package process

import (
	"fmt"
	"os"
	"path/filepath"
)

// Rules writes a rule file for servers to read, and returns its name and what removes it.
func Rules(text string) (file string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "sluice-bench")
	if err != nil {
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	remove = func() { _ = os.RemoveAll(dir) } // the system removes the rest
	file = filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		remove()
		return "", nil, fmt.Errorf("bench: %w", err)
	}
	return file, remove, nil
}
