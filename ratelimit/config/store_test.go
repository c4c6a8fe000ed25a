package config

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Rules are replaced as a whole or not at all, and a node starts with the copy of what was good last, as
// testdata/store.txt has it. "is" says what the files are from now on, with | between two, where a number is a good
// file with that limit, and <X>*N is N times X.
func TestRulesAreReplacedAsAWhole(t *testing.T) {
	many := regexp.MustCompile(`(?s)<(.*?)>\*(\d+)`)
	unpack := func(text string) string {
		if _, err := strconv.Atoi(text); err == nil {
			return strings.Replace(goodFile, "7", text, 1)
		}
		text, err := strconv.Unquote(`"` + strings.ReplaceAll(text, `"`, `\"`) + `"`)
		if err != nil {
			t.Fatal(err)
		}
		return many.ReplaceAllStringFunc(text, func(x string) string {
			parts := many.FindStringSubmatch(x)
			n, _ := strconv.Atoi(parts[2])
			return strings.Repeat(parts[1], n)
		})
	}
	datadriven.RunTest(t, "testdata/store.txt", func(t *testing.T, in *datadriven.TestData) string {
		source, path := &changing{}, filepath.Join(t.TempDir(), "copy")
		var out strings.Builder
		var log bytes.Buffer
		var s *Store
		start := func() {
			o := options()
			in.MaybeScanArgs(t, "all", &o.Caps.TotalBytes)
			s = NewStore(source, o, slog.New(slog.NewTextHandler(&log, nil)))
			if err := s.KeepLastGood(path); err != nil {
				t.Fatal(err)
			}
		}
		start()
		var last Status
		says := func(err error) {
			is, limit := s.Status(), ratelimit.Tokens(0)
			for _, r := range s.Rules().All() {
				limit = r.Limit.Requests
			}
			loaded, failed := s.Loads()
			said := strings.NewReplacer(path, "COPY", "\n", " / ").Replace(fmt.Sprint(err))
			fmt.Fprintf(&out, "limit %d; good %t, of the copy %t; %d loads, %d failed; %.150s\n", limit, is.Good,
				is.FromCopy, loaded, failed, said)
			right := is.Fingerprint == s.Rules().Fingerprint() && is.Good == (is.Error == "")
			if !right || is.Good != is.Failed.IsZero() {
				t.Errorf("it says %+v", is)
			}
			if is.Fingerprint == last.Fingerprint && is.Loaded != last.Loaded {
				t.Errorf("the same rules are said to be in force since %v, and before since %v", is.Loaded, last.Loaded)
			}
			last = is
			if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o55 != 0 {
				t.Errorf("the copy has the permissions %v", info.Mode())
			}
			if _, err := os.Stat(path + newCopy); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("a file is left over: %v", err)
			}
		}
		for line := range strings.SplitSeq(in.Input, "\n") {
			cmd, text, _ := strings.Cut(line, " ")
			switch cmd {
			case "is":
				source.Static, source.err = nil, nil
				for i, part := range strings.Split(text, " | ") {
					f := Text{Name: fmt.Sprintf("f%d", i), Data: []byte(unpack(part))}
					source.Static = append(source.Static, f)
				}
				says(s.Load())
			case "none": // an empty directory
				source.Static, source.err = nil, nil
				says(s.Load())
			case "again":
				says(s.Load())
			case "gone":
				source.err = os.ErrNotExist
				says(s.Load())
			case "refuse":
				s.Refuse(errors.New(text))
				says(nil)
			case "copy": // its permissions, and its content
				mode, text, _ := strings.Cut(text, " ")
				bits, _ := strconv.ParseUint(mode, 8, 32)
				err := os.WriteFile(path, []byte(unpack(text)), 0o600)
				if err := errors.Join(err, os.Chmod(path, os.FileMode(bits))); err != nil {
					t.Fatal(err)
				}
			case "fallback":
				says(s.LoadLastGood(errors.New(text)))
			case "restart":
				start()
				last = Status{}
				says(s.LoadLastGood(s.Load()))
			case "log":
				for line := range strings.Lines(log.String()) {
					if _, of, ok := strings.Cut(line, "event=rule_changed "); ok {
						out.WriteString(of)
					}
				}
			}
		}
		return out.String()
	})
}

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
	if err := newStore(&Tree{Path: linked}).KeepLastGood(filepath.Join(linked, "copy")); err == nil {
		t.Error("a copy among the rules")
	}
	s = newStore(Static{{Name: "f", Data: []byte(goodFile)}})
	for _, no := range []string{os.DevNull, t.TempDir()} {
		if err := s.KeepLastGood(no); err == nil || !strings.Contains(err.Error(), "no regular file") {
			t.Errorf("a copy would replace %s: %v", no, err)
		}
	}
	err = errors.Join(s.KeepLastGood(filepath.Join(dir, "no", "such", "copy")), s.Load())
	if err != nil || s.Reloads().CopyErrors != 1 {
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

// A tree's files are read once each, whatever links there are, and no further than the bounds allow.
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
	write("long", "123")
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
	if d := cmp.Diff([]string{".hidden", "a.yaml", "long", "sub/deep/b"}, names(&Tree{Path: dir})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"a.yaml", "long", "sub/deep/b"}, names(&Tree{Path: dir, IgnoreDotFiles: true})); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{".hidden"}, names(&Tree{Path: filepath.Join(dir, ".hidden")})); d != "" {
		t.Error(d)
	}
	for _, x := range []struct {
		tree Tree
		want string
	}{
		{Tree{Path: filepath.Join(dir, "sub"), Caps: Caps{Files: 1}}, "more than 2 names of files and directories"},
		{Tree{Path: filepath.Join(dir, "long"), Caps: Caps{FileBytes: 2}}, "split it into several files"},
	} {
		if _, err := x.tree.Read(); err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("a tree with %+v is read: %v", x.tree.Caps, err)
		}
	}
	swapped := &Tree{Path: filepath.Join(dir, "..data", "no"), Root: filepath.Join(dir, "..data")}
	if _, err := swapped.Read(); err == nil || !swapped.changed() {
		t.Errorf("a path that is not there yet: %v, and another look at it: %t", err, swapped.changed())
	}
}

