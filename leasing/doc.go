// Package leasing lets a node spend a limit that it shares with other nodes, without a message for each request.
// Nodes take tokens from a ledger and spend them locally.
//
// Guarantee: under reclaim: safe, while the ledger keeps its data, nodes admit at most the limit of a key in a
// window, at every instant. Crash reclaim, drift and on_store_failure have declared bounds
// (docs/reference/protocol.md, section 16). A cost after the fact is booked whole, also beyond the limit, and from then
// on all nodes refuse. A refund credits the key at any node. The package does not promise that every token gets used:
// tokens of a silent node stay charged until the window ends.
//
// A program that limits its own calls needs only package leasing/limit.
//
// docs/reference/protocol.md specifies the protocol. Its two sides are packages of their own, which are pure: time and
// messages are arguments, and there is no goroutine, no clock and no lock.
//
//   - leasing/account: the ledger's side, in Redis and on other stores. It books claims, and grants tokens.
//   - leasing/internal/lease: a node's side of one key. It spends, computes claims, and applies answers.
//
// [Fleet] is the shell around them, with locks, queues and clocks: a node of a fleet. It has the table of keys
// (shard.go), requests that wait (call.go), messages in flight (lane.go, batch.go), background work (sweep.go), outages
// (failure.go), and views (look.go, stats.go). [Stepped] is a Fleet without goroutines, for simulations.
//
// Beside it are other limiters:
//
//   - leasing/local: a node that decides alone, or that owns keys (mode routing without a store). A key is a counter,
//     and nothing ever waits.
//   - leasing/slots: concurrency limits in a store.
//
// A request of a Fleet:
//
//	Decide --enough in hand--> answered
//	  |  not enough, or to be booked
//	  v
//	flight --a sender takes all that wait--> Write --Settle--> Apply --wakes--> the call looks again (advance)
package leasing
