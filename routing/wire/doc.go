// Package wire is what peers say to each other, generated from ../wire.proto
// (make proto).
package wire
