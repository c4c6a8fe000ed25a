package ratelimit

// Holder names one incarnation of one node: a restarted node is a new holder.
type Holder uint64

// Fence is a fencing token: for one key, each one issued is greater than all
// before it, also over restarts of the ledger.
type Fence int64

// Window is the index of a window since the Unix epoch. 0 means "none yet", and is that of a token_bucket.
type Window int64

// Epoch is one life of a ledger's data. A new one begins when the data was lost
// (FLUSHALL, a restart without persistence), and when it may have been: after a
// restart from a disk, or a failover to a replica that may have lagged behind.
// The zero Epoch is not known.
type Epoch struct {
	ID    uint64     // of this life; 0: not known
	Began LedgerTime // when it began
	// Learning is until when holders may still have to tell what was lost.
	Learning LedgerTime
}

// Young tells whether at is in the time of learning.
func (e Epoch) Young(at LedgerTime) bool { return e.ID != 0 && at < e.Learning }

// EpochKnown is what a node knows of the epochs of all parts of its ledger together.
// The zero EpochKnown is that of a ledger which does not tell.
type EpochKnown struct {
	// ID is another when a part's epoch is, or when a part is heard of first.
	ID uint64
	// Asked is when the oldest of the questions was sent that told of this ID: what
	// happened to the ledger before it, happened in these epochs or in older ones.
	// 0: a part was not heard of yet.
	Asked Instant
	// Learning says that a part may have lost its data a moment ago, or that none
	// was heard of yet.
	Learning bool
}
