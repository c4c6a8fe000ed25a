// Package leasing lets a node spend a limit that it shares with other nodes, without a message for each request.
// Nodes take tokens from a ledger and spend them locally.
//
// Guarantee: under reclaim: safe, while the ledger keeps its data, nodes admit at most the limit of a key in a
// window, at every instant. Eager reclaim, drift and on_store_failure have declared bounds (docs/protocol.md, section
// 18). A late cost is booked whole, also beyond the limit, and from then on all nodes refuse. A refund credits the
// key at any node. It does not promise that every token gets used: tokens of a silent node stay charged until the
// window ends.
//
// A program that limits its own calls needs only [New], [NewRule], [Rule.Key] and [Limiter.Take]; see the examples.
//
// docs/protocol.md specifies the protocol. Its two sides are packages of their own, which are pure: time and messages
// are arguments, and there is no goroutine, no clock and no lock.
//
//   - leasing/account: the ledger's side, in memory and in Redis. It books claims and grants.
//   - leasing/internal/hold: a node's side of one key. It spends, computes claims, and takes answers in.
//
// Here are the shells around them, with locks, queues and clocks:
//
//   - [Fleet] is a node of a fleet: the table of keys (shard.go), requests that wait (call.go), messages under way
//     (lane.go, batch.go), what is done unasked (sweep.go, attend.go), outages (failure.go), what people see (look.go,
//     stats.go), limits of keys set at run time (overrides.go). [Stepped] is a Fleet without goroutines, for
//     simulations.
//   - [Local] is a node that decides alone, or that owns keys (mode routing without a store). A key is a counter, and
//     nothing ever waits.
//   - [Limiter] is one of the two, for programs that are no server.
//
// A request of a Fleet:
//
//	Decide --enough in hand--> answered
//	  |  not enough, or to be booked
//	  v
//	flight --a sender takes all that wait--> Write --Settle--> Apply --wakes--> Decide looks again
package leasing
