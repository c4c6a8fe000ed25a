package ratelimit

import (
	"context"
	"errors"
	"math"
)

// Override is the limit of one key, set at run time. It counts in place of the rule's limit, at most the rule's
// max_override; a limit that a request brings itself counts before it. It never changes the amount that was spent.
type Override struct {
	// Requests are per period of the rule. 0 admits nothing. A token bucket's burst grows and shrinks in proportion.
	Requests Tokens
	// Removed says that there is none, as of Set: an earlier one that a node restores stays removed.
	Removed bool
	// Unlimited has the rule's max_override in force, and without one MaxLimit. Requests is 0 then.
	Unlimited bool
	// Expires is the first instant at which it is over, in microseconds since 1970 by the store's clock; 0: never.
	Expires LedgerTime
	// Set is the instant at which it was set, by the store's clock. It is the override's version: each change of a key
	// has a later one.
	Set LedgerTime
	// By and Reason say who set it and why: at most MaxOverrideText bytes of UTF-8 each.
	By, Reason string
}

// In tells whether it is in force at a time of the store's clock. Of none, nothing is.
func (o *Override) In(at LedgerTime) bool {
	return o != nil && !o.Removed && (o.Expires == 0 || at < o.Expires)
}

// MostBurst is what a bucket holds at most at a ledger, whatever its rule says.
const MostBurst Tokens = 1<<32 - 1

// Overridable tells whether overrides of the limit are read.
func (l *Limit) Overridable() bool { return l.Ceiling > 0 }

// Bans tells whether an override admits nothing. It counts whatever the rule says: a rule that is changed must not lift
// it.
func (o *Override) Bans() bool { return o.Requests == 0 && !o.Unlimited && !o.Removed }

// Under is the limit with an override in force; nil: there is none.
func (l Limit) Under(o *Override) Limit {
	if o == nil || o.Removed || !l.Overridable() && !o.Bans() {
		return l
	}
	n := l.Ceiling
	if !o.Unlimited {
		n = min(o.Requests, n)
	}
	if l.Algorithm == Concurrency {
		n = min(n, MaxConcurrency)
	}
	if l.Algorithm == TokenBucket { // as bucket.lua has it
		burst := n
		if l.Requests > 0 {
			scaled := float64(min(l.Burst, MostBurst)) * (float64(n) / float64(l.Requests))
			burst = Tokens(math.Floor(min(float64(MostBurst), scaled)))
		}
		l.Burst = max(min(1, n), min(burst, MostBurst))
	}
	l.Requests = n
	return l
}

// MaxOverrideText bounds each text of an override, in bytes.
const MaxOverrideText = 256

// NamedOverride is an override and its key's name at the store (leasing.KeyName).
type NamedOverride struct {
	Key string
	Override
}

// ErrOverrideChanged answers a change whose Match is not the version in force: read the override, and try again.
var ErrOverrideChanged = errors.New("the key does not have the override that the change expects")

// ErrOverrides says that the key's limiter keeps no overrides, or none of this kind.
var ErrOverrides = errors.New("this rule's limits cannot be overridden")

// Match says which override a change replaces.
type Match struct {
	Any bool       // whatever there is
	Set LedgerTime // the version; 0: there must be none
	By  string     // who removes it, for the record of audited rules
}

// Overrider is a limiter that keeps overrides of its keys. All block until ctx is done at most, ask the store or the
// key's owner, and are safe for concurrent use.
type Overrider interface {
	// Override returns the override of an ask's key, and whether there is one.
	Override(ctx context.Context, now Instant, a *Ask) (o Override, ok bool, err error)
	// SetOverride sets it, or removes it if o is nil, and returns the override in force then. The store's
	// clock gives Set; o.Set is not read.
	SetOverride(ctx context.Context, now Instant, a *Ask, o *Override, match Match) (Override, error)
	// Overrides lists up to n in force whose keys' names begin with prefix and come after a name, in the order of the
	// names.
	Overrides(ctx context.Context, now Instant, prefix, after string, n int) ([]NamedOverride, error)
}
