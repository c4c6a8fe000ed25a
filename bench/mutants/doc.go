// Command mutants tests the tests: it plants small faults (mutants) in the core, one at a time, and runs the
// tests and the simulator's histories against each.
//
// Guarantee: with no fault active, the instrumented build passes the same tests, or the command ends. A fault
// counts as killed only when a test fails, panics or hangs with it, twice where the test keeps real time. It
// does not promise that its faults are all possible ones: only those of its operators, and those by hand, are
// planted.
//
//	make mutants                                      # everything
//	make mutants FILES=leasing/account/account.go BUDGET=5m   # a part, for so long
//
// All faults of a package are in one build. A function with faults is copied once for each, and the original calls
// the copy whose number is in the environment. So a fault costs a run of test binaries, and no build.
//
// The scripts are the Go code once more, and get no faults: TestTwins compares the two. With
// -skip TestTwins a fault stands for the same one in both.
//
// docs/internals/proof.md says how to read the report, and how to handle a survivor.
package main
