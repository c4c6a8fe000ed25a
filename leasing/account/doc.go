// Package account is the ledger's side of the protocol: one account for each key and window.
//
// Guarantee: an account's sum is at least what all holders have taken of it together, and a holder owns only what
// lay below the limit when it was taken. So what holders spend of what they own is at most the limit, whatever
// messages are lost, repeated, delayed or overtaken, and whoever crashes, pauses or comes back. What was charged or
// admitted without asking is booked whole, and is the only way beyond the limit; refunds credit the account, never
// below nothing. It does not promise that every token gets used: what a holder took and lost stays taken until the
// window ends.
//
// An account is a sum, and one total for each holder:
//
//	sum          taken by all holders, and not given back
//	h:NAME       this holder's total                      plain integers: any client can add to them
//	c:NAME       its last claim: seq, spent, fence, expiry     written by claims only
//	spent, fence, learns, learned, recalled, expires      of the account, written by claims only
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
// Start with message.go, then account.go. Memory and Redis are the two ledgers; claim.lua is account.go once more,
// and the tests compare the two claim by claim.
package account
