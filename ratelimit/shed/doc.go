// Package shed decides which calls a node starts when more arrive than it can answer.
//
// Guarantee: a call is refused before any charge, or it starts. A call is not refused while the calls inside
// the node can be answered within a quarter of its caller's deadline, at the recent speed. For a tenth of a
// second, that is half of the deadline. A connection with at most a quarter of its share of the calls inside
// is not refused because of others. All connections with calls inside have equal shares. So a connection that
// floods shuts out only itself. It does not promise an answer in time: the store may be slow.
//
// A call is inside from when its request is complete until it is decided, or begins to wait for a store.
// ratelimit/transport sees these, because it follows the frames on each connection. So a call inside needs the
// processor and nothing else: calls that never become complete, and answers that their callers do not read, are no
// reason to refuse others. The budget of their connections bounds them.
//
// Calls in sockets cannot be counted. But Go's scheduler is fair: the reader of a connection waits for its
// turn behind the calls that are inside, and no longer. So the calls inside bound that too. For this reason,
// the limits are half and a quarter of the deadline, and not all of it.
//
// When calls are inside for more than the quarter for 100 ms without a break, it is no burst, and the
// stricter bound holds. CoDel (RFC 8289) does the same, and the "controlled delay" of Maurer, Fail at Scale
// (ACM Queue 13/8, 2015). Little's law gives the number of calls for a time.
package shed
