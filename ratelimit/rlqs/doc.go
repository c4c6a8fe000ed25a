// Package rlqs serves Envoy's Rate Limit Quota Service, v3: Envoys enforce limits themselves, and this node
// divides its budgets among them.
//
// Guarantee: all Envoys together, and all callers of the same keys over RLS, pass at most a rule's limit, if
// Envoys are set as docs/explain/rlqs.md says (both fallbacks DENY_ALL). One exception is the over-admission of the
// limiter itself (its mode, and on_store_failure). The other is one lease for each Envoy that freezes at the
// end of a window and continues in the next.
//
// It does not promise that every token is used: the tokens of a broken stream stay charged until the window
// ends, and the next stream gets new ones.
//
// A token_bucket has no windows, and its refill must not be granted while its tokens are at Envoys. So each
// holder has windows of its own, in which unspent tokens are lost, and the budget is requested with a smaller
// burst (sublease.Asked).
//
// A stream is a holder (package sublease has its books), because an Envoy has no other identity. A key is a
// domain and a BucketId. Its entries are matched against the rules of RLS descriptors, in an order that a
// rule declares, so that both use the same budget.
//
// The pieces: a [Session] is one stream without gRPC, goroutines or clocks (the simulator plays it). A [Node]
// is the shared state of all sessions of a process. [Service] is the gRPC side.
//
// The answers to an Envoy, in the order in which it must read them:
//
//	granted n        DENY_ALL, then a bucket of n tokens that does not refill. The first
//	                 makes Envoy drop the rest of the bucket before, which it would scale,
//	                 or keep if the new one has the same size.
//	nothing left     DENY_ALL until the window ends
//	no rule, shadow  ALLOW_ALL
//	idle, rule gone  DENY_ALL, and abandon when that is acknowledged
//
// Bounds: Options. A stream keeps at most Buckets times BucketBytes and about half a kilobyte each. One
// answer at a time is under way to each.
package rlqs
