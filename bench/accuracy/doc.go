// Package accuracy measures the admissions of each mode against its limits, and their cost. It starts a fleet
// of nodes and a Redis, as real processes, and drives them over gRPC by clients that count for themselves.
//
// Guarantee: admissions are counted where they arrive, at the client. A run is marked, and fails the command,
// if a key exceeded its limit by more than its rule declares. So is one without faults in which the counts of
// client and service differ by a token.
//
// Limits are for a year, so that no window ends during the measurement. The simulator plays windows that end.
package accuracy
