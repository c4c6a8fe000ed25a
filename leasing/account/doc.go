// Package account is the ledger's side of the protocol: one account for each key and window.
//
// Guarantee: an account's sum is at least the sum of all holders' totals, and a holder owns only tokens that were
// below the limit when it took them. So holders spend at most the limit of their own tokens. This holds if messages
// are lost, repeated, delayed or overtaken, and if holders crash, pause or return. Charges and admissions without a
// grant are booked whole, and are the only way beyond the limit. Refunds credit the account, never below the tokens
// that their holder has in hand. It does not promise that every token gets used: tokens that a holder lost stay taken
// until the window ends.
//
// An account is a sum, and one total for each holder.
// The window is part of the account's name, so the content of an account never turns over. The next window is another
// account. A late report goes to the old one, which is kept one window longer.
//
// Two messages change it. A draw adds to the sum and to the holder's total, by plain increments. Its sender computes
// the tokens that it owns: those below the limit, by the sum. A claim states the holder's total and its need, and the
// ledger decides. The holder's total is the truth, and the ledger's number is a copy. So a claim takes back a lost
// answer, restores lost data, and gives tokens back with a smaller total.
//
// A token bucket is an account without a window: a level that refills, and the tokens in hand of live leases. Buckets
// have claims only.
//
// A holder that ends gives its tokens back. Its record stays until the account is over.
//
// # Claims
//
// The ledger applies a claim in one step:
//
//  1. Outside the account's span, there is no change: a new account would lack the usage. The message has the span, so
//     the ledger reads no calendar.
//  2. If Seq is not above the record's, there is no change. Otherwise tokens that are spent were granted again.
//  3. The holder's total, the larger of Taken and Spent, replaces the record, and the sum changes by the difference.
//  4. A refund cannot lower the sum below the holder's tokens in hand. The rest, the cut, stays in the record as
//     spent.
//  5. The limit less the sum, and less the counting part of a sliding window's previous account, is free.
//  6. The grant is the need, or a [Share] of the free tokens up to Want if that is more, as far as tokens are free.
//  7. The fence is the last one plus 1, or the time, if that is more. So it rises in a lost account, too.
//  8. If the need was not granted, or the sum is above the limit, while others have tokens in hand, they are recalled.
//  9. All fields are written at once. If one has another form than expected, the answer is an error, and nothing
//     changes.
//
// # Draws
//
// The draws of a round trip are one MULTI, after its claims, so that a broken connection leaves no half-done draw. In a
// Cluster, and for a window that may have ended, a draw is a message of the claim's script.
//
// # Recalls
//
// Two recalls of an account have a pause between them, which doubles while no total decreases. So reading all records
// takes a small part of the ledger's time, and no other message's work grows with the number of holders.
//
// # Epochs
//
// A server begins an epoch if its data has none, has another server's, or was a replica's in between. It begins old, so
// that a first start is no loss. A node that has read another epoch makes it young for [ratelimit.YoungFor]. A node
// with more totals to state prolongs that, up to [ratelimit.YoungMost]. On other stores than Redis, nodes advance the
// epoch's version each second, and an earlier one shows an older copy.
//
// # Names
//
// A holder's name has 64 bits. The top bit is set, and the others of the upper 36 are random. The lower 28 count the
// keys that its node has dropped. One of these bits says that the leases end with the node's registration. No process
// uses the name of another: otherwise its first claim of 0 would take back the usage of the other.
//
// # Limits of the protocol
//
// The protocol cannot detect a ledger's clock that jumps ahead, and so ends leases of buckets and registrations early.
// It cannot detect two masters that both answer, behind a partition, each with its own epoch. It detects the loss of an
// evicted account when a holder of it claims, and never that of a sliding window's previous account.
//
// # Files
//
// Start with message.go, then account.go. The ledgers are Redis, and CAS on any other store. claim.lua repeats
// account.go, and bucket.lua bucket.go. The tests compare them message by message.
package account
