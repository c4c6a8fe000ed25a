// Package config reads rules: the files of envoyproxy/ratelimit, with our
// additions, into a structure that is matched without allocating.
//
// Guarantee: what Compile accepts means what it meant to envoyproxy/ratelimit;
// what it rejects it rejects whole, with every problem and its place. A Source
// never replaces good rules by bad ones.
//
// The way of a file: parse (YAML to a tree with places) - decode (tree to
// Descriptors) - Compile (Descriptors to Rules). Rules that arrive some other
// way start at Descriptors.
package config
