// Package config reads rules: the files of envoyproxy/ratelimit, with our
// additions, into a structure that is matched without allocating.
//
// Guarantee: what Compile accepts means what it meant to envoyproxy/ratelimit.
// What it rejects it rejects whole, with every problem and its place. A Store
// never replaces good rules by bad ones.
//
// Rules come from a Source: a Tree (a directory that is alive), a Copy (what was
// good last, on disk), or one that this package does not know, as package xds. A
// Store loads its source's rules, and Watch has it load them again.
//
// The way of a file: parse (YAML to a tree with places), decode (tree to a File of
// Descriptors), Compile (Files to Rules). Rules that are no YAML start as Files:
// Build holds them against the same bounds.
package config
