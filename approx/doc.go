// Package approx bounds the over-admission of mode approx: a node has its share of a rule's drift budget only
// while it holds a seat.
//
// Guarantee: for one key and window, all nodes together spend at most drift_budget x limit that the ledger
// has not confirmed. For a token_bucket, that is beyond its level. It holds for any number of nodes and
// failures. A share is the budget divided by max_nodes, rounded down. There are max_nodes seats, each with
// one tenant at a time. A tenant stops before the ledger gives the seat to the next one. A new tenant does
// not spend in windows that began in the old tenancy.
//
// The exception is a loss of the ledger's own data. Then at most one share more is spent for each tenant that
// is cut off from the ledger while it learns the seats, within one TTL. A new seat is on probation first
// ([Keeper.Epoch]), because a node may not have noticed the loss.
//
// It does not promise that a node has a share. A node without a seat, or with one that does not count for a
// rule or a window, leases like any other.
//
//   - [Seats] is the ledger of seats: one operation. [Stored] and [Memory] keep them in a record.
//   - [Keeper] takes a seat, renews it and gives it up. It is the leasing limiter's Drift.
//
// Package leasing spends and confirms shares (leasing/internal/lease, drift.go), because that is one protocol with
// leases.
//
// # Seats
//
//   - Drift never exceeds the share. In a sliding window, unconfirmed drift of the previous window counts as well.
//   - All seats are in one record. A tenancy lasts [SeatTTL], and is renewed at half of that. Its tenant stops a margin
//     early.
//   - If a tenancy ended with unconfirmed drift, the next tenant uses the share only in windows that begin later. For a
//     bucket, its time to fill replaces the window.
//   - A loss of data can give a seat twice. So a new tenant waits until it has read an unchanged epoch.
//   - While tenants have different rules, each uses the smallest of the shares in force.
package approx
