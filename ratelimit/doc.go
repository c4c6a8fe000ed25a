// Package ratelimit holds the words of the domain: limits, rules, keys,
// claims, grants and decisions, and the two interfaces everything else meets
// at, [Ledger] and [Limiter].
//
// Guarantee: nothing here does I/O, reads a clock or starts a goroutine. Time
// comes in as an argument, in one of two types that do not mix: [Instant] on a
// node's own monotonic clock, [LedgerTime] on the ledger's.
//
// It promises nothing about budgets: who may spend what is decided by a
// Ledger, and spent by a Limiter (package leasing).
package ratelimit
