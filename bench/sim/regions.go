package sim

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Regions share a far store. A node is in a region by its slot, and rings do not span regions.

// region is the name of a node's region.
func (w *world) region(slot int) string { return fmt.Sprint("region-", slot%max(1, w.Regions)) }

// regions makes some histories of mode routing with a store play regions that are far from it. Some are cut off, also
// across a turn of the window, start anew, or drain into others. It draws its own random numbers.
func (h *historian) regions() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0x4e91))}
	c := &h.o.Rule.Coordination
	if !c.Mode.Spec().Owned || h.o.Storeless || !of.chance(0.4) {
		return
	}
	h.o.Regions = 2 + of.IntN(2)
	h.o.Nodes = max(h.o.Nodes, h.o.Regions)
	trip := pick(of, 20*time.Millisecond, 80*time.Millisecond, 150*time.Millisecond)
	h.o.Net.Trip = Delay{Least: trip, Tail: pick(of, 0, 5*time.Millisecond)}
	c.StoreDeadline = pick(of, 3*trip, 6*trip)
	for i := range h.o.Changes {
		h.o.Changes[i].Rule.Coordination.StoreDeadline = c.StoreDeadline
	}
	for range of.IntN(4) {
		h.strikeRegion(of)
	}
}

// strikeRegion lets the same happen to all nodes of a region.
func (h *historian) strikeRegion(of *historian) {
	length, period := h.o.Load.Length, h.o.Rule.Limit.Period()
	at := time.Duration(of.Int64N(int64(length)))
	lasts := time.Duration(of.Int64N(int64(pick(of, time.Second, 12*time.Second))))
	if turn := period - (at+h.o.Start)%period; of.chance(0.3) && at+turn < length { // across a turn
		at += max(0, turn-lasts/2)
	}
	kind := pick(of, Cut, Cut, Crash, Leave)
	for slot := of.IntN(h.o.Regions); slot < h.o.Nodes; slot += h.o.Regions {
		h.o.Faults = append(h.o.Faults, Fault{At: at, Kind: kind, Node: slot, For: lasts})
		if kind != Cut && of.chance(0.7) {
			h.o.Faults = append(h.o.Faults, Fault{At: at + lasts, Kind: Restart, Node: slot})
		}
	}
}
