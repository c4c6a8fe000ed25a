package config

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A poisoned file costs its own reload, and that of the other files: rules are replaced as a whole
// or not at all. After its correction, all changes count.
func TestPoisonedFileCostsItsReload(t *testing.T) {
	source := &changing{}
	source.set(goodFile)
	s := newStore(source)
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	before := s.Rules()
	for i, poison := range []string{
		strings.Repeat("[", 45<<10), strings.Repeat("? ", 500<<10),
		strings.Repeat("-\n", 1<<20), "domain: \xff",
	} {
		source.set(strings.Replace(goodFile, "7", "8", 1), poison)
		if err := s.Load(); err == nil {
			t.Fatalf("poison %d was loaded", i)
		}
		if _, failed := s.Loads(); s.Rules() != before || failed != uint64(i+1) {
			t.Errorf("poison %d: rules replaced: %t, %d failed loads", i, s.Rules() != before, failed)
		}
	}
	source.set(strings.Replace(goodFile, "7", "8", 1))
	if err := s.Load(); err != nil || s.Rules().All()[0].Limit.Requests != 8 {
		t.Errorf("after it was mended: %v", err)
	}
}

// The copy on disk is what was good last, private, and good enough to start with.
func TestLastGood(t *testing.T) {
	path := filepath.Join(t.TempDir(), "last-good")
	source := &changing{}
	source.set(goodFile)
	s := newStore(source)
	if err := errors.Join(s.KeepLastGood(path), s.Load()); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v %v", info, err)
	}
	source.set("[")
	if err := s.Load(); err == nil {
		t.Fatal("nonsense was loaded")
	}
	if _, err := os.Stat(path + ".new"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file is left over: %v", err)
	}
	source.err = os.ErrNotExist
	again := newStore(source)
	if err := errors.Join(again.KeepLastGood(path), again.LoadLastGood(again.Load())); err != nil {
		t.Fatal(err)
	}
	in := func() ratelimit.Tokens { return again.Rules().All()[0].Limit.Requests }
	if loaded, _ := again.Loads(); loaded != 0 || in() != 7 || !again.Status().FromCopy {
		t.Errorf("from the copy: %d, %d loads, %+v", in(), loaded, again.Reloads())
	}
	source.err = nil
	source.set(strings.Replace(goodFile, "7", "9", 1))
	if err := again.Load(); err != nil || in() != 9 || again.Status().FromCopy {
		t.Errorf("the source's return: %v", err)
	}
	if err := again.LoadLastGood(errTest); !errors.Is(err, errTest) || in() != 9 {
		t.Errorf("the copy replaced rules: %v", err)
	}
}

var errTest = errors.New("a reason")

// The copy replaces no file of rules, also if there is only one, and the copy is named like it.
func TestCopyReplacesNoRules(t *testing.T) {
	dir := t.TempDir()
	rules, link, fresh := filepath.Join(dir, "rules.yaml"), filepath.Join(dir, "link.yaml"), filepath.Join(dir, "c.new")
	err := errors.Join(os.WriteFile(rules, []byte(goodFile), 0o600), os.Symlink(rules, link), os.Link(rules, fresh))
	if err != nil {
		t.Fatal(err)
	}
	for _, of := range [][2]string{{rules, rules}, {link, link}, {rules, link}, {fresh, filepath.Join(dir, "c")}} {
		s := newStore(&Tree{Path: of[0]})
		if err := s.KeepLastGood(of[1]); err == nil || !strings.Contains(err.Error(), "put it elsewhere") {
			t.Errorf("the copy of %s at %s: %v", of[0], of[1], err)
		}
	}
	linked, of := t.TempDir(), filepath.Join(t.TempDir(), "of")
	if err := errors.Join(os.Symlink(linked, filepath.Join(dir, "more")), os.Symlink(dir, of)); err != nil {
		t.Fatal(err)
	}
	if err := newStore(&Tree{Path: of}).KeepLastGood(filepath.Join(linked, "copy")); err == nil {
		t.Error("the copy is in a directory that is a link among the rules")
	}
	s := newStore(&Tree{Path: rules})
	if err := errors.Join(s.KeepLastGood(filepath.Join(dir, "copy")), s.Load()); err != nil {
		t.Errorf("a copy in the directory of a single file: %v", err)
	}
}

