// Package lease is a node's side of one key: what this node has taken of an account and spent of it, and its next
// message to the ledger. Package account is the other side.
//
// Guarantee: a node spends only tokens that it owns, while the window is certainly current and the lease certainly
// lasts. It owns tokens that a ledger with all totals granted, and draws below the limit. Beyond these it spends a
// share that its caller bounds (drift). Other charges are costs after the fact, denials that charge, and admissions
// in an outage: they are part of its total in the next message. The package does not promise that tokens get used.
//
// Events drive a Key: a request (Take), a message that leaves (Write), its answer (Apply), time (Turn), a recall
// (GiveBack). It reads no clock, takes no lock and starts no goroutine. It has no pointers, so that tens of millions
// of keys cost the garbage collector nothing. The zero Key is new. It is not safe for concurrent use.
//
//	            Write(draw)                      Apply: the expected total
//	plain ------------------> in flight -----------------------------------------> plain
//	  ^                            |  no answer, another epoch, another total
//	  |                            v
//	  +----------- Apply <- in flight <- mustClaim: the next message is a claim, whose total corrects both numbers
package lease
