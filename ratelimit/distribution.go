package ratelimit

import "sync/atomic"

// Distribution counts how often values fell below powers of four. The zero
// value is ready; it may be used concurrently, takes no lock and does not
// allocate.
type Distribution struct {
	buckets [DistributionBuckets]atomic.Uint64
	sum     atomic.Int64
}

// DistributionBuckets is how many buckets there are: the last bound is 4^11,
// about four million.
const DistributionBuckets = 12

// DistributionCounts are the counts of a Distribution: Buckets[i] values were at most 4^i and more than
// 4^(i-1); the last has all larger ones.
type DistributionCounts struct {
	Buckets [DistributionBuckets]uint64
	Count   uint64
	Sum     int64
}

// Observe counts one value, which must not be negative.
func (d *Distribution) Observe(n int64) {
	d.sum.Add(n)
	for i := range d.buckets {
		if n <= 1<<(2*i) || i == len(d.buckets)-1 {
			d.buckets[i].Add(1)
			return
		}
	}
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
