// Package slots decides concurrency limits in a store: one operation takes a slot, and one gives it back.
//
// Guarantee: while the ledger keeps its data, a key has at most as many slots as its limit, plus admissions by
// on_store_failure. A lost slot returns at the end of its time.
package slots
