package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch loads the store again whenever its files may have changed, until ctx
// is done. root, if it is a link, is all that counts: then only its swap to
// another directory is a change, so that a set of files is never read halfway
// ("" if every change counts). Events say when to look; a look now and then
// makes up for those that a file system does not send.
func (s *Store) Watch(ctx context.Context, tree Tree, root string) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", tree.Path, err)
	}
	defer w.Close()
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	swap := rootSwap{root: root, target: resolve(root)}
	watched := map[string]bool{}
	for {
		addAll(w, watched, tree, root)
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			settle.Reset(settleTime)
			continue
		case err := <-w.Errors: // an overflow, mostly: look now
			s.log.Debug("watching the config", "error", err)
		case <-look.C:
		case <-settle.C:
		}
		if swap.happened() {
			_ = s.Load() // logged and counted there
		}
	}
}

const (
	pollInterval = 5 * time.Second
	settleTime   = 50 * time.Millisecond // events of one change come in a burst
)

// addAll watches every directory of the tree, and those that hold the links to
// it. A directory that cannot be watched is still looked at now and then.
func addAll(w *fsnotify.Watcher, watched map[string]bool, tree Tree, root string) {
	paths := []string{filepath.Dir(tree.Path)}
	if root != "" {
		paths = append(paths, filepath.Dir(root))
	}
	if info, err := os.Stat(tree.Path); err == nil && info.IsDir() {
		walk := walk{tree: tree, seen: map[string]bool{}, dirsOnly: true}
		_ = walk.dir(tree.Path)
		paths = append(paths, walk.dirs...)
	}
	for _, p := range paths {
		real := resolve(p)
		if real != "" && !watched[real] && w.Add(real) == nil {
			watched[real] = true
		}
	}
	for p := range watched {
		if _, err := os.Stat(p); err != nil {
			_ = w.Remove(p)
			delete(watched, p)
		}
	}
}

// rootSwap remembers what a root link pointed to.
type rootSwap struct{ root, target string }

func (r *rootSwap) happened() bool {
	if info, err := os.Lstat(r.root); r.root == "" || err != nil || info.Mode()&os.ModeSymlink == 0 {
		return true
	}
	target := resolve(r.root)
	if target == r.target {
		return false
	}
	r.target = target
	return true
}

func resolve(path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return real
}
