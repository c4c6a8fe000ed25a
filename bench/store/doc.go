// Package store runs real fleets on a Redis. A row is a limit and its demand. For each row and mode it measures the
// work of Redis and the nodes for one decision, and compares admissions with the limit. `sluicelab bench store` also
// runs a service that asks Redis for each request. `sluicelab bench accuracy` has loads and faults.
//
// Guarantee: every mode of a row gets the same requests at the same rate from the same caller. Each has a
// fleet of its own processes, and an empty Redis process of its own. Windows of up to a minute turn in the
// middle of the time of each mode, where that is at least half a window. The work of Redis is the processor
// time of its process (clock_getcpuclockid) from the first request on, less its need without connections.
// Admissions are counted where they arrive, at the caller, by window. A mode that exceeds a limit by more
// than its rule declares fails the command. So does one without faults in which the counts of caller and nodes differ.
package store
