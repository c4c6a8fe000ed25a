package upkeep

import (
	"os"
	"slices"
	"sync"
	"time"
)

// FileValue is what some files say. While they are bad or missing, the last good value stays. It is safe for concurrent
// use.
type FileValue[T any] struct {
	Files []string
	Read  func(now time.Time) (T, error) // of the files
	// Failed gets the errors after the first reading, one for each look at bad files; nil: they are dropped.
	Failed func(error)
	// Least is for how long the files are not looked at again.
	Least time.Duration

	mu     sync.Mutex
	good   T         // guarded by mu
	seen   []state   // guarded by mu
	looked time.Time // guarded by mu
}

// state is what reports whether a file has changed; the zero state: it is not there.
type state struct {
	size int64
	mod  time.Time
}

// Load reads the files, which must be good now. It comes before the first Get.
func (v *FileValue[T]) Load(now time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.readLocked(now, v.states())
}

// Get is the value. It reads the files again if one has changed.
func (v *FileValue[T]) Get(now time.Time) T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(v.looked) < v.Least {
		return v.good
	}
	v.looked = now
	if states := v.states(); !slices.Equal(states, v.seen) {
		if err := v.readLocked(now, states); err != nil && v.Failed != nil {
			v.Failed(err)
		}
	}
	return v.good
}

func (v *FileValue[T]) readLocked(now time.Time, states []state) error {
	v.looked = now
	fresh, err := v.Read(now)
	if err == nil {
		v.good, v.seen = fresh, states // as of before it: a change meanwhile is read again
	}
	return err
}

func (v *FileValue[T]) states() (all []state) {
	for _, name := range v.Files {
		var s state
		if info, err := os.Stat(name); err == nil {
			s = state{info.Size(), info.ModTime()}
		}
		all = append(all, s)
	}
	return all
}
