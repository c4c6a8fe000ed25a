package config

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Watch implements [Source]. It looks at the files after events of the file system, and now and then, because some file
// systems lose events, and some machines have none left to give. Loads keep a [Pace] of at least Interval: faster
// changes share a load.
//
// The timer settle is due when a burst of events has ended, or when the pace allows the next load. An event during a
// load waits at the watcher, so that no change is missed.
func (t *Tree) Watch(ctx context.Context, to *Store) error {
	log, events := cmp.Or(t.Log, slog.New(slog.DiscardHandler)), t.events
	if events == nil {
		events = fsnotify.NewWatcher
	}
	w, err := events()
	if err != nil { // as at fs.inotify.max_user_instances, which all containers of a machine share
		log.Warn("no events of the file system: changes load late", "within", pollInterval, "error", err)
		// Its channels are nil, and never ready: only the ticker looks.
		w = &fsnotify.Watcher{}
	} else {
		defer w.Close()
	}
	look := time.NewTicker(pollInterval)
	defer look.Stop()
	settle := time.NewTimer(0)
	defer settle.Stop()
	pace := Pace{Interval: t.Interval}
	var changes eventBurst
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-w.Events:
			if !ok {
				return nil
			}
			wait, another := changes.event(time.Now())
			if another {
				to.Coalesced()
			}
			settle.Reset(wait)
			continue
		// Mostly there were too many events, and some are lost. This look finds the changes.
		case err := <-w.Errors:
			log.Debug("watching the config", "error", err)
		case <-look.C:
		case <-settle.C:
		}
		begun := time.Now()
		if wait := pace.Wait(begun); wait > 0 {
			settle.Reset(wait)
			continue
		}
		changes = eventBurst{}
		if err == nil {
			t.addAll(w) // before files are read: new files are read, or cause an event
		}
		if t.changed() {
			_ = to.Load() // the store logs and counts its error
		}
		pace.Done(begun, time.Now())
	}
}

// pollInterval is how long a change may wait on a file system without events, such as NFS. A look loads the rules only
// if their texts are others.
const pollInterval = 5 * time.Second

// addAll watches every directory of the tree, and those of links to it, and no others. A directory that cannot be
// watched is still looked at now and then. It is called before each load: directories come and go, and a watch is of
// the directory that had the name when it was added.
func (t *Tree) addAll(w *fsnotify.Watcher) {
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
	for i, p := range paths {
		paths[i] = resolveLinks(p)
		if paths[i] != "" {
			_ = w.Add(paths[i]) // again, because it may be another directory of this name
		}
	}
	slices.Sort(paths)
	for _, p := range w.WatchList() {
		if _, used := slices.BinarySearch(paths, p); !used {
			_ = w.Remove(p)
		}
	}
}
