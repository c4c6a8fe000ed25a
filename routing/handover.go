package routing

import (
	"context"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// build makes the view of those who are alive; the caller holds mu, if others
// may look.
func (r *Router) build(old *view) *view {
	var nodes []Member
	v := &view{peers: map[string]*peer{}, handed: map[string][]chan struct{}{}, pulls: map[string]chan struct{}{}}
	if r.present {
		nodes = append(nodes, Member{r.options.Addr, r.options.Weight})
	}
	for addr, m := range r.members {
		v.peers[addr] = m.peer
		if m.alive {
			nodes = append(nodes, Member{addr, m.weight})
		}
	}
	v.joined = r.present
	v.ring = NewRing(nodes)
	if old != nil {
		v.before = old.ring
	}
	for _, m := range v.ring.Members() {
		v.print += xxhash.Sum64String(m.Addr) * uint64(max(1, m.Weight))
	}
	return v
}

// turn puts a new ring in force, and hands over what is no longer this node's.
// The caller holds mu.
func (r *Router) turn() {
	old := r.view.Load()
	next := r.build(old)
	if r.local == nil {
		r.view.Store(next) // the store knows of all that is leased
		return
	}
	moving := map[string][]*wire.Transfer{}
	r.gate.Lock()
	r.local.HandOver(r.clock(), func(key []byte) bool {
		owner := next.ring.Owner(HashOf(key))
		return owner != "" && owner != r.options.Addr
	}, func(key []byte, a leasing.Account) {
		owner := next.ring.Owner(HashOf(key))
		moving[owner] = append(moving[owner], &wire.Transfer{
			Key: slices.Clone(key), Now: int64(a.Now), Fence: int64(a.Fence), Window: int64(a.Window), Charged: int64(a.Charged),
			Previous: int64(a.Previous), Level: a.Level, Carry: a.Carry, Dead: int64(a.Dead),
		})
	})
	old.mu.Lock()
	for owner, doing := range old.handed { // what is still on its way
		next.handed[owner] = slices.DeleteFunc(slices.Clone(doing), isClosed)
	}
	old.mu.Unlock()
	for owner, accounts := range moving {
		done := make(chan struct{})
		next.handed[owner] = append(next.handed[owner], done)
		r.hand(next.peers[owner], accounts, done)
	}
	r.view.Store(next)
	r.gate.Unlock()
	r.running.Go(func() { r.settle(next) })
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// settle asks all others to hand over what is this node's now, and then has no
// more doubts.
func (r *Router) settle(v *view) {
	for addr, p := range v.peers {
		if p.ready.Load() {
			r.pull(r.ctx, v, addr)
		}
	}
	v.stable.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.wasStable = r.wasStable || r.present
}

// transferBatch is how many accounts travel in one message.
const transferBatch = 256

// hand queues accounts for a peer, before anything that is asked of it from
// here on; what it does not acknowledge is taken back.
func (r *Router) hand(p *peer, accounts []*wire.Transfer, done chan struct{}) {
	var calls []*call
	for batch := range slices.Chunk(accounts, transferBatch) {
		c := newCall(func(f *wire.Frame, id uint64) {
			batch[0].Id = id
			f.Transfers = append(f.Transfers, batch...)
		})
		if p == nil || !p.post(c) {
			close(c.done)
			if c.err == nil {
				c.err = errPeerGone
			}
		}
		calls = append(calls, c)
	}
	r.running.Go(func() {
		defer close(done)
		for i, c := range calls {
			select {
			case <-c.done:
			case <-time.After(opening):
				continue // it may have them: then its word counts
			}
			batch := accounts[i*transferBatch : min(len(accounts), (i+1)*transferBatch)]
			if c.err == nil {
				r.stats.handed.Add(uint64(len(batch)))
				continue
			}
			for _, t := range batch {
				r.local.Adopt(r.clock(), t.GetKey(), accountOf(t))
			}
		}
	})
}

func accountOf(t *wire.Transfer) leasing.Account {
	return leasing.Account{
		Now: ratelimit.LedgerTime(t.GetNow()), Fence: ratelimit.Fence(t.GetFence()), Window: ratelimit.Window(t.GetWindow()),
		Charged: ratelimit.Tokens(t.GetCharged()), Previous: ratelimit.Tokens(t.GetPrevious()), Level: t.GetLevel(), Carry: t.GetCarry(),
		Dead: ratelimit.LedgerTime(t.GetDead()),
	}
}

// pull waits until a node has handed over what is this one's, once a view.
func (r *Router) pull(ctx context.Context, v *view, from string) {
	p := v.peers[from]
	if p == nil || !p.ready.Load() && !p.tried.Load() { // not met yet
		select {
		case <-time.After(time.Millisecond):
		case <-ctx.Done():
		}
		return
	}
	v.mu.Lock()
	done := v.pulls[from]
	if done == nil {
		done = make(chan struct{})
		v.pulls[from] = done
		c := newCall(func(f *wire.Frame, id uint64) { f.Pulls = append(f.Pulls, &wire.Pull{Id: id}) })
		if !p.post(c) {
			close(done)
		} else {
			go func() { <-c.done; close(done) }() // done when the peer answers, or breaks off
		}
	}
	v.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// awaitHanded waits until all that was to be handed to a node has been.
func (v *view) awaitHanded(ctx context.Context, to string) {
	v.mu.Lock()
	doing := slices.Clone(v.handed[to])
	v.mu.Unlock()
	for _, done := range doing {
		select {
		case <-done:
		case <-ctx.Done():
		}
	}
}
