// Package quota plays Envoys that enforce limits themselves, and the nodes that divide budgets among them, in
// virtual time. The clients are package envoy's. The nodes' side is rlqs.Session over the real limiters
// (local.Limiter, or leasing.Stepped nodes that share a ledger). Only waits and the transport of messages are
// this package's own.
//
// Guarantee: the same Options give the same Result on any machine. Every request that an Envoy passes is
// judged by the limit's own definition and the ledger's clock. With Options.Check, so are the tokens that
// Envoys may still spend, after every event.
//
// Messages between an Envoy and its node keep their order. Messages on their way to an Envoy when a stream
// breaks are read before the break is, as with TCP. A node asks the ledger in no time.
package quota
