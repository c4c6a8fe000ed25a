package slots

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// shaky is a ledger in memory that answers late, or loses messages or answers, as told.
type shaky struct {
	mu    sync.Mutex
	keys  map[string]*account.Slots
	began time.Time
	// late is the delay of an answer. The others mean that the ledger has the message, and that the answer is lost.
	late         time.Duration
	heard, fails bool
	messages     int
}

var errShaky = errors.New("the connection was cut")

func (s *shaky) Slots(ctx context.Context, asks []account.SlotAsk, answers []account.SlotAnswer) {
	s.mu.Lock()
	late, heard, fails := s.late, s.heard, s.fails
	s.messages++
	s.mu.Unlock()
	select {
	case <-time.After(late):
	case <-ctx.Done():
		fails = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range asks {
		if heard {
			all := s.keys[asks[i].Key]
			if all == nil {
				all = &account.Slots{}
				s.keys[asks[i].Key] = all
			}
			answers[i], _ = all.Decide(ratelimit.LedgerTime(time.Since(s.began)/time.Microsecond), &asks[i])
		}
		if fails {
			answers[i] = account.SlotAnswer{Err: errShaky}
		}
	}
}

// answers makes it answer so late.
func (s *shaky) answers(late time.Duration) { s.set(late, true, false) }

// dies makes it lose all messages, and each fails after a time.
func (s *shaky) dies(late time.Duration) { s.set(late, false, true) }

func (s *shaky) set(late time.Duration, heard, fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late, s.heard, s.fails = late, heard, fails
}

func (s *shaky) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages
}

func (s *shaky) taken() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.keys {
		n += len(*all)
	}
	return n
}

// node is a limiter in a bubble of time, on a ledger that obeys the test.
type node struct {
	*testing.T
	*Limiter
	*shaky
	rule *ratelimit.Rule
}

// inBubble runs a test with a rule of so many requests in flight at once, each for a minute at most.
func inBubble(t *testing.T, atOnce ratelimit.Tokens, policy ratelimit.FailurePolicy, test func(*node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &shaky{keys: map[string]*account.Slots{}, began: time.Now(), heard: true}
		n := &node{T: t, shaky: s, rule: ruleOf(atOnce, policy)}
		n.Limiter = New(s, local.New(100, 1, s.began), n.now)
		n.Nodes = func() int { return 1 }
		test(n)
		synctest.Wait()
	})
}

func ruleOf(atOnce ratelimit.Tokens, policy ratelimit.FailurePolicy) *ratelimit.Rule {
	r := &ratelimit.Rule{
		Domain: "d", Limit: ratelimit.AtOnce(atOnce, time.Minute), Coordination: ratelimit.DefaultCoordination(),
	}
	r.Hold, r.Coordination.OnDeny = r.Limit.HoldsSlot(), ratelimit.DenyRefunds
	r.Coordination.OnStoreFailure = policy
	return r
}

func (n *node) now() ratelimit.Instant { return ratelimit.Instant(time.Since(n.began)) + 1 }

func (n *node) ask(key string, kind ratelimit.Kind, slot int) ratelimit.Ask {
	return ratelimit.Ask{Rule: n.rule, Key: []byte(key), Cost: 1, Kind: kind, Window: ratelimit.Window(slot)}
}

func (n *node) decide(ctx context.Context, asks ...ratelimit.Ask) []ratelimit.Verdict {
	v := make([]ratelimit.Verdict, len(asks))
	n.Decide(ctx, n.now(), asks, v)
	return v
}

// take and give are of key k.
func (n *node) take(slot int) ratelimit.Verdict {
	return n.decide(context.Background(), n.ask("k", ratelimit.Spend, slot))[0]
}

func (n *node) give(slot int) { n.decide(context.Background(), n.ask("k", ratelimit.Release, slot)) }

func (n *node) undo(slot int) {
	n.Undo(n.now(), []ratelimit.Ask{n.ask("k", ratelimit.Spend, slot)}, []ratelimit.Verdict{{Charged: 1}})
}

