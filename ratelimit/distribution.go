package ratelimit

import (
	"math/bits"
	"sync/atomic"
)

// Distribution counts how often values fell below powers of two. The zero
// value is ready; it may be used concurrently, takes no lock and does not
// allocate.
type Distribution struct {
	buckets [DistributionBuckets]atomic.Uint64
	sum     atomic.Int64
}

// DistributionBuckets is how many buckets there are: the last bound is 2^22,
// about four million.
const DistributionBuckets = 24

// DistributionCounts are the counts of a Distribution: Buckets[i] values were at most 2^i and more than
// 2^(i-1); the last has all larger ones.
type DistributionCounts struct {
	Buckets [DistributionBuckets]uint64
	Count   uint64
	Sum     int64
}

// Observe counts one value, which must not be negative.
func (d *Distribution) Observe(n int64) {
	d.sum.Add(n)
	i := bits.Len64(uint64(max(1, n) - 1))
	d.buckets[min(i, len(d.buckets)-1)].Add(1)
}

// Counts returns the counts so far.
func (d *Distribution) Counts() DistributionCounts {
	c := DistributionCounts{Sum: d.sum.Load()}
	for i := range d.buckets {
		c.Buckets[i] = d.buckets[i].Load()
		c.Count += c.Buckets[i]
	}
	return c
}

// Add adds what another has counted.
func (c *DistributionCounts) Add(o DistributionCounts) {
	for i := range c.Buckets {
		c.Buckets[i] += o.Buckets[i]
	}
	c.Count, c.Sum = c.Count+o.Count, c.Sum+o.Sum
}

// LeastSince is the lower bound of the lowest bucket that grew since earlier counts; 0: none did, or it is the first.
func (c *DistributionCounts) LeastSince(earlier *DistributionCounts) int64 {
	for i := range c.Buckets {
		if c.Buckets[i] > earlier.Buckets[i] {
			return 1 << i >> 1
		}
	}
	return 0
}
