// Package quota plays Envoys that enforce by themselves, and the nodes that divide budgets
// among them, in virtual time: the clients are package envoy's, the nodes' side is
// rlqs.Session over the limiters that serve (leasing.Local, or leasing.Stepped nodes that
// share a ledger). Only who waits, and how messages travel, is this package's own.
//
// Guarantee: the same Options give the same Result on any machine. Every request that an
// Envoy lets pass is judged by the limit's own definition and the ledger's clock; with
// Options.Check, after every event also what Envoys may still let pass.
//
// Messages between an Envoy and its node keep their order, and what is on its way to an
// Envoy when a stream breaks is read before the break is, as with TCP. A node asks the
// ledger in no time.
package quota