// A copy that is damaged, too large, of another version, writable by others, or
// of bad rules is refused with both reasons, and starts nothing.
func TestBadCopies(t *testing.T) {
	for name, c := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"cut off":   {`{"sluice_last_good":1,"files":[{"na`, 0o600, "is not a copy of rules"},
		"other":     {`{"sluice_last_good":2}`, 0o600, "has sluice_last_good 2, and this version reads 1: remove it"},
		"writable":  {`{"sluice_last_good":1}`, 0o622, "other users can write it"},
		"bad rules": {`{"sluice_last_good":1,"files":[{"name":"f","data":"Ww=="}]}`, 0o600, "are bad, too"},
		"too large": {strings.Repeat(" ", 2<<20), 0o600, "it is not a copy of rules within the caps on rules"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "copy")
			if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
				t.Fatal(err)
			}
			o := options()
			o.Caps.TotalBytes = 1000
			s := NewStore(Static{{Name: "f", Data: []byte("[")}}, o, slog.New(slog.DiscardHandler))
			if err := s.KeepLastGood(path); err != nil {
				t.Fatal(err)
			}
			err := s.LoadLastGood(errTest)
			if !errors.Is(err, errTest) || !strings.Contains(err.Error(), c.want) || s.Rules() != nil {
				t.Errorf("%v", err)
			}
		})
	}
	dir := t.TempDir()
	if err := newStore(&Tree{Path: dir}).KeepLastGood(filepath.Join(dir, "copy")); err == nil {
		t.Error("a copy among the rules")
	}
	s := newStore(Static{{Name: "f", Data: []byte(goodFile)}})
	if err := errors.Join(s.KeepLastGood(filepath.Join(dir, "no", "such", "copy")), s.Load()); err != nil ||
		s.Reloads().CopyErrors != 1 {
		t.Errorf("a copy that cannot be written: %v, %+v", err, s.Reloads())
	}
}

// Changes without a pause do not put a load off for ever, and cost at most a tenth of the time.
func TestPace(t *testing.T) {
	start := time.Unix(1_800_000_000, 0)
	var b eventBurst
	loads, now := 0, start
	pace := Pace{Interval: 200 * time.Millisecond}
	var due time.Time
	const took = 100 * time.Millisecond
	for ; now.Before(start.Add(time.Minute)); now = now.Add(time.Millisecond) {
		wait, _ := b.event(now) // one each millisecond
		if due = now.Add(wait); due.After(now) {
			continue
		}
		if pace.Wait(now) > 0 {
			continue
		}
		b = eventBurst{}
		loads++
		pace.Done(now, now.Add(took))
		now = now.Add(took)
	}
	if loads < 40 || loads > 60 { // of a second each: 100 ms, and at least 900 ms of rest
		t.Errorf("%d loads a minute", loads)
	}
	if p := (Pace{}); p.Wait(start) != 0 {
		t.Error("the first has to wait")
	}
	p := Pace{Interval: time.Second}
	p.Done(start, start.Add(time.Hour))
	if got := p.Wait(start.Add(time.Hour)); got != maxPause {
		t.Errorf("after an hour of loading: %v", got)
	}
	p.Done(start, start)
	if got := p.Wait(start); got != time.Second {
		t.Errorf("after nothing: %v", got)
	}
}

// A storm of changes in the directory is answered by a few loads, and the last change is among them.
func TestWatchCoalesces(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	write := func(limit int) {
		t.Helper()
		text := strings.Replace(goodFile, "7", fmt.Sprint(limit), 1)
		if err := errors.Join(os.WriteFile(file+"..new", []byte(text), 0o600),
			os.Rename(file+"..new", file)); err != nil {
			t.Fatal(err)
		}
	}
	write(1)
	s := newStore(&Tree{Path: dir, Interval: 100 * time.Millisecond})
	if err := s.Load(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(ctx) }()
	const last = 2000
	begun := time.Now()
	for n := 2; n <= last; n++ {
		write(n)
	}
	for s.Rules().All()[0].Limit.Requests != last {
		// a busy machine may make a load slow, and a slow load is followed by a pause
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("the last change is not in force: %v", s.Rules().All()[0].Limit)
		}
		time.Sleep(time.Millisecond)
	}
	loaded, _ := s.Loads()
	if most := uint64(time.Since(begun)/(100*time.Millisecond)) + 2; loaded > most || s.Reloads().Coalesced == 0 {
		t.Errorf("%d loads in %v, %+v", loaded, time.Since(begun), s.Reloads())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A machine without free inotify instances: all containers of a machine share them.
func TestRulesReloadWithoutEvents(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "a.yaml")
	writeFile(t, file, goodFile)
	synctest.Test(t, func(t *testing.T) {
		s := newStore(&Tree{Path: dir, events: func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }})
		if err := s.Load(); err != nil {
			t.Fatal(err)
		}
		go func() { _ = s.Watch(t.Context()) }()
		writeFile(t, file, strings.Replace(goodFile, "7", "77", 1))
		time.Sleep(pollInterval)
		synctest.Wait()
		if got := s.Rules().All()[0].Limit.Requests; got != 77 {
			t.Errorf("the limit is %d after %v, must be 77", got, pollInterval)
		}
	})
}

