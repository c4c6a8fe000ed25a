// Package shed decides which calls a node starts when more arrive than it can answer.
//
// Guarantee: a call is refused before any charge, or it starts. A call is not refused while the calls inside
// the node can be answered within a quarter of its caller's deadline, at the recent speed. For a tenth of a
// second, that is half of the deadline. A connection with at most a quarter of its share of the calls inside
// is not refused because of others. All connections with calls inside have equal shares. So a connection that
// floods, or does not read its answers, shuts out only itself. It does not promise an answer in time: the
// store may be slow.
//
// A call is inside from the reading of its headers until the last byte of its answer is written, or it is
// reset. ratelimit/transport sees both, because it follows the frames on each connection. It asks the gate
// before gRPC reads a call. So a refused call costs little, and all calls that wait in the process count:
// those without a turn yet, and answers in gRPC's buffers. Calls that are being decided do not count: they
// may wait for a store. Neither do those that are inside for longer than any caller waits: their callers do
// not read the answers.
//
// Calls in sockets cannot be counted. But Go's scheduler is fair: the reader of a connection waits for its
// turn behind the calls that are inside, and no longer. So the calls inside bound that too. For this reason,
// the limits are half and a quarter of the deadline, and not all of it.
//
// When calls are inside for more than the quarter for 100 ms without a break, it is no burst, and the
// stricter bound holds. CoDel (RFC 8289) does the same, and the "controlled delay" of Maurer, Fail at Scale
// (ACM Queue 13/8, 2015). Little's law gives the number of calls for a time.
package shed
