package config

import (
	"context"
	"errors"
)

// Source is where rules come from: a file or a directory that is alive ([Tree]), a
// copy on disk ([Copy]), texts that never change ([Static]), or a server that
// pushes rules (package xds). A source is safe for concurrent use.
type Source interface {
	// Read returns all rules as they are now, in an order that does not depend on
	// chance. It returns [ErrNothingYet] while the first rules are still to come.
	Read() (Draft, error)
	// Watch calls the loader each time that Read may return other rules than
	// before. It blocks until ctx is done, and then returns nil. An error says that
	// changes can no longer be noticed; Read still works.
	Watch(ctx context.Context, to Loader) error
	// String names it for people: a path, a server.
	String() string
}

// Loader is what a source tells of changes. [Store] implements it. It is safe for
// concurrent use.
type Loader interface {
	// Load puts in force what Read returns now. The error says everything that is
	// wrong with it, and that the rules before stay in force.
	Load() error
	// Refuse logs and counts a change that is too bad for Read to return it.
	Refuse(err error)
	// Coalesced counts a change that shares the load of a later one.
	Coalesced()
}

// ErrNothingYet is what a source says whose rules are still to come.
var ErrNothingYet = errors.New("no rules have arrived yet")

// Draft is all rules of a source as they were written, before they are compiled.
// Either they are texts, which the store decodes, or the source has decoded them
// itself: one of the two fields is empty.
type Draft struct {
	Texts []Text
	Files []File
}

// Text is a YAML file: its name, for messages, and what it holds.
type Text struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
}

// Static is a source of texts that are always the same.
type Static []Text

// Read implements [Source].
func (s Static) Read() (Draft, error) { return Draft{Texts: s}, nil }

// String is the name of the first text.
func (s Static) String() string {
	if len(s) == 0 {
		return "no texts"
	}
	return s[0].Name
}

// Watch implements [Source]: there is nothing to tell.
func (s Static) Watch(ctx context.Context, _ Loader) error {
	<-ctx.Done()
	return nil
}
