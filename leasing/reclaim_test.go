package leasing_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// registered is the time for which a node counts on its registration (docs/reference/protocol.md).
const registered = ratelimit.RegisteredFor * 3 / 4

// newReclaiming has two nodes whose leases end with their registrations.
func newReclaiming(t *testing.T, limit ratelimit.Limit, more fields) *stage {
	f := fields{"on_deny": "refund", "reclaim": "eager", "on_store_failure": "closed", "lease.size": "50"}
	maps.Copy(f, more)
	s := newStage(t, 2, limit, f)
	s.far(time.Millisecond / 2)
	s.goOn(2 * time.Second)
	return s
}

// each is what one silent node may cost.
func (s *stage) each() tokens {
	return declare.Of(s.rule, len(s.nodes), declare.SharedStore).Over.EachSilent
}

// spend is what a node admits of n requests for a token.
func (s *stage) spend(node, n int) (admitted tokens) {
	for range n {
		if v := s.ask(node, "k", 1); !v.OverLimit {
			admitted++
		}
	}
	return admitted
}

// spendHand has a node spend all that it has in hand, without a message that says so.
func (s *stage) spendHand(node int) (admitted tokens) {
	for range s.hand(node) {
		if w, v := s.hold(node, ask{Cost: 1}); w == nil && !v.OverLimit {
			admitted++
		}
	}
	return admitted
}

// What a crashed node had in hand is free within the declared time for a node that needs it, in all these cases. What
// it spent of its last lease is granted once more at most. Without reclaim it stays charged.
func TestCrashedNodeIsReclaimed(t *testing.T) {
	const whole = 1000
	for name, row := range map[string]struct {
		more  fields
		limit tokens                // afterwards; 0: whole
		play  func(s *stage) tokens // returns what was admitted
	}{
		"reclaims": {play: func(s *stage) tokens { return s.spend(0, 10) + s.spend(1, 10) }},
		"does not reclaim": {
			more: fields{"reclaim": "safe"},
			play: func(s *stage) tokens { return s.spend(0, 10) + s.spend(1, 10) + s.hand(0) },
		},
		"spends its lease": {play: func(s *stage) tokens { return s.spend(0, 10) + s.spendHand(0) }},
		"its requests leave before a slow answer, whose tokens are then in hand": {
			more: fields{"lease.size": "auto"},
			play: func(s *stage) (n tokens) {
				n = s.spend(0, 1)
				s.goOn(time.Second)
				s.nodes[0].oneWay = 5 * time.Millisecond
				for range 300 {
					s.begin(0, ask{Cost: 1}, func(v verdict) {
						if !v.OverLimit {
							n++
						}
					})
				}
				s.goOn(300 * time.Millisecond)
				return n + s.spendHand(0)
			},
		},
		"a large request is refused, and what was granted for it stays in hand": {
			more: fields{"lease.size": "auto"},
			play: func(s *stage) tokens {
				n := s.takes(0, "k", 600)
				s.ask(0, "k", 600)
				s.goOn(50 * time.Millisecond)
				return n + s.spendHand(0)
			},
		},
		"all nodes have a lower limit": {
			limit: 100,
			play: func(s *stage) tokens {
				n := s.spend(0, 20)
				s.limited(100)
				n += s.spend(0, 1)
				s.goOn(2 * time.Second)
				n += s.spend(0, 1)
				s.goOn(100 * time.Millisecond)
				return n + s.spendHand(0)
			},
		},
		"its first use was under a rule that does not reclaim, before its window was known": {
			play: func(s *stage) tokens {
				safe, fresh := *s.rule, s.start()
				safe.Coordination.Reclaim = ratelimit.ReclaimSafe
				fresh.down = true
				s.decide(2, ask{Rule: &safe, Cost: 1})
				fresh.down = false
				s.goOn(2 * time.Second)
				defer func() { fresh.gone = true }()
				return s.spend(2, 10)
			},
		},
		"a full table drops the key again and again, and each name has a lease that was spent whole": {
			play: func(s *stage) (n tokens) {
				whole := func(key string) tokens {
					n := tokens(1)
					s.ask(0, key, 1)
					if hand := s.lease(0, key).Unspent; hand > 0 && !s.ask(0, key, hand).OverLimit {
						n += hand
					}
					return n
				}
				for drop := range 6 {
					n += whole("k")
					for i := range 600 {
						if s.lease(0, "k").Spent == 0 {
							break // it is dropped
						}
						whole(fmt.Sprint("other", drop, " ", i))
						s.goOn(10 * time.Millisecond)
					}
					if s.lease(0, "k").Spent > 0 {
						s.Error("the key is not dropped")
					}
				}
				return n
			},
		},
	} {
		s := newReclaiming(t, fixed(whole, ratelimit.Hour), row.more)
		if row.limit == 0 {
			row.limit = whole
		}
		admitted := row.play(s)
		s.nodes[0].gone = true
		admitted += s.takesFor(ratelimit.ReclaimedWithin, "k", 1)
		most := row.limit + s.each()
		if name == "does not reclaim" {
			most = row.limit
		}
		if admitted < row.limit || admitted > most {
			t.Errorf("%s: %d of %d were admitted, at most %d may be", name, admitted, row.limit, most)
		}
	}
}

