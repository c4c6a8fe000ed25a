// Package shed decides which calls a node begins when more come than it can answer.
//
// Guarantee: a call is refused before anything is charged for it, or it is begun.
// As long as calls are begun as fast as they come, no call is refused, however many
// come at once, if each can be begun within half of the time that its caller waits.
// It does not promise an answer in time to what it lets begin: the store may be slow.
//
// Where calls wait. In grpc-go the reader of a connection makes a goroutine of each
// call, and under overload these wait in Go's scheduler until they run; calls that
// were sent and not read wait in the socket. The gate is asked by the reader (Tap),
// which is the first to know of a call, and told when its goroutine runs, so that it
// knows how many calls wait, and from how fast they begin while others wait, how long
// a call that comes now will.
//
// A call may wait for half of its caller's patience. When calls have waited for
// 100 ms without an end, it is no burst, and the bound becomes an eighth, so that
// the queue does not stand at its end: what CoDel (RFC 8289) does, and the
// "controlled delay" of Maurer, Fail at Scale (ACM Queue 13/8, 2015).
//
// Refusing costs about a third of answering, nearly all of it for reading the call's
// headers. Refusals therefore have a share of the processor's time; when it is used
// up, connections stay unread for some milliseconds (Listener). Their callers run
// out of streams, or of their own bound on outstanding calls, and fail there.
package shed
