// Package rlqs serves Envoy's Rate Limit Quota Service, v3: Envoys enforce by
// themselves, and this node divides its budgets among them.
//
// Guarantee: all Envoys together, and whoever asks for the same keys over RLS, never let
// more pass than a rule's limit, if Envoys are set as docs/rlqs.md says (both fallbacks
// DENY_ALL), but for what the limiter itself may admit beyond it (its mode, and
// on_store_failure), and one lease for each Envoy that stands still at the end of a
// window and goes on in the next with what it had.
//
// It does not promise that every token is used: an Envoy whose stream breaks has what it
// was granted until the window ends, and its next stream is granted anew.
//
// A token_bucket has no windows, and what refills of it meanwhile must not be granted while
// its tokens lie with Envoys: each holder has windows of its own, in which what is not spent
// is lost, and the budget is asked for with a smaller burst (sublease.Asked).
//
// A stream is a holder (package sublease has its books): an Envoy says nothing else of who
// it is. A key is a domain and a BucketId, whose entries are matched against the same rules
// as RLS descriptors, in an order that a rule declares, so that both ask for the same
// budget.
//
// The pieces: a [Session] is one stream without gRPC, goroutines or clocks (the simulator
// plays it); a [Node] is what all sessions of a process share; [Service] is the gRPC side.
//
// What an Envoy is told, in the order in which it must read it:
//
//	granted n        DENY_ALL, then a bucket of n tokens that does not refill. The first
//	                 has Envoy drop what is left of the bucket before, for it would scale
//	                 that, or keep a bucket of the same size as it is.
//	nothing left     DENY_ALL until the window ends
//	no rule, shadow  ALLOW_ALL
//	idle, rule gone  DENY_ALL, and abandon when that is acknowledged
//
// Bounds: Options. What a stream keeps is at most Buckets times BucketBytes and about half a
// kilobyte each; one answer at a time is under way to each.
package rlqs
