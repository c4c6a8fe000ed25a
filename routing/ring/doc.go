// Package ring names the owner of a key: the ring of Envoy's RING_HASH balancer, so that Envoy and the nodes
// agree.
//
// Guarantee: a ring depends on its members alone, in any order. With up to 100 nodes, the busiest has less
// than 1.10 times the mean of all keys (TestRingSpreads). A node that joins or leaves moves no key between
// two others. A ring is immutable. Look-ups take no lock and do not allocate.
//
// Source: Karger et al., "Consistent Hashing and Random Trees", 1997; a point is XXH64 of "address_i".
package ring
