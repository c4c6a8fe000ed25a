// Package wire is the messages of peers, generated from ../wire.proto
// (make proto).
package wire
