// Package audit replays what was recorded of audited rules: what each window's holders took, and what of it lay beyond
// the limit, and why.
//
// Guarantee: of a whole record, what holders took at the end is the sum of the ledger, and at most so much was
// admitted. What lay beyond the limit is told apart by how it came there. What was charged after the fact is debt, and
// no fault of a limit. What was granted beyond it, or was spent of a lease that had been credited, is over-admission:
// a rule declares how much of it there may be. Events may come in any order and more than once, from streams and from
// files of nodes. It does not see what is in no record: what nodes admitted and could not tell, and of a file what
// other nodes' leases were credited.
//
// Start with Replay. Package account has the events.
package audit
