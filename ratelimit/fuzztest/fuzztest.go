// Package fuzztest has each input of a fuzz target stand for several runs. The
// fuzzer itself needs longer for an input than a quick target does, for it looks
// through the counters of all packages that are linked in.
//
// Guarantee: what is run for an input hangs on the input alone, so that the fuzzer
// can tell which of its inputs discover something. It is for targets that cost
// some microseconds; one that takes a millisecond is better without.
package fuzztest

// Runs is how many runs an input stands for, if it is long enough.
const Runs = 9

// Bytes calls f with in, and with in as it is with one bit changed at each of some
// places: Runs times in all, less often where in has fewer bytes than that. f must
// neither keep nor change what it is given. Bytes allocates a copy of in.
func Bytes(in []byte, f func([]byte)) {
	f(in)
	b := make([]byte, len(in))
	for i := range min(Runs-1, len(in)) {
		copy(b, in)
		b[i*len(in)/(Runs-1)%len(in)] ^= 1 << (i % 8)
		f(b)
	}
}

// Numbers calls f with in, and with in as it is with one bit changed in one of the
// numbers: Runs times in all, if there are any numbers. Which bit hangs on the
// number. f must neither keep nor change what it is given. Numbers allocates a copy
// of in.
func Numbers(in []int64, f func([]int64)) {
	f(in)
	b := make([]int64, len(in))
	for i := range Runs - 1 {
		if len(in) == 0 {
			return
		}
		copy(b, in)
		at := i % len(in)
		b[at] ^= int64(1) << ((uint64(in[at])%64 + 9*uint64(i)) % 64)
		f(b)
	}
}
