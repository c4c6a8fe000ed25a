// Package routing lets one node decide for each key: its owner, which a consistent-hash ring over the live
// nodes names. The other nodes forward.
//
// Guarantee: with a store, an owner leases from it like any node, and the ledger's fence makes that safe.
// Neither a crash of the owner nor two nodes that both act as the owner over-admit. Without a store, among
// nodes that can reach each other, an account is at one node or on its way between two. A node decides if it
// has the account, or has found out that no node has it. Orderly joins and leaves, broken streams, and
// further changes of the ring lose no charge and count none twice.
//
// Without a store, a crash costs the admissions of that owner in the window. Nodes that cannot reach each
// other count apart, and so does a node that is silent for TakeOver: others then own its keys. A node that
// did not run for that long is no owner from its first decision on, and joins again.
//
// It does not promise an answer of the owner. A decision waits for it no longer than the rule's
// store_deadline. Then the rule's on_store_failure decides. Nodes that keep seeing different rings count
// apart after some seconds, and decide so on keys of whose owner they do not agree.
//
// wire.proto has the messages.
//
//   - [Ring] is the ring: immutable, pure.
//   - [hot] finds busy keys: pure.
//   - [core] is a node without goroutines, sockets, timers or clocks: the members of the ring (members.go,
//     presence.go), decisions (instore.go and storeless.go, which draw the way of a request), moving accounts
//     (handover.go, outbox.go, inbox.go, internal/moved) and the search for them (fetch.go).
//   - [Discovery] finds possible nodes.
//   - [Router] is the ratelimit.Limiter: a core with goroutines and streams (shell.go, wire.proto).
//     [Stepped] is one for simulations.
//
// # Accounts without a store
//
//   - Possession decides. A node decides if it has the account, or has found out that no node has it.
//   - Parcels have numbers. A node numbers its parcels for its whole life, sends each until its receipt arrives, and
//     counts each once.
//   - Sent is not gone. Before the receipt, no new account replaces a sent one, because the receiver may refuse it.
//   - A node answers that it has no account only if it sees the asking node's ring. Otherwise, it may have sent the
//     account to a third node.
//   - Arrears are tokens that a node admitted in place of an owner. It asks the current owner to book them, and repeats
//     charges without an answer, but never refunds.
package routing
