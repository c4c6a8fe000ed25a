// Package config reads rules: the files of envoyproxy/ratelimit, with Sluice's additions, into a
// structure that matches requests without allocations.
//
// Guarantee: accepted files have the same meaning as in envoyproxy/ratelimit. Bad files are
// rejected as a whole, with every problem and its place. A Store never replaces good rules with bad
// ones.
//
// Rules come from a Source: a Tree (a directory or a file), or a push of package xds. A Store loads
// the rules of its source, and Watch loads them again. It can keep a copy of the last good ones.
//
// The steps for a file are: parse (YAML to a tree with places), decode (tree to a File of
// Descriptors), Compile (Files to Rules). Each step reports its problems and continues, with a valid value in
// place of a wrong one, so that one check shows all. Rules are made only if there are none.
//
// Files are not trusted: a pushed or mistaken one must not take the memory of a node that serves. Caps bound what each
// step can make of the step before.
package config
