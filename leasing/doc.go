// Package leasing lets a node spend a budget it shares with other nodes
// without asking for each request: it leases tokens from a ledger and spends
// them locally.
//
// Guarantee: at every instant, what holders have spent of a key in a window
// plus what they may still spend of it is at most its limit. It does not
// promise that every token gets used: those of a silent holder are stranded
// until the window ends.
//
// docs/protocol.md specifies the protocol: its rules and why each is needed, its
// messages and records, and worked examples.
//
// The pieces, from the inside out, each pure (time and messages are arguments;
// no goroutine, no clock, no I/O):
//
//   - account: the ledger's side of one key. It books claims and grants.
//   - lease: the holder's side of one key. It spends, claims and applies.
//   - counter: a key's budget on the one node that decides about it, both in one.
//   - slab: a bounded map from a key to what a fleet's node has of it.
//
// and the shells that hold locks and clocks:
//
//   - [Memory] is a [ratelimit.Ledger] in this process.
//   - [Redis] is a [ratelimit.Ledger] in Redis: the account, in Lua.
//   - [Local] is a [ratelimit.Limiter] of counters: the embedded default,
//     where nothing ever waits.
//   - [Fleet] is a [ratelimit.Limiter] over any ledger: claims are sent in the
//     background, and requests wait for them when they must.
//
// A lease's life:
//
//	           claim/grant                 take
//	(unknown) ------------> live ----------------------> live
//	                         |  deadline passes, window rolls, limit changes
//	                         v
//	                       stale --claim: unspent returned--> live
//	                         |  nothing available, nothing outstanding
//	                         v
//	                       exhausted: denies until reset, asks seldom
package leasing
