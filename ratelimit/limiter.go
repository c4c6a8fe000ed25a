package ratelimit

import (
	"context"
	"time"
)

// Kind is the purpose of an ask.
type Kind uint8

const (
	// Spend takes Cost tokens, or is over the limit.
	Spend Kind = iota
	// Peek takes nothing and reports.
	Peek
	// Refund gives Cost tokens back, at most the usage of this window.
	Refund
	_ // on the wire between nodes: a verdict is taken back
	// Charge takes Cost tokens after the fact, also beyond the limit. It is never refused.
	Charge
	// Release gives Cost tokens back that a Spend took too many. Unlike a Refund it may leave them in hand at the
	// node that books it, while there is plenty.
	Release
)

// Settles reports whether a kind corrects the charge of an earlier Spend. Such an ask is never refused.
func (k Kind) Settles() bool { return k >= Charge }

// Ask is one descriptor's question: may Cost be spent on Key under Rule?
type Ask struct {
	Rule *Rule
	// Key is the budget's canonical name ([AppendEntry]). It is the caller's, and
	// is read only during the call.
	Key  []byte
	Cost Tokens // not negative; 0 only for Peek
	Kind Kind
	// Window is of a Charge and a Release the one that their Spend was charged in; 0: that which goes on. Under a
	// concurrency limit it is the slot, which a Spend takes and a Release gives back; 0: none.
	Window Window
}

// Books reports whether a Charge or a Release counts where the window w goes on. A bucket has one window. An ended
// window credits nothing. A charge of an ended sliding window counts in the one that goes on, which counts the ended
// one, too.
func (a *Ask) Books(w Window) bool {
	l := &a.Rule.Limit
	return a.Window == 0 || a.Window == w || l.Algorithm == TokenBucket ||
		a.Kind == Charge && a.Window < w && l.Algorithm == SlidingWindow
}

// Source says where a verdict came from.
type Source uint8

const (
	// FromLease means that it was decided here, without asking the ledger.
	FromLease Source = iota
	// FromClaim means that the ledger was asked.
	FromClaim
	// FromOwner means that another node decided, the key's owner.
	FromOwner
	// FromDrift means that it was spent before the ledger had answered, from
	// this node's share of the rule's drift budget.
	FromDrift
	// FromOverflow means that the key could not be tracked, and shared a
	// budget with other untracked keys of its rule.
	FromOverflow
	// FromFallback means that the store did not answer in time, and that
	// the rule's on_store_failure decided.
	FromFallback
)

// Sources are the names of the sources, by value.
var Sources = [...]string{
	FromLease: "lease", FromClaim: "claim", FromOverflow: "overflow", FromOwner: "owner",
	FromDrift: "drift", FromFallback: "fallback",
}

// Verdict answers an Ask. The zero Verdict admits.
type Verdict struct {
	OverLimit bool
	Source    Source
	Remaining Tokens // of the limit, after this ask
	Charged   Tokens // the tokens that this ask took: its cost, or the rest; for a Release, those given back
	Debt      Tokens // and its charge beyond that
	// Limit is the limit in force by an override; nil: the rule's own. It must not be changed.
	Limit *Limit
	// ResetAfter is the time until the limit is whole again. When a sliding_window or a token_bucket refuses,
	// it is the time until the same cost would pass.
	ResetAfter time.Duration
	// Window is the one that Charged was taken from, for Undo; 0 if it was from
	// no lease. Of a bucket it only says whether that is still the same account.
	Window Window
	// Booked is the window of admissions by on_store_failure, or of refunds meanwhile, for the report to the
	// ledger; 0 if it is not known yet.
	Booked Window
	// Reason is why the ledger did not decide, if Source is FromFallback.
	Reason FallbackReason
}

// Limiter decides. Decide fills verdicts[i] for asks[i], in order, so that the
// same key asked twice counts twice. Undo takes back what verdicts charged.
// Both are safe for concurrent use and block no longer than ctx allows.
type Limiter interface {
	Decide(ctx context.Context, now Instant, asks []Ask, verdicts []Verdict)
	Undo(now Instant, asks []Ask, verdicts []Verdict)
}

// LimiterStats counts the work of a Limiter since its start.
type LimiterStats struct {
	// asked of the ledger
	Claims uint64 `metric:"sluice_ledger_claims_total"`
	// keys that still counted, dropped to make room
	Evicted  uint64 `metric:"sluice_leases_evicted_total"`
	Overflow uint64 // decisions that shared an overflow budget
	// held now
	Leases int `metric:"sluice_keys,kind=leases"`
	// in a ledger of this process now
	Accounts int `metric:"sluice_keys,kind=ledger"`
	// Fallbacks are decisions without the ledger, by reason.
	Fallbacks   [len(FallbackReasons)]uint64 `metric:"sluice_fallback_decisions_total,reason"`
	BreakerOpen bool                         `metric:"sluice_store_breaker_open"`
	// SyncAge is for how long the ledger has not answered: since the start, if it never has. 0: there is none.
	SyncAge time.Duration

	// Claims, by purpose
	ClaimsBy [len(ClaimReasons)]uint64 `metric:"sluice_claims_total,reason"`
	// claims that the ledger refused as older than its records
	Stale uint64 `metric:"sluice_claims_stale_total"`
	// times that the ledger lost its data
	Recoveries uint64 `metric:"sluice_ledger_recoveries_total"`
	RoundTrips uint64 // batches of claims sent
	// of them, those that failed as a whole
	Failed     uint64             `metric:"sluice_store_operations_total,result=failed"`
	StoreTime  DistributionCounts // of round trips, in microseconds
	LeaseSizes DistributionCounts // tokens granted with a claim, where any were
	// answers that said what cannot be, and were not taken
	Rejected uint64 `metric:"sluice_rejected_total,from=store,kind=answer"`
	// times that the ledger's clock was set: ahead, and back
	ClockSteps [2]uint64 `metric:"sluice_store_clock_steps_total,direction"`
	// Missing are accounts that were lost singly, as by eviction, and MissingTokens their grants: the most
	// that may have been granted again.
	Missing       uint64 `metric:"sluice_store_accounts_lost_total"`
	MissingTokens uint64 `metric:"sluice_store_accounts_lost_tokens_total"`
	// accounts whose window is over, and whose last total the ledger was not told
	Unreported uint64 `metric:"sluice_late_reports_lost_total"`
	// claims that wait to be sent
	Queued int `metric:"sluice_claims_queued"`
	// that may wait
	QueueSize int `metric:"sluice_claims_queue_size"`
}

