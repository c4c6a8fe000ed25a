package config

import (
	"log/slog"
	"sync"
	"time"
)

// Status is which rules are in force, and how the last attempt to change them went.
// Its zero value says that there are none, and that nothing was tried. It is a value:
// copy it.
type Status struct {
	// Fingerprint tells the rules in force from others ([Rules.Fingerprint]); "":
	// there are none.
	Fingerprint string
	// Source names where they came from, and Loaded is when, by this node's clock.
	Source string
	Loaded time.Time
	// FromCopy says that they are the copy's of what was good last.
	FromCopy bool
	// Good says that what the source had when it was last read is in force. It is
	// false for as long as the source has something bad, and before the first load.
	Good bool
	// Error is what is wrong with it, one problem a line, at most maxError bytes;
	// Failed is since when.
	Error  string
	Failed time.Time
}

// maxError are bytes of [Status.Error].
const maxError = 8 << 10

// statuses keeps a Status. It is safe for concurrent use.
type statuses struct {
	mu  sync.Mutex
	now Status // guarded by mu
}

// Status returns which rules are in force, and whether there is something newer that
// is bad.
func (s *Store) Status() Status {
	s.status.mu.Lock()
	defer s.status.mu.Unlock()
	return s.status.now
}

// put says that rules are in force. why is what is wrong with the source, nil for
// nothing: rules of the copy are in force instead of what it has.
func (s *statuses) put(r *Rules, source string, why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Fingerprint, s.now.Source, s.now.Loaded = r.Fingerprint(), source, time.Now()
	s.now.FromCopy = why != nil
	switch {
	case why == nil:
		s.now.Good, s.now.Error, s.now.Failed = true, "", time.Time{}
	case s.now.Error == "": // the source has nothing yet
		s.now.Error, s.now.Failed = cut(why.Error(), maxError), s.now.Loaded
	}
}

// same says that the source has again what is in force.
func (s *statuses) same() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Good, s.now.Error, s.now.Failed = true, "", time.Time{}
}

// refuse says that the source has something bad. Of an error that stays the same,
// the first time counts.
func (s *statuses) refuse(why error) {
	text := cut(why.Error(), maxError)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.Error != text {
		s.now.Good, s.now.Error, s.now.Failed = false, text, time.Now()
	}
}

// logged are the changes of one load that are logged each; of the others it is said
// how many there are.
const logged = 20

func logChanges(log *slog.Logger, changes []Change) {
	for i := range changes[:min(logged, len(changes))] {
		c := &changes[i]
		log.Info("a rule was "+string(c.Kind), "event", "rule_changed", "rule", cut(c.Rule, maxName), "change",
			cut(c.What(), maxMessage))
	}
	if more := len(changes) - logged; more > 0 {
		log.Info("more rules were changed", "event", "rule_changed", "more", more)
	}
}
