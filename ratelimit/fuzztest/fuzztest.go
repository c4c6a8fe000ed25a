// Package fuzztest makes each input of a fuzz target count for several runs. The fuzzer needs longer for an
// input than a quick target does, because it reads the counters of all linked packages.
//
// Guarantee: the runs of an input depend on the input alone, so that the fuzzer can tell which of its inputs
// discover something. It is for targets that cost some microseconds. Do not use it for one that takes a
// millisecond.
package fuzztest

// Runs is how many runs an input stands for, if it is long enough.
const Runs = 9

// Bytes calls f with in, and with copies of in with one changed bit: Runs times in all, or less often if in
// has fewer bytes. f must neither keep nor change its argument. Bytes allocates a copy of in.
func Bytes(in []byte, f func([]byte)) {
	f(in)
	b := make([]byte, len(in))
	for i := range min(Runs-1, len(in)) {
		copy(b, in)
		b[i*len(in)/(Runs-1)%len(in)] ^= 1 << (i % 8)
		f(b)
	}
}
