// Package transport is a gRPC port: HTTP/2 connections, and the memory that their callers can make a server hold.
//
// Guarantee: the unfinished calls on all connections of a Budget together cost at most its bytes, as this package
// counts them. An open call counts, with the bytes of its request, and those of its answer until that is written.
// Beyond that, the connection that has held most for longer than a moment is closed, so that callers who finish their
// calls continue. If little was held for so long, the one that holds most is closed. A Listener never has more
// connections than its bound: beyond it, the longest-idle one is closed for the new one. Each call gets one answer, and
// it gets its own.
//
// A Port answers unary methods itself, behind a Gate. Calls of its Services have goroutines of their own. It serves
// no other protocol than gRPC on HTTP/2 (RFC 9113), with or without TLS. Read port.go, then connection.go. Its states
// are in stream.go (a call of the method) and exchange.go (a call of a service).
//
// A panic on the way of a call ends that call, or its connection. Options.Bug gets it.
//
// One goroutine of a connection reads, decides and writes: it leads. It handles all frames that one read brings, asks
// the gate about each call, answers the calls that were let in, and writes all answers at once. So calls on one
// connection share the price of reading and writing. A decision that waits (ratelimit.Waits) keeps the goroutine, and
// a new one leads.
//
// Locks are taken in this order: mu of a Port or a Budget, then mu of a connection or a Body, then those of a Gate or a
// Listener. So a connection charges its Budget only after it has released its own lock: the Budget may end any
// connection to make room, this one too. Functions that end in Locked book a change of memory, and their caller charges
// it.
//
// It does not bound the work of the service on a complete request, nor tell callers apart by address: they may all
// come through one proxy.
package transport