// release has a node end in order.
func (s *stage) release(node int) {
	claims := s.nodes[node].Release()
	if _, _, err := s.ledger.Settle(s.Context(), claims, make([]account.Grant, len(claims))); err != nil {
		s.Fatal(err)
	}
}

// A sliding window turns after the crash, before the other node needs the tokens. What a node in order has in hand
// comes back, too.
func TestTokensOfTheWindowBeforeAreReclaimed(t *testing.T) {
	for _, crashes := range []bool{false, true} {
		s := newReclaiming(t, limitOf(ratelimit.SlidingWindow, 1000, ratelimit.Hour), nil)
		s.jump(20 * time.Second)
		s.goOn(15 * time.Second)
		s.spend(0, 10)
		s.nodes[0].gone = crashes
		s.goOn(6 * time.Second) // into the next window
		if n := s.takesFor(ratelimit.ReclaimedWithin+2*time.Second, "k", 1); n < 980 {
			t.Errorf("crashes: %v: only %d of 990 are admitted", crashes, n)
		}
	}
}

// A suspended node loses its leases, and spends none of them when it continues. Nor does one that cannot register, or
// takes charges back: these are tokens that others may have.
func TestPausedNodeIsReclaimed(t *testing.T) {
	for _, how := range []string{"paused", "cut off"} {
		s := newReclaiming(t, fixed(1000, ratelimit.Hour), nil)
		n, most := s.nodes[0], 1000+s.each()
		admitted := s.spend(0, 10) + s.spend(1, 10)
		undone := make([]verdict, 10)
		for i := range undone {
			undone[i] = s.ask(0, "k", 1)
		}
		n.paused, n.down = how == "paused", how != "paused"
		s.goOn(registered)
		if !n.paused && !s.ask(0, "k", 1).OverLimit {
			t.Error("it spends a lease that others may have")
		}
		s.goOn(ratelimit.RegisteredFor)
		if admitted += s.takesFor(4*time.Second, "k", 1); admitted+10 < 1000 || admitted > most {
			t.Errorf("%s: %d of 1000 were admitted", how, admitted)
		}
		n.paused, n.down = false, false
		if !s.ask(0, "k", 1).OverLimit {
			t.Errorf("%s: at once when it comes back, it spends a lease that others have", how)
		}
		for !n.Registered(s.now) {
			s.goOn(time.Millisecond)
		}
		for _, v := range undone {
			s.undo(0, ask{Cost: 1}, v)
		}
		if spent := s.spendHand(0); spent > 0 {
			t.Errorf("%s: after it took 10 back, it spends %d without a claim", how, spent)
		}
		s.goOn(3 * time.Second)
		if admitted += s.spend(0, 5); admitted > most+10 {
			t.Errorf("%s: %d of 1000 were admitted after it came back", how, admitted)
		}
	}
}

