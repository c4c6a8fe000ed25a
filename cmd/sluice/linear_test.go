package main

import (
	"context"
	goflag "flag" // flag is a function here
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
)

var (
	linearSeeds = goflag.Int("linear-seeds", 1, "how many histories of each kind to record")
	linearSeed  = goflag.Uint64("linear-seed", 0, "of the first; 0: of this second")
)

const linearLimit = 40

const routedRules = `domain: d
coordination: {mode: routing, on_store_failure: closed}
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 40}}
`

const (
	linearKeys    = 10
	linearClients = 6
	linearAsks    = 60                    // of each client, in addition to those at the pace
	linearPace    = 12 * time.Millisecond // between a client's requests while a node ends
)

// recorder is a fleet of three nodes, and the answers of its clients.
type recorder struct {
	*fleet
	began   time.Time
	mu      sync.Mutex
	history counterHistory              // guarded by mu
	live    [3]atomic.Pointer[liveNode] // where requests go
	lost    atomic.Int64
	early   int // answers by the policy of nodes that are gone
	// unread is from when a node that was killed was last asked how many these are until it was gone.
	unread [2]time.Duration
}

// liveNode is a node, to which each client has a connection of its own.
type liveNode struct {
	*sluice
	clients [linearClients + 1]rls.RateLimitServiceClient
}

// linearKind is a store, and what happens to the nodes meanwhile.
type linearKind struct {
	store   func(testing.TB) storeServer // nil: none
	kill    bool
	replace bool
}

// Histories of real fleets in mode routing are those of a counter.
//
// Without a store there is one account of a key, at one node, also while nodes join and leave. Every answer is exact,
// including limit_remaining and peeks. Only a request that its client gives up is not one step: it may be charged,
// seen by others, and taken back.
//
// With a store, admissions are those of a counter, also through the crash of a node. The leases of that node are
// stranded: refused from then on, although the counter has them. For a while, so are the leases of a node that
// ended, and those of an owner whose keys a new node now owns. A node whose owner did not answer in time, on a
// busy machine, has leased instead, and strands its lease, too: its metrics show that. limit_remaining is from
// the last answer, and not checked.
func TestLinear(t *testing.T) {
	for name, kind := range map[string]linearKind{
		"memory":           {},
		"memory, replaced": {replace: true},
		"redis":            {store: aRedis},
		"redis, killed":    {store: aRedis, kill: true},
		"redis, replaced":  {store: aRedis, replace: true},
		"postgres":         {store: databases["postgres"]},
		"etcd":             {store: databases["etcd"]},
	} {
		t.Run(name, func(t *testing.T) { linear(t, kind) })
	}
}

// linear records histories and checks them.
func linear(t *testing.T, kind linearKind) {
	t.Helper()
	first := *linearSeed
	if first == 0 {
		first = uint64(time.Now().Unix())
	}
	for seed := first; seed < first+uint64(*linearSeeds); seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { // its nodes end with it
			r, early := recorded(t, kind, seed)
			m := counterModel{limit: linearLimit, exact: kind.store == nil, early: early}
			t.Logf("%d operations, %d without an answer, %d decided without the owner or the store", len(r.history), r.lost.Load(), early)
			if err := r.history.check(m); err != nil {
				t.Errorf("-linear-seed %d: %v", seed, err)
			}
		})
	}
}

// record runs clients with about twice the demand of the limit. After half of that, a node is killed or
// replaced. The clients continue, slowly in that time, and then at full speed. A history over a new year is
// recorded again, because it has two windows.
func recorded(t *testing.T, kind linearKind, seed uint64) (*recorder, int) {
	t.Helper()
	for {
		year := time.Now().UTC().Year()
		r := newRecorder(t, kind)
		var clients sync.WaitGroup
		half, over := make(chan struct{}), make(chan struct{})
		var halfway sync.Once
		for c := range linearClients {
			rnd := rand.New(rand.NewPCG(seed, uint64(c)))
			clients.Go(func() {
				r.asks(c, rnd, linearAsks/2)
				halfway.Do(func() { close(half) })
				pace := time.NewTicker(linearPace)
				defer pace.Stop()
				for going := true; going; {
					select {
					case <-over:
						going = false
					case <-pace.C:
						r.ask(c, rnd)
					}
				}
				r.asks(c, rnd, linearAsks/2)
			})
		}
		<-half
		switch {
		case kind.kill:
			r.kill()
		case kind.replace:
			r.replace()
		}
		close(over)
		clients.Wait()
		for i := range 3 * linearKeys { // alone, to see where the counters stand
			r.decide(linearClients, i%3, linearKey(i/3), 1, 0)
		}
		early := r.early
		for _, op := range r.history {
			at, answer := time.Duration(op.Return), op.Output.(counterAnswer)
			if !answer.lost && !answer.ok && at >= r.unread[0] && at <= r.unread[1] {
				early++
			}
		}
		for n := range r.running() {
			early += int(n.decidedAlone())
			if kind.store != nil && n.metric(`sluice_peer_asks_total{kind="leased_instead"}`) > 0 { // the time is unknown
				r.changed(0)
			}
		}
		if time.Now().UTC().Year() == year {
			return r, early
		}
	}
}

