package config

import (
	"log/slog"
	"sync"
	"time"
)

// Status describes the rules in force, and the result of the last attempt to change them. The zero
// Status has no rules and no attempt. It is a value: copy it.
type Status struct {
	// Fingerprint identifies the rules in force ([Rules.Fingerprint]); "": there are none.
	Fingerprint string
	// Source names their origin, and Loaded the time of the load, by this node's clock.
	Source string
	Loaded time.Time
	// FromCopy means that they come from the last good copy.
	FromCopy bool `metric:"sluice_config_from_copy"`
	// Good means that the latest rules of the source are in force. It is false while the source is
	// bad, and before the first load.
	Good bool `metric:"sluice_config_last_reload_successful"`
	// Error has its problems, one a line, at most maxError bytes. Failed is the time of the first
	// of them.
	Error  string
	Failed time.Time
}

// maxError bounds the bytes of [Status.Error].
const maxError = 8 << 10

// statuses keeps a Status. It is safe for concurrent use. Its lock is its own: a Store has another during a load, and
// health checks read the status meanwhile.
type statuses struct {
	mu  sync.Mutex
	now Status // guarded by mu
}

// put notes that rules are in force.
func (s *statuses) put(r *Rules, source string, fromCopy bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Fingerprint = r.Fingerprint()
	s.now.Source = source
	s.now.Loaded = time.Now()
	s.now.FromCopy = fromCopy
}

// good notes that the source has the rules in force.
func (s *statuses) good() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.Good = true
	s.now.Error = ""
	s.now.Failed = time.Time{}
}

// refuse notes bad rules of the source. If the error stays the same, its first time counts. A file that is bad for a
// day has been so since the first look.
func (s *statuses) refuse(why error) {
	text := cut(why.Error(), maxError)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now.Error != text {
		s.now.Good = false
		s.now.Error = text
		s.now.Failed = time.Now()
	}
}

// logged is the maximum of changes that one load logs. Of the others, it logs the number.
const logged = 20

// logChanges logs what a load has changed: operators look for it after a rollout.
func logChanges(log *slog.Logger, changes []Change) {
	for i := range changes[:min(len(changes), logged)] {
		c := &changes[i]
		of := []any{"event", "rule_changed", "rule", cut(c.Rule, maxName), "change", cut(c.What(), maxMessage)}
		log.Info("a rule was "+string(c.Kind), of...)
	}
	if more := len(changes) - logged; more > 0 {
		log.Info("more rules were changed", "event", "rule_changed", "more", more)
	}
	if text := Renamed(changes); text != "" {
		log.Warn(text, "event", "rules_renamed")
	}
}
