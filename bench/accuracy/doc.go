// Package accuracy measures, with real processes, what each mode admits against
// its limits, and what that costs: a fleet of nodes and a Redis are started, and
// driven over gRPC by clients that count for themselves.
//
// Guarantee: what was admitted is counted where it arrives, at the client. A run
// in which a key went further over its limit than its rule declares, or (when
// nothing went wrong) in which the client and the service count differently by
// as much as a token, is marked, and fails the command.
//
// Limits are for a year, so that no window ends while it is measured; the
// simulator plays windows that end.
package accuracy
