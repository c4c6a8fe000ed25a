// Package leasing lets a node spend a budget it shares with other nodes
// without asking for each request: it leases tokens from a ledger and spends
// them locally.
//
// Guarantee: under reclaim: safe, and as long as the ledger keeps its data and its
// clock is not set, what holders have spent of a key in a window plus what they may
// still spend of it is at most its limit, at every instant. What eager, drift and
// on_store_failure may add is declared (docs/protocol.md, section 4). It does not
// promise that every token gets used: those of a silent holder are stranded until the
// window ends.
//
// A program that wants to limit by itself needs [New], [NewRule], [Rule.Key] and
// [Limiter.Take], and nothing else of what follows; see the examples.
//
// docs/protocol.md specifies the protocol: its rules and why each is needed, its
// messages and records, and worked examples. Its two sides are packages of their own,
// which are pure: time and messages are arguments, and there is no goroutine, no clock
// and no lock.
//
//   - leasing/ledger: the ledger's side of a key, in memory and in Redis. It books claims
//     and grants.
//   - leasing/internal/lease: a node's side of a key. It spends, says what is to be
//     claimed, and takes answers in.
//
// What is here holds locks, queues and clocks around them:
//
//   - [Local] is a [ratelimit.Limiter] of a node that decides alone. A key is a counter,
//     which is account and lease in one, and nothing ever waits.
//   - [Fleet] is a [ratelimit.Limiter] over any ledger: claims are sent in the
//     background, and requests wait for them when they must. [Stepped] is a Fleet that a
//     simulator drives.
//   - [Limiter] is one of the first two, for programs that are no server.
//
// The states of a lease are drawn in docs/protocol.md, section 3.
package leasing
