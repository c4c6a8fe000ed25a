package config

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Store holds the rules in force. Rules can be called at any time, from any goroutine, and does not
// block. Its result stays valid.
//
// Guarantee: rules are only ever replaced by rules without a problem.
//
// A load is Load, of a source: read, recognize, compile (outside of any request), and one atomic store of the new
// rules. Requests that have begun go on with the old ones, which nothing changes.
type Store struct {
	source  Source
	options Options
	log     *slog.Logger
	// seed is of the fingerprints of texts. These are compared within one process only.
	seed    maphash.Seed
	current atomic.Pointer[Rules] // in force; nil: none yet
	loaded  atomic.Uint64
	failed  atomic.Uint64
	// Of [Reloads].
	coalesced  atomic.Uint64
	copyErrors atomic.Uint64
	status     statuses

	mu       sync.Mutex // one load at a time
	unread   bool       // guarded by mu; the last read failed
	last     uint64     // guarded by mu; the fingerprint of the last texts; 0: none, or a later read failed
	problem  error      // guarded by mu; their error
	lastGood string     // guarded by mu; file of the last good rules; "": none
}

// maxNames bounds the names that statistics take from requests, of all rules and of all loads.
const maxNames = 10_000

// NewStore makes a store without rules. Load reads them.
func NewStore(source Source, o Options, log *slog.Logger) *Store {
	o.names = ratelimit.NewNameBudget(maxNames)
	return &Store{source: source, options: o, log: log, seed: maphash.MakeSeed()}
}

// Rules returns the rules in force, or nil before the first good ones.
func (s *Store) Rules() *Rules { return s.current.Load() }

// Loads returns the number of loads with new rules, and of failed ones.
func (s *Store) Loads() (loaded, failed uint64) { return s.loaded.Load(), s.failed.Load() }

// Reloads counts changes without a load of their own, and failures of the copy on disk.
type Reloads struct {
	// events and pushes that shared the load of a later one
	Coalesced uint64 `metric:"sluice_config_changes_coalesced_total"`
	// times that the copy could not be written
	CopyErrors uint64 `metric:"sluice_config_copy_errors_total"`
}

// Reloads returns the current counts.
func (s *Store) Reloads() Reloads {
	return Reloads{s.coalesced.Load(), s.copyErrors.Load()}
}

// Coalesced counts a change that shares the load of a later one.
func (s *Store) Coalesced() { s.coalesced.Add(1) }

// Refuse logs and counts rules that were too bad to load.
func (s *Store) Refuse(err error) {
	s.failed.Add(1)
	s.status.refuse(err)
	s.log.Error(cut(err.Error(), maxMessage), "event", "config_load_error")
}

// Load reads the source, and puts its rules in force if they are new and good. The error has all problems. The previous
// rules then stay in force. It blocks while it reads files.
//
// Each look calls it, so that texts which were loaded, or refused, are recognized by their hash and cost no
// compilation. After a failed read the same texts are loaded once more: the status must not stay bad.
func (s *Store) Load() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	texts, err := s.source.Read()
	if errors.Is(err, ErrNothingYet) {
		return err
	}
	if err != nil {
		s.status.refuse(err)
		s.last = 0
		if !s.unread { // once, not at every look
			s.unread = true
			s.failed.Add(1)
			s.log.Error("config not loaded, rules unchanged", "event", "config_load_error", "error", err)
		}
		return err
	}
	s.unread = false
	print := fingerprint(s.seed, texts) | 1 // 0 stands for none
	if s.last == print {
		// A refused push (Refuse) made the status bad in between, and changed no texts.
		if s.problem == nil {
			s.status.good()
		}
		return s.problem
	}
	s.last = print
	s.problem = nil
	rules, warnings, problems := s.compileLocked(texts)
	for _, w := range warnings {
		s.log.Warn(w.Message, "at", w.Place.String())
	}
	if len(problems) > 0 {
		s.failed.Add(1)
		for _, p := range problems {
			s.log.Error(p.Message, "event", "config_load_error", "at", p.Place.String())
		}
		s.problem = problems
		s.status.refuse(problems)
		return problems
	}
	if len(texts) == 0 {
		s.log.Warn("the config has no files: every request is OK", "source", s.source.String())
	}
	before := s.Rules()
	// In force first: all below is for people, and for the next start.
	s.useLocked(rules)
	s.status.put(rules, s.source.String(), false)
	s.status.good()
	s.loaded.Add(1)
	s.log.Info("config loaded", "event", "config_load_success", "fingerprint", rules.Fingerprint(),
		"source", s.source.String(), "files", len(texts), "domains", rules.Domains(), "rules", len(rules.All()))
	if before != nil {
		logChanges(s.log, Changes(before, rules))
	}
	s.keepLocked(texts)
	return nil
}

