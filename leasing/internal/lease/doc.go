// Package lease is a node's side of one key: what this node has taken of an account and spent of it, and its next
// message to the ledger. Package account is the other side.
//
// Guarantee: a node spends only tokens that it owns, while the window is certainly current and the lease certainly
// lasts. It owns tokens that a ledger with all totals granted, and draws below the limit. Beyond these it spends a
// share that its caller bounds (drift). Other charges are costs after the fact, denials that charge, and admissions
// in an outage: they are part of its total in the next message. The package does not promise that tokens get used.
//
// Events drive a Key: a request (Take), a message that leaves (Write), its answer (Apply), time (Enter), a recall
// (GiveBack). It reads no clock, takes no lock and starts no goroutine. It has no pointers, so that tens of millions
// of keys cost the garbage collector nothing. The zero Key is new. It is not safe for concurrent use.
//
//	            Write(draw)                      Apply: the expected total
//	plain ------------------> in flight -----------------------------------------> plain
//	  ^                            |  no answer, another epoch, another total
//	  |                            v
//	  +----------- Apply <- in flight <- mustClaim: the next message is a claim, whose total corrects both numbers
//
// # Draws and claims
//
// A node draws only if all of these hold, and claims otherwise:
//
//   - The last sum that it read is at most 7/8 of the limit, and the limit is not a bucket.
//   - Its last message was answered, the answer counted, and Taken is the ledger's total.
//   - It states no refund, and gives nothing back.
//   - It has the ledger's epoch, and that is not young.
//   - Its lease does not end with the node's registration.
//
// Requests that wait are the next message's need together, and the largest is its unit. Of a small limit, nothing is
// taken ahead, so that peeks show all that is left.
//
// # Answers
//
// A node has one message in flight for each key, and never sends it twice: a repeated draw counts twice. An answer
// counts only if all of these hold. Otherwise the next message is a claim:
//
//   - It answers the latest message, and is not an error.
//   - At the end of the round trip, the epoch is the one in which the message was written, and not young.
//   - It arrives before the window's end, and before the registration's if the lease ends with that.
//   - Of a draw, the total is the one before plus the draw. Otherwise an older draw arrived late, or data was lost.
//
// Drift beyond the limit stays unconfirmed: it occupies the share until the window ends.
//
// # Spending
//
// A node admits a request at once if its cost is in hand before the deadline, and the window certainly has not ended.
// If a claim falls short, and others have no tokens in hand, it refuses requests that cost more than what is left,
// without a claim.
package lease
