// Package approx bounds what mode approx may over-admit: it gives a node its
// share of a rule's drift budget, and only while the node holds a seat.
//
// Guarantee: of one key in one window (of a token_bucket: beyond its level), the
// nodes together spend at most drift_budget x limit that the ledger has not
// confirmed, however many nodes there are and whatever becomes of them. A share
// is the budget divided by max_nodes, rounded down; there are max_nodes seats;
// each has one tenant at a time, which stops before the ledger lets the next
// one in; and a new tenant leaves alone whatever the old one may have spent
// from: windows that began in the old tenancy. The one exception is loss of the
// ledger's own data: then at most one share more for each tenant that is cut off
// from the ledger while it learns who sat where, within one TTL. For a node that
// has not noticed the loss must not spend from a seat that was another's, a new
// seat is on trial first ([Keeper.Epoch]).
//
// It does not promise that a node has a share. One without a seat, or whose
// seat does not count for a rule or a window, leases like any other.
//
//   - [Seats] is the ledger of seats: [Memory] or [Redis], one operation.
//   - [Keeper] takes a seat, renews it, gives it up; it is the
//     leasing limiter's Drift.
//
// The rules, and why each is needed, are in docs/protocol.md, section 13.
//
// How shares are spent, claimed for and confirmed is package leasing's
// (leasing/internal/hold, drift.go), for that is one protocol with leases.
package approx
