// Package account is the ledger's side of the protocol: one account for each key and window.
//
// Guarantee: an account's sum is at least the sum of all holders' totals, and a holder owns only tokens that were
// below the limit when it took them. So holders spend at most the limit of their own tokens. This holds if messages
// are lost, repeated, delayed or overtaken, and if holders crash, pause or return. Charges and admissions without a
// grant are booked whole, and are the only way beyond the limit. Refunds credit the account, never below the tokens
// that their holder has in hand. It does not promise that every token gets used: tokens that a holder lost stay taken
// until the window ends.
//
// An account is a sum, and one total for each holder (docs/reference/protocol.md, section 2).
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
// It cannot detect a ledger's clock that jumps ahead, and so ends leases of buckets and registrations early. It cannot
// detect two masters that both answer, behind a partition, each with its own epoch. It detects the loss of an evicted
// account when a holder of it claims, and never that of a sliding window's previous account.
//
// Start with message.go, then account.go. The ledgers are Redis, and CAS on any other store. claim.lua repeats
// account.go, and bucket.lua bucket.go. The tests compare them message by message.
package account
