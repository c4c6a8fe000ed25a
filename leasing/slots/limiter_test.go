package slots

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// slotRule lets n requests be in flight at once, each for a minute at most.
func slotRule(n ratelimit.Tokens) *ratelimit.Rule {
	r := &ratelimit.Rule{Domain: "d", Limit: ratelimit.AtOnce(n, time.Minute), Coordination: ratelimit.DefaultCoordination()}
	r.Hold, r.Coordination.OnDeny = r.Limit.HoldsSlot(), ratelimit.DenyRefunds
	return r
}

func slotOf(r *ratelimit.Rule, key string, kind ratelimit.Kind, slot int) ratelimit.Ask {
	return ratelimit.Ask{Rule: r, Key: []byte(key), Cost: 1, Kind: kind, Window: ratelimit.Window(slot)}
}

// decides asks one limiter one ask.
func decides(l ratelimit.Limiter, now ratelimit.Instant, a ratelimit.Ask) (v ratelimit.Verdict) {
	one := []ratelimit.Verdict{{}}
	l.Decide(context.Background(), now, []ratelimit.Ask{a}, one)
	return one[0]
}

// shakyLedger is one in memory that answers late, or loses messages or answers, as told.
type shakyLedger struct {
	mu    sync.Mutex
	keys  map[string]*account.Slots
	began time.Time
	// late is the delay of an answer. The others mean that the ledger has the message, and that the answer is
	// lost.
	late         time.Duration
	heard, fails bool
	messages     int
}

var errShaky = errors.New("the connection was cut")

func (s *shakyLedger) Slots(ctx context.Context, asks []account.SlotAsk, answers []account.SlotAnswer) {
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

func (s *shakyLedger) set(late time.Duration, heard, fails bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late, s.heard, s.fails = late, heard, fails
}

func (s *shakyLedger) sent() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.messages
}

func (s *shakyLedger) taken() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, all := range s.keys {
		n += len(*all)
	}
	return n
}

// shaky runs a test in a bubble of time, with a limiter on a ledger that obeys it.
func shaky(t *testing.T, test func(*testing.T, *Limiter, *shakyLedger, func() ratelimit.Instant)) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &shakyLedger{keys: map[string]*account.Slots{}, began: began, heard: true}
		clock := func() ratelimit.Instant { return ratelimit.Instant(time.Since(began)) + 1 }
		test(t, New(s, local.New(100, 1, began), clock), s, clock)
		synctest.Wait()
	})
}

// What a ledger took whose answer came too late, or was lost, is given back where the request was refused; so is a slot
// whose release was lost.
func TestSlotsAreGivenBack(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		r := slotRule(4)
		r.Coordination.OnStoreFailure = ratelimit.FailClosed
		begin := func(kind ratelimit.Kind, slot int) ratelimit.Verdict {
			return decides(f, clock(), slotOf(r, "k", kind, slot))
		}
		if v := begin(ratelimit.Spend, 1); v.OverLimit || v.Source != ratelimit.FromClaim || v.Remaining != 3 {
			t.Fatalf("%+v", v)
		}
		s.set(100*time.Millisecond, true, false) // later than the deadline
		if v := begin(ratelimit.Spend, 2); !v.OverLimit || v.Reason != ratelimit.FallbackDeadline {
			t.Fatalf("%+v", v)
		}
		time.Sleep(time.Second)
		if n := s.taken(); n != 1 {
			t.Errorf("%d slots are taken after a late answer, must be 1", n)
		}
		s.set(0, true, true) // the answer is lost
		if v := begin(ratelimit.Spend, 3); !v.OverLimit || v.Reason != ratelimit.FallbackError {
			t.Fatalf("%+v", v)
		}
		s.set(0, false, true) // and then each message
		begin(ratelimit.Release, 1)
		for range 5 {
			begin(ratelimit.Spend, 4)
		}
		if !openOf(f, "k") {
			t.Error("a ledger that is dead is asked for each request")
		}
		before := s.sent()
		time.Sleep(time.Minute / 2)
		if n := s.sent() - before; n > 150 {
			t.Errorf("%d messages in 30 s to a ledger that is dead", n)
		}
		s.set(0, true, false)
		time.Sleep(5 * time.Second)
		if n := s.taken(); n != 0 {
			t.Errorf("%d slots are taken when the ledger answers again, must be 0", n)
		}
		if n, x := laneOf(f, "k").Len(), f.Stats(); n != 0 || x.RoundTrips != uint64(s.sent()) || x.Failed < 3 {
			t.Errorf("%d slots are owed still, and of %d messages %d count, %d as failed", n, s.sent(), x.RoundTrips, x.Failed)
		}
	})
}

