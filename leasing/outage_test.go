package leasing_test

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// What is admitted without the store is booked, and taken back where it was taken: of this node's own budget, and of
// what is to be told.
func TestUndoWithoutTheStore(t *testing.T) {
	for policy, own := range map[string]int{"local": 10, "open": 1000} {
		s := newStage(t, 1, fixed(100, ratelimit.Year), fields{"on_store_failure": policy})
		s.passes(0, 1)
		s.down(true)
		for s.hand(0) > 0 {
			s.ask(0, "k", 1)
		}
		s.goOn(10 * time.Second)
		before := s.lease(0, "k").Spent
		for i := range 3 * own {
			v := s.ask(0, "k", 1)
			after := s.lease(0, "k").Spent
			if v.OverLimit || v.Charged != 1 || v.Source != ratelimit.FromFallback || after != before+1 {
				t.Fatalf("%s, request %d: %+v, spent %d of %d before", policy, i, v, after, before)
			}
			s.undo(0, ask{Cost: 1}, v)
			if after = s.lease(0, "k").Spent; after != before {
				t.Fatalf("%s, request %d was undone, and %d are spent, %d before", policy, i, after, before)
			}
		}
	}
}

// A refund while a window turns, without an answer in time, reports the window of its booking, like a charge.
func TestRefundWithoutTheStoreSaysWhere(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Spend} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "open"})
		s.passes(0, 5)
		before := s.lease(0, "k")
		s.jump(0) // the window may be over, or not
		v := s.overdue(0, ask{Cost: 2, Kind: kind})
		after := s.lease(0, "k").Spent
		if v.Source != ratelimit.FromFallback || v.Booked != before.Window || after == before.Spent {
			t.Errorf("kind %d: %+v, and %d are spent, before: %+v", kind, v, after, before)
		}
	}
}

// A refund before the node's first answer credits no window: that which the answer names may be a later one, of which
// nothing was given back. An admission then is booked.
func TestRefundBeforeTheFirstAnswer(t *testing.T) {
	s := newStage(t, 2, fixed(100, ratelimit.Hour), nil)
	s.ask(0, "k", 30)
	s.overdue(1, ask{Cost: 30, Kind: ratelimit.Refund})
	s.jump(-time.Second) // it is certain that the window has turned
	for range 100 {
		s.passes(0, 1)
	}
	if v := s.ask(1, "k", 1); !v.OverLimit {
		t.Errorf("101 of 100 are admitted: %+v", v)
	}
	s = newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "open"})
	if v := s.overdue(0, ask{Cost: 50}); v.OverLimit {
		t.Fatalf("the store is away, and it is decided %+v", v)
	}
	s.goOn(time.Second)
	s.ask(0, "k", 1)
	s.goOn(time.Second)
	if used := s.used("k"); used < 51 {
		t.Errorf("%d are booked of 51", used)
	}
}

// In an outage nodes divide a limit among those that were last seen alive; a node that has seen none divides by
// max_nodes. What is declared covers both.
func TestLocalDividesByNodesSeen(t *testing.T) {
	for seen, want := range map[int]tokens{2: 50, 4: 25, 1: 100, 0: 10} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), fields{"on_store_failure": "local", "max_nodes": "10"})
		s.nodes[0].Nodes = func() int { return seen }
		s.ask(0, "other", 1) // what time it is there
		s.down(true)
		admitted := s.takes(0, "k", 1)
		declared := declare.Of(s.rule, max(1, seen), declare.SharedStore).OnOutage.Node.Tokens
		if admitted != want || admitted > declared {
			t.Errorf("%d nodes were seen: one admits %d, must admit %d, and declares %d", seen, admitted, want, declared)
		}
	}
}

// A bucket that refills by fewer tokens in a period than there are nodes refills by its part at each of them, too.
func TestLocalPartsOfSlowBuckets(t *testing.T) {
	for rate, want := range map[tokens]tokens{1: 6 + 6, 4: 6 + 20, 10: 6 + 60, 25: 6 + 120} {
		s := newStage(t, 10, bucketOf(rate, 60, ratelimit.Minute), fields{"on_deny": "refund"})
		s.ask(0, "other", 1)
		s.down(true)
		admitted := s.takes(0, "k", 1)
		for range 60 {
			s.now = s.now.Add(time.Minute)
			admitted += s.takes(0, "k", 1)
		}
		if admitted != want {
			t.Errorf("one of ten nodes with a bucket of 60 and %d a minute admits %d in an hour, want %d", rate, admitted, want)
		}
	}
}

// In an outage, a node has the store's windows, whatever its own wall clock shows: it admits its part once in each.
func TestLocalWindowsAreTheStores(t *testing.T) {
	for _, ahead := range []time.Duration{0, 30 * time.Minute, -30 * time.Minute} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": "local"})
		before := s.nodes[0].LedgerTime(s.now)
		s.ask(0, "other", 1)
		if at := s.nodes[0].LedgerTime(s.now); before != 0 || s.time().Sub(at).Abs() > time.Second {
			t.Errorf("at %d, the ledger's time is %d, and %d before its first answer", s.time(), at, before)
		}
		s.down(true)
		s.jump(-time.Second) // no answer is about this window
		admitted := tokens(0)
		for range 11 {
			s.nodes[0].SyncClock(s.now, time.UnixMicro(int64(s.time())).Add(ahead))
			admitted += s.takes(0, "k", 1)
			s.now = s.now.Add(5 * time.Minute)
		}
		if admitted != 50 {
			t.Errorf("a clock that is ahead by %v: a node with a part of 50 admits %d in a window", ahead, admitted)
		}
	}
}