// waiting is the number of asks in the queue, and of gives that are tried again.
func (n *node) waiting() int {
	l := n.lane(ratelimit.KeyName([]byte("k")))
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.Len() + len(l.failed)
}

// Whatever becomes of messages and answers, the ledger's limit holds. A request that has ended keeps no slot once the
// ledger answers again, if it was refused, undone or given up, too. That needs no further request, nor the end of the
// slot's time.
func TestEndedRequestsKeepNoSlot(t *testing.T) {
	const atOnce, requests = 8, 80
	for seed := range uint64(150) {
		policy := []ratelimit.FailurePolicy{ratelimit.FailClosed, ratelimit.FailLocal, ratelimit.FailOpen}[seed%3]
		inBubble(t, atOnce, policy, func(n *node) {
			r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // the same run each time
			upTo := func(most time.Duration) time.Duration { return time.Duration(r.Int64N(int64(most))) }
			var held, most atomic.Int64
			var all sync.WaitGroup
			for slot := 1; slot <= requests; slot++ {
				if late, heard := upTo(200*time.Millisecond), r.IntN(3) > 0; r.IntN(8) == 0 {
					n.set(late, heard, !heard || r.IntN(2) == 0)
				}
				leaves, takes, undone := upTo(100*time.Millisecond), upTo(time.Second), r.IntN(2) == 0
				all.Go(func() {
					ctx, cancel := context.WithTimeout(n.Context(), leaves)
					defer cancel()
					v := n.decide(ctx, n.ask("k", ratelimit.Spend, slot))[0]
					if v.OverLimit {
						return
					}
					most.Store(max(most.Load(), held.Add(1)))
					time.Sleep(takes)
					held.Add(-1)
					if undone {
						n.undo(slot)
					} else {
						n.give(slot)
					}
				})
				time.Sleep(upTo(200 * time.Millisecond))
			}
			all.Wait()
			n.answers(0)
			time.Sleep(5 * time.Second)
			if n.taken() != 0 || n.waiting() != 0 || policy == ratelimit.FailClosed && most.Load() > atOnce {
				n.Errorf("seed %d, %v: %d of %d were held at once, then %d slots are taken and %d gives wait",
					seed, policy, most.Load(), atOnce, n.taken(), n.waiting())
			}
			v := n.take(requests + 1)
			if x := n.Stats(); v.OverLimit || v.Source != ratelimit.FromClaim || x.RoundTrips != uint64(n.sent()) {
				n.Errorf("seed %d: %+v, and of %d messages %d count", seed, v, n.sent(), x.RoundTrips)
			}
		})
	}
}

// A take waits for at most one message ahead of it: all that wait leave when its answer is there.
func TestTakesLeaveWithTheNextMessage(t *testing.T) {
	inBubble(t, 1000, ratelimit.FailLocal, func(n *node) {
		const trip = time.Millisecond
		n.answers(trip)
		var takes sync.WaitGroup
		for i := range 100 {
			takes.Go(func() {
				began := n.now()
				n.take(i + 1)
				if took := n.now().Sub(began); took > 2*trip {
					n.Errorf("a round trip takes %v, and take %d took %v", trip, i, took)
				}
			})
			time.Sleep(trip / 10)
		}
		takes.Wait()
	})
}

