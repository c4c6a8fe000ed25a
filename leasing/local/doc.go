// Package local decides on one node, by counters in its own process. A node without a store does so, an owner of keys
// (mode routing without a store), and each node in an outage of its store.
//
// Guarantee: every answer is exact and never waits. No key is ever spent beyond its limit, for any number of keys.
//
// The parts, from below: a counter is the account of one key (counter.go), counters are a bounded table of them
// (counters.go), with the slots of concurrency limits (slots.go). [Limiter] answers requests (limiter.go), shows views
// (look.go), and moves accounts to other processes (handover.go).
package local
