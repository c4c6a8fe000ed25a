package ratelimit

import (
	"context"
	"errors"
	"time"
)

// Holder names one incarnation of one node: a restarted node is a new holder.
type Holder uint64

// Fence is a fencing token: for one key, each one issued is greater than all
// before it, also over restarts of the ledger.
type Fence int64

// Window names the stretch of an account's life that a claim's totals are
// about: the index of the window since the epoch, or for a token_bucket the
// ledger's time at which the account began. 0 means "none yet".
type Window int64

// Claim is a holder's message to the ledger about one key. Granted, Spent and
// Returned are the holder's cumulative totals for this account and Window,
// never deltas: the claim states the holder's truth, and the ledger's record
// becomes a copy of it (docs/protocol.md, sections 1 and 6.1).
type Claim struct {
	Key    string
	Limit  Limit
	Holder Holder
	// Seq starts at 1 and grows with each new claim of this holder on this key. The same Seq
	// twice is the claim once; a lower one than the last is ignored.
	Seq     uint64
	Fence   Fence
	Window  Window
	Reclaim Reclaim

	Granted  Tokens // what the holder has received
	Spent    Tokens
	Returned Tokens

	Waiting Tokens // what requests wait for now
	Want    Tokens // what it would like in all, at least Waiting
	TTL     time.Duration
	// Direct asks for all that waits or nothing, and says that it is spent the
	// moment that it is granted: a bucket need not hold back refills for it.
	Direct bool
	// Ahead, with a fixed_window, asks for the window that Window names or for
	// nothing: the current one, or the next, whose tokens may be spent once it
	// has begun. A node holds leases of two windows under two names.
	Ahead bool
	// Tally, of a rule that may drift, keeps a fixed window's records for one
	// window more, so that what holders report late counts as over-admitted.
	Tally bool
	// Final only reports: Window was the one before, and these are its totals.
	Final bool
	// Last says that the holder ends: nothing more will be heard of it, so that
	// its record need not be kept for it.
	Last bool
	// Learning is until when, as far as the holder knows (Epoch.Learning), the
	// ledger may have lost what was known of the account, or that there was one:
	// until then it grants no more than a twentieth of the limit in all.
	Learning LedgerTime
	// Before is what the holder was charged in the window before, under a
	// sliding_window: a ledger that lost it is told.
	Before Tokens
	// Stretch lets the ledger grant more than is wanted, and for longer than TTL,
	// while there is plenty of the limit left. A token_bucket's lease is not
	// stretched.
	Stretch bool
	// Draw, if not 0, is a fixed window of which the claim may be a draw: its tokens are taken
	// from the window's till, while that is open.
	// Nothing of what else the claim says is booked then. Seq is above 1, and the number before it is
	// that of no claim of the holder.
	Draw Window
	// Glance says that what is asked for was refused before: where nothing is left of the window Draw, and
	// nobody has any, a ledger that sees that at a glance says so, and takes in nothing else of the claim.
	Glance bool
	// Recall says that the ledger can reach other holders (Recaller): it may ask
	// them to give back what they do not need, where Waiting cannot be granted.
	Recall bool
	// Refilled says that the bucket, as the holder knew it, has filled up since
	// the holder last spent: to a ledger that does not know this holder, what
	// it spent no longer matters.
	Refilled bool
	// Reset has what was charged in this window forgotten, by an operator's wish:
	// a bucket is full, but for what is leased.
	Reset bool
	// Audit is the rule's name, if the ledger is to keep a record of what it
	// settles, and AuditBound what the rule declares to over-admit.
	Audit      string
	AuditBound Tokens
}