// Watch lets the source load the store again whenever its rules may have changed. It blocks until
// ctx is done. An error means that changes are no longer noticed.
func (s *Store) Watch(ctx context.Context) error { return s.source.Watch(ctx, s) }

// collectAbove is the size of files from which their garbage is collected at once. Otherwise that of a large load adds
// to that of the next. Smaller files leave less garbage than a busy node makes in a second.
const collectAbove = 128 << 10

// fingerprint changes with a text's name or bytes. Lengths are written before them, so that a byte cannot move from one
// text to the next unnoticed.
func fingerprint(seed maphash.Seed, texts []Text) uint64 {
	var h maphash.Hash
	h.SetSeed(seed)
	for _, t := range texts {
		fmt.Fprintf(&h, "%d %d %s", len(t.Name), len(t.Data), t.Name)
		_, _ = h.Write(t.Data)
	}
	return h.Sum64()
}

// compileLocked parses texts. Rules keep the counters of those in force.
func (s *Store) compileLocked(texts []Text) (rules *Rules, warnings, problems Problems) {
	o := s.options
	o.counters = s.Rules().orNone().counters
	rules, warnings, problems = Parse(texts, o)
	size := 0
	for _, t := range texts {
		size += len(t.Data)
	}
	if size > collectAbove {
		runtime.GC()
	}
	return rules, warnings, problems
}

// useLocked puts rules in force. Names that statistics have taken from requests are given back to the budget where the
// new rules do not continue the counters.
func (s *Store) useLocked(rules *Rules) {
	for name, old := range s.Rules().orNone().counters {
		for _, c := range old[min(len(old), len(rules.counters[name])):] {
			s.options.names.Restore(c)
		}
	}
	s.current.Store(rules)
	if s.options.InForce != nil {
		s.options.InForce(rules)
	}
}

// Status returns the rules in force, and whether newer ones are bad.
func (s *Store) Status() Status {
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	return s.status.now
}

// KeepLastGood makes each successful load write its texts to a copy at path, for LoadLastGood after a restart. Call it
// before the first load. The file must be outside of the rules directory, or it is read as rules. The copy has the
// texts, not the compiled rules: a later version may read them.
func (s *Store) KeepLastGood(path string) error {
	if tree, ok := s.source.(*Tree); ok && (tree.holds(path) || tree.holds(path+newCopy)) {
		return fmt.Errorf("%s is in %s, from which rules are read: put it elsewhere", path, tree.Path)
	}
	// The copy takes the place of what has its name, also of /dev/null, which all processes of a machine use.
	if info, err := os.Lstat(path); err == nil && info.Mode().Type()&^fs.ModeSymlink != 0 {
		return fmt.Errorf("%s is no regular file, and the copy would replace it: name a file, or leave it out", path)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lastGood = path
	return nil
}

// keepLocked writes the copy. Errors are logged and counted, and cost no rules. Without any text it stays: a directory
// is mostly empty because its volume is away, and then the copy is what a restart needs.
func (s *Store) keepLocked(texts []Text) {
	if s.lastGood == "" || len(texts) == 0 {
		return
	}
	if err := writeCopy(s.lastGood, texts); err != nil {
		s.copyErrors.Add(1)
		s.log.Error("the copy of the last good rules was not written: a restart with a bad config would have no rules",
			"event", "config_copy_error", "error", err)
	}
}

// LoadLastGood puts the copy's rules in force if the source's rules are bad or missing, with the reason why. It checks
// them as usual: another version wrote them, perhaps. It does nothing without KeepLastGood, or if rules are in force.
// Its error is why, with what is wrong with the copy.
func (s *Store) LoadLastGood(why error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastGood == "" || s.Rules() != nil {
		return why
	}
	texts, err := readCopy(s.lastGood, s.options.Caps)
	if err != nil {
		return fmt.Errorf("%w\nand the last good rules are not available: %w", why, err)
	}
	rules, _, problems := s.compileLocked(texts)
	if len(problems) > 0 {
		return fmt.Errorf("%w\nand the last good rules in %s are bad, too:\n%w", why, s.lastGood, problems)
	}
	s.useLocked(rules)
	s.status.put(rules, "the copy "+s.lastGood, true)
	s.status.refuse(why) // also if the source has no rules yet
	s.log.Error("STARTED WITH THE LAST GOOD RULES, from the copy on disk: the config is bad or missing",
		"event", "config_last_good",
		"copy", s.lastGood, "fingerprint", rules.Fingerprint(), "files", len(texts), "rules", len(rules.All()),
		"error", cut(why.Error(), maxMessage))
	return nil
}
