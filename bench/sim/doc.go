// Package sim plays fleets in virtual time: the nodes' own code, a ledger, the
// wires between them, and what goes wrong with each. Nodes are
// leasing.Stepped, seats are approx.Keeper's, the ledger is account.Memory, in one
// part or in several; nodes of a ring are routing.Stepped, over these or over
// budgets of their own. Only who waits, and how messages travel, is the
// simulator's.
//
// Guarantee: the same Options give the same Result, byte for byte, on any
// machine. Every admission is judged by the limit's own definition and the
// ledger's clock; with Options.Check, also every account after each message, by a
// model that only adds up (books.go), and at the end what accounts have of each
// node against what it has booked. The first that does not hold ends the run.
//
// It does not promise how long anything takes on a real machine: processor
// time is nothing here, and a node decides in no time.
//
// Mode routing is played with a store and without: frames between nodes are
// carried as they are encoded, in streams that keep their order and break.
package sim
