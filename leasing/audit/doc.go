// Package audit records audited rules, and replays the record: the usage of each window's holders, and the part beyond
// the limit, with its cause.
//
// Guarantee: for the complete record of all nodes, the holders' final totals are the sum of the ledger, and bound the
// admissions. What is missing shows as unrecorded: at most one lease of each key for a crashed node. Usage beyond the
// limit is reported by its cause. Late charges are debt, and no fault of a limit. Grants beyond the limit are
// over-admission, which a rule bounds. Events may arrive in any order and more than once. It cannot see usage outside
// of all records: admissions that a node could not report, and what a silent node used of tokens that others took back.
//
// A [Record] is a file, AUDIT_FILE. It has each event before the node spends what the event grants, so that usage is
// never beyond the record. [Decisions] adds what a node decided. The file has at most 64 MB, and as much in the file
// before. [ReadFile] reports gaps.
//
// Start with NewEvent and Replay.
package audit
