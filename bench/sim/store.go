package sim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
)

// store has all parts of the ledger, the seats, and the wires to them. Messages are sent by ask, tell, register,
// prolong and sit. reaches decides whether one arrives, and a part settles it (settle). The answer travels back the
// same way, and may be lost, too. So a claim can be settled without its node's knowledge, which is the hardest case for
// the protocol.
type store struct {
	*world
	account.Partitioned         // nil: driven nodes call nothing of it, except Partition and Partitions below
	parts               []*part // Invariant: at least one; the first also has the seats
	seats               *approx.Memory
	slow                time.Duration
	ctx                 context.Context
}

// part is a server with its own accounts, epoch and clock. It fails alone. Counts of faults are above 0 while a fault
// lasts: several may overlap.
type part struct {
	*store
	index  int
	ledger Ledger
	// A constant difference of its clock to the first part's.
	ahead  ratelimit.LedgerTime
	set    ratelimit.LedgerTime // sum of the changes of its clock
	hung   int                  // number of faults
	down   int
	copies map[int64]older // by the instant of the failover that uses it
}

// older is an earlier state of a part, and the model of it. Both are needed: after a failover, the model must have lost
// the same messages as the ledger.
type older struct {
	data  *account.MemoryStore
	books map[name]*book
}

// memory is a ledger in memory that can lose its data, or continue with an older copy of it after a failover. lives
// counts its losses, so that each life has another id.
type memory struct {
	*account.Memory
	lives int
}

// Forget implements [Ledger].
func (m *memory) Forget() { m.lose(nil) }

func (m *memory) lose(older *account.MemoryStore) {
	m.lives++
	m.Lose(older, fmt.Sprint("after ", m.lives))
}

var errRefused = errors.New("connection refused")

// open makes the parts of the ledger. If keys move, all parts have one clock: accounts keep the times of the part that
// they come from.
func (s *store) open(w *world) {
	s.world, s.ctx = w, context.Background()
	for i := range max(1, w.Parts) {
		p := &part{store: s, index: i, copies: map[int64]older{}}
		if i > 0 && !w.moves() { // clocks of servers always differ slightly
			p.ahead = ratelimit.LedgerTime(w.rnd.Int64N(int64(mostApart/time.Microsecond))) - ratelimit.LedgerTime(mostApart/time.Microsecond)/2
		}
		s.parts = append(s.parts, p)
	}
	s.seats = approx.NewMemory(w.ledgerTime)
	for _, p := range s.parts {
		p.open()
	}
}

// mostApart bounds the difference between the clocks of the ledger's parts.
const mostApart = 20 * time.Millisecond

func (p *part) open() {
	// A real ledger has no OnRecall, so no recall of it reaches a node.
	if p.Ledger != nil {
		l, err := p.Ledger(p.time)
		if err != nil {
			p.violate(-1, -1, "the ledger cannot be used: %v", err)
		}
		p.ledger = l
		return
	}
	m := &memory{Memory: account.NewMemory(p.time)}
	m.OnRecall = p.recall
	p.ledger = m
}

// time is the time of the part's clock. It is in microseconds, and the simulation counts nanoseconds.
func (p *part) time() ratelimit.LedgerTime {
	return p.origin + p.ahead + p.set + ratelimit.LedgerTime(p.now/1000)
}

// Partition implements [account.Partitioned]. The real mapping of a Redis Cluster is by CRC16 of the hash tag. Any
// fixed mapping does here.
func (s *store) Partition(key string) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
	return int(h.Sum32() % uint32(len(s.parts)))
}

// Partitions implements [account.Partitioned].
func (s *store) Partitions() int { return len(s.parts) }

// recall carries a recall to a holder. Recalls are published messages: a lost one is not repeated by the wire, and the
// ledger asks again only when it is short again.
func (p *part) recall(h ratelimit.Holder, name string, w ratelimit.Window) {
	p.result.Recalls++
	n := p.nodeOf(h)
	if n == nil || !n.alive || !p.reaches(n, p) || n.deaf > 0 {
		return
	}
	p.trace("the ledger recalls key %d, window %d, from node %d", p.named[name].index, w, n.slot)
	p.in(p.travel(p.Net.Trip)+p.slow+n.late, func() {
		n.run(func() {
			n.stepped.Recalled(name, w)
			n.send()
		})
	})
}

// nodeOf is the node of a holder, or nil if it has ended. The high bits of a holder's name are its node's, and the low
// ones count its accounts (nameBits).
func (w *world) nodeOf(h ratelimit.Holder) *node {
	for _, n := range w.nodes {
		if n.name == h>>nameBits {
			return n
		}
	}
	return nil
}

