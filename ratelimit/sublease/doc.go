// Package sublease keeps the books of a budget that is granted on: a node has tokens
// (its own lease, already charged at the ledger), and gives some of them to holders
// that enforce by themselves and report now and then what they let pass.
//
// Guarantee: at every instant, what a holder has spent in a window plus what it may
// still spend of it is at most what is charged for it (Holding.Charged), as long as
// its reports are true and complete in the order in which they were sent, and it
// stops using a lease at its TTL. Tokens are charged when they are granted, and
// credited only when they are proven dead: a later lease has replaced them, its
// message was acknowledged, and a report was sent after that. Silence credits nothing.
//
// A lease ends with its parent's window: its TTL is cut so that a holder which
// receives it within Slack stops before. One that may have been received later is
// charged to the next window as well (Holding.Turn).
//
// A token_bucket has no windows, so that each of its holdings has its own (BucketWindow).
// Then burst + rate x t bounds what is spent in any t, if the budget is asked for as Asked
// says, and what Report credits is not given back.
//
// It does not bound a holder that stands still with a lease in hand and goes on with
// it after its TTL: that is one lease for each such holder, and declared as such
// (Bound).
//
// All is pure: instants and messages are arguments; there is no clock, no lock, no
// goroutine and no I/O. The tokens themselves come from a ratelimit.Limiter, which the
// caller asks: package rlqs serves Envoys so, and the simulator plays them.
//
// The life of a lease, in the code's own names:
//
//	Grant ----> sent --Acked--> applied --Report--> settled ----> (the next Grant)
//	  |           |                          '-- what it replaced is credited
//	  |           '-- Turn: may be applied late: charged to the next window too
//	  '-- charged: granted += size
package sublease
