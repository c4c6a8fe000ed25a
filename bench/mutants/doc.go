// Command mutants tests the tests: it plants small faults (mutants) in the core, one at a time, and runs the
// tests and the simulator's histories against each.
//
// Guarantee: without an active fault, the instrumented build passes the same tests, or the command ends. A fault
// counts as killed only if a test fails, panics or hangs with it twice. It does
// not promise all possible faults: it plants those of its operators, and those of a hand-made list.
//
//	make mutants                                      # everything
//	make mutants FILES=leasing/account/account.go BUDGET=5m   # a part, for so long
//
// All faults of a package are in one build (see package plant). A run without a fault notes which functions each test
// enters: only those tests run for the faults of a function.
//
// The scripts repeat the Go code, and get no faults: TestTwins compares the two.
//
// docs/explain/proof.md says how to read the report, and how to handle a survivor.
package main
