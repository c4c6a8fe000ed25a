// Package leasing lets a node spend a limit that it shares with other nodes, without a message for each request.
// Nodes take tokens from a ledger and spend them locally.
//
// Guarantee: under reclaim: safe, while the ledger keeps its data, nodes admit at most the limit of a key in a
// window, at every instant. Crash reclaim, drift and on_store_failure have declared bounds
// (docs/reference/bounds.md). A cost after the fact is booked whole, also beyond the limit, and from then
// on all nodes refuse. A refund credits the key at any node. The package does not promise that every token gets used:
// tokens of a silent node stay charged until the window ends.
//
// A program that limits its own calls needs only package leasing/limit.
//
// docs/reference/protocol.md explains the protocol. Its two sides, with their rules, are packages of their own, which
// are pure: time and messages are arguments, and there is no goroutine, no clock and no lock.
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
//
// # Without an answer
//
// A request waits for its rule's store_deadline. A breaker stops messages after failures in a row, and tries again with
// growing pauses. When the wait ends while the ledger answers other claims, the last answer for the key decides. Of a
// sliding window or a bucket, only a recent one counts.
//
//   - Of an ended window: the request is refused, unless on_store_failure is open.
//   - No answer yet: on_store_failure decides on one request. Unless it is open, others are refused until that is
//     booked.
//   - Less left than the cost: the request is refused.
//   - At most half of the limit left: the request is refused, unless on_store_failure is open.
//   - More left: on_store_failure decides.
//
// In a young epoch, each node states all totals by claims without a need. Other requests are admitted up to this node's
// part of a [ratelimit.LossPart]-th of the limit, and count as charges.
//
// # Charges and refunds
//
// A charge raises what is spent, and the next claim books it whole. Its answer waits until then, if it exceeds the
// tokens that are left. A refund lowers both totals of the node at which it arrives, also below 0: so it credits a
// charge of any node, and adds no tokens in hand. Before the first answer about a window, a refund waits for one, and
// is dropped if that is late. An operator's reset is a refund of the whole sum.
//
// # Keys that leave the table
//
// A node drops a key only if the ledger has its total, without tokens in hand or drift. The key returns under another
// name of the holder. The ledger drops records of earlier names after a while, and keeps what they took. Only claims
// tell it the time of a record, so with a full table the first message about an account is a claim. When its window
// ends, a node states its total to the old account, if the ledger may have another: a late report. Its Seq is above all
// others, so that no claim in flight replaces it.
package leasing