// Grant is the ledger's answer to one claim.
type Grant struct {
	Seq     uint64
	Granted Tokens // cumulative; what is new is Granted minus the claim's
	Fence   Fence
	Window  Window
	// Carried says that the claim's totals are about Window, and stay the
	// holder's. Otherwise they were about another, and the holder has spent and
	// returned nothing of this one yet. A window's number alone does not tell:
	// when the ledger's clock goes back, an account's window gets another number.
	Carried bool
	// Void says that the claim's fence had been closed: its spent tokens were
	// booked, its unspent ones are gone.
	Void bool
	// TTL is how long the lease lasts, counted by the holder from when it sent the
	// claim: the claim's, or more (Plenty).
	TTL time.Duration
	// Available is what the ledger could still grant to others.
	Available Tokens
	// Outstanding is what other holders had not spent when last heard.
	Outstanding Tokens
	// Stranded is the part of it whose leases have expired: nobody will spend it.
	Stranded Tokens
	// ResetAfter is the time to the window's end (token_bucket: to a full
	// bucket).
	ResetAfter time.Duration
	// RetryAfter is when the next token would be there if nobody else spent, or
	// for a Direct claim all that waits; 0 when what waits was granted.
	RetryAfter time.Duration
	// At is the ledger's clock when it settled the claim.
	At LedgerTime
	// Plenty says that the lease was made larger and longer than was asked for
	// (Claim.Stretch): it need not be given back when its key is idle, for the
	// ledger asks for it when it is needed.
	Plenty bool
	// Shut says that nothing can be drawn of the window any more (Claim.Draw).
	Shut bool
	// Drawn says that the tokens were drawn, and that the ledger has nothing else of the claim
	// (Claim.Draw). Outstanding is then what others have drawn, spent or not.
	Drawn bool
	// Recalling says that what waits was not granted, and that other holders have
	// just been asked to give back what they have: to ask once more in a few
	// milliseconds may help.
	Recalling bool
	Recalled  int // how many were asked by this claim
	// Relearning says that the ledger had forgotten this account, and grants
	// little until all holders have told it their totals.
	Relearning bool
	// Missing says that the claim knew of tokens of this window which the account
	// knew nothing of: it was lost, and made anew.
	Missing bool
	Holders int // with a live lease, the claimant included
	// OverAdmitted is how much the total of what holders have reported as spent
	// went further beyond the limit with this claim: over all claims of a window,
	// the window's over-admission (token_bucket: what was spent before the bucket
	// had it).
	OverAdmitted Tokens
	// Over is that total for the window so far; of a token_bucket it is 0.
	Over Tokens
	// Err says that the claim was not settled; then nothing else is meant.
	Err error
}

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

// EpochQuery is what a node wants of an epoch.
type EpochQuery struct {
	Part int // of the ledger
	// Verify has it looked at whether the same server has the data still: after
	// a failure, and at the first time.
	Verify bool
	// Telling has learning go on: this node still has something to tell.
	Telling bool
}

// Epochal is a ledger that may lose its data as a whole, and can tell.
type Epochal interface {
	Ledger
	// SettleEpoch is Settle of claims on one part, of which there may be none.
	// It returns the epoch right after, so that claims were settled in this epoch
	// or in an older one, and the time by the ledger's clock; or why neither is
	// known.
	SettleEpoch(ctx context.Context, q EpochQuery, claims []Claim, grants []Grant) (Epoch, LedgerTime, error)
}

// Recaller is a ledger that can ask holders to give back what they do not need,
// because others wait for it. Such a recall is a hint, and may be lost: that costs
// refusals, and never a token too many.
type Recaller interface {
	Ledger
	// Recalls calls recalled with the name of an account whenever one of holders is
	// asked to give back what it has leased of it, until ctx is done. It blocks.
	Recalls(ctx context.Context, holders []Holder, recalled func(account string))
}

// Errors of single claims.
var (
	// ErrStaleClaim answers a claim whose Seq is lower than the last one seen, a
	// repeated one whose lease was reclaimed since, and one for a window that is
	// over (Ahead).
	ErrStaleClaim = errors.New("claim is older than the last one settled, or for a window that is over")
	// ErrLedgerFull answers a claim on a new key when the ledger holds as many
	// live accounts as it may.
	ErrLedgerFull = errors.New("ledger is full: every account it may hold is in use")
)

// Ledger is the one authority over accounts. Settle is atomic for a key.
//
// It fills grants[i] for claims[i]; the slices are the caller's again when it
// returns. It blocks at most until ctx is done; a claim that was not settled
// by then has an Err, and may still be settled later.
type Ledger interface {
	Settle(ctx context.Context, claims []Claim, grants []Grant)
}
