package ratelimit

import "math"

// Override is the limit of one key, set at run time. It counts in place of the rule's limit, at most the rule's
// max_override; a limit that a request brings itself counts before it. It never changes the amount that was spent.
type Override struct {
	// Requests are per period of the rule. 0 admits nothing. A token bucket's burst grows and shrinks in proportion.
	Requests Tokens
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

// In reports whether it is in force at a time of the store's clock. Of none, nothing is.
func (o *Override) In(at LedgerTime) bool {
	return o != nil && (o.Expires == 0 || at < o.Expires)
}

// MostBurst is what a bucket holds at most at a ledger, whatever its rule says.
const MostBurst Tokens = 1<<32 - 1

// Overridable reports whether overrides of the limit are read.
func (l *Limit) Overridable() bool { return l.Ceiling > 0 }

// Bans reports whether an override admits nothing. It counts whatever the rule says: a rule that is changed must not
// lift it.
func (o *Override) Bans() bool { return o.Requests == 0 && !o.Unlimited }

// Under is the limit with an override in force; nil: there is none.
func (l Limit) Under(o *Override) Limit {
	if o == nil || !l.Overridable() && !o.Bans() {
		return l
	}
	n := l.Ceiling
	if !o.Unlimited {
		n = min(o.Requests, n)
	}
	if l.Algorithm == Concurrency {
		n = min(n, MaxConcurrency)
	}
	// The burst changes in proportion, rounded down to a token at least: a bucket without room for one refuses all.
	if l.Algorithm == TokenBucket {
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