// Without an answer, a peek is decided as a request is: closed refuses, open admits, and local has the node's part of
// the limit. Costs after the fact would otherwise have no limit in an outage. Debt that a node has read refuses on.
func TestPeeksWithoutTheStore(t *testing.T) {
	for policy, want := range map[string][2]bool{"closed": {true, true}, "open": {false, false}, "local": {false, true}} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": policy})
		s.ask(0, "other", 1)
		s.down(true)
		before := s.peek(0).OverLimit
		s.ask(0, "k", 300)
		if after := s.peek(0).OverLimit; [2]bool{before, after} != want {
			t.Errorf("%s: a peek is refused before and after the node's own budget is used: %v, %v", policy, before, after)
		}
		if policy == "open" {
			continue
		}
		s = newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_store_failure": policy})
		s.decide(0, ask{Kind: ratelimit.Charge, Cost: 130})
		s.goOn(5 * time.Second)
		known := s.peek(0)
		s.down(true)
		s.goOn(5 * time.Second)
		if v := s.peek(0); !known.OverLimit || !v.OverLimit {
			t.Errorf("%s: 130 of 100 are used, which shows %+v, and then without the store %+v", policy, known, v)
		}
	}
}

// So do costs above their holds. Without that, requests would pass for as long as their holds fit.
func TestChargesWithoutTheStore(t *testing.T) {
	for _, key := range []string{"known", "new"} {
		s := newStage(t, 2, fixed(100, ratelimit.Hour), fields{"on_deny": "refund"})
		s.ask(0, "known", 1)
		s.down(true)
		s.goOn(5 * time.Second)
		used := 0
		for range 100 {
			if v := s.ask(0, key, 1); !v.OverLimit {
				used += 10
				w := max(v.Window, v.Booked)
				s.decide(0, ask{Key: []byte(key), Kind: ratelimit.Charge, Cost: 9, Window: w})
			}
		}
		if used > 70 {
			t.Errorf("%s: of a part of 50, and a lease of 5, %d are used", key, used)
		}
	}
}

// In a window of which it has read the sum, a node admits its lease and its part of the rest, and answers what is left
// of that. In the next window, it admits its part of the limit. A sliding window counts the usage before, and a bucket's
// part is refilled at the node's own rate.
func TestLocalContinuesFromTheSum(t *testing.T) {
	for _, c := range []struct {
		algorithm    ratelimit.Algorithm
		first, later tokens // of node 0: in 30 minutes, and in the next window
	}{
		{ratelimit.FixedWindow, (100 - 60) / 2, 50},
		{ratelimit.SlidingWindow, (100 - 60) / 2, 50 - 20},
		{ratelimit.TokenBucket, (100 - 60 + 50) / 2, (100-60+100)/2 - 45},
	} {
		s := newStage(t, 2, limitOf(c.algorithm, 100, ratelimit.Hour),
			fields{"on_store_failure": "local", "on_deny": "refund", "lease.size": "1"})
		s.ask(1, "k", 40)
		s.ask(0, "k", 20)
		s.down(true)
		spent := func() (n tokens) {
			for left := tokens(-1); ; n++ {
				v := s.ask(0, "k", 1)
				switch {
				case v.OverLimit && v.Remaining == 0:
					return n
				case v.OverLimit || v.Source == ratelimit.FromFallback && left >= 0 && v.Remaining != left-1:
					t.Fatalf("%v: %d passed, %d were left: %+v", c.algorithm, n, left, v)
				case v.Source == ratelimit.FromFallback:
					left = v.Remaining
				}
			}
		}
		s.now = s.now.Add(30 * time.Minute)
		if v := s.ask(0, "k", 90); !v.OverLimit || v.Remaining < c.first-1 || v.Remaining > c.first+1 {
			t.Errorf("%v: of a request for 90 is said: %+v", c.algorithm, v)
		}
		if n := spent(); n < c.first-1 || n > c.first+1 { // a lease may have a token
			t.Errorf("%v: %d pass in the window that was read, want %d", c.algorithm, n, c.first)
		}
		s.now = s.now.Add(30*time.Minute + 10*time.Second)
		if n := spent(); n < c.later-1 || n > c.later+1 {
			t.Errorf("%v: %d pass in the next window, want %d", c.algorithm, n, c.later)
		}
	}
}

// A message that the store refuses alone is a failure, though its round trip has an answer: a full Redis reads its time.
// An answer that only came too late is none.
func TestRefusedMessageIsAFailure(t *testing.T) {
	for refusal, failures := range map[error]int{errDown: 1, account.ErrOvertaken: 0, account.ErrOver: 0} {
		s := newStage(t, 1, fixed(100, ratelimit.Hour), nil)
		s.ask(0, "other", 1)
		told := 0
		s.nodes[0].OnFailure = func(error) { told++ }
		s.hold(0, ask{Cost: 1})
		b := s.batch(0)
		epoch, at, _ := s.ledger.Settle(t.Context(), nil, nil)
		b.Answer(epoch, at, []account.Grant{{Err: refusal}})
		if told != failures {
			t.Errorf("%v: %d failures, must be %d", refusal, told, failures)
		}
	}
}
