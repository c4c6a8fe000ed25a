// Package table keeps one table of small records on all nodes of a fleet: each node has all of it in memory, and reads
// what is new with each beat.
//
// Guarantee: a record that was set is at the store and at its node, and within a beat and a trip at each node that
// reaches the store. It is lost only if the store loses its data, and each node that had read it has ended or has not
// read for half an hour ([Silence]). A removed record does not come back, unless the store goes on with a copy of more
// than half an hour ago. Of two changes, the one with the higher version counts, everywhere.
//
// Each of these rules excludes an order of events that would break the table:
//
//  1. Records merge by (version, end, value). So the order in which they arrive does not matter.
//  2. A version is the store's time, and above each version that the store ever had. A clock that was set back would
//     give a change a version that other nodes ignore, because they have a higher one.
//  3. A removal is a record. Each node keeps it for an hour ([Kept]) from when it last arrived there, and has the store
//     drop it then. A node that lacks it would bring back what was removed. The store's clock has no part in this: set
//     ahead by an hour, it would drop removals that others have not read.
//  4. What is new is found by its place in the feed, not by its version: what a node writes back later may have a
//     lower one.
//  5. In another life of the store's data, a node reads all, and writes back what the store lacks. Only then it sets.
//  6. A node that has not read for half an hour may lack removals that are no longer kept. It writes nothing back: it
//     drops what the store lacks. Its own clock may stand still meanwhile, so the store's counts as well, in one life.
//
// A [Table] is one place: a node, or a store in memory. A [Node] keeps its table in step with a [Store]. A [Stream]
// keeps the tables of two nodes in step that have no store. None of them starts a goroutine.
package table
