package routing

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/routing/wire"
)

func (r *Router) hello() *wire.Hello {
	r.mu.Lock()
	defer r.mu.Unlock()
	return &wire.Hello{Version: version, Addr: r.options.Addr, Weight: r.options.Weight, Nonce: newNonce(), Absent: !r.present}
}

// Run finds peers and talks to them until ctx is done. It blocks.
func (r *Router) Run(ctx context.Context) {
	var wg sync.WaitGroup
	r.mu.Lock()
	r.ctx, r.running = ctx, &wg
	r.mu.Unlock()
	if r.hotFleet != nil {
		leases, end := context.WithCancel(context.WithoutCancel(ctx))
		defer end()
		released := make(chan struct{})
		go func() { defer close(released); r.hotFleet.Run(leases) }()
		defer func() { end(); <-released }()
	}
	tick := time.NewTicker(pingEvery / 2)
	defer tick.Stop()
	var found instant
	for {
		if now := r.clock(); found == 0 || now.Sub(found) >= findEvery {
			found = now
			r.find(ctx)
		}
		r.bury()
		r.join(ctx)
		select {
		case <-ctx.Done():
			wg.Wait()
			return
		case <-tick.C:
		}
	}
}

// find adds the nodes that there may be.
func (r *Router) find(ctx context.Context) {
	bounded, cancel := context.WithTimeout(ctx, findEvery)
	defer cancel()
	addrs, err := r.options.Discovery.Find(bounded)
	if err != nil {
		r.tell("", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.looked = true
	for _, a := range addrs {
		if m := r.know(a); m != nil {
			m.found = r.clock()
		}
	}
}

// know starts the way to a node that was not known; the caller holds mu.
func (r *Router) know(addr string) *member {
	m := r.members[addr]
	if m == nil && addr != r.options.Addr && len(r.members) < maxPeers && r.running != nil {
		m = &member{peer: &peer{addr: addr, creds: r.options.TLS, queue: make(chan *call, peerQueue), kick: make(chan struct{}, 1), pending: map[uint64]*call{}}}
		r.members[addr] = m
		ctx, cancel := context.WithCancel(r.ctx)
		m.stop = cancel
		r.running.Go(func() { m.run(ctx, r) })
	}
	return m
}

// greeted takes in that a node has introduced itself: this one dials back.
func (r *Router) greeted(h *wire.Hello) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.know(h.GetAddr())
	if m == nil {
		return
	}
	m.found = r.clock()
	if !m.ready.Load() {
		select {
		case m.kick <- struct{}{}:
		default:
		}
	}
}

// met takes in that the way to a node is open.
func (r *Router) met(h *wire.Hello) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[h.GetAddr()]
	if m == nil {
		return
	}
	if alive := !h.GetAbsent(); alive != m.alive || m.weight != h.GetWeight() {
		m.alive, m.weight = alive, h.GetWeight()
		r.turn()
	}
}

// presence takes in that a node owns keys from now on, or none any more. It
// reports false when the way to it is not open.
func (r *Router) presence(addr string, here bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.members[addr]
	if m == nil || here && !m.ready.Load() {
		return false
	}
	if m.alive != here {
		m.alive = here
		r.turn()
	}
	return true
}

// announce tells all others whether this node owns keys.
func (r *Router) announce(ctx context.Context) {
	var wg sync.WaitGroup
	for _, p := range r.view.Load().peers {
		wg.Go(func() { r.announceTo(ctx, p) })
	}
	wg.Wait()
}

func (r *Router) announceTo(ctx context.Context, p *peer) {
	for {
		reply, err := p.ask(ctx, func(f *wire.Frame, id uint64) {
			r.mu.Lock()
			defer r.mu.Unlock()
			f.Presences = append(f.Presences, &wire.Presence{Id: id, Here: r.present})
		})
		if err != nil || reply.GetStatus() == answered {
			return
		}
		select {
		case <-time.After(5 * time.Millisecond): // it dials back
		case <-ctx.Done():
			return
		}
	}
}

// join enters the ring once every node that was found has been met, or could
// not be.
func (r *Router) join(ctx context.Context) {
	r.mu.Lock()
	if r.present || r.left || !r.looked {
		r.mu.Unlock()
		return
	}
	for _, m := range r.members {
		if !m.ready.Load() && !m.tried.Load() {
			r.mu.Unlock()
			return
		}
	}
	r.present = true
	r.turn()
	r.mu.Unlock()
	bounded, cancel := context.WithTimeout(ctx, TakeOver)
	defer cancel()
	r.announce(bounded)
}

// bury takes nodes out of the ring that were not heard of for too long.
func (r *Router) bury() {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, changed := r.clock(), false
	for addr, m := range r.members {
		if m.alive && now.Sub(instant(m.heard.Load())) > TakeOver {
			m.alive, changed = false, true
		}
		if !m.alive && now.Sub(max(m.found, instant(m.heard.Load()))) > forgetAfter {
			m.stop()
			delete(r.members, addr)
		}
	}
	if changed {
		r.turn()
	}
}

// forgetAfter is how long a node that is gone is still looked for.
const forgetAfter = time.Minute

// Leave hands all keys over to the others. They are told first, and then wait
// for it; until all have heard, this node still decides. It goes on to forward.
// It blocks at most until ctx is done.
func (r *Router) Leave(ctx context.Context) {
	r.mu.Lock()
	if r.left || r.running == nil {
		r.mu.Unlock()
		return
	}
	r.present, r.left = false, true
	r.mu.Unlock()
	r.announce(ctx)
	r.mu.Lock()
	r.turn()
	v := r.view.Load()
	r.mu.Unlock()
	for addr := range v.peers {
		v.awaitHanded(ctx, addr)
	}
}

// Ready tells whether this node has joined the ring, and has its keys.
func (r *Router) Ready() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.present && !r.left {
		return false
	}
	return r.wasStable || r.local == nil
}
