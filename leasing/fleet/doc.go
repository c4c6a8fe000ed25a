// Package fleet is a node of a fleet that shares limits through a ledger: modes leasing and approx.
//
// Guarantee: a request is admitted from tokens that this node owns, or that the ledger granted for it; in mode approx
// also from this node's share of the drift budget; or as the rule's on_store_failure says. It is decided within the
// rule's store_deadline. What it costs is booked: before the caller hears of it where the ledger did not know yet (a
// charge beyond what is left, a refund), with the next message otherwise. It does not promise that a request is
// admitted while other nodes have tokens in hand: it asks for them, for as long as the deadline lets it.
//
// Pure parts are in package hold (a key) and package account (the ledger). Here are the table of keys (shard.go), the
// requests that wait (call.go), the messages under way (lane.go, batch.go), what is done unasked (sweep.go), and the
// goroutines: senders, which take all messages that wait in one round trip, and a sweeper. [Stepped] is a Fleet without
// goroutines, for simulations.
//
//	Decide --enough in hand--> answered
//	  |  not enough, or to be booked
//	  v
//	flight --a sender takes all that wait--> Write --Settle--> Hear --wakes--> Decide looks again
package fleet
