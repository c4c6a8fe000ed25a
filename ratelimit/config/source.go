package config

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Source is where files come from. Read returns all of them, in an order that
// does not change.
type Source interface {
	Read() ([]Text, error)
}

// Static is a Source of files that are always the same.
type Static []Text

// Read implements Source.
func (s Static) Read() ([]Text, error) { return s, nil }

// Tree is a Source of one file, or of every file under a directory, whatever
// its extension. Links are followed, once each; names that start with ".." are
// Kubernetes' own and left out.
type Tree struct {
	Path string
	// Root, if it is a link, is all that counts as a change: its swap to another
	// directory, so that a set of files is never read halfway. "" or no link:
	// every change counts.
	Root string
	// IgnoreDotFiles leaves out names that start with ".".
	IgnoreDotFiles bool
}

// Read implements Source. A directory without files is not an error.
func (t Tree) Read() ([]Text, error) {
	info, err := os.Stat(t.Path)
	if err != nil {
		return nil, fmt.Errorf("config path: %w", err)
	}
	if !info.IsDir() {
		data, err := readFile(t.Path)
		if err != nil {
			return nil, err
		}
		return []Text{{filepath.Base(t.Path), data}}, nil
	}
	w := walk{tree: t, seen: map[string]bool{}}
	if err := w.dir(t.Path); err != nil {
		return nil, err
	}
	return w.files, nil
}

// swapped returns what Root points to, "" if it is not a link.
func (t Tree) swapped() string {
	if info, err := os.Lstat(t.Root); t.Root == "" || err != nil || info.Mode()&os.ModeSymlink == 0 {
		return ""
	}
	return resolve(t.Root)
}

func resolve(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}

type walk struct {
	tree  Tree
	seen  map[string]bool // real paths of directories
	files []Text
	dirs  []string
	// dirsOnly leaves files unread.
	dirsOnly bool
}

func (w *walk) dir(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("config directory: %w", err)
	}
	if w.seen[real] {
		return nil
	}
	w.seen[real] = true
	w.dirs = append(w.dirs, path)
	entries, err := os.ReadDir(path)
	if err != nil {
		return fmt.Errorf("config directory: %w", err)
	}
	for _, e := range entries {
		name := e.Name()
		if strings.HasPrefix(name, "..") || w.tree.IgnoreDotFiles && strings.HasPrefix(name, ".") {
			continue
		}
		if err := w.entry(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

func (w *walk) entry(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a file that went away, or a link to nowhere
	case err != nil:
		return fmt.Errorf("config file: %w", err)
	case info.IsDir():
		return w.dir(path)
	case !info.Mode().IsRegular(), w.dirsOnly:
		return nil
	}
	data, err := readFile(path)
	if err != nil {
		return err
	}
	name, err := filepath.Rel(w.tree.Path, path)
	if err != nil {
		name = path
	}
	w.files = append(w.files, Text{name, data})
	return nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	if info.Size() > maxFileSize {
		return nil, fmt.Errorf("config file %s is %d bytes, the most is %d", path, info.Size(), maxFileSize)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	return data, nil
}

// fingerprint changes when a file's name or text does.
func fingerprint(seed maphash.Seed, files []Text) uint64 {
	var b bytes.Buffer
	for _, f := range files {
		fmt.Fprintf(&b, "%d %d %s", len(f.Name), len(f.Data), f.Name)
		b.Write(f.Data)
	}
	return maphash.Bytes(seed, b.Bytes())
}
