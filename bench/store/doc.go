// Package store measures what Redis does for one decision, in each mode and beside
// a service that asks Redis for each request as envoyproxy/ratelimit does.
//
// Guarantee: every mode of a row gets the same requests at the same rate from the
// same caller, a fleet of its own processes and a Redis process of its own that was
// empty. Windows of up to a minute turn in the middle of the time of each mode, where that
// is at least half a window. What Redis does is the processor time of its process
// (clock_getcpuclockid) while requests come, from the first on, less what it needs when nobody is
// connected. What was admitted is counted where it arrives, at the caller, by window:
// a mode that goes further over a limit than its rule declares fails the command.
//
// Fleets of more than ten nodes are played in virtual time (package sim), and their
// claims are multiplied by what a claim was measured to cost a real Redis.
package store
