package account

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// operated is a Redis Cluster under the operations of its owners, and two nodes' ledgers on it. Most slots of each part
// are at the first master, and stay there. The others, its last ones, are at one of three others, and move.
type operated struct {
	*testing.T
	rnd     *rand.Rand
	masters []*redistest.Server
	slots   []int                     // that move
	of      map[int]*redistest.Server // their masters
	keys    map[int]string            // a key in each
	met     map[*redistest.Server]bool
	// had are the masters of each part since the last round: true for one that got it since then. hurt are the masters
	// that have lost data: true for a loss since then. The time at which a slot moved is unknown to a node, so it counts
	// a loss for each part that a hurt master had, or gets.
	had     [partitions]map[*redistest.Server]bool
	hurt    map[*redistest.Server]bool
	servers []*redistest.Server // also those that have no slots any more, and are replicas
	nodes   []*operator
}

// operator is a node's ledger, with the epochs that it has reported.
type operator struct {
	*live
	holder ratelimit.Holder
	seq    uint64
	totals map[int]tokens // of each slot's key
	booked map[int]tokens // of them, those that the accounts should have
	last   map[int]uint64 // the epoch's id of each part, as the last claim reported it
	// lost has, for each slot whose data was lost since its last claim, the epoch's id of before.
	lost map[int]uint64
}

const movable = 12 // slots of each part that move

func newOperated(t *testing.T, seed uint64) *operated {
	size := clusterSlots / partitions
	moves := func(slot int) bool { return slot%size >= size-movable }
	o := &operated{
		T: t, rnd: rand.New(rand.NewPCG(seed, 1)), of: map[int]*redistest.Server{}, keys: map[int]string{},
		met: map[*redistest.Server]bool{}, hurt: map[*redistest.Server]bool{},
	}
	masterOf := func(slot int) int {
		if !moves(slot) {
			return 0
		}
		return 1 + partOf(slot)%3
	}
	o.masters = redistest.ClusterOf(t, 4, masterOf)
	o.servers = slices.Clone(o.masters)
	addrs := make([]string, len(o.masters))
	for i, s := range o.masters {
		addrs[i], o.met[s] = s.Addr, true
	}
	for slot := range clusterSlots {
		if moves(slot) {
			o.slots = append(o.slots, slot)
			o.of[slot] = o.masters[masterOf(slot)]
		}
	}
	for i := 0; len(o.keys) < len(o.slots); i++ {
		key := fmt.Sprint("k", i)
		if slot := int(slotOf(key)); moves(slot) {
			o.keys[slot] = key
		}
	}
	for i := range 2 {
		r := newLive(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs, ContextTimeoutEnabled: true}), weekly(1e9))
		o.nodes = append(o.nodes, &operator{
			live: r, holder: ratelimit.Holder(i + 1), totals: map[int]tokens{}, booked: map[int]tokens{},
			last: map[int]uint64{}, lost: map[int]uint64{},
		})
	}
	return o
}

// claims has a node claim tokens of a slot's key. Whatever is granted is of another epoch than before a loss of the
// slot's data, and of the same one while no server of the part lost data.
func (o *operated) claims(n *operator, slot int) error {
	n.seq++
	c := n.claim(o.keys[slot], n.holder, n.seq, 1)
	c.Taken, c.Spent = n.totals[slot], n.totals[slot]
	g := make([]Grant, 1)
	ctx, cancel := context.WithTimeout(n.Context(), time.Second)
	defer cancel()
	e, _, err := n.Settle(ctx, []Claim{c}, g)
	if err != nil {
		return err
	}
	if g[0].Err != nil {
		return g[0].Err
	}
	n.totals[slot]++
	n.booked[slot] = n.totals[slot]
	if sum := o.nodes[0].booked[slot] + o.nodes[1].booked[slot]; g[0].Granted != 1 || g[0].Sum != sum {
		o.Errorf("node %d, slot %d: %+v, and both nodes have %d", n.holder, slot, g[0], sum)
	}
	part := partOf(slot)
	if before, lost := n.lost[slot]; lost && before == e.ID {
		o.Errorf("node %d: slot %d of part %d lost its data, and a claim is granted in epoch %x of before", n.holder, slot, part, e.ID)
	}
	delete(n.lost, slot)
	if last, known := n.last[part]; known && last != e.ID && !o.hurtIn(part) {
		o.Errorf("node %d: part %d is in another epoch, and no server lost data", n.holder, part)
	}
	n.last[part] = e.ID
	return nil
}

