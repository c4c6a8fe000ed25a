package ratelimit

import "time"

// Holder names one incarnation of one node: a restarted node is a new holder.
type Holder uint64

// Fence numbers the grants of a key, and the tenancies of seats: each is greater than all before it, also over restarts
// of the ledger. Claims have no fence: their Seq shows which of them is overtaken.
type Fence int64

// Window is the index of a window since the Unix epoch. 0 means "none yet", and is that of a token_bucket.
type Window int64

// Epoch is one life of a ledger's data. A new one begins when the data was lost (FLUSHALL, a restart without
// persistence). It also begins when it may have been lost: after a restart from a disk, or a failover to a
// replica that may have lagged. The zero Epoch is not known.
type Epoch struct {
	ID    uint64     // of this life, perhaps to this process alone; 0: not known
	Began LedgerTime // when it began
	// Ends is the end of its youth, in which nodes that have read another epoch state their totals; 0: no node has.
	Ends LedgerTime
}

const (
	// YoungFor is the time for which an epoch is young, from the last word of a node that has totals to state.
	YoungFor = 2 * time.Second
	// YoungMost is the age of an epoch from which its youth ends in any case. A node whose totals the ledger cannot
	// take, or a part of the ledger that is away, must not hold up all others.
	YoungMost = 5 * YoungFor
)

// Young reports whether the ledger may lack totals at a time: it grants nothing. Clocks of servers and nodes may differ
// by YoungMost. An epoch that is to begin later is from before the clock was set back, and does not count.
func (e Epoch) Young(at LedgerTime) bool {
	return e.ID != 0 && e.Began.Add(-YoungMost) <= at && at < e.Ends
}

// Prolongs reports whether a node with totals to state may prolong the youth.
func (e Epoch) Prolongs(at LedgerTime) bool { return e.Young(at) && at < e.Began.Add(YoungMost) }

// EpochKnown is a node's record of the epochs of all parts of its ledger together. The zero EpochKnown is
// that of a ledger without epochs.
type EpochKnown struct {
	// ID changes with the epoch of a part, and with the first answer of a part.
	ID uint64
	// Asked is when the oldest of the questions was sent whose answers make this ID. All events of the ledger
	// before it happened in these epochs or in older ones. 0: a part has not answered yet.
	Asked Instant
	// Young says that a part may have just lost its data, or that one has not answered yet.
	Young bool
}
