// Package keytable is a table from a key to a small value, for tens of millions of
// keys in one process.
//
// Guarantee: a table of n keys takes about 1.3 times the size of their cells and keys. No operation reads or moves
// more than [SegmentCells] places, for any size of the table. The garbage collector neither scans nor counts its
// content.
//
// How: a [Table] is extendible hashing (Fagin, Nievergelt, Pippenger and Strong,
// 1979). A directory, indexed by the first bits of a key's hash, leads to segments,
// which are small tables with open addressing. A segment that is full is copied into
// a larger one, up to SegmentCells, and then split in two by the next bit. So the
// table grows a segment at a time, and never as a whole.
//
// Keys are found by 128 bits of a hash ([ID]), which must be keyed with a secret of the process. Then equal IDs mean
// equal keys for all that a client can send. A hit reads one line of a segment's tags and one cell. With a value of
// 40 bytes, a cell is one cache line. The bytes of keys are kept once, for walks through the table.
//
// Memory comes from an [Arena], which takes it from the operating system in blocks of small pages. It is reused, and
// given back when the arena is unreachable.
package keytable
