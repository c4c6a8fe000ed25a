package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// registry is the list of nodes that share a store. Each registers there every two seconds, or less often in a large
// fleet.
//
// The list is for people. Its counts are estimates that decisions use: the number of nodes divides limits in an outage,
// and peers divides them after a loss of data.
//
// One goroutine (run) replaces nodes as a whole, and all others read it.
type registry struct {
	store  store.Store
	name   string // of this node, which no other has
	holder ratelimit.Holder
	nodes  atomic.Pointer[registered]
}

// registered is who was there when the store was last asked.
//
// A value is never changed after it was stored.
type registered struct {
	nodes []console.Node // at most mostNodes, also silent ones
	n     int            // that registered in the last minute
	at    time.Time
	every time.Duration // this node asks so often
	first time.Time     // this node registered
	most  [2]int        // highest n of this partRest, and of the one before
	since time.Time     // this partRest
}

const (
	// A node says that it is there, and reads what all others said, so often: n
	// nodes have the store read 10 n records a second.
	registerEvery  = 2 * time.Second
	registerForOne = 100 * time.Millisecond // for each node
	registerSeldom = 10 * time.Second       // at most
	mostNodes      = 1000                   // that are shown
	// A node has a part of a limit after a loss of data if its last count is younger than countFresh. It must have
	// registered partRest ago: then all others with such a part have counted it.
	countFresh = registerSeldom + 2*time.Second
	partRest   = 3 * registerSeldom
)

// registration is the text of a node about itself, as JSON: what consoles show, and what they do not. Example:
// {"debug":"sluice-0:6070","version":"v1.2.3",...,"holder":1234,"every":2000000000}.
type registration struct {
	console.Node
	Holder ratelimit.Holder `json:"holder"`
	Every  time.Duration    `json:"every"` // it says so again after that
}

// The name in the store is that of the holder, so a restarted process has another one.
func newRegistry(s store.Store, holder ratelimit.Holder) *registry {
	return &registry{store: s, name: account.HolderName(holder), holder: holder}
}

// run says that this node is there until ctx is done, and then that it is gone. A nil registry says nothing. now adds
// what changes: rules and rates. It blocks. The first two registrations are a second apart, because the first may come
// before other nodes have registered.
func (r *registry) run(ctx context.Context, name string, now func(*console.Node)) {
	if r == nil {
		return
	}
	// A debug port is reached by its host and port, and consoles show the host alone.
	host, _, _ := net.SplitHostPort(name)
	me := registration{Holder: r.holder, Node: console.Node{Host: host, Debug: name, Version: version(), Started: time.Now().UTC().Truncate(time.Second)}}
	pause := time.Second // nodes that start together find each other
	for n := 0; ctx.Err() == nil; n++ {
		me.Every = r.pause()
		now(&me.Node)
		if text, err := json.Marshal(me); err == nil {
			r.register(ctx, name, string(text))
		}
		upkeep.Sleep(ctx, pause)
		if n >= 1 {
			pause = r.pause()
		}
	}
	// ctx is done, so the farewell has a context of its own. It is bounded by a second.
	r.register(context.Background(), name, "")
}

// pause is how long a node waits until it says again that it is there. From 20 nodes on the pause grows, up to 10
// seconds at 100 nodes, so that the work of the store grows no faster than the fleet until then.
func (r *registry) pause() time.Duration {
	n := 1
	if h := r.nodes.Load(); h != nil {
		n = h.n
	}
	return min(registerSeldom, max(registerEvery, time.Duration(n)*registerForOne))
}

// silentAfter is the time after which a node with such an interval has missed its turn, plus a second for the
// store's clock, which is read in seconds.
func silentAfter(every time.Duration) time.Duration { return 2*every + time.Second }

// debugName is this node's debug port as others reach it: under the address for its peers, or its host's
// name.
func debugName(v *server.Server, peerAddr string) string {
	host, _ := os.Hostname()
	// PEER_ADDR is an address that others reach. A host's own name may be unknown to them.
	if h, _, err := net.SplitHostPort(peerAddr); err == nil {
		host = h
	}
	_, _, debug := v.Addresses()
	_, port, _ := net.SplitHostPort(debug.String())
	return net.JoinHostPort(host, port)
}

