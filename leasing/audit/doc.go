// Package audit replays the records of audited rules: the usage of each window's holders, and the part beyond the
// limit, with its cause.
//
// Guarantee: for a complete record, the holders' final totals are the sum of the ledger, and bound the admissions.
// Usage beyond the limit is reported by its cause. Late charges are debt, and no fault of a limit. Grants beyond the
// limit, and usage of a lease after its credit, are over-admission, which a rule bounds. Events may arrive in any
// order and more than once, from streams and from files of nodes. It cannot see usage outside of all records:
// admissions that a node could not report, and in a file, credits of other nodes' leases.
//
// Start with Replay. Package account has the events.
package audit
