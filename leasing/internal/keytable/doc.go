// Package keytable is a table from a key to a small value, for tens of millions of
// keys in one process.
//
// Guarantee: a table of n keys takes about 1.3 times what their cells and keys take;
// no operation looks at, or moves, more than [SegmentCells] places, however large the
// table is; and the garbage collector neither scans nor counts what is in it.
//
// How: a [Table] is extendible hashing (Fagin, Nievergelt, Pippenger and Strong,
// 1979). A directory, indexed by the first bits of a key's hash, leads to segments,
// which are small tables with open addressing. A segment that is full is copied into
// a larger one, up to SegmentCells, and then split in two by the next bit. So the
// table grows a segment at a time, and never as a whole.
//
// Keys are found by 128 bits of a hash ([ID]) that must be keyed with a secret of the
// process: then equal IDs are equal keys for all that a client can bring about, and a
// hit reads one line of a segment's tags and one cell, which is one cache line where
// the value is 40 bytes. The keys' bytes are kept once, beside the cells, for those
// who walk through the table.
//
// Memory comes from an [Arena], which takes it from the operating system in blocks
// of small pages. It is reused, and given back when the arena is forgotten.
package keytable
