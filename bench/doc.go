// Package bench measures real processes: the commands of `sluicelab bench`. Each command is options, whose fields are
// its flags (see package report), and all of them use the same loads, callers and fleets.
//
// # Fleets on a Redis
//
// A row is a limit and its demand. For each row and way to answer, a comparison measures the work of Redis and of the
// nodes for one decision, and compares admissions with the limit.
//
// Guarantee: every way of a row gets the same requests at the same rate from the same caller. Each has a
// fleet of its own processes, and an empty Redis process of its own. Windows of up to a minute turn in the
// middle of the time of each way, where that is at least half a window. The work of Redis is the processor
// time of its process (clock_getcpuclockid) from the first request on, less its need without connections.
// Admissions are counted where they arrive, at the caller, by window. A mode that exceeds a limit by more
// than its rule declares fails the command. So does one without faults in which the counts of caller and nodes differ.
//
// # Tokens
//
// Limits in tokens whose cost is known only when a request is done. Guarantee: in each case every way gets the same
// requests in the same seconds, from a stand-in for Envoy (envoy.LLM, as deploy/envoy/llm.yaml). Used is the cost of
// admitted requests within one window, as the caller counts it. A way that exceeds a limit by more than the costs in
// flight above their holds fails the command.
//
// # Overload
//
// Callers drive a server over real connections, and give up after a while. First, a closed loop measures the
// capacity: the answers of a server that always has calls to answer. Then calls are made in an open loop, at multiples
// of that capacity, whatever became of earlier ones. With two processors or more, the server has some of them and the
// load the others: the load, which grows with the offered calls, takes nothing from the server. A caller works like
// Envoy: it has a bounded number of calls outstanding (its circuit breaker; 1024 by default), and obeys the server's
// bound on streams. Calls beyond that fail on its side without being sent. They count as offered.
//
// # Cost
//
// The processor time of a call is compared with that of an empty server.
//
// # A request through Envoy
//
// Requests go through a real Envoy, with each way to limit them in turn. Guarantee: nothing else runs meanwhile.
package bench
