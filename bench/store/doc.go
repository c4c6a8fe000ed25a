// Package store measures the work of Redis for one decision, in each mode and for a service that asks Redis
// for each request like envoyproxy/ratelimit.
//
// Guarantee: every mode of a row gets the same requests at the same rate from the same caller, with a fleet
// of its own processes and an empty Redis process of its own. Windows of up to a minute turn in the middle of
// the time of each mode, where that is at least half a window. The work of Redis is the processor time of its
// process (clock_getcpuclockid) from the first request on, less its need without connections. Admissions are
// counted where they arrive, at the caller, by window. A mode that exceeds a limit by more than its rule
// declares fails the command.
//
// Fleets of more than ten nodes are played in virtual time (package sim), and their claims are multiplied by
// the measured cost of a claim on a real Redis.
package store
