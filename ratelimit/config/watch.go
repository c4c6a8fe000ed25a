package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch loads the store again whenever the files of its source, which is tree,
// may have changed, until ctx is done. Events say when to look; a look now and
// then makes up for those that a file system does not send. Loads keep a [Pace]
// with at least interval between them: changes that come faster share one.
func (s *Store) Watch(ctx context.Context, tree Tree, interval time.Duration) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", tree.Path, err)
	}
	defer w.Close()
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	watched := map[string]bool{}
	pace := Pace{Interval: interval}
	var events burst
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			wait, another := events.event(time.Now())
			if another {
				s.Coalesced()
			}
			settle.Reset(wait)
			continue
		case err := <-w.Errors: // an overflow, mostly: look now
			s.log.Debug("watching the config", "error", err)
		case <-look.C:
		case <-settle.C:
		}
		begun := time.Now()
		if wait := pace.Wait(begun); wait > 0 {
			settle.Reset(wait)
			continue
		}
		events = burst{}
		addAll(w, watched, tree) // before files are read: what is new is read, or an event
		_ = s.reload(tree)       // logged and counted there
		pace.Done(begun, time.Now())
	}
}

const pollInterval = 5 * time.Second

// addAll watches every directory of the tree, and those that hold the links to
// it. A directory that cannot be watched is still looked at now and then.
func addAll(w *fsnotify.Watcher, watched map[string]bool, tree Tree) {
	paths := []string{filepath.Dir(tree.Path)}
	if tree.Root != "" {
		paths = append(paths, filepath.Dir(tree.Root))
	}
	if info, err := os.Stat(tree.Path); err == nil && info.IsDir() {
		walk := tree.walk()
		walk.dirsOnly = true
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