// A take waits for at most one message ahead of it: all that wait leave when its answer is there.
func TestTakesLeaveWithTheNextMessage(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		const trip = time.Millisecond
		s.set(trip, true, false)
		r := slotRule(1000)
		var takes sync.WaitGroup
		for i := range 100 {
			takes.Go(func() {
				began := clock()
				decides(f, began, slotOf(r, "k", ratelimit.Spend, i+1))
				if took := clock().Sub(began); took > 2*trip {
					t.Errorf("a round trip takes %v, and take %d took %v", trip, i, took)
				}
			})
			time.Sleep(trip / 10)
		}
		takes.Wait()
	})
}

// Without the ledger each rule's policy decides; a caller that has gone keeps no slot.
func TestSlotPolicies(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		f.Nodes = func() int { return 3 }
		s.set(time.Hour, false, true)
		slot := 0
		for policy, most := range map[ratelimit.FailurePolicy]int{
			ratelimit.FailOpen: 9, ratelimit.FailClosed: 0, ratelimit.FailLocal: 2,
		} {
			r := slotRule(6)
			r.Coordination.OnStoreFailure = policy
			key := policy.String()
			admitted := []int{}
			for range 9 {
				if slot++; !decides(f, clock(), slotOf(r, key, ratelimit.Spend, slot)).OverLimit {
					admitted = append(admitted, slot)
				}
			}
			if len(admitted) != most {
				t.Errorf("%v admits %d of 9, must be %d", policy, len(admitted), most)
			}
			if policy != ratelimit.FailLocal {
				continue
			}
			decides(f, clock(), slotOf(r, key, ratelimit.Release, admitted[0]))
			if slot++; decides(f, clock(), slotOf(r, key, ratelimit.Spend, slot)).OverLimit {
				t.Error("local: what was given back in the outage is not free")
			}
		}
		s.set(50*time.Millisecond, true, false)
		time.Sleep(10 * time.Second)
		base := s.taken()
		r := slotRule(1)
		r.Coordination.OnStoreFailure, r.Coordination.StoreDeadline = ratelimit.FailOpen, time.Second
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		f.Decide(ctx, clock(), []ratelimit.Ask{slotOf(r, "gone", ratelimit.Spend, 1000)}, make([]ratelimit.Verdict, 1))
		time.Sleep(time.Second)
		if n := s.taken() - base; n != 0 {
			t.Errorf("a caller that has gone keeps %d slots", n)
		}
	})
}

// At most so many wait and are owed, whatever happens; and a node that ends gives back what it owes.
func TestSlotQueuesAreBounded(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		r := slotRule(10_000)
		r.Coordination.OnStoreFailure = ratelimit.FailClosed
		s.set(time.Hour, true, false)
		var all sync.WaitGroup
		for i := range 2 * mostSlotQueue {
			all.Go(func() { decides(f, clock(), slotOf(r, "k", ratelimit.Spend, i+1)) })
		}
		all.Wait()
		if n := laneOf(f, "k").Len(); n > mostSlotQueue+1 { // and the one that was in flight is given back
			t.Errorf("%d wait", n)
		}
		for i := range 2 * mostGives {
			f.Undo(clock(), []ratelimit.Ask{slotOf(r, "k", ratelimit.Spend, i+1)}, []ratelimit.Verdict{{Charged: 1}})
		}
		if n := laneOf(f, "k").Len(); n > mostSlotQueue+mostGives || n < mostGives {
			t.Errorf("%d are owed", n)
		}
		s.set(0, true, false)
		time.Sleep(10 * time.Second)
		base, one, two := s.taken(), 3*mostGives, 3*mostGives+1 // of too many, some come back by themselves only
		decides(f, clock(), slotOf(r, "k", ratelimit.Spend, one))
		s.set(0, false, true)
		decides(f, clock(), slotOf(r, "k", ratelimit.Release, one))
		s.set(50*time.Millisecond, true, false)
		go decides(f, clock(), slotOf(r, "k", ratelimit.Spend, two)) // is under way
		time.Sleep(5 * time.Millisecond)
		f.Undo(clock(), []ratelimit.Ask{slotOf(r, "k", ratelimit.Spend, two)}, []ratelimit.Verdict{{Charged: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		f.Run(ctx)
		if n := s.taken() - base; n != 0 {
			t.Errorf("a node that ends keeps %d slots", n)
		}
	})
}

// A slot that is given back before its take was sent, or while that is in flight, is free in the end. That
// holds after an undo, or the request's end, of an admission by the ledger or by on_store_failure.
func TestSlotsInOrder(t *testing.T) {
	for _, policy := range []ratelimit.FailurePolicy{ratelimit.FailLocal, ratelimit.FailOpen, ratelimit.FailClosed} {
		for _, undo := range []bool{false, true} {
			shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
				f.Nodes = func() int { return 1 }
				r := slotRule(9)
				r.Coordination.OnStoreFailure = policy
				s.set(100*time.Millisecond, true, false)
				for slot := 1; slot <= 5; slot++ { // the first leaves, and the others wait
					go func() {
						a := slotOf(r, "k", ratelimit.Spend, slot)
						switch v := decides(f, clock(), a); {
						case v.OverLimit:
						case undo:
							f.Undo(clock(), []ratelimit.Ask{a}, []ratelimit.Verdict{v})
						default:
							decides(f, clock(), slotOf(r, "k", ratelimit.Release, slot))
						}
					}()
				}
				time.Sleep(10 * time.Second)
				if n := s.taken(); n != 0 {
					t.Errorf("%v, undone %v: %d slots are left", policy, undo, n)
				}
				if n := laneOf(f, "k").Len(); n > 0 {
					t.Errorf("%v: the lane keeps %d asks", policy, n)
				}
			})
		}
	}
}