// reaches reports whether a message between a node and a part of the store arrives. A net with losses draws a random
// number in each call.
func (s *store) reaches(n *node, p *part) bool {
	return n.cut[p.index] == 0 && p.hung == 0 && p.down == 0 && !s.lost()
}

// reachesAll reports whether a batch arrives at the part of a lane, and at others that have accounts of claims. After a
// move, claims of one lane belong to several parts. One of them that does not answer fails the whole batch. A trip is
// one message to each part, whatever the number of its claims.
func (s *store) reachesAll(n *node, p *part, claims []account.Claim) bool {
	for _, of := range s.parts {
		has := func(c account.Claim) bool { return p.home(&c) == of }
		if (of == p || slices.ContainsFunc(claims, has)) && !s.reaches(n, of) {
			return false
		}
	}
	return true
}

// home is the part with a claim's account.
func (p *part) home(c *account.Claim) *part {
	if k := p.named[c.Key]; k != nil {
		return k.part
	}
	return p
}

// ask sends a batch, and delivers the answer, or an error. One of several outcomes decides, and end runs only the
// first:
//
//	the store refuses the connection -> error at once
//	the message or its answer is lost -> error after lane.TimeLimit
//	a duplicate is settled later, in addition -> its answer goes nowhere
//	the answer arrives -> grants, or after lane.TimeLimit nothing more
//
// With Envoys, all of this takes no time, because their limiter cannot wait (prompt).
func (s *store) ask(n *node, b *leasing.Batch) {
	p := s.parts[b.Part()]
	end := first(func(do func()) { do(); n.answered() })
	claims, sent := b.Claims(), s.now
	answer := func(grants []account.Grant, epoch ratelimit.Epoch, at ratelimit.LedgerTime, err error) {
		if err != nil {
			b.Fail(err)
			return
		}
		b.Answer(epoch, at, grants)
		n.heard(sent, claims, grants)
	}
	if s.envoys != nil {
		if s.reachesAll(n, p, claims) {
			answer(p.settle(n, claims))
		} else {
			b.Fail(context.DeadlineExceeded)
		}
		return
	}
	fail := func(err error) func() { return end(func() { b.Fail(err) }) }
	there, back := s.travel(s.Net.Trip), s.travel(s.Net.Trip)+s.slow+n.late
	s.bound.late(there + back)
	if p.down > 0 && s.Refuses && n.cut[p.index] == 0 {
		s.bound.miss(n)
		s.in(there+back, func() { n.run(fail(errRefused)) })
		return
	}
	// It is by the node's clock, and runs late if the node is paused.
	n.in(lane.TimeLimit, fail(context.DeadlineExceeded))
	if s.Net.Dup > 0 && s.rnd.Float64() < s.Net.Dup && n.cut[p.index] == 0 {
		// The first may be lost, and this one may be the only one, without a waiting request. A bucket cannot tell that
		// it has settled a refund: clients send nothing twice.
		again := slices.DeleteFunc(slices.Clone(claims), func(c account.Claim) bool {
			return c.Limit.Algorithm == ratelimit.TokenBucket
		})
		s.in(there+time.Duration(s.rnd.Int64N(int64(2*lane.TimeLimit))), func() {
			if p.down == 0 && p.hung == 0 {
				_, _, _, _ = p.settle(n, again)
			}
		})
	}
	if !s.reachesAll(n, p, claims) {
		s.bound.miss(n)
		s.trace("node %d: %d claims are lost", n.slot, len(claims))
		return
	}
	s.in(there, func() {
		grants, epoch, at, err := p.settle(n, claims)
		if !s.reachesAll(n, p, claims) || n.deaf > 0 {
			s.bound.miss(n)
			s.trace("node %d: %d grants are lost", n.slot, len(grants))
			return
		}
		s.in(back, func() {
			n.run(end(func() { answer(grants, epoch, at, err) }))
		})
	})
}

// tell sends claims without waiting for answers. They are the last messages of a node, each a message of its own: one
// may be lost without the others.
func (s *store) tell(n *node, claims []account.Claim) {
	for _, c := range claims {
		p := s.parts[s.Partition(c.Key)]
		s.trip(n, p, func() { _, _, _, _ = p.settle(n, []account.Claim{c}) }, nil)
	}
}

// prolong prolongs the youth of the ledger's epoch, because a node has more to state. All parts are asked; one that is
// not young ignores it.
func (s *store) prolong(n *node) {
	for _, p := range s.parts {
		s.trip(n, p, func() {
			if _, err := p.ledger.Prolong(s.ctx); err != nil {
				s.violate(n.slot, -1, "the ledger failed: %v", err)
			}
		}, nil)
	}
}

