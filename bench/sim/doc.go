// Package sim plays fleets in virtual time: the nodes' own code, a ledger, the wires between them, and faults of each.
// Nodes are leasing.Stepped, seats are approx.Keeper's, and the ledger is account.Memory, in one or several parts.
// Nodes of a ring are routing.Stepped, over these or over budgets of their own. Envoys that enforce limits themselves
// are package envoy's clients, and a node's side of them is rlqs.Session (envoys.go). The simulator itself has only the
// waiting requests and the wires.
//
// Guarantee: the same Options give the same Result, byte for byte, on any machine. Every admission is judged by the
// definition of the limit and the ledger's clock. With Options.Check, a model that only adds up checks every account
// after each message (books.go), and the tokens that Envoys may still spend are checked after every event. At the end,
// it compares the accounts with the bookings of each node. The first violation ends the run.
//
// It does not promise durations of a real machine: CPU time counts as 0, and a node decides in no time.
//
// Mode routing is played with a store and without. Encoded frames travel between nodes, in streams that keep their
// order and break, and so do messages between Envoys and nodes. A node asks the ledger for Envoys in no time.
//
// A run, step by step. newWorld opens the ledger's parts, the nodes and the Envoys, and schedules the faults (fault.go)
// and changes of rules. World.play then takes the next event or arrival, whichever is earlier, sets the clock and runs
// it (world.go). A request goes to a node (request.go), which decides at once or sends a batch. The store delivers
// batches and answers after their travel times, or loses them (store.go). Frames between nodes of a ring have wires of
// their own (ring.go).
//
// Three checkers watch each run. The judge of a key (package judge) counts admissions by the definition of the limit.
// The bound says how far beyond it the key may be at this instant: what the rule declares, and more after each fault
// (bound.go). The books add up the accounts and compare each answer of the ledger (books.go).
//
// Random runs come from a seed (history.go), and many of them are played at once (histories.go). Another driver plays
// the choice of a mode (whatif.go).
package sim