// More gives than a message has wait for an outage to end without being tried all the time.
func TestGivesRest(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		r := slotRule(10_000)
		s.set(0, false, true)
		const many = 1000
		for i := range many {
			f.Undo(clock(), []ratelimit.Ask{slotOf(r, "k", ratelimit.Spend, i+1)}, []ratelimit.Verdict{{Charged: 1}})
		}
		before := s.sent()
		time.Sleep(10 * time.Second)
		if n := s.sent() - before; n > 100 {
			t.Errorf("%d messages were sent in 10 s", n)
		}
		s.set(0, true, false)
		time.Sleep(time.Second)
		l := laneOf(f, "k")
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.failed) > 0 || l.Len() > 0 {
			t.Errorf("after the outage %d gives wait, and %d are to be tried again", l.Len(), len(l.failed))
		}
	})
}

// A lane continues when the ledger answers again, with any queue of the outage. Slots of requests that were in flight
// are then free, with any number of refusals in between, also without further requests.
func TestSlotsAfterAnOutage(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		r := slotRule(32)
		r.Coordination.OnStoreFailure = ratelimit.FailClosed
		for slot := 1; slot <= 32; slot++ {
			if decides(f, clock(), slotOf(r, "k", ratelimit.Spend, slot)).OverLimit {
				t.Fatal("refused")
			}
		}
		s.set(time.Hour, false, true)
		for slot := 1; slot <= 32; slot++ {
			decides(f, clock(), slotOf(r, "k", ratelimit.Release, slot))
		}
		for i := range 3 * mostSlotQueue {
			decides(f, clock(), slotOf(r, "k", ratelimit.Spend, 100+i))
		}
		time.Sleep(time.Minute / 2)
		s.set(0, true, false)
		time.Sleep(5 * time.Second)
		if n := s.taken(); n != 0 {
			t.Errorf("%d of 32 slots are left", n)
		}
		if v := decides(f, clock(), slotOf(r, "k", ratelimit.Spend, 99)); v.Source != ratelimit.FromClaim || v.OverLimit {
			t.Errorf("after the outage: %+v", v)
		}
		s.set(0, false, true) // one connection is cut, then there are no requests
		decides(f, clock(), slotOf(r, "k", ratelimit.Release, 99))
		s.set(0, true, false)
		time.Sleep(time.Second)
		if n := s.taken(); n != 0 {
			t.Errorf("a release that failed once waits for the next request: %d are left", n)
		}
	})
}

// All asks that wait for the breaker may have gone before they are sent. The breaker's probe is then no empty
// message, and the lane continues when the ledger answers.
func TestSlotsOfABreaker(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		f.Nodes = func() int { return 1 }
		r := slotRule(3)
		s.set(time.Hour, false, true)
		for slot := 1; slot <= 3; slot++ { // this node admits them, and each message fails after a second
			if decides(f, clock(), slotOf(r, "k", ratelimit.Spend, slot)).OverLimit {
				t.Fatal("refused")
			}
			if slot < 3 {
				time.Sleep(1100 * time.Millisecond)
			}
		}
		decides(f, clock(), slotOf(r, "k", ratelimit.Spend, 4)) // waits for the third's answer, and is refused
		time.Sleep(5 * time.Second)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		f.Decide(gone, clock(), []ratelimit.Ask{slotOf(r, "k", ratelimit.Spend, 6)}, make([]ratelimit.Verdict, 1)) // it may be the probe
		s.set(0, true, false)
		time.Sleep(time.Minute)
		if v := decides(f, clock(), slotOf(r, "k", ratelimit.Spend, 5)); v.Source != ratelimit.FromClaim {
			t.Errorf("a minute after the ledger answers again: %+v", v)
		}
	})
}

