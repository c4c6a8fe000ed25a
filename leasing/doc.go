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
// messages and records, and worked examples.
//
// The pieces, from the inside out, each pure (time and messages are arguments;
// no goroutine, no clock, no I/O):
//
//   - account: the ledger's side of one key. It books claims and grants.
//   - lease: the holder's side of one key. It spends, claims and applies.
//   - counter: account and lease in one, for a key that only this node decides about.
//   - keytable, fleetShard: a bounded table of what a fleet's node has of each key.
//
// and the shells that hold locks and clocks:
//
//   - [Memory] is a [ratelimit.Ledger] in this process.
//   - [Redis] is a [ratelimit.Ledger] in Redis: the account, in Lua.
//   - [Local] is a [ratelimit.Limiter] of counters: the embedded default,
//     where nothing ever waits.
//   - [Fleet] is a [ratelimit.Limiter] over any ledger: claims are sent in the
//     background, and requests wait for them when they must.
//   - [Limiter] is one of these two, for programs that are no server.
//
// The states of a lease are drawn in docs/protocol.md, section 3.
package leasing
