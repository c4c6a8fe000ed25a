// Package ratelimit defines the types shared by all packages: limits, rules, keys, claims, grants and
// decisions. Two interfaces connect the packages, [Ledger] and [Limiter].
//
// Guarantee: no function here does I/O, reads a clock or starts a goroutine. Time is an argument, of one of
// two types that do not mix: [Instant] on a node's own monotonic clock, and [LedgerTime] on the ledger's.
//
// It promises nothing about budgets: a Ledger grants tokens, and a Limiter spends them (package leasing).
package ratelimit
