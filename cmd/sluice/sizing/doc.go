// Package sizing derives from one figure, the memory of the process, how much a node takes on.
//
// [Of] finds the memory: MAX_MEMORY, GOMEMLIMIT, the container's or the machine's. From it follow the number of tracked
// keys ([Memory.Table]), and the [Caps] of connections, bytes in flight, streams and rules. Within these, callers, peers,
// Envoys and rules cannot end the process by their number. [Memory.Ballast] and [EaseCollector] set the garbage
// collector for nodes, whose heap is small, and for many streams of RLQS.
package sizing
