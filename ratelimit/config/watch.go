package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch implements [Source]. Events of the file system say when to look; a look
// now and then makes up for those that a file system does not send. Loads keep a
// [Pace] with at least Interval between them: changes that come faster share one.
func (t *Tree) Watch(ctx context.Context, to Loader) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", t.Path, err)
	}
	defer w.Close()
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	watched := map[string]bool{}
	pace := Pace{Interval: t.Interval}
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
				to.Coalesced()
			}
			settle.Reset(wait)
			continue
		case err := <-w.Errors: // mostly events that were too many: a look makes up for them
			t.log().Debug("watching the config", "error", err)
		case <-look.C:
		case <-settle.C:
		}
		begun := time.Now()
		if wait := pace.Wait(begun); wait > 0 {
			settle.Reset(wait)
			continue
		}
		events = burst{}
		t.addAll(w, watched) // before files are read: what is new is read, or an event
		if t.changed() {
			_ = to.Load() // the loader logs and counts its error
		}
		pace.Done(begun, time.Now())
	}
}

const pollInterval = 5 * time.Second

// addAll watches every directory of the tree, and those that hold the links to
// it. A directory that cannot be watched is still looked at now and then.
func (t *Tree) addAll(w *fsnotify.Watcher, watched map[string]bool) {
	paths := []string{filepath.Dir(t.Path)}
	if t.Root != "" {
		paths = append(paths, filepath.Dir(t.Root))
	}
	if info, err := os.Stat(t.Path); err == nil && info.IsDir() {
		walk := t.walk()
		walk.dirsOnly = true
		_ = walk.dir(t.Path)
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