// register carries a node's registration. Registrations are at the first part, as leasing has them at one server: there
// is one clock for all of them.
func (s *store) register(n *node, sent ratelimit.Instant) {
	p := s.parts[0]
	end := first(func(err error) {
		n.stepped.RegisterAnswered(sent, err)
		n.answered()
	})
	n.in(lane.TimeLimit, end(context.DeadlineExceeded))
	s.trip(n, p, func() { _ = p.ledger.Register(s.ctx, n.name<<nameBits) }, end(nil))
}

// first makes calls of a function. The call that comes first runs it, and the others do nothing. An answer and its
// timeout are both scheduled, and which one comes first decides.
func first[T any](do func(T)) func(T) func() {
	ended := false
	return func(x T) func() {
		return func() {
			if !ended {
				ended = true
				do(x)
			}
		}
	}
}

// trip does something at a part, and then, if not nil, at the node, unless a message is lost. Without an answer, then
// is never called: callers that need to know set a timer.
func (s *store) trip(n *node, p *part, do, then func()) {
	if !s.reaches(n, p) {
		return
	}
	s.in(s.travel(s.Net.Trip), func() {
		do()
		if then != nil && s.reaches(n, p) && n.deaf == 0 {
			s.in(s.travel(s.Net.Trip)+s.slow+n.late, func() { n.run(then) })
		}
	})
}

// takeBack takes back what ended nodes have in hand of an account, as leasing.Fleet.Run does. Three trips follow one
// another: look at the account, ask which of its nodes have ended, and close those. A loss of any message ends it
// without a result; the node tries again when it is short again.
func (s *store) takeBack(n *node, c account.Claim, then func(nodes, closed int)) {
	k := s.named[c.Key]
	var is *ratelimit.AccountLook
	var nodes, over []ratelimit.Holder
	settle := func() {
		closes := account.Closes(c, is.Holders, over)
		s.bound.closed(k, closes)
		s.trip(n, k.part, func() { _, _, _, _ = k.part.settle(n, closes) }, func() { then(len(nodes), len(over)) })
	}
	ask := func() {
		if is == nil {
			return
		}
		nodes = account.Lapsing(is.Holders, n.name<<nameBits)
		if len(nodes) > 0 {
			s.trip(n, s.parts[0], func() { over, _ = s.parts[0].ledger.Over(s.ctx, nodes) }, settle)
		}
	}
	s.trip(n, k.part, func() { is, _ = k.part.ledger.Look(s.ctx, c.Key, c.Window, &c.Limit) }, ask)
}

// settle settles claims of a lane now: at the part, except those of keys that have moved. A lane of a Cluster has keys
// of all servers, so its epoch is made of all of theirs. It gets another id if any of them lost its data, because ids
// are hashes of the life and its beginning. It is young while any is.
func (p *part) settle(n *node, claims []account.Claim) ([]account.Grant, ratelimit.Epoch, ratelimit.LedgerTime, error) {
	if !p.moves() {
		return p.settleHere(n, claims)
	}
	grants, at := make([]account.Grant, len(claims)), ratelimit.LedgerTime(0)
	var epoch ratelimit.Epoch
	for _, q := range p.parts {
		var own []account.Claim
		var of []int
		for i := range claims {
			if p.home(&claims[i]) == q {
				own, of = append(own, claims[i]), append(of, i)
			}
		}
		some, e, now, err := q.settleHere(n, own) // without claims, it tells the epoch
		if err != nil {
			return grants, epoch, at, err
		}
		for j, i := range of {
			grants[i] = some[j]
		}
		at, epoch.ID = now, epoch.ID+e.ID
		epoch.Began, epoch.Ends = max(epoch.Began, e.Began), max(epoch.Ends, e.Ends)
	}
	return grants, epoch, at, nil
}

