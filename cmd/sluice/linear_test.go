package main

import (
	"context"
	goflag "flag" // flag is a function here
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
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

const (
	linearLimit   = 40
	linearKeys    = 10
	linearClients = 6
	linearAsks    = 60                    // of each client, in addition to those at the pace
	linearPace    = 12 * time.Millisecond // between a client's requests while a node ends
)

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
	t.Parallel()
	const routed = "domain: d\ncoordination: {mode: routing, on_store_failure: closed}\n"
	first := *linearSeed
	if first == 0 {
		first = uint64(time.Now().Unix())
	}
	for name, kind := range map[string]struct {
		store   string           // its kind; "": none
		changes func(*recording) // what happens to the nodes meanwhile; nil: nothing
	}{
		"memory":           {},
		"memory, replaced": {"", (*recording).replace},
		"redis":            {"redis", nil},
		"redis, killed":    {"redis", (*recording).kill},
		"redis, replaced":  {"redis", (*recording).replace},
		"postgres":         {"postgres", nil},
		"etcd":             {"etcd", nil},
	} {
		for seed := first; seed < first+uint64(*linearSeeds); seed++ {
			t.Run(fmt.Sprintf("%s, seed %d", name, seed), func(t *testing.T) {
				t.Parallel()
				// Clients have about twice the demand of the limit. After half of that, nodes change. The clients continue,
				// slowly in that time, and then at full speed.
				with := setup{ring: 4, rules: routed + rules(linearLimit)[len("domain: d\n"):]}
				// A commit may take longer than 15 ms. A request that has waited is refused while the ledger may have tokens.
				if kind.store != "" {
					with.store, with.rules = startStore(t, kind.store), patient(with.rules)
				}
				r := &recording{fleet: newFleet(t, 0, with), began: time.Now()}
				for i := range r.live {
					r.live[i].Store(r.another())
				}
				r.untilWhole()
				var clients sync.WaitGroup
				half, over := make(chan struct{}), make(chan struct{})
				var halfway sync.Once
				for c := range linearClients {
					rnd := rand.New(rand.NewPCG(seed, uint64(c)))
					clients.Go(func() {
						for range linearAsks / 2 {
							r.ask(c, rnd)
						}
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
						for range linearAsks / 2 {
							r.ask(c, rnd)
						}
					})
				}
				<-half
				if kind.changes != nil {
					kind.changes(r)
				}
				close(over)
				clients.Wait()
				for i := range 3 * linearKeys { // alone, to see where the counters stand
					r.decide(linearClients, i%3, linearKey(i/3), 1, 10*time.Second)
				}
				for _, op := range r.history {
					at, answer := time.Duration(op.Return), op.Output.(counterAnswer)
					if !answer.lost && !answer.ok && at >= r.unread[0] && at <= r.unread[1] {
						r.early++
					}
				}
				running := map[*liveNode]bool{}
				for i := range r.live {
					running[r.live[i].Load()] = true
				}
				for n := range running {
					r.early += n.decidedAlone()
					if r.store != nil && n.metric(`sluice_peer_asks_total{kind="leased_instead"}`) > 0 { // the time is unknown
						r.changed(0)
					}
				}
				m := counterModel{limit: linearLimit, exact: kind.store == "", early: r.early}
				t.Logf("%d operations, %d decided without the owner or the store", len(r.history), r.early)
				if err := r.history.check(m); err != nil && r.began.UTC().Year() == time.Now().UTC().Year() { // or it has two windows
					t.Errorf("-linear-seed %d: %v", seed, err)
				}
			})
		}
	}
}

// recording is a fleet of three nodes, and the answers of its clients.
type recording struct {
	*fleet
	began   time.Time
	mu      sync.Mutex
	history counterHistory              // guarded by mu
	live    [3]atomic.Pointer[liveNode] // where requests go
	early   int                         // answers by the policy of nodes that are gone
	// unread is from when a node that was killed was last asked how many these are until it was gone.
	unread [2]time.Duration
}

// liveNode is a node, to which each client has a connection of its own.
type liveNode struct {
	*sluice
	clients [linearClients + 1]rls.RateLimitServiceClient
}

func linearKey(i int) string { return string(rune('a' + i)) }

