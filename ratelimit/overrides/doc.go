// Package overrides has the limits of single keys that are set at run time. They are a table of rules, which each
// node has: a request's key is looked up in it before its rule's own limit counts. The limiter below gets a rule with
// another limit, and has no part in overrides.
//
// Guarantee: an override counts at each node within a beat and a trip of package table. Until then, the larger of the
// two limits holds for the fleet. It never changes the amount that was spent. A ban (0) counts under each max_override,
// unit and algorithm of its rule. Others count only for the period that they were set for.
//
// An empty table costs a request one atomic load, and a full one a lookup.
package overrides
