// Package routing lets one node, the key's owner, decide for each key: a
// consistent-hash ring over the live nodes names it, and the others forward.
//
// Guarantee: with a store, ownership is an optimisation and the ledger's fence
// is the safety: an owner leases from the store like any node, so that neither
// its crash nor two nodes that both think they own a key over-admit. Without a
// store the node that has a key's account decides for it, and there is at most
// one among nodes that see each other: it hands the account over before another
// answers. What a crash costs then is what that owner had admitted in the
// window, and nodes that cannot see each other count apart.
//
// It does not promise that an owner answers: a decision waits for it no longer
// than ratelimit.StoreDeadline, and then the rule's on_store_failure decides.
//
//   - [Ring] is the ring: immutable, pure.
//   - [hot] finds keys that are asked for much more than others: pure.
//   - [Discovery] says which nodes there may be; [Peers] which are alive, and
//     carries messages to them (wire.proto).
//   - [Router] is the ratelimit.Limiter.
package routing