// A window turns while a node is suspended, and a request comes before the node drops its leases, or not: what was
// admitted in that window is in the ledger.
func TestTurnBeforeALapse(t *testing.T) {
	for _, first := range []string{"registration", "request"} {
		s := newReclaiming(t, limitOf(ratelimit.SlidingWindow, 1000, ratelimit.Hour), nil)
		s.deaf = true // a recall does not reach a suspended process
		s.jump(30 * time.Second)
		s.goOn(13 * time.Second)
		admitted := s.spend(0, 10)
		s.goOn(time.Second)
		admitted += s.spendHand(0)
		s.nodes[0].paused = true
		admitted += s.takesFor(14*time.Second, "k", 1)
		w := s.window()
		s.goOn(4 * time.Second) // the window has turned
		s.nodes[0].paused = false
		if first == "request" {
			s.begin(0, ask{Cost: 1}, func(verdict) {})
		}
		s.goOn(5 * time.Second)
		is, err := s.ledger.Look(t.Context(), "k", w, &s.rule.Limit)
		if err != nil || is.Charged < admitted || s.window() == w {
			t.Errorf("%s first: %d were admitted in the window, the ledger has %+v of them, %v", first, admitted, is, err)
		}
	}
}

// A full table drops keys between the end of a registration and the lapse. Their tokens are not lost.
func TestFullTableBeforeALapse(t *testing.T) {
	s := newReclaiming(t, fixed(100, ratelimit.Hour), fields{"lease.size": "5"})
	known := func() map[string]bool {
		has := map[string]bool{}
		for i := range 200 {
			if key := fmt.Sprint("k", i); s.lease(0, key).Granted > 0 {
				has[key] = true
			}
		}
		return has
	}
	for i := range 200 {
		s.ask(0, fmt.Sprint("k", i), 1)
	}
	dropped := known()
	s.nodes[0].paused = true
	s.goOn(registered + 200*time.Millisecond) // no other node needs the tokens meanwhile
	s.nodes[0].paused = false
	for i := range 50 {
		s.begin(0, ask{Key: fmt.Append(nil, "new", i), Cost: 1}, func(verdict) {})
	}
	maps.DeleteFunc(dropped, func(key string, _ bool) bool { return known()[key] })
	s.goOn(3 * time.Second)
	for key := range dropped {
		if got := s.takesFor(5*time.Second, key, 1) + s.takesFor(20*time.Second, key, 1); got < 98 {
			t.Errorf("the other node got %d of 100 of %s, though 1 was spent", got, key)
		}
		break // one tells
	}
}

// In a long outage, in which a registration ends, requests do not wait for another one.
func TestUnregisteredNodeDoesNotWait(t *testing.T) {
	s := newReclaiming(t, fixed(1000, ratelimit.Hour), nil)
	s.spend(0, 10)
	s.nodes[0].down = true
	s.goOn(registered + time.Second)
	for range 20 {
		before := s.now
		if v := s.ask(0, "k", 1); v.Source != ratelimit.FromFallback || s.now.Sub(before) > time.Millisecond {
			t.Errorf("after %v: %+v", s.now.Sub(before), v)
		}
		s.goOn(37 * time.Millisecond)
	}
}

