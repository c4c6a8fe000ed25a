// Package plant builds a package's tests with bugs in the product, at most one in each run, to see whether
// the tests find it: a checker that cannot fail proves nothing.
//
// Guarantee: a bug replaces its right text, which is in its file exactly once, or nothing is built. A run has
// the one requested bug, or none. The product's files are not touched: the go command reads others in their
// stead (-overlay).
//
// All bugs are in one build. A function with bugs is copied once for each, and the original calls the copy
// whose number is in the environment (Variable). So a bug costs a run, and not a build. Each call of such a
// function costs a comparison more. Generic functions, main and init cannot be copied, and code outside of
// functions has no copy: a bug there is an error.
//
//	tests, err := plant.Tests(ctx, root, "bench/sim", dir, bugs)
//	out, err := tests.Command(ctx, bugs[3].Name, "-test.run", "^TestHistories$").CombinedOutput()
//
// Package mutants plants its own faults by the same means, from File on.
package plant
