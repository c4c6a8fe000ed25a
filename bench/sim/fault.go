package sim

import "time"

// strike has a fault happen.
func (w *world) strike(f Fault) {
	w.trace("%v node %d for %v", f.Kind, f.Node, f.For)
	var n *node
	if f.Node < len(w.nodes) {
		n = w.nodes[f.Node]
	}
	switch f.Kind {
	case Join:
		if len(w.nodes) < MaxNodes {
			w.met(w.join())
		}
		return
	case Restart:
		if n != nil && !n.alive {
			w.met(w.restart(n))
		}
		return
	case Slow:
		w.store.slow = f.For
		return
	case Hang:
		w.bound.outage()
		w.during(&w.store.hung, f.For)
		return
	case Down:
		w.bound.outage()
		w.during(&w.store.down, f.For)
		return
	case Amnesia:
		w.bound.forgot()
		w.store.forget()
		return
	}
	if n == nil || !n.alive {
		return
	}
	switch f.Kind {
	case Crash:
		w.bound.silent()
		n.end()
	case Leave:
		n.leave()
	case Pause:
		if !n.paused {
			w.bound.silent()
			n.paused = true
			w.in(f.For, n.resume)
		}
	case Cut:
		w.bound.silent()
		w.bound.outage()
		w.during(&n.cut, f.For)
	case Part:
		w.during(&n.parted, f.For)
	}
}

// during counts a state up, and down again after a while.
func (w *world) during(state *int, d time.Duration) {
	*state++
	w.in(d, func() { *state-- })
}

// resume has a paused node do what it did not.
func (n *node) resume() {
	n.paused = false
	if !n.alive {
		return
	}
	n.trace("node %d goes on", n.slot)
	later := n.later
	n.later = nil
	for _, do := range later {
		n.run(do)
	}
}