// round has each node claim tokens of each slot that moves, until all are granted.
func (o *operated) round() {
	for _, slot := range o.slots {
		for _, n := range o.nodes {
			o.until(func() error { return o.claims(n, slot) })
		}
	}
	for s := range o.hurt {
		o.hurt[s] = false
	}
	for part := range o.had {
		o.had[part] = map[*redistest.Server]bool{o.masters[0]: false}
	}
	for slot, s := range o.of {
		o.met[s], o.had[partOf(slot)][s] = true, false
	}
}

func partOf(slot int) int { return slot * partitions / clusterSlots }

// hurtIn reports whether a node may count a loss of a part since the last round.
func (o *operated) hurtIn(part int) bool {
	for s, lately := range o.hurt {
		if got, had := o.had[part][s]; had && (got || lately) {
			return true
		}
	}
	return false
}

func (o *operated) until(done func() error) {
	o.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		err := done()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			o.Fatal(err)
		}
	}
}

// loses has a master lose its data.
func (o *operated) loses(s *redistest.Server) {
	for slot, at := range o.of {
		if at == s {
			for _, n := range o.nodes {
				n.booked[slot] = 0
			}
		}
	}
	if o.rnd.IntN(2) == 0 {
		s.Do("FLUSHALL")
	} else {
		s.Kill()
		s.Run()
	}
	o.hurts(s)
}

// failsOver has a new replica of a master take over. Before, it may miss what the master books.
func (o *operated) failsOver(s *redistest.Server) {
	r := redistest.Join(o.T, o.servers)
	o.servers = append(o.servers, r)
	r.Do("CLUSTER", "REPLICATE", s.Do("CLUSTER", "MYID"))
	r.UntilInfo("replication", "master_link_status:up")
	lags := o.rnd.IntN(2) == 0
	o.Logf("%v takes over from %v; it lags: %v", r, s, lags)
	was := []map[int]tokens{maps.Clone(o.nodes[0].booked), maps.Clone(o.nodes[1].booked)}
	if lags {
		r.Sever(s)
		for _, slot := range o.slots {
			if o.of[slot] == s {
				o.until(func() error { return o.claims(o.nodes[o.rnd.IntN(2)], slot) })
			}
		}
	}
	r.Promote()
	s.UntilInfo("replication", "role:slave")
	for slot, at := range o.of {
		if at != s {
			continue
		}
		o.of[slot] = r
		for i, n := range o.nodes {
			n.booked[slot] = was[i][slot]
		}
	}
	for part := range o.had {
		if _, had := o.had[part][s]; had {
			o.had[part][r] = true
		}
	}
	o.masters[slices.Index(o.masters, s)] = r
	o.hurts(r)
}

// hurts notes that the accounts of a master are lost, or may be. Each node then looks at all servers.
func (o *operated) hurts(s *redistest.Server) {
	o.hurt[s] = true
	for slot, at := range o.of {
		if at == s {
			for _, n := range o.nodes {
				n.lost[slot] = n.last[partOf(slot)]
			}
		}
	}
	for _, n := range o.nodes {
		o.until(func() error {
			ctx, cancel := context.WithTimeout(n.Context(), time.Second)
			defer cancel()
			_, err := n.Verify(ctx)
			return err
		})
	}
}

// has reports whether a master has slots that move.
func (o *operated) has(s *redistest.Server) bool {
	return slices.Contains(slices.Collect(maps.Values(o.of)), s)
}