// Admissions by on_store_failure are charges, also of a node that ends before it has registered again.
func TestUnregisteredNodeTellsAtItsEnd(t *testing.T) {
	for _, reclaim := range ratelimit.Reclaims {
		s := newReclaiming(t, fixed(1000, ratelimit.Hour), fields{"reclaim": reclaim, "on_store_failure": "open"})
		n, admitted := s.nodes[0], s.spend(0, 10)
		n.unnamed, n.down = true, true // its registration fails later, when claims succeed
		s.goOn(9 * time.Second)
		admitted += s.spend(0, 200)
		n.down = false
		s.goOn(time.Second)
		s.release(0)
		if used := s.used("k"); used < admitted {
			t.Errorf("%s: %d were admitted, and the ledger has %d", reclaim, admitted, used)
		}
	}
}

// Nodes are suspended, cut off, and answered late, their registrations fail alone, their clocks differ, rules change node
// by node, requests are undone, windows turn, and nodes drift. At most one lease is spent twice for each time that a node
// was silent.
func TestReclaimAtRandom(t *testing.T) {
	for seed := range uint64(80) {
		r := rand.New(rand.NewPCG(seed, 77)) //nolint:gosec // the same run each time
		limit := fixed(tokens(20+r.IntN(400)), []ratelimit.Unit{ratelimit.Hour, ratelimit.Minute}[r.IntN(2)])
		f := fields{"on_deny": ratelimit.OnDenies[r.IntN(2)], "on_store_failure": "closed", "reclaim": "eager"}
		if r.IntN(3) == 0 {
			f["mode"], f["max_nodes"] = "approx", "3"
		}
		s := newStage(t, 2, limit, f)
		s.skew = time.Duration(r.IntN(5)-2) * time.Second // on etcd, each node has its own clock
		s.start()
		s.far(time.Millisecond / 2)
		safe := *s.rule
		safe.Coordination.Reclaim = ratelimit.ReclaimSafe
		s.goOn(2 * time.Second)
		rules, each := [3]*ratelimit.Rule{s.rule, s.rule, s.rule}, s.each()
		admitted, silent := map[window]tokens{}, map[window]tokens{}
		type done struct {
			node int
			a    ask
			v    verdict
		}
		var last []done
		for range 200 {
			node := r.IntN(3)
			n := s.nodes[node]
			switch r.IntN(30) {
			case 0:
				n.paused = !n.paused
				silent[s.window()]++
			case 1:
				n.down = !n.down
				silent[s.window()]++
			case 2:
				n.mute = !n.mute
				silent[s.window()]++
			case 3:
				rules[node] = []*ratelimit.Rule{s.rule, &safe}[r.IntN(2)]
			case 4:
				n.hangs = time.Duration(r.IntN(3000)) * time.Millisecond
			case 5:
				s.goOn(time.Duration(r.IntN(12)) * time.Second)
			case 6, 7:
				n.unnamed = !n.unnamed
				silent[s.window()]++
			}
			if _, known := silent[s.window()]; !known { // those that have been silent since the window before
				for _, n := range s.nodes {
					if n.paused || n.down || n.mute || n.unnamed {
						silent[s.window()]++
					}
				}
			}
			if !n.paused {
				for range r.IntN(25) {
					a := ask{Rule: rules[node], Cost: tokens(1 + r.IntN(4))}
					if v := s.decide(node, a); !v.OverLimit {
						admitted[v.Window] += a.Cost
						last = append(last, done{node, a, v})
					}
				}
				if len(last) > 0 && r.IntN(4) == 0 {
					i := r.IntN(len(last))
					if d := last[i]; !s.nodes[d.node].paused && d.v.Window == s.window() {
						s.undo(d.node, d.a, d.v)
						admitted[d.v.Window] -= d.a.Cost
					}
					last = append(last[:i], last[i+1:]...)
				}
			}
			s.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
		}
		drift := tokens(0)
		if s.rule.Drifts() {
			drift = 3 * s.rule.DriftShare()
		}
		for w, n := range admitted {
			times := silent[w] + silent[w-1]
			if most := limit.Requests + times*each + drift; n > most {
				t.Errorf("seed %d: %d of %v were admitted in %d, with %d silences for %d each", seed, n, limit, w, times, each)
			}
		}
	}
}