// Add adds what another limiter did.
func (s *LimiterStats) Add(o LimiterStats) {
	s.Claims += o.Claims
	s.Evicted += o.Evicted
	s.Overflow += o.Overflow
	s.Leases, s.Accounts = s.Leases+o.Leases, s.Accounts+o.Accounts
	for i := range s.Fallbacks {
		s.Fallbacks[i] += o.Fallbacks[i]
	}
	for i := range s.ClaimsBy {
		s.ClaimsBy[i] += o.ClaimsBy[i]
	}
	s.BreakerOpen = s.BreakerOpen || o.BreakerOpen
	s.SyncAge = max(s.SyncAge, o.SyncAge)
	s.Stale, s.Recoveries = s.Stale+o.Stale, s.Recoveries+o.Recoveries
	s.RoundTrips += o.RoundTrips
	s.Failed += o.Failed
	s.Rejected += o.Rejected
	for i := range s.ClockSteps {
		s.ClockSteps[i] += o.ClockSteps[i]
	}
	s.Missing, s.MissingTokens = s.Missing+o.Missing, s.MissingTokens+o.MissingTokens
	s.Unreported += o.Unreported
	s.Queued, s.QueueSize = s.Queued+o.Queued, s.QueueSize+o.QueueSize
	s.StoreTime.Add(o.StoreTime)
	s.LeaseSizes.Add(o.LeaseSizes)
}

// ClaimReason is the purpose of a claim.
type ClaimReason uint8

// The reasons for claims.
const (
	ClaimWaiting ClaimReason = iota // requests wait for it
	ClaimRenewal                    // in the background, ahead of demand or to report
	ClaimReturn                     // to give back unspent tokens
	ClaimFinal                      // the last word on a window
)

// ClaimReasons are the names of the reasons, by value.
var ClaimReasons = [...]string{
	ClaimWaiting: "waiting", ClaimRenewal: "renewal",
	ClaimReturn: "return", ClaimFinal: "final",
}

// RoutingStats counts the work of a node in a ring. The console shows a part of it.
type RoutingStats struct {
	// asks sent to their owners
	Forwarded uint64 `json:"forwarded" metric:"sluice_peer_asks_total,kind=forwarded"`
	// asks of other nodes decided here
	Received uint64 `json:"received" metric:"sluice_peer_asks_total,kind=received"`
	// asks that came to a node that does not own their key
	NotOwner uint64 `json:"-" metric:"sluice_peer_asks_total,kind=not_owner"`
	// peers that could not prove to be one
	Refused uint64 `json:"-" metric:"sluice_peers_refused_total"`
	// messages that made no sense, and changed nothing
	Malformed  uint64            `json:"-" metric:"sluice_peer_messages_malformed_total"`
	RejectedBy map[string]uint64 `json:"-"` // what peers sent and was not accepted, by kind
	// accounts given to their new owners
	Handed uint64 `json:"-" metric:"sluice_accounts_handed_over_total"`
	// decisions here on hot keys of other owners
	Hot uint64 `json:"-" metric:"sluice_hot_key_decisions_total"`
	// decisions by a lease here: the owner did not answer
	Instead uint64 `json:"-" metric:"sluice_peer_asks_total,kind=leased_instead"`
	// in the ring, as this node sees it
	Members []string `json:"members" metric:"sluice_ring_members"`
	Ring    uint64   `json:"fingerprint,string"` // of the members: nodes that agree show the same
	// busy keys of this owner, as the ledger names accounts
	HotKeys []string `json:"hot_keys" metric:"sluice_hot_keys"`
	HotHere []string `json:"hot_here"` // of other owners, that this node leases
}

// FallbackReason says why the ledger did not decide.
type FallbackReason uint8

// The reasons.
const (
	FallbackDeadline FallbackReason = iota
	FallbackError
	FallbackBreaker
	FallbackQueueFull
	FallbackTableFull
	FallbackPeer // the key's owner could not be reached, or did not answer
)

// FallbackReasons are the names of the reasons, by value.
var FallbackReasons = [...]string{
	FallbackDeadline: "deadline", FallbackError: "error", FallbackBreaker: "breaker",
	FallbackQueueFull: "queue_full", FallbackTableFull: "table_full", FallbackPeer: "peer",
}
