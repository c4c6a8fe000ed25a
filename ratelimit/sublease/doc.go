// Package sublease keeps the books of a budget that is granted on. A node has tokens (its own lease, already
// charged at the ledger), and gives some of them to holders that enforce the limit themselves and report
// their usage.
//
// Guarantee: at every instant, the usage of a holder in a window plus its unspent lease is at most its charge
// (Holding.Charged). This holds while its reports are true and complete in the order in which they were sent,
// and it stops using a lease at its TTL. Tokens are charged when they are granted, and credited only when
// they are proven dead: a later lease has replaced them, its message was acknowledged, and a report was sent
// after that. Silence credits nothing.
//
// A lease ends with its parent's window: its TTL is cut so that a holder which receives it within Slack stops
// before. One that may have been received later is charged to the next window as well (Holding.Turn).
//
// A token_bucket has no windows, so that each of its holdings has its own (BucketWindow). Then burst + rate x
// t bounds the usage in any t, if the budget is requested as Asked says, and the credit of Report is not
// given back.
//
// It does not bound a holder that freezes with a lease in hand and continues after its TTL. That is one lease
// for each such holder, and declared as such (Bound).
//
// All is pure: instants and messages are arguments; there is no clock, no lock, no goroutine and no I/O. The
// tokens come from a ratelimit.Limiter, which the caller calls: package rlqs serves Envoys so, and the
// simulator plays them.
//
// The life of a lease, in the code's own names:
//
//	Grant ----> sent --Acked--> applied --Report--> settled ----> (the next Grant)
//	  |           |                          '-- what it replaced is credited
//	  |           '-- Turn: may be applied late: charged to the next window too
//	  '-- charged: granted += size
package sublease