// some are slots of a master: all of one part or of all parts, or the outer ones of each part, or any.
func (o *operated) some(from *redistest.Server) (slots []int) {
	one, how := o.rnd.IntN(partitions), o.rnd.IntN(5)
	for part, of := range slices.Collect(slices.Chunk(o.slots, movable)) {
		of = slices.DeleteFunc(slices.Clone(of), func(slot int) bool { return o.of[slot] != from })
		switch {
		case how == 0, part == one:
			slots = append(slots, of...)
		case how == 1 && len(of) > 2:
			slots = append(slots, of[0], of[len(of)-1])
		case how > 1:
			slots = append(slots, slices.DeleteFunc(of, func(int) bool { return o.rnd.IntN(8) > 0 })...)
		}
	}
	return slots
}

// moves has some slots of a master move to another one. Meanwhile nodes claim tokens, and one of the two may lose its
// data.
func (o *operated) moves(from, to *redistest.Server) {
	slots := o.some(from)
	if o.rnd.IntN(4) == 0 {
		slices.Reverse(slots)
	}
	loss := -1
	if o.met[to] && o.rnd.IntN(3) == 0 {
		loss = o.rnd.IntN(len(slots) + 1)
	}
	redistest.Move(o.masters, from, to, slots, func(moved int) {
		o.of[slots[moved-1]] = to
		o.had[partOf(slots[moved-1])][to] = true
		for _, slot := range o.slots {
			if o.rnd.IntN(100) == 0 {
				_ = o.claims(o.nodes[o.rnd.IntN(2)], slot)
			}
		}
		if moved == loss {
			victim := from
			if o.rnd.IntN(2) == 0 {
				victim = to
			}
			o.Logf("%v loses its data after slot %d", victim, slots[moved-1])
			o.loses(victim)
		}
	})
	o.Logf("%d slots from %v to %v", len(slots), from, to)
	if !o.has(from) {
		o.Logf("%v has no slots left, and becomes a replica", from)
		o.masters = slices.DeleteFunc(o.masters, func(s *redistest.Server) bool { return s == from })
	}
}

var clusters = flag.Int("clusters", 2, "number of Clusters of TestClusterOperations")

// Masters join, give slots to others, leave, lose their data and are replaced by replicas, in any order, while nodes
// claim tokens. No claim is granted in an epoch of before a loss of its account, no epoch changes without one, and no
// account is lost or doubled.
// Between a loss and the next operation, each node looks at all servers, as it does with each beat.
func TestClusterOperations(t *testing.T) {
	for seed := range uint64(*clusters) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			o := newOperated(t, seed)
			o.round()
			for range 12 {
				o.operate()
				if o.rnd.IntN(2) == 0 {
					o.round()
				}
			}
			o.round()
		})
	}
}

func (o *operated) operate() {
	anyone := func() *redistest.Server { return o.masters[1+o.rnd.IntN(len(o.masters)-1)] }
	switch o.rnd.IntN(8) {
	case 0:
		if len(o.masters) < 6 {
			s := redistest.Join(o.T, o.servers)
			o.masters, o.servers = append(o.masters, s), append(o.servers, s)
			o.Logf("%v joins", s)
		}
	case 1:
		if s := o.masters[o.rnd.IntN(len(o.masters))]; o.met[s] {
			o.Logf("%v loses its data", s)
			o.loses(s)
		}
	case 2: // one name of an epoch is evicted; the server's other names show that its data is there
		slot := o.rnd.IntN(partitions) * clusterSlots / partitions
		o.masters[0].Do("DEL", o.nodes[0].epochKey(o.nodes[0].tags[slot]))
	case 3:
		if s := anyone(); o.has(s) && o.met[s] {
			o.failsOver(s)
		}
	default:
		if from, to := anyone(), anyone(); from != to && o.has(from) {
			o.moves(from, to)
		}
	}
}
