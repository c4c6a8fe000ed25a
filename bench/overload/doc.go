// Package overload measures a node with more calls than it can answer: `sluicelab bench overload`.
//
// Callers drive a real server process over real connections, and give up after a while. First, a closed loop
// measures the capacity: the answers of a server that always has calls to answer. Then calls are made in an
// open loop, at multiples of that capacity, whatever became of earlier ones.
//
// With two processors or more, the server has some of them and the load the others. So the load, which grows
// with the offered calls, takes nothing from the server. The capacity is that of the server's share of the
// machine.
//
// A caller works like Envoy: it has a bounded number of calls outstanding (its circuit breaker; 1024 by
// default), and obeys the server's bound on streams. Calls beyond that fail on its side without being sent.
// They count as offered.
package overload