func TestTree(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) { writeFile(t, filepath.Join(dir, name), text) }
	// What a Kubernetes ConfigMap looks like.
	write("..2026_11_20/a.yaml", "a")
	for link, to := range map[string]string{
		"..data": "..2026_11_20", "a.yaml": "..data/a.yaml", "sub/loop": "..",
		"gone": "nowhere",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, link)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	write("sub/deep/b", "b")
	write(".hidden", "h")
	names := func(tree *Tree) (names []string) {
		texts, err := tree.Read()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range texts {
			names = append(names, f.Name)
		}
		slices.Sort(names)
		return names
	}
	if d := cmp.Diff([]string{".hidden", "a.yaml", "sub/deep/b"}, names(&Tree{Path: dir})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a.yaml", "sub/deep/b"}, names(&Tree{Path: dir, IgnoreDotFiles: true})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{".hidden"}, names(&Tree{Path: filepath.Join(dir, ".hidden")})); d != "" {
		t.Error(d)
	}
	swapped := &Tree{Path: filepath.Join(dir, "..data", "no"), Root: filepath.Join(dir, "..data")}
	if _, err := swapped.Read(); err == nil || !swapped.changed() {
		t.Errorf("a path that is not there yet: %v, and another look at it: %t", err, swapped.changed())
	}
}

// A tree is not read further than the bounds allow.
func TestTreeIsBounded(t *testing.T) {
	dir := t.TempDir()
	for file, text := range map[string]string{"a": "123", "b/c": "456", "b/d/e/f": ""} {
		writeFile(t, filepath.Join(dir, file), text)
	}
	for _, c := range []struct {
		path string
		caps Caps
		want string // "": all is read
	}{
		{"", Caps{FileBytes: 2}, "it exceeds 2 bytes: split it into several files"},
		{"a", Caps{FileBytes: 2}, "split it into several files"},
		{"", Caps{TotalBytes: 5}, "with it all files have 6 bytes, and the maximum is 5: use fewer rules, or raise"},
		{"b", Caps{Files: 1}, "more than 2 names of files and directories"},
		{"", Caps{Files: 3, FileBytes: 3, TotalBytes: 6}, ""},
	} {
		texts, err := (&Tree{Path: filepath.Join(dir, c.path), Caps: c.caps}).Read()
		switch {
		case c.want == "" && (err != nil || len(texts) != 3):
			t.Errorf("%v, %v", texts, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%+v: %v, want %q", c.caps, err, c.want)
		}
	}
	many := t.TempDir()
	for _, name := range []string{"a", "b", "c"} {
		writeFile(t, filepath.Join(many, name), "")
	}
	if _, err := (&Tree{Path: many, Caps: Caps{Files: 2}}).Read(); err == nil ||
		!strings.Contains(err.Error(), "the maximum is 2 files: join some") {
		t.Errorf("of three files: %v", err)
	}
}

// A swap of the root leaves no directory of before watched: a process may watch only so many.
func TestOnlyRulesInUseAreWatched(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	w, err := fsnotify.NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	root := filepath.Join(dir, "current")
	for _, release := range []string{"1", "2"} {
		err := errors.Join(os.Mkdir(filepath.Join(dir, release), 0o700), os.RemoveAll(root), os.Symlink(release, root))
		if err != nil {
			t.Fatal(err)
		}
		(&Tree{Path: root, Root: root}).addAll(w)
	}
	got := slices.Sorted(slices.Values(w.WatchList()))
	if diff := cmp.Diff([]string{dir, filepath.Join(dir, "2")}, got); diff != "" {
		t.Errorf("watched are -want +got\n%s", diff)
	}
}