// another is one more node.
func (r *recording) another() *liveNode {
	n := &liveNode{sluice: r.join()}
	for c := range n.clients {
		n.clients[c] = rls.NewRateLimitServiceClient(n.dial())
	}
	return n
}

// kill ends the third node at once; its clients go to the first.
func (r *recording) kill() {
	n := r.live[2].Load()
	r.unread[0] = time.Since(r.began)
	r.early += n.decidedAlone()
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
func (r *recording) replace() {
	r.changed(time.Since(r.began))
	fresh := r.another()
	fresh.untilHealthy()
	n := r.live[2].Swap(fresh)
	r.early += n.decidedAlone()
	n.ends(syscall.SIGTERM)
}

// changed records that the nodes change at a time since the first request. With a store, a node that ends, or that has
// lost keys to a new owner, may keep tokens for a while that no other can spend.
func (r *recording) changed(at time.Duration) {
	if r.store != nil {
		r.keep(porcupine.Operation{ClientId: linearClients, Input: counterOp{change: true}, Call: int64(at), Output: counterAnswer{}, Return: never})
	}
}

// ask sends a request of 1 to 3 hits, or a peek, of a key to one of the nodes; some are given up after a moment.
func (r *recording) ask(client int, rnd *rand.Rand) {
	cost := 1 + rnd.IntN(3)
	if rnd.IntN(10) == 0 {
		cost = 0
	}
	patience := 10 * time.Second
	if rnd.IntN(25) == 0 {
		patience = time.Duration(50+rnd.IntN(1000)) * time.Microsecond
	}
	r.decide(client, rnd.IntN(3), linearKey(rnd.IntN(linearKeys)), cost, patience)
}

// decide asks one node, and records what it said.
func (r *recording) decide(client, node int, key string, cost int, patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	op := porcupine.Operation{
		ClientId: client, Input: counterOp{key: key, cost: cost}, Call: int64(time.Since(r.began)),
		Output: counterAnswer{lost: true}, Return: never,
	}
	reply, err := r.live[node].Load().clients[client].ShouldRateLimit(ctx, asking(descriptor(cost, "k", key)))
	if err == nil {
		op.Return = int64(time.Since(r.began))
		op.Output = counterAnswer{ok: reply.OverallCode == rls.RateLimitResponse_OK, remaining: int(reply.Statuses[0].LimitRemaining)}
	}
	r.keep(op)
}

func (r *recording) keep(op porcupine.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.history = append(r.history, op)
}

// The subject of the check is a history: requests of clients, their times, and the answers. It is linearizable
// if each operation can have one instant between its call and its return, such that a counter with that order
// gives the same answers. An operation whose answer was lost has no return: it may have happened at any time
// since its call, or not at all.

// counterOp is what a client asked of one key.
type counterOp struct {
	key    string
	cost   int  // 0: a peek
	change bool // of the nodes: whatever they had leased may be out of others' reach
}

// counterAnswer is its answer.
type counterAnswer struct {
	lost      bool
	ok        bool
	remaining int
}

// counterState is a counter of a key's admissions.
//
// Parked tokens are tokens that may be held for requests that have gone: others are refused until they are given back
// or spent on another request. A request that is given up is charged and then taken back, or is charged to a node that
// keeps the tokens for a while. In between others find too little, and afterwards more. It is an upper bound.
type counterState struct {
	spent  int // admitted, or drained by a denial
	parked int
	early  int // answers that the rule's policy gave without the owner or the store
}

// counterModel is a limit with on_deny: charge.
type counterModel struct {
	limit int
	exact bool // limit_remaining is the rest, except parked tokens
	early int  // how many answers may be the policy's
}

// step returns what the counter is after an operation with that answer, and false if it cannot answer so.
func (m *counterModel) step(s counterState, op counterOp, a counterAnswer) (counterState, bool) {
	if a.ok {
		s.spent += op.cost
	}
	left := m.limit - s.spent
	// The counter may say that so much is left.
	leaves := !m.exact || left-s.parked <= a.remaining && a.remaining <= left
	switch {
	case op.change:
		s.parked = m.limit
	case a.lost:
		s.parked = min(left, s.parked+op.cost)
	case op.cost == 0:
		if !leaves {
			s.early++
		}
	case a.ok:
		s.parked = min(s.parked, left)
		return s, left >= 0 && leaves
	case s.spent+s.parked+op.cost > m.limit && (!m.exact || a.remaining <= s.parked): // it drains the rest, except parked tokens
		s.spent = max(s.spent, m.limit-s.parked)
	default: // the policy's; the request may be with its owner all the same
		s.early++
		s.parked = min(left, s.parked+op.cost)
	}
	return s, s.early <= m.early
}

// counterHistory is what was recorded of all keys.
type counterHistory []porcupine.Operation

const never = math.MaxInt64 // a return that did not happen

// check tells for each key whether its history is linearizable, and returns what is wrong with the first that is not. A
// change of the nodes concerns each key.
func (h counterHistory) check(m counterModel) error {
	model := porcupine.Model{
		Init: func() any { return counterState{} },
		Step: func(state, input, output any) (bool, any) {
			next, ok := m.step(state.(counterState), input.(counterOp), output.(counterAnswer))
			return ok, next
		},
	}
	keys := map[string]bool{}
	for _, op := range h {
		keys[op.Input.(counterOp).key] = true
	}
	for key := range keys {
		ops := slices.DeleteFunc(slices.Clone(h), func(op porcupine.Operation) bool {
			in := op.Input.(counterOp)
			return !in.change && in.key != key
		})
		if result := porcupine.CheckOperationsTimeout(model, ops, 20*time.Second); result != porcupine.Ok {
			slices.SortFunc(ops, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
			text := ""
			for _, op := range ops {
				text += fmt.Sprintf("  from %v to %v client %d: %+v: %+v\n", time.Duration(op.Call), time.Duration(op.Return), op.ClientId, op.Input, op.Output)
			}
			return fmt.Errorf("%v, in 20 s: whether an order of these explains the answers of a limit of %d (%d may be the policy's):\n%s", result, m.limit, m.early, text)
		}
	}
	return nil
}

// A checker that cannot fail proves nothing.
func TestLinearCheckerRefuses(t *testing.T) {
	ask := func(client int, call, end int64, cost int, a counterAnswer) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Call: call, Return: end, Input: counterOp{key: "k", cost: cost}, Output: a}
	}
	ok := func(left int) counterAnswer { return counterAnswer{ok: true, remaining: left} }
	refused, lost := counterAnswer{}, counterAnswer{lost: true}
	for _, c := range []struct {
		name  string
		exact bool
		right bool
		ops   counterHistory
	}{
		{"as many as there are", true, true, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, refused)}},
		{"one over", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, ok(0))}},
		{"one over, leased", false, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 2, ok(0)), ask(0, 4, 5, 1, ok(0))}},
		{"two at once, both the last", true, false, counterHistory{ask(0, 0, 1, 4, ok(1)), ask(1, 2, 9, 1, ok(0)), ask(2, 3, 8, 1, ok(0))}},
		{"refused too early", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 1, refused), ask(0, 4, 5, 1, ok(1))}},
		{"refused too early, leased", false, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 1, refused)}},
		{"admitted after a denial has drained", true, false, counterHistory{ask(0, 0, 1, 4, ok(1)), ask(1, 2, 3, 2, refused), ask(0, 4, 5, 1, ok(0))}},
		{"refused for one that was lost", true, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused)}},
		{"refused for one that was lost and taken back", true, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused), ask(1, 4, 5, 3, ok(0))}},
		{"one over, and one that was lost", true, false, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, ok(2)), ask(1, 4, 5, 3, ok(2))}},
		{"refused while one that was lost is parked", false, true, counterHistory{ask(0, 0, never, 3, lost), ask(1, 2, 3, 3, refused), ask(1, 4, 5, 3, ok(2))}},
		{"lost, and counted for more than it asked", true, false, counterHistory{ask(0, 0, never, 1, lost), ask(1, 2, 3, 3, refused)}},
		{"a peek that forgets", true, false, counterHistory{ask(0, 0, 1, 3, ok(2)), ask(1, 2, 3, 0, ok(5))}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if err := c.ops.check(counterModel{limit: 5, exact: c.exact}); (err == nil) != c.right {
				t.Errorf("found: %v", err)
			}
		})
	}
}
