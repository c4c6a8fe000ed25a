// Rules in files. Read walks the tree and reads all of it; Watch (watch.go) calls it when something may have changed.
// The bounds hold while it reads: a mistaken path, such as /, must neither fill the memory nor take minutes.

package config

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Tree is a source of one file, or of every file under a directory, with any extension. It follows
// links, once each. Names that start with ".." belong to Kubernetes and are left out. Do not copy a
// Tree, or change its fields after the first use.
type Tree struct {
	Path string
	// Root, if it is a link, makes only its swap to another directory count as a change, so that a
	// set of files is never read halfway. If it is "" or no link, every change counts.
	Root string
	// IgnoreDotFiles leaves out names that start with ".".
	IgnoreDotFiles bool
	// Caps bound the read; zero: the default.
	Caps Caps
	// Interval is the minimum time between two loads by Watch.
	Interval time.Duration
	// Log reports lost events, at level debug; nil: no log.
	Log *slog.Logger

	events func() (*fsnotify.Watcher, error) // nil: fsnotify.NewWatcher

	// last is the target of Root at the last read; "" if the read failed, so that the next look reads again.
	last atomic.Value
}

// readsMost bounds the reads of a tree that is swapped meanwhile, each time.
const readsMost = 5

// Read implements [Source]. A directory without files is not an error. A tree that is swapped meanwhile is read again:
// files of two sets are none, and a file may be missing because the old set is removed.
func (t *Tree) Read() ([]Text, error) {
	for read := 1; ; read++ {
		to := t.swapped() // before files are read: a swap meanwhile is a change
		w := t.walk()
		err := w.all()
		if err != nil {
			to = ""
		}
		t.last.Store(to)
		if !w.swapped() || read == readsMost {
			return w.files, err
		}
	}
}

// String is the path.
func (t *Tree) String() string { return t.Path }

// swapped returns the target of Root, or "" if it is no link.
func (t *Tree) swapped() string {
	if info, err := os.Lstat(t.Root); err != nil || info.Mode()&os.ModeSymlink == 0 {
		return ""
	}
	return resolveLinks(t.Root)
}

// changed reports whether the tree may have changed since the last read. If Root is a link, only its swap counts. Any
// look at other trees reads them: only their bytes tell.
func (t *Tree) changed() bool {
	to := t.swapped()
	return to == "" || to != t.last.Load()
}

// holds reports whether a file belongs to the tree, or would: the copy of the last good rules must not be read as
// rules. The walk follows links, so a path outside can be in the tree.
func (t *Tree) holds(path string) bool {
	is, missing := os.Stat(path)
	if file, err := os.Stat(t.Path); missing == nil && err == nil && os.SameFile(is, file) {
		return true
	}
	at, w := absolute(filepath.Dir(path)), t.walk()
	w.dirsOnly = true
	_ = w.dir(t.Path) // what cannot be read now is reported by the first load
	return slices.ContainsFunc(append(w.dirs, t.Path), func(dir string) bool {
		return strings.HasPrefix(at+string(filepath.Separator), absolute(dir)+string(filepath.Separator))
	})
}

// absolute resolves links where it can.
func absolute(path string) string {
	whole, err := filepath.Abs(cmp.Or(resolveLinks(path), path))
	if err != nil {
		return path
	}
	return whole
}

// resolveLinks is the path without links; "" if there is no such file.
func resolveLinks(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}

func (t *Tree) walk() treeWalk {
	return treeWalk{tree: t, caps: t.Caps.OrDefault(), seen: map[string]bool{}, links: map[string]string{}}
}

// treeWalk reads a tree. It stops at the first error or bound: then nothing is loaded, because a part of the rules is
// none.
type treeWalk struct {
	tree *Tree
	caps Caps
	top  string          // the real path of the directory
	seen map[string]bool // real paths of directories
	// links lead to sets of files, which are swapped as a whole. It has their targets at the time of the walk.
	links map[string]string
	count int // names looked at, of directories and files
	bytes int // of files
	files []Text
	dirs  []string
	// dirsOnly leaves files unread.
	dirsOnly bool
}

