package table

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type instant = ratelimit.LedgerTime

// Record is the value of a key. It is immutable.
type Record struct {
	Key string
	// Version is the store's time at which it was set, or above. It rises with each change of a key.
	Version instant
	// Ends is the first instant at which it does not count any more, by the store's clock; 0: it has no end.
	Ends instant
	// Value is opaque here. "": the record was removed.
	Value string
}

// Bounds of the table, and of a record.
const (
	Most      = 100_000 // records in force
	MostKey   = 256     // bytes
	MostValue = 4 << 10 // bytes
	mostKept  = 2 * Most
	// latest bounds times: Redis' scripts hold whole numbers below it.
	latest instant = 1 << 53
)

const (
	// Kept is the time for which a removed or ended record stays at a node, from when it last arrived there.
	Kept = time.Hour
	// Silence is the time without a read after which a node's table may lack removals. Copies of a store's data may be
	// as old. Invariant: twice of it is at most Kept.
	Silence = Kept / 2
)

// Errors of changes.
var (
	ErrChanged = errors.New("the key does not have the record that the change expects")
	ErrFull    = fmt.Errorf("the table is full: it takes %d records, and %d with those removed in the last hour",
		Most, mostKept)
	ErrNotYet = errors.New("this node has not read the whole table yet: try again in a second")
	ErrLife   = errors.New("the store's data was lost or replaced: try again in a second")
	ErrRecord = errors.New("the record is invalid")
)

// Expected says which record a change replaces, by its version.
type Expected = instant

// Any is whatever there is, and None no record in force.
const (
	Any  Expected = -1
	None Expected = 0
)

// In reports whether a record is in force at a time. The zero Record is not.
func (r *Record) In(at instant) bool { return r.Value != "" && (r.Ends == 0 || at < r.Ends) }

// Is reports whether a record is what a change expects at a time.
func (r *Record) Is(expected Expected, at instant) bool {
	if expected > 0 {
		return r.Version == expected && r.In(at)
	}
	return expected == Any || !r.In(at)
}

// compare orders two records of a key: the greater one counts. Two nodes can set the same version in two lives of the
// store's data, and must agree.
func (r *Record) compare(o *Record) int {
	return cmp.Or(cmp.Compare(r.Version, o.Version), cmp.Compare(r.Ends, o.Ends), cmp.Compare(r.Value, o.Value))
}

// Above reports whether it replaces another record of its key.
func (r *Record) Above(o *Record) bool { return r.compare(o) > 0 }

// expired reports whether a place may drop it, where it last arrived at a time of the place's clock. now is of that
// clock, and at is the store's time.
func (r *Record) expired(arrived, now, at instant) bool {
	over := r.Value == "" || r.Ends != 0 && r.Ends.Add(Kept) < at
	return over && arrived.Add(Kept) < now
}

// Check refuses a record that no store or node sends.
func (r *Record) Check() error {
	switch {
	case r.Key == "" || len(r.Key) > MostKey:
		return fmt.Errorf("%w: its key has %d bytes, must have 1 to %d", ErrRecord, len(r.Key), MostKey)
	case len(r.Value) > MostValue:
		return fmt.Errorf("%w: its value has %d bytes, must have at most %d", ErrRecord, len(r.Value), MostValue)
	case r.Version < 1 || r.Version >= latest || r.Ends < 0 || r.Ends >= latest:
		return fmt.Errorf("%w: its version is %d, and it ends at %d", ErrRecord, r.Version, r.Ends)
	}
	return nil
}
