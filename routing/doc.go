// Package routing lets one node, the key's owner, decide for each key: a
// consistent-hash ring over the live nodes names it, and the others forward.
//
// Guarantee: with a store, ownership is an optimisation and the ledger's fence
// is the safety: an owner leases from the store like any node, so that neither
// its crash nor two nodes that both think they own a key over-admit. Without a
// store, among nodes that see each other, a key's account is at one node, or on
// its way between two: whoever decides has it, or has found out that nobody has.
// Orderly joins and leaves, streams that break, and rings that change again
// before accounts have moved lose nothing and count nothing twice.
//
// What a crash costs without a store is what that owner had admitted in the
// window. Nodes that cannot see each other count apart, and so does one that is
// silent for TakeOver: others then own its keys. A node that did not run for that
// long is no owner from its first decision on, and joins again.
//
// It does not promise that an owner answers: a decision waits for it no longer
// than its rule's store_deadline, and then the rule's on_store_failure decides.
// Nodes that go on to see different rings count apart after some seconds.
//
// docs/internals/peers.md has the rules and the messages.
//
//   - [Ring] is the ring: immutable, pure.
//   - [hot] finds keys that are asked for much more than others: pure.
//   - [core] is a node without goroutines, sockets, timers or clocks: who is in
//     the ring (members.go), who decides (decide.go), how accounts move
//     (handover.go, outbox.go, parcel.go) and are looked for (fetch.go).
//   - [Discovery] says which nodes there may be.
//   - [Router] is the ratelimit.Limiter: a core, and the goroutines and streams
//     (shell.go, wire.proto) that it lives on. [Stepped] is one for simulations.
package routing