// all reads the tree: a file, or a directory and all below it.
func (w *treeWalk) all() error {
	path := w.tree.Path
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return fmt.Errorf("config path: %w", err)
	case info.IsDir():
		// Links are resolved once: after a swap of Root during the walk, it reads on where it began.
		w.top, err = filepath.EvalSymlinks(path)
		if err != nil {
			return fmt.Errorf("config directory: %w", err)
		}
		w.links[path] = w.top
		return w.dir(w.top)
	}
	data, err := w.read(path)
	w.files = []Text{{Name: filepath.Base(path), Data: data}}
	return err
}

// swapped reports whether a link has another target by now.
func (w *treeWalk) swapped() bool {
	for link, to := range w.links {
		if resolveLinks(link) != to {
			return true
		}
	}
	return false
}

// dir reads a directory and all below it, each real one once: links can form cycles. Kubernetes mounts a ConfigMap as
// links into ..data, which itself is a link to a directory that is swapped; its names begin with "..".
func (w *treeWalk) dir(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("config directory: %w", err)
	}
	if w.seen[real] {
		return nil
	}
	w.seen[real] = true
	w.dirs = append(w.dirs, path)
	data := filepath.Join(real, "..data")
	w.links[data] = resolveLinks(data)
	names, err := w.names(path)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasPrefix(name, "..") || w.tree.IgnoreDotFiles && strings.HasPrefix(name, ".") {
			continue
		}
		if err := w.entry(filepath.Join(path, name)); err != nil {
			return err
		}
	}
	return nil
}

// entry reads a file, or a directory. Pipes, sockets and devices are left out: to read one could block for ever.
func (w *treeWalk) entry(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil // a removed file, or a broken link
	case err != nil:
		return fmt.Errorf("config file: %w", err)
	case info.IsDir():
		return w.dir(path)
	case !info.Mode().IsRegular(), w.dirsOnly:
		return nil
	}
	data, err := w.read(path)
	if err != nil {
		return err
	}
	name, _ := filepath.Rel(w.top, path) // which it begins with
	w.files = append(w.files, Text{Name: name, Data: data})
	return nil
}

// names are the entries of a directory, in order. Directories count like files, which bounds both their number and
// their nesting. It reads one name beyond the bound at most: a directory can have millions.
func (w *treeWalk) names(path string) ([]string, error) {
	dir, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config directory: %w", err)
	}
	defer func() { _ = dir.Close() }() // only read
	most := 2 * w.caps.Files           // as many directories as files
	names, err := dir.Readdirnames(most - w.count + 1)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("config directory: %w", err)
	}
	w.count += len(names)
	if w.count > most {
		return nil, fmt.Errorf("config directory %s: with it there are more than %d names of files and directories: "+
			"remove other files, or move the rules", cut(path, maxName), most)
	}
	slices.Sort(names)
	return names, nil
}

// read reads a file, up to the bounds, also if it grows meanwhile. Bytes count as they are read, because the size that
// a directory shows may be another by then.
func (w *treeWalk) read(path string) ([]byte, error) {
	b := w.caps
	if len(w.files) == b.Files {
		return nil, fmt.Errorf("config file %s: the maximum is %d files: join some", cut(path, maxName), b.Files)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	data, err := io.ReadAll(io.LimitReader(f, int64(b.FileBytes)+1))
	if err != nil {
		return nil, fmt.Errorf("config file: %w", err)
	}
	if len(data) > b.FileBytes {
		return nil, fmt.Errorf("config file %s: it exceeds %d bytes: split it into several files",
			cut(path, maxName), b.FileBytes)
	}
	w.bytes += len(data)
	if w.bytes > b.TotalBytes {
		return nil, fmt.Errorf("config file %s: with it all files have %d bytes, and the maximum is %d: use fewer "+
			"rules, or raise MAX_MEMORY", cut(path, maxName), w.bytes, b.TotalBytes)
	}
	return data, nil
}
