// Package lease is a node's side of leasing: all that a node knows of one key of a shared
// ledger, and what it does next.
//
// Guarantee: of a window, a node spends no more than the ledger has granted it for that
// window, while it may, but for what its caller lets it drift ([Held.Drift]) and what
// on_store_failure has admitted ([Held.Book]); and each claim says all that was spent of its
// window, but for what [Held.BookUnplaced] leaves out. So much holds whatever the answers say,
// and whether they come or not, if each is taken in once at most, after its claim and before
// the next one is written.
//
// [Held] is that state. Each method tells it one thing that has happened, at an instant
// that is an argument: a request, a claim that leaves, an answer, a recall, time that has
// passed. What it wants done then it says in a [Todo], which [Held.Ready] returns: claims to
// be sent, and when to look again. Its caller does that at once, under the same lock. There
// is no goroutine here, no clock, no lock, no queue and no I/O, so that the same code runs
// in a server, in the simulator, and in the scripts of testdata. (etcd's raft has its state
// machine say so what to send, by a Ready.)
//
//	request ----> Take ----> from the lease, or refused                  Ready: renew
//	                 |-----> Drift -> from the node's share, in mode approx    Ready: tell it
//	                 '-----> Join --> a claim of its own, or behind one
//	claim leaves -> Write --> what the ledger is told and asked for
//	answer -------> Answer --> the lease, the next window's, when to renew   Ready: give back
//	time passes --> Sweep --> the window's turn                           Ready: last word, give back
//
// A claim is one [Flight] from when it is wanted until it is answered, and one is under way at
// a time (docs/protocol.md, section 4.2):
//
//	wanted by a request (Join), by the Held (Todo.Claim), or by its caller
//	  --> queued (Flies, or Queued where nobody waits) --> Write --> Lands --> Answer
//
// A request that comes before Write goes with the claim. One that comes later waits for its
// end, and is then asked again. It makes no difference whether the key is packed in between.
//
// The scripts of testdata show all this at work, a command a line: plain_lease.txt first.
//
// Read held.go first, then claim.go, answer.go and lease.go. What concerns one thing only has
// a file of its own: the turn of a window (next.go), mode approx (share.go), requests that
// nobody asked the ledger for (unasked.go), recalls (recall.go), how much is asked for and how
// often (demand.go, plan.go, pace.go), what time it is at the ledger (ledgerclock.go), how
// a key that is not busy is kept (packed.go), and what metrics and people see of it (gauges.go,
// heldlook.go).
package lease
