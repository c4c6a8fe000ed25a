// Package ledger is the ledger's side of leasing: what has been spent of each key, and
// what is leased of it to whom.
//
// Guarantee: of a key's limit, what the ledger has granted and not taken back is never
// more than there is, whatever claims come, in whatever order, once or twice or never;
// and the fences that it gives out for a key rise for ever. Where it has lost its data it
// grants at most a twentieth of a limit until its holders have told it again. It counts
// what holders say that they have spent; it does not promise that they say the truth.
//
// There are two, which answer alike to the token and the microsecond
// (TestRedisAnswersAsMemoryDoes), and a third that wraps the first for simulations:
//
//   - [Memory] keeps an [Account] for each key in this process.
//   - [Redis] keeps them in Redis. settle.lua is the account once more; account.go, grant.go, records.go,
//     bucket.go and the script change together.
//   - [LosableMemory] can lose its data, as a Redis can.
//
// An account reads no clock and takes no lock: [Account.Settle] gets the time and a claim,
// and returns a grant. [CheckGrant] is what a node believes of a ledger's answer.
//
// docs/protocol.md, sections 4 and 6, specify what is here.
package ledger
