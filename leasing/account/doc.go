// Package account is the ledger's side of the protocol: one account for each key and window.
//
// Guarantee: an account's sum is at least what all holders have taken of it together, and a holder owns only what
// lay below the limit when it was taken. So what holders spend of what they own is at most the limit, whatever
// messages are lost, repeated, delayed or overtaken, and whoever crashes, pauses or comes back. What was charged or
// admitted without asking is booked whole, and is the only way beyond the limit; refunds credit the account, never
// below nothing. It does not promise that every token gets used: what a holder took and lost stays taken until the
// window ends.
//
// An account is a sum, and one total for each holder. In Redis it is a hash:
//
//	sum      taken by all holders, and not given back
//	h:NAME   this holder's total                       plain integers: any client can add to them
//	c:NAME   its last claim: seq, spent, fence, expiry     packed, written by claims only
//	a        of the account: spent, fence, what it learns, whom it recalls     packed, written by claims only
//
// The window is part of the account's name, so nothing turns over inside an account: the next window is another
// account, and a late report goes to the old one, which is kept one window longer.
//
// Two messages change it. A draw adds to the sum and to the holder's total, by plain increments, and whoever sent it
// judges what it owns: its tokens less what the sum says is beyond the limit. A claim states the holder's total and
// its need, and the ledger judges. The holder's total is the truth, and the ledger's number a copy of it: so a lost
// answer is taken back, a ledger that forgot learns again, and giving back is a claim with a smaller total.
//
// A token bucket is an account without a window: a level that refills, and what live leases have in hand. Of buckets
// there are claims only.
//
// A holder that ends may say so (Leaves): its total stays in the sum, and its name is kept for a minute at least, for
// messages of it that are late. One that does not leaves its record until the account is over. Nothing is deleted that
// would change the sum.
//
// What is settled of an audited rule is on record in a stream beside the key's accounts, written in the same step
// (event.go): also what was granted to a node that never heard of it. Of such rules there are no draws.
//
// The limit of a key may be overridden (override.go): in a record of its own beside its accounts, which is read in the
// step that settles a message. Guarantee: a message is judged by the override that is set, unexpired, when it is
// settled, at most the ceiling of the claim's limit; to set, change or remove one changes no account, and so nothing
// that was spent. Whoever has something of the accounts, or refuses, is recalled then. It does not promise that a node
// whose recall is lost hears of it before its next message; what it has in hand, it may spend until then.
//
// It does not see: a ledger's clock that jumps ahead, by which eager leases and those of buckets are over early; two
// masters that both answer, behind a partition, each of which is an epoch of its own; an account that was evicted,
// until somebody who had some of it claims; and the window before of a sliding one, if that was evicted.
//
// Start with message.go, then account.go. Memory and Redis are the two ledgers; claim.lua is account.go once more,
// bucket.lua bucket.go, and the tests compare them message by message.
package account