func linearKey(i int) string { return string(rune('a' + i)) }

func newRecorder(t *testing.T, kind linearKind) *recorder {
	t.Helper()
	with := setup{rules: routedRules, ring: 4}
	// A commit may take longer than 15 ms. A request that has waited is refused while the ledger may have tokens.
	if kind.store != nil {
		with.store, with.rules = kind.store(t), patient(routedRules)
	}
	r := &recorder{fleet: newFleet(t, 0, with), began: time.Now()}
	for i := range r.live {
		r.live[i].Store(r.another())
	}
	r.untilWhole()
	return r
}

// another is one more node.
func (r *recorder) another() *liveNode {
	n := &liveNode{sluice: r.join()}
	for c := range n.clients {
		n.clients[c] = rls.NewRateLimitServiceClient(n.dial())
	}
	return n
}

// running are the nodes that requests go to, each once.
func (r *recorder) running() map[*liveNode]bool {
	all := map[*liveNode]bool{}
	for i := range r.live {
		all[r.live[i].Load()] = true
	}
	return all
}

// kill ends the third node at once; its clients go to the first.
func (r *recorder) kill() {
	n := r.live[2].Load()
	r.unread[0] = time.Since(r.began)
	r.early += int(n.decidedAlone())
	r.changed(time.Since(r.began))
	_ = n.cmd.Process.Kill()
	r.live[2].Store(r.live[0].Load())
	<-n.exited
	r.unread[1] = time.Since(r.began)
	for i := range 2 {
		s := r.live[i].Load()
		s.eventually("the dead node is out of the ring", func() bool { return s.metric("sluice_ring_members") == 2 })
	}
}

// replace has a new node take the third one's place, which then ends in good order.
func (r *recorder) replace() {
	r.changed(time.Since(r.began))
	fresh := r.another()
	fresh.eventually("the new node is healthy", fresh.healthy)
	n := r.live[2].Swap(fresh)
	r.early += int(n.decidedAlone())
	n.ends(syscall.SIGTERM)
}

// changed records that the nodes change at a time since the first request. With a store, a node that ends, or that has
// lost keys to a new owner, may keep tokens for a while that no other can spend.
func (r *recorder) changed(at time.Duration) {
	if r.store != nil {
		r.keep(porcupine.Operation{ClientId: linearClients, Input: counterOp{change: true}, Call: int64(at), Output: counterAnswer{}, Return: never})
	}
}

// decidedAlone is how many requests this node has decided by their rules' policy.
func (s *sluice) decidedAlone() int64 {
	return int64(s.metric(`sluice_decision_sources_total{source="fallback"}`))
}

// ask sends a request of 1 to 3 hits, or a peek, of a key to one of the nodes; some are given up after a moment.
func (r *recorder) ask(client int, rnd *rand.Rand) {
	cost := 1 + rnd.IntN(3)
	if rnd.IntN(10) == 0 {
		cost = 0
	}
	patience := time.Duration(0)
	if rnd.IntN(25) == 0 {
		patience = time.Duration(50+rnd.IntN(1000)) * time.Microsecond
	}
	r.decide(client, rnd.IntN(3), linearKey(rnd.IntN(linearKeys)), cost, patience)
}

func (r *recorder) asks(client int, rnd *rand.Rand, n int) {
	for range n {
		r.ask(client, rnd)
	}
}

// decide asks one node, and records what it said.
func (r *recorder) decide(client, node int, key string, cost int, patience time.Duration) {
	if patience == 0 {
		patience = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	op := porcupine.Operation{ClientId: client, Input: counterOp{key: key, cost: cost}, Call: int64(time.Since(r.began)), Return: never}
	reply, err := r.live[node].Load().clients[client].ShouldRateLimit(ctx, asking(descriptor(cost, "k", key)))
	if err != nil {
		op.Output = counterAnswer{lost: true}
		r.lost.Add(1)
	} else {
		op.Return = int64(time.Since(r.began))
		op.Output = counterAnswer{ok: reply.OverallCode == rls.RateLimitResponse_OK, remaining: int(reply.Statuses[0].LimitRemaining)}
	}
	r.keep(op)
}

func (r *recorder) keep(op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, op)
}