// settleHere settles claims at the part. Without claims, it only reads the epoch and the time, as a probe does.
func (p *part) settleHere(n *node, claims []account.Claim) ([]account.Grant, ratelimit.Epoch, ratelimit.LedgerTime, error) {
	grants := make([]account.Grant, len(claims))
	epoch, at, err := p.ledger.Settle(p.ctx, claims, grants)
	if err != nil {
		p.violate(n.slot, -1, "the ledger failed: %v", err)
	}
	if len(claims) == 0 {
		return grants, epoch, at, err
	}
	p.result.Claims += int64(len(claims))
	for _, i := range p.order(claims) {
		c, g := &claims[i], &grants[i]
		if p.watch != nil {
			p.watch.claimed(c.Holder>>nameBits, p.named[c.Key])
		}
		if c.Draws() {
			p.result.Draws++
		}
		if p.Trace != nil {
			p.trace("node %d as %x: claim %d (0: draw) on key %d, window %d of %d: taken %d, spent %d; needs %d, wants %d",
				n.slot, c.Holder, c.Seq, p.named[c.Key].index, c.Window, c.Limit.Capacity(), c.Taken, c.Spent, c.Need, c.Want)
			p.trace("  the ledger grants %d of %d: total %d, in hand elsewhere %d, cut %d, fence %d, recalling %v, epoch %d, young until %d, error %v",
				g.Granted, g.Sum, g.Total, g.InHand, g.Cut(c), g.Fence, g.Recalling, epoch.ID, epoch.Ends, g.Err)
		}
		if p.Check {
			p.books.settled(p, c, g)
		}
	}
	return grants, epoch, at, err
}

// order is the places of messages in the order in which the ledger settles them: Redis settles draws last. The books
// must add messages up in the ledger's order, or their sums in between differ.
func (p *part) order(claims []account.Claim) []int {
	all := make([]int, len(claims))
	for i := range all {
		all[i] = i
	}
	if _, ok := p.ledger.(interface{ DrawsLast() }); ok {
		slices.SortStableFunc(all, func(i, j int) int {
			return cmp.Compare(min(1, claims[j].Seq), min(1, claims[i].Seq)) // a draw has no number
		})
	}
	return all
}

// keep copies a part of the ledger for the failover at an instant. The key is the instant at which the copy will be
// used, because several failovers can wait at once.
func (p *part) keep(failover int64) {
	if m, ok := p.ledger.(*memory); ok {
		p.copies[failover] = older{m.Copy(), p.books.kept(p)}
	}
}

// failOver continues with the copy for it. Without a copy, such as of a real ledger, nothing happens.
func (p *part) failOver(at int64) {
	if of, ok := p.copies[at]; ok {
		p.ledger.(*memory).lose(of.data)
		delete(p.copies, at)
		p.books.failOver(p, of.books)
	}
}

// forget loses all data. The seats are kept with the first part, and are lost with it.
func (p *part) forget() {
	if p.index == 0 {
		p.seats.Forget()
	}
	p.ledger.Forget()
	p.books.forget(p)
}

// evict loses the account of a key in use. An account of an earlier window is no longer in use: its loss would not
// matter.
func (p *part) evict(k *key) {
	w := k.window()
	p.ledger.Evict(string(k.name), w)
	p.books.evict(k, w)
}

// window is the ledger's current window; 0: of a bucket. Nodes may be in another window for a moment, by their own
// clocks.
func (k *key) window() ratelimit.Window {
	if k.rule.Limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return k.rule.Limit.WindowAt(k.part.time())
}

// reset lets an operator refund a whole account, as leasing.Fleet.Reset does. It returns the refund. A new holder
// states a negative total: it takes back all that others have used. The first message reads the sum with a total of 0,
// and the second one refunds it.
func (p *part) reset(k *key) (refunded ratelimit.Tokens) {
	p.resets++
	c := account.Claim{
		Key: string(k.name), Window: k.window(), Limit: k.rule.Limit,
		Holder: (operator + ratelimit.Holder(p.resets)) << nameBits, Seq: 1,
	}
	var g [1]account.Grant
	for range 2 {
		_, _, _ = p.ledger.Settle(p.ctx, []account.Claim{c}, g[:])
		if p.Check {
			p.books.settled(p, &c, &g[0])
		}
		if g[0].Err != nil || g[0].Sum <= 0 {
			break
		}
		refunded = max(refunded, g[0].Sum)
		c.Seq, c.Taken, c.Spent = c.Seq+1, c.Taken-g[0].Sum, c.Spent-g[0].Sum
	}
	return refunded
}

// sit carries an application for a seat. An application without an answer may still have a seat at the ledger. The
// keeper gets an error, and applies again.
func (s *store) sit(n *node, sent ratelimit.Instant, a approx.Application, plan approx.Plan) {
	var t approx.Tenancy
	var err error
	end := first(func(answered bool) {
		if answered {
			n.sat(sent, a, plan, t, err)
		} else {
			n.sat(sent, a, plan, approx.Tenancy{Seat: -1}, context.DeadlineExceeded)
		}
	})
	n.in(time.Second, end(false))
	s.trip(n, s.parts[0], func() { t, err = s.seats.Sit(s.ctx, a) }, end(true))
}

// leave gives up a seat.
func (s *store) leave(n *node, a approx.Application) {
	s.trip(n, s.parts[0], func() { _, _ = s.seats.Sit(s.ctx, a) }, nil)
}
