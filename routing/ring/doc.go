// Package ring says which of the nodes of a fleet owns a key: the ring of Envoy's
// RING_HASH balancer, so that an Envoy and the nodes agree.
//
// Guarantee: it depends on the members alone, in whatever order they are heard of; with up
// to 100 nodes the busiest has less than 1.10 times the mean of all keys (TestRingSpreads);
// and a node that comes or goes moves no key between two others. A ring is immutable, takes
// at most some 100 MB however much weight its members have ([MostPoints]), and is asked
// without a lock or an allocation.
//
// Source: Karger et al., "Consistent Hashing and Random Trees", 1997; a point is XXH64 of
// "address_i".
package ring