// remove takes a node out of the list. One that goes on comes back.
func (r *registry) remove(ctx context.Context, name string) error {
	_, err := r.store.Register(ctx, name, "")
	return err
}

// register blocks for a second at most. Where the store does not answer, who was there last is kept. "" says that this
// node is gone. me is the name of its debug port. Its steps: write and read in one call, count who registered in the
// last minute, drop silent entries of this port's earlier processes, and store the result.
func (r *registry) register(ctx context.Context, me, text string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all, err := r.store.Register(ctx, r.name, text)
	if err != nil {
		return
	}
	var nodes []console.Node
	count := 0
	for _, x := range all {
		// A text of another form may be of another release. It is left out, and stays in the store.
		n, ok := readNode(x)
		if !ok {
			continue
		}
		if x.Ago <= store.SilentFor {
			count++
		} else if n.Debug == me {
			_ = r.remove(ctx, n.Name) // this process replaces it
			continue
		}
		if len(nodes) < mostNodes {
			n.Here = n.Name == r.name
			nodes = append(nodes, n)
		}
	}
	// By address, so that rows of the console stay in their places.
	slices.SortFunc(nodes, func(a, b console.Node) int { return strings.Compare(a.Debug+a.Name, b.Debug+b.Name) })
	r.nodes.Store(r.nodes.Load().next(nodes, count, time.Now(), r.pause()))
}

// next is what is known after another answer. r is nil before the first. The highest count is kept for two stretches of
// partRest. A count from the beginning of a stretch so lasts for one to two of them.
func (r *registered) next(nodes []console.Node, n int, now time.Time, every time.Duration) *registered {
	is := &registered{nodes: nodes, n: n, at: now, every: every, first: now, since: now}
	if r != nil {
		is.first = r.first
		is.since = r.since
		is.most = r.most
	}
	// A new stretch begins: the highest count of the last one moves to the second place.
	if now.Sub(is.since) >= partRest {
		is.since, is.most = now, [2]int{0, is.most[0]}
	}
	is.most[0] = max(is.most[0], n)
	return is
}

// readNode reads what a node said of itself.
func readNode(x store.Registration) (console.Node, bool) {
	var s registration
	if json.Unmarshal([]byte(x.Text), &s) != nil {
		return console.Node{}, false
	}
	n := s.Node
	n.Name = x.Node
	n.Seen = int64(x.Ago / time.Second)
	n.Holder, n.Every = s.Holder, s.Every
	return n, true
}

// count is the number of nodes that registered in the minute before the store's last answer, including this
// one; 0: it has not answered yet.
func (r *registry) count() int {
	h := r.nodes.Load()
	if h == nil {
		return 0
	}
	return max(1, h.n)
}

// peers is the number of nodes that may each admit a part of a limit while the store may lack data; 0: this one admits
// none. It is the highest count of a while, because the store may have lost registrations, too. A count that is too low
// would let the nodes together admit more than a limit. So a node without a fresh count, or one that the others may not
// have counted yet, admits nothing.
func (r *registry) peers(now time.Time) int {
	h := r.nodes.Load()
	if h == nil || now.Sub(h.at) > countFresh || now.Sub(h.first) < partRest {
		return 0
	}
	return max(1, h.most[0], h.most[1])
}

// all are the nodes that registered in the last day, and those among them that have missed their turn. While the store
// does not answer, both are unknown. A node that cannot reach the store must not call others silent: their reports may
// be there, unread.
func (r *registry) all() console.Fleet {
	if r == nil || r.nodes.Load() == nil {
		return console.Fleet{}
	}
	h := r.nodes.Load()
	f := console.Fleet{Nodes: slices.Clone(h.nodes), Age: time.Since(h.at)}
	// This node's own registration is overdue, so it cannot tell who else is silent.
	f.Old = f.Age > silentAfter(h.every)
	for i := range f.Nodes {
		n := &f.Nodes[i]
		n.Seen += int64(f.Age / time.Second)
		n.Silent = !f.Old && time.Duration(n.Seen)*time.Second > silentAfter(n.Every)
	}
	return f
}
