package sim

import (
	"slices"
	"time"
)

// ring makes the parts that only mode routing has: hot keys, and rings without a store, in which nodes join and
// leave more often.
func (h *historian) ring() {
	if !h.o.Rule.Coordination.Mode.Spec().Owned {
		return
	}
	h.o.HotRate = pick(h, 0, 1e9, 5, 50)
	if h.chance(0.4) {
		return
	}
	h.o.Storeless, h.o.Changes, h.o.Table = true, nil, 0
	h.o.Net.Loss = pick(h, 0, 0, 0.03)
	h.o.Faults = slices.DeleteFunc(h.o.Faults, func(f Fault) bool { return !slices.Contains(ringFaults, f.Kind) })
	for range h.IntN(6) {
		h.o.Faults = append(h.o.Faults, Fault{
			At: time.Duration(h.Int64N(int64(h.o.Load.Length))), Kind: pick(h, Join, Join, Leave, Leave, Restart), Node: h.IntN(h.o.Nodes + 2),
		})
	}
}

// ringFaults are the faults that matter without a store.
var ringFaults = []FaultKind{Crash, Restart, Pause, Part, Leave, Join, Suspend}
