package config

import (
	"context"
	"errors"
)

// Source supplies rules: a file or a directory ([Tree]), constant texts ([Static]), or a
// server that pushes rules (package xds). A source is safe for concurrent use.
type Source interface {
	// Read returns all current rules, in a fixed order. It returns [ErrNothingYet] until the first
	// rules arrive.
	Read() ([]Text, error)
	// Watch loads the store each time that Read may return other rules than before: too often does no
	// harm, because a store recognizes texts that it has. It blocks
	// until ctx is done, and then returns nil. An error means that changes are no longer noticed.
	// Read still works.
	Watch(ctx context.Context, to *Store) error
	// String names it for users: a path, a server.
	String() string
}

// ErrNothingYet is the error of a source before its first rules.
var ErrNothingYet = errors.New("no rules have arrived yet")

// Text is a YAML file: its name, for messages, and its content.
type Text struct {
	Name string `json:"name"`
	Data []byte `json:"data"`
	// Pushed says that no author has this text: problems name the rule instead of a line.
	Pushed bool `json:"-"`
}

// Static is a source of constant texts.
type Static []Text

// Read implements [Source].
func (s Static) Read() ([]Text, error) { return s, nil }

// String is the name of the first text.
func (s Static) String() string {
	if len(s) == 0 {
		return "no texts"
	}
	return s[0].Name
}

// Watch implements [Source]. Static texts never change.
func (s Static) Watch(ctx context.Context, _ *Store) error {
	<-ctx.Done()
	return nil
}
