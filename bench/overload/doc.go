// Package overload measures what a node does when it is asked for more than it can
// answer: `sluicelab bench overload`.
//
// A real server process is driven over real connections by callers that give up
// after a while. Its capacity is measured first, in a closed loop: what it answers
// while it always has calls to answer. Then calls are made in an open loop, at
// multiples of that capacity, whatever became of those before.
//
// Where there are two processors or more, the server has some of them and the load
// the others, so that the load, which costs more the more there is of it, takes
// nothing from the server. The capacity is thus that of the server's share of the
// machine.
//
// A caller is what Envoy is: it has a bounded number of calls outstanding (its
// circuit breaker; 1024 by default), obeys the server's bound on streams, and calls
// beyond that fail on its side without being sent. They count as offered.
package overload