// A set of files is read as a whole, also while its root is swapped for another.
func TestTreeIsReadAsAWhole(t *testing.T) {
	dir := t.TempDir()
	for _, release := range []string{"1", "2"} {
		for i := range 20 {
			writeFile(t, filepath.Join(dir, release, fmt.Sprint(i)), release)
		}
	}
	root := filepath.Join(dir, "current")
	swap := func(release string) {
		if err := errors.Join(os.Symlink(release, root+"2"), os.Rename(root+"2", root)); err != nil {
			t.Error(err)
		}
	}
	swap("1")
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for range 500 {
			swap("2")
			swap("1")
		}
	})
	defer swaps.Wait()
	for range 200 {
		texts, err := (&Tree{Path: root, Root: root}).Read()
		for _, text := range texts {
			if string(text.Data) != string(texts[0].Data) || len(texts) != 20 {
				err = fmt.Errorf("of %d files, %s is of another release", len(texts), text.Name)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// So is a ConfigMap, whose set of before is removed. It is swapped once in each read here.
func TestConfigMapIsReadAsAWhole(t *testing.T) {
	dir := t.TempDir()
	data := filepath.Join(dir, "..data")
	swap := func(n int, begun <-chan struct{}) error {
		set := fmt.Sprint("..", n)
		errs := []error{os.Mkdir(filepath.Join(dir, set), 0o700), os.Symlink(set, data+"2")}
		for i := range 20 {
			errs = append(errs, os.WriteFile(filepath.Join(dir, set, fmt.Sprint(i)), []byte(set), 0o600))
		}
		<-begun
		old := filepath.Join(dir, fmt.Sprint("..", n-1))
		return errors.Join(append(errs, os.Rename(data+"2", data), os.RemoveAll(old))...)
	}
	begun := make(chan struct{}, 1)
	begun <- struct{}{}
	errs := []error{swap(0, begun)}
	for i := range 20 {
		errs = append(errs, os.Symlink(fmt.Sprint("..data/", i), filepath.Join(dir, fmt.Sprint(i))))
	}
	const reads = 200
	var swaps sync.WaitGroup
	swaps.Go(func() {
		for n := range reads {
			errs = append(errs, swap(n+1, begun))
		}
	})
	for range reads {
		begun <- struct{}{}
		texts, err := (&Tree{Path: dir}).Read()
		if err != nil || len(texts) != 20 || string(texts[0].Data) != string(texts[19].Data) {
			t.Errorf("%d files, of several sets: %v", len(texts), err)
		}
	}
	swaps.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
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

const goodFile = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: day, requests_per_unit: 7}\n"

func options() Options { return Options{Coordination: ratelimit.DefaultCoordination()} }

func parseText(texts ...string) (*Rules, Problems) {
	var files []Text
	for i, text := range texts {
		files = append(files, Text{Name: fmt.Sprintf("f%d.yaml", i+1), Data: []byte(text)})
	}
	rules, _, problems := Parse(files, options())
	return rules, problems
}

func mustParse(t testing.TB, texts ...string) *Rules {
	t.Helper()
	rules, problems := parseText(texts...)
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err := errors.Join(err, os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func newStore(source Source) *Store {
	return NewStore(source, options(), slog.New(slog.DiscardHandler))
}

// changing is a source whose texts tests replace.
type changing struct {
	Static
	err error
}

func (c *changing) Read() ([]Text, error) { return []Text(c.Static), c.err }
