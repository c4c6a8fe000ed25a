// Package declare states the worst case of a rule before it runs, from its settings and the number of nodes.
//
// Guarantee: [Of] bounds everything that the rule's limiters do, for each key and window. It does so in normal
// operation and in the named faults: a crash, an outage, a loss of data. It bounds over-admission, tokens that stay
// unused, waits, and operations on the store. `sluice check`, the console, metrics, the simulator and the benchmarks
// derive their output and verdicts from it. docs/reference/bounds.md has the formula and the test of each.
//
// Functions are pure: they do no I/O, do not block, and read no clock. A new mode is a line in modes.go.
package declare