// Without the ledger each rule's policy decides; a caller that has gone keeps no slot.
func TestSlotPolicies(t *testing.T) {
	for policy, most := range map[ratelimit.FailurePolicy]int{
		ratelimit.FailOpen: 9, ratelimit.FailClosed: 0, ratelimit.FailLocal: 2,
	} {
		inBubble(t, 6, policy, func(n *node) {
			n.Nodes = func() int { return 3 }
			n.dies(time.Hour)
			var admitted []int
			for slot := 1; slot <= 9; slot++ {
				v := n.take(slot)
				if !v.OverLimit {
					admitted = append(admitted, slot)
				}
				if v.Source != ratelimit.FromFallback || slot == 1 && v.Reason != ratelimit.FallbackDeadline {
					n.Errorf("%v: slot %d: %+v", policy, slot, v)
				}
			}
			if len(admitted) != most {
				n.Errorf("%v admits %d of 9, must be %d", policy, len(admitted), most)
			}
			if policy == ratelimit.FailLocal {
				n.give(admitted[0])
				if n.take(10).OverLimit {
					n.Error("local: what was given back in the outage is not free")
				}
			}
			n.answers(0)
			time.Sleep(10 * time.Second) // until nothing is owed
		})
	}
	inBubble(t, 1, ratelimit.FailOpen, func(n *node) {
		n.answers(50 * time.Millisecond)
		n.rule.Coordination.StoreDeadline = time.Second
		ctx, cancel := context.WithCancel(n.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		n.decide(ctx, n.ask("gone", ratelimit.Spend, 1000))
		time.Sleep(time.Second)
		if left := n.taken(); left != 0 {
			n.Errorf("a caller that has gone keeps %d slots", left)
		}
	})
}

// At most so many wait and are owed, whatever happens; and a node that ends gives back what it owes.
func TestSlotQueuesAreBounded(t *testing.T) {
	inBubble(t, 10_000, ratelimit.FailClosed, func(n *node) {
		n.answers(time.Hour)
		var all sync.WaitGroup
		for i := range 2 * mostSlotQueue {
			all.Go(func() { n.take(i + 1) })
		}
		all.Wait()
		if wait := n.waiting(); wait > mostSlotQueue+1 { // and the one that was in flight is given back
			n.Errorf("%d wait", wait)
		}
		for i := range 2 * mostGives {
			n.undo(i + 1)
		}
		if owed := n.waiting(); owed > mostSlotQueue+mostGives || owed < mostGives {
			n.Errorf("%d are owed", owed)
		}
		n.answers(0)
		time.Sleep(10 * time.Second)
		base, one, two := n.taken(), 3*mostGives, 3*mostGives+1 // of too many, some come back by themselves only
		n.take(one)
		n.dies(0)
		n.give(one)
		n.answers(50 * time.Millisecond)
		go n.take(two) // is under way
		time.Sleep(5 * time.Millisecond)
		n.undo(two)
		ctx, cancel := context.WithCancel(n.Context())
		cancel()
		n.Limiter.Run(ctx)
		if left := n.taken() - base; left != 0 {
			n.Errorf("a node that ends keeps %d slots", left)
		}
	})
}

// An outage in which more slots end than a node may owe leaves it with as many as it may: the others come back when
// their time is over.
func TestGivesOfAnOutageAreBounded(t *testing.T) {
	inBubble(t, 1<<20, ratelimit.FailClosed, func(n *node) {
		n.dies(0)
		for round := range 3 {
			for i := range mostGives {
				n.undo(1 + round*mostGives + i)
			}
			time.Sleep(5*time.Second + giveAgain/2) // between two tries: none is in flight
			synctest.Wait()
			if owed := n.waiting(); owed < mostGives || owed > 2*mostGives {
				n.Errorf("after the end of %d slots, %d are owed", (round+1)*mostGives, owed)
			}
		}
	})
}

// More gives than a message has wait for an outage to end without being tried all the time.
func TestGivesRest(t *testing.T) {
	inBubble(t, 10_000, ratelimit.FailLocal, func(n *node) {
		n.dies(0)
		for i := range 1000 {
			n.undo(i + 1)
		}
		before := n.sent()
		time.Sleep(10 * time.Second)
		if sent := n.sent() - before; sent > 100 {
			n.Errorf("%d messages were sent in 10 s", sent)
		}
		n.answers(0)
		time.Sleep(time.Second)
		before = n.sent()
		time.Sleep(time.Minute)
		if n.waiting() > 0 || n.sent() > before {
			n.Errorf("after the outage %d gives wait, and %d messages are sent in vain", n.waiting(), n.sent()-before)
		}
	})
}

// All asks that wait for the breaker may have gone before they are sent. The breaker's probe is then no empty
// message, and the lane continues when the ledger answers.
func TestSlotsOfABreaker(t *testing.T) {
	inBubble(t, 3, ratelimit.FailLocal, func(n *node) {
		n.dies(time.Hour)
		for slot := 1; slot <= 3; slot++ { // this node admits them, and each message fails after a second
			if n.take(slot).OverLimit {
				n.Fatal("refused")
			}
			if slot < 3 {
				time.Sleep(1100 * time.Millisecond)
			}
		}
		n.take(4) // waits for the third's answer, and is refused
		time.Sleep(5 * time.Second)
		gone, cancel := context.WithCancel(n.Context())
		cancel()
		n.decide(gone, n.ask("k", ratelimit.Spend, 6)) // it may be the probe
		n.answers(0)
		time.Sleep(time.Minute)
		if v := n.take(5); v.Source != ratelimit.FromClaim {
			n.Errorf("a minute after the ledger answers again: %+v", v)
		}
	})
}

// Two descriptors of a request have one key: it has one slot, which neither gives back while it is in flight.
func TestOneSlotForARequest(t *testing.T) {
	inBubble(t, 4, ratelimit.FailOpen, func(n *node) {
		n.set(0, true, true)
		for i := range 5 {
			n.take(10 + i)
		}
		n.answers(0)
		time.Sleep(5 * time.Second)
		before, one := n.taken(), n.ask("k", ratelimit.Spend, 1)
		v := n.decide(n.Context(), one, one)
		time.Sleep(5 * time.Second)
		if more := n.taken() - before; more != 1 || v[0].OverLimit || v[1].OverLimit {
			n.Errorf("a request has %d slots: %+v", more, v)
		}
	})
}

// halfDead is a ledger of two parts, of which the second does not answer.
type halfDead struct {
	account.Ledger
	*shaky
}

func (halfDead) Partitions() int { return 2 }

func (halfDead) Partition(key string) int { return strings.Count(key, fmt.Sprintf("%x", "dead")) }

func (halfDead) Ask(context.Context, int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error) {
	return e, 0, 0, errShaky
}

func (s halfDead) Slots(ctx context.Context, asks []account.SlotAsk, answers []account.SlotAnswer) {
	for i := range asks { // as a pipeline does, which waits for all servers
		if s.Partition(asks[i].Key) == 1 {
			<-ctx.Done()
			for i := range answers {
				answers[i].Err = ctx.Err()
			}
			return
		}
	}
	s.shaky.Slots(ctx, asks, answers)
}

// A part of the ledger that does not answer holds up no key of another, whatever is owed to it.
func TestSlotsOfOtherParts(t *testing.T) {
	inBubble(t, 4, ratelimit.FailClosed, func(n *node) {
		n.Limiter = New(halfDead{nil, n.shaky}, local.New(100, 1, n.began), n.now)
		for slot := 1; slot <= 200; slot++ {
			go n.decide(context.Background(), n.ask(fmt.Sprint("dead", slot), ratelimit.Spend, slot))
			v := n.decide(context.Background(), n.ask(fmt.Sprint("well", slot), ratelimit.Spend, slot))[0]
			if v.Source != ratelimit.FromClaim {
				n.Fatalf("slot %d: %+v", slot, v)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute) // what is owed has come back by itself
	})
}

// waiter is a ledger that answers when a decision has said that it waits.
type waiter struct{ waits chan struct{} }

func (w waiter) Waits() { close(w.waits) }

func (w waiter) Slots(ctx context.Context, _ []account.SlotAsk, answers []account.SlotAnswer) {
	select {
	case <-w.waits:
	case <-ctx.Done():
		answers[0].Err = ctx.Err()
	}
}

// A decision that waits for the ledger says so: otherwise all calls on its connection wait too, and the gate takes the
// ledger's time for work of this node.
func TestSlotsSayThatTheyWait(t *testing.T) {
	inBubble(t, 2, ratelimit.FailLocal, func(n *node) {
		w := waiter{make(chan struct{})}
		n.Limiter = New(w, local.New(100, 1, n.began), n.now)
		ctx := context.WithValue(n.Context(), ratelimit.WaitsKey{}, ratelimit.Waiter(w))
		v := n.decide(ctx, n.ask("k", ratelimit.Spend, 1))[0]
		if took := time.Since(n.began); took > 0 || v.Source != ratelimit.FromClaim {
			n.Errorf("after %v: %+v", took, v)
		}
	})
}