// Two descriptors of a request have one key: it has one slot, which neither gives back while it is in flight.
func TestOneSlotForARequest(t *testing.T) {
	shaky(t, func(t *testing.T, f *Limiter, s *shakyLedger, clock func() ratelimit.Instant) {
		r := slotRule(4)
		r.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.set(0, true, true)
		for i := range 5 {
			decides(f, clock(), slotOf(r, "k", ratelimit.Spend, 10+i))
		}
		s.set(0, true, false)
		time.Sleep(5 * time.Second)
		before := s.taken()
		a := slotOf(r, "k", ratelimit.Spend, 1)
		v := make([]ratelimit.Verdict, 2)
		f.Decide(t.Context(), clock(), []ratelimit.Ask{a, a}, v)
		time.Sleep(5 * time.Second)
		if n := s.taken() - before; n != 1 || v[0].OverLimit || v[1].OverLimit {
			t.Errorf("a request has %d slots: %+v", n, v)
		}
	})
}

// shards are a ledger of two parts, of which the second does not answer.
type shards struct {
	account.Ledger
	*shakyLedger
}

func (shards) Partitions() int { return 2 }

func (shards) Partition(key string) int { return strings.Count(key, fmt.Sprintf("%x", "dead")) }

func (shards) Ask(context.Context, int) (e ratelimit.Epoch, from, to ratelimit.LedgerTime, err error) {
	return e, 0, 0, errShaky
}

func (s shards) Slots(ctx context.Context, asks []account.SlotAsk, answers []account.SlotAnswer) {
	for i := range asks { // as a pipeline does, which waits for all servers
		if s.Partition(asks[i].Key) == 1 {
			<-ctx.Done()
			for i := range answers {
				answers[i].Err = ctx.Err()
			}
			return
		}
	}
	s.shakyLedger.Slots(ctx, asks, answers)
}

// A part of the ledger that does not answer holds up no key of another, whatever is owed to it.
func TestSlotsOfOtherParts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		s := &shakyLedger{keys: map[string]*account.Slots{}, began: began, heard: true}
		clock := func() ratelimit.Instant { return ratelimit.Instant(time.Since(began)) + 1 }
		f := New(shards{nil, s}, local.New(100, 1, began), clock)
		r := slotRule(4)
		r.Coordination.OnStoreFailure = ratelimit.FailClosed
		for slot := 1; slot <= 200; slot++ {
			go decides(f, clock(), slotOf(r, fmt.Sprint("dead", slot), ratelimit.Spend, slot))
			key := fmt.Sprint("well", slot)
			if v := decides(f, clock(), slotOf(r, key, ratelimit.Spend, slot)); v.Source != ratelimit.FromClaim {
				t.Fatalf("slot %d: %+v", slot, v)
			}
			time.Sleep(5 * time.Millisecond)
		}
		time.Sleep(2 * time.Minute) // what is owed has come back by itself
		synctest.Wait()
	})
}

// laneOf is the way of a key's slots.
func laneOf(f *Limiter, key string) *slotLane { return f.lane(ratelimit.KeyName([]byte(key))) }

// openOf reports whether the lane of a key counts its ledger as dead.
func openOf(f *Limiter, key string) bool {
	return laneOf(f, key).Open()
}

// noted is a Waiter that notes that it was called.
type noted struct{ waits chan struct{} }

func (n noted) Waits() { close(n.waits) }

// heldSlots is a ledger that answers when a decision has said that it waits.
type heldSlots struct{ waits chan struct{} }

func (h heldSlots) Slots(ctx context.Context, _ []account.SlotAsk, answers []account.SlotAnswer) {
	select {
	case <-h.waits:
	case <-ctx.Done():
		answers[0].Err = ctx.Err()
	}
}

// A decision that waits for the ledger says so: otherwise all calls on its connection wait too, and the gate takes the
// ledger's time for work of this node.
func TestSlotsSayThatTheyWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		waits := make(chan struct{})
		begun := time.Now()
		clock := func() ratelimit.Instant { return ratelimit.Instant(time.Since(begun)) }
		f := New(heldSlots{waits}, local.New(100, 0, begun), clock)
		one := []ratelimit.Verdict{{}}
		ctx := context.WithValue(t.Context(), ratelimit.WaitsKey{}, ratelimit.Waiter(noted{waits}))
		f.Decide(ctx, clock(), []ratelimit.Ask{slotOf(slotRule(2), "k", ratelimit.Spend, 1)}, one)
		if took := time.Since(begun); took > 0 || one[0].Source != ratelimit.FromClaim {
			t.Errorf("after %v: %+v", took, one[0])
		}
		synctest.Wait()
	})
}
