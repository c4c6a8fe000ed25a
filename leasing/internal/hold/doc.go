// Package hold is a node's side of one key: what this node has taken of an account and spent of it, and what is to be
// said to the ledger next. Package account is the other side.
//
// Guarantee: what a node admits of a window without a limit's knowledge is bounded. It spends only what it owns: what a
// ledger that knew of all holders granted, or what it drew and lay below the limit; and only while the window
// certainly goes on and the lease certainly lasts. Beyond that it spends a share that its caller bounds (drift). What
// it charges beyond (a charge after the fact, a denial that charges, a store that is gone) is part of its total in the
// next message, whole. It does not promise that what it owns gets used.
//
// A Key is told what happens: a request (Take), a message that leaves (Write), its answer (Hear), time that passes
// (Turn), a recall (GiveBack). It reads no clock, takes no lock and starts no goroutine; it has no pointers, so that
// tens of millions of them cost the garbage collector nothing. The zero Key knows nothing. It is not safe for
// concurrent use.
//
//	            Write(draw)                      Hear: total is what was expected
//	plain ---------------------> asked -------------------------------------------> plain
//	  ^                            |  no answer, another epoch, another total
//	  |                            v
//	  +----------- Hear <-- asked <-- doubt: the next message is a claim, whose total puts both numbers right
package hold
