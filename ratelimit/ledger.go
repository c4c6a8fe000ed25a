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

// YoungFor is the time for which an epoch is young, from the last word of a node that has read another.
const YoungFor = 2 * time.Second

// Young tells whether the ledger may lack totals at a time: it grants nothing. A later end than YoungFor is from before
// the ledger's clock was set back, and does not count.
func (e Epoch) Young(at LedgerTime) bool {
	return e.ID != 0 && e.Ends.Add(-YoungFor) <= at && at < e.Ends
}

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
