package plant

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
)

// Overlay writes texts to a folder, by their files' names from the root, and returns the go command's
// argument of -overlay.
func Overlay(root, into string, texts map[string]string) (file string, err error) {
	replace := map[string]string{}
	for name, text := range texts {
		file := filepath.Join(into, strings.ReplaceAll(name, "/", "_"))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return "", err
		}
		replace[filepath.Join(root, name)] = file
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file = filepath.Join(into, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
