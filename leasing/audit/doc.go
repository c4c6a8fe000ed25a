// Package audit has the events of audited rules, as nodes record them, and replays them: the usage of each window's
// holders, and the part beyond the limit, with its cause.
//
// Guarantee: for the complete record of all nodes, the holders' final totals are the sum of the ledger, and bound the
// admissions. What is missing shows as unrecorded: at most one lease of each key for a crashed node. Usage beyond the
// limit is reported by its cause. Late charges are debt, and no fault of a limit. Grants beyond the limit are
// over-admission, which a rule bounds. Events may arrive in any order and more than once. It cannot see usage outside
// of all records: admissions that a node could not report, and what a silent node used of tokens that others took back.
//
// Start with NewEvent and Replay.
package audit
