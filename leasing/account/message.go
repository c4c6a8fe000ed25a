package account

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
)

type (
	tokens  = ratelimit.Tokens
	instant = ratelimit.LedgerTime
)

// Claim is a holder's message about one account: it states the holder's total and its need. One without a Seq is a
// draw: it adds Want tokens to the holder's total, without a check. Its other fields are Key, Window, Limit and Holder.
// The zero Claim is invalid.
type Claim struct {
	Key string // at the ledger
	// Window is that of the account. Of a token bucket, it is the slot of the lease that Taken and Spent are about, 0
	// without one, or Stated.
	Window ratelimit.Window
	Limit  ratelimit.Limit  // limit of the claim: the rule's, or less (drift within the limit)
	Holder ratelimit.Holder // 64 random bits: never the name of a machine
	// Seq rises with each claim of the holder on the key. A claim that is not above the last is overtaken. 0: a draw.
	Seq uint64
	// Taken is the holder's total of the account, spent or in hand. Spent is its admissions and charges. Spent
	// exceeds Taken after charges without a grant, which are booked whole. Refunds of other holders' charges can take
	// both below 0. Of a token bucket they are those of the lease, and a Spent below 0 is a refund.
	Taken, Spent tokens
	// Need is granted as far as it is free, of a bucket only in whole units: each Unit serves a request. A Unit below 1
	// is 1. What whole units get is spent at once. Beyond the need, up to Want is granted, at most a Share-th of the
	// free tokens in all. Of a bucket, the rest of the lease goes on up to Want without a need, and else goes back.
	Need, Want, Unit tokens
}

// Share is the divisor of the free tokens that bounds a grant beyond the need.
const Share = 8

// Stated is the Window of a message that states the most that a bucket's level can be, as Taken: after a loss of data.
const Stated ratelimit.Window = -1

// Draws reports whether the message is a draw.
func (c *Claim) Draws() bool { return c.Seq == 0 }

// bucket reports whether the message is about a bucket: then Window and the totals have another meaning.
func (c *Claim) bucket() bool { return c.Limit.Algorithm == ratelimit.TokenBucket }

// account is the window in the account's name. A bucket has one account for all time, whatever slot its lease is of.
func (c *Claim) account() ratelimit.Window {
	if c.bucket() {
		return 0
	}
	return c.Window
}

// Grant is the answer to one claim, or to a draw.
type Grant struct {
	// Granted is added to the stated total. For a draw it is 0: the sender computes its part (Owned).
	Granted tokens
	// Total is the holder's total at the ledger after the message, and Sum that of all holders. For a sliding window,
	// Sum includes the counting part of the previous window. For a bucket, Total is the holder's lease, and Sum the
	// burst less the level. Sum may exceed the limit.
	Total, Sum tokens
	// InHand is the tokens in hand of others, as reported. For a draw it is unknown: -1.
	InHand tokens
	Fence  ratelimit.Fence
	// At is the ledger's clock then.
	At instant
	// Recalling means that other holders were recalled for this need.
	Recalling bool
	// Err means that the message was not settled, or that its result is unknown. Then no other field counts.
	Err error
}

// Cut is the part of a refund that was not credited, because it belongs to no charge. The holder adds it to its totals,
// like the ledger.
func (g *Grant) Cut(c *Claim) tokens {
	if c.Draws() || c.bucket() || g.Err != nil {
		return 0
	}
	return max(0, g.Total-g.Granted-max(clamped(c.Taken), clamped(c.Spent)))
}

// Owned is the part of a draw of n tokens that is below the limit. The ledger adds draws one after the other, so a draw
// is the last n tokens of its sum. Those above the limit belong to no holder, and the sender's next claim gives them
// back.
func (g *Grant) Owned(n tokens, limit *ratelimit.Limit) tokens {
	return max(0, n-max(0, g.Sum-limit.Capacity()))
}

// Errors of single messages. Match them with errors.Is.
var (
	// ErrOvertaken answers a claim whose Seq is not above the last.
	ErrOvertaken = errors.New("a later claim of the same holder came first")
	// ErrOver answers a message for an account that is no longer kept, or not yet: nothing was booked.
	ErrOver = errors.New("the store no longer keeps the window of the claim")
	// ErrFull means that a table in memory has no room for another key.
	ErrFull = errors.New("the account table is full: all accounts are in use")
)

// MostBooked bounds each total of a holder: tokens beyond it are not counted. mostSum bounds the sum. 500 holders at
// the bound stay below it, and below 2^53, up to which the doubles of Redis' scripts are exact.
const MostBooked tokens = 1 << 43

// Ledger is the only authority over accounts. Each message is settled atomically.
//
// Settle fills grants[i] for claims[i]. The caller owns the slices again after the return. It blocks at most until
// ctx is done. A message that was not settled by then has an Err, and may still be settled later. Without claims,
// Settle only reads the current epoch and the ledger's time. If err is not nil, both are unknown, and every grant is
// an error.
type Ledger interface {
	Settle(ctx context.Context, claims []Claim, grants []Grant) (ratelimit.Epoch, ratelimit.LedgerTime, error)
}

// Partitioned is a ledger with parts that fail separately, such as a Redis Cluster. Messages to one part never wait
// for another. A Settle has claims of one part, and its answer is about that part.
type Partitioned interface {
	Ledger
	Partitions() int
	Partition(key string) int // below Partitions
	// Ask asks a part for its epoch and its time, which bounds the clocks of all its servers. It fails if one of its
	// servers does not answer.
	Ask(ctx context.Context, part int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error)
}

// errClaim means an invalid claim. Its sender has a bug.
var errClaim = errors.New("the claim is invalid")

// check reports the errors of a claim, before it is sent or settled. It bounds all numbers, so that the sums of the
// ledger stay exact as doubles. A draw of 0 would only create a record. Concurrency limits have slots (slots.go), and
// no account.
func check(c *Claim) error {
	bucket := c.bucket()
	switch {
	case c.Key == "", c.Holder == 0, !bucket && c.Window == 0, bucket && c.Window < Stated,
		c.Limit.Algorithm >= ratelimit.Concurrency, c.Limit.Period() <= 0, c.Limit.Requests < 0,
		c.Limit.Requests > ratelimit.MaxLimit,
		c.Draws() && (c.Want < 1 || c.Want > ratelimit.MaxLimit || bucket), c.Seq > 1<<52:
		return fmt.Errorf("%w: %+v", errClaim, *c)
	}
	return nil
}

// clamped bounds a stated total by MostBooked. A message with a larger total is settled up to that, and not refused:
// its sender could state no other, and would repeat it for ever.
func clamped(n tokens) tokens { return max(-MostBooked, min(n, MostBooked)) }
