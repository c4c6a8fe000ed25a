// Package shed decides which calls a node begins when more come than it can answer.
//
// Guarantee: a call is refused before anything is charged for it, or it is begun. No
// call is refused while those that are inside the node can be answered within a quarter
// of the time that its caller waits (half of it, for a tenth of a second), at the speed
// at which calls have left lately.
// A connection that has no more than a quarter of its share of what may be inside (the share is
// as much as that of any other that has something inside) is not refused for what others
// have: one that floods, or does not read its answers, shuts out nobody but itself.
// It does not promise an answer in time to what it lets begin: the store may be slow.
//
// A call is inside from when its headers are read until the last of its answer is
// written, or it is reset. ratelimit/transport sees both, for it follows the frames on
// each connection; it asks the gate before gRPC knows of a call, so that a refused call
// costs next to nothing, and all that waits in the process is counted: calls that have
// had no turn yet, and answers in gRPC's buffers. Calls that are being decided are not:
// they may wait for a store. Nor are those that have been inside for longer than any
// caller waits: their own callers do not read the answers.
//
// What waits in sockets nobody can count. But in Go's scheduler, which is fair, the
// reader of a connection waits for its turn behind the calls that are inside, and no
// longer: so what is inside bounds that too. That is why it is half and a quarter, and
// not all.
//
// When calls would have been inside for more than the quarter for 100 ms without an
// end, it is no burst, and the stricter bound holds: what CoDel (RFC 8289) does, and
// the "controlled delay" of Maurer, Fail at Scale (ACM Queue 13/8, 2015). How many
// calls fit into a time is Little's law.
package shed
