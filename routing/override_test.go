package routing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

func overridable(limit ratelimit.Tokens) *ratelimit.Rule {
	r := routed(limit)
	r.Limit.Ceiling = ratelimit.MaxLimit
	r.Coordination.StoreDeadline = time.Second // of a busy machine nothing is to be said here
	return r
}

func (n *node) set(key int, o *ratelimit.Override, match ratelimit.Match) (ratelimit.Override, error) {
	return n.SetOverride(context.Background(), n.clock(), &ask{Rule: overridable(1), Key: keyOf(key)}, o, match)
}

// list lists all, a page at a time.
func (n *node) listAll(page int) (names []string, err error) {
	after := ""
	for {
		found, err := n.Overrides(context.Background(), n.clock(), leasing.KeyName(keyOf(0))[:5], after, page)
		for _, o := range found {
			names, after = append(names, o.Key), o.Key
		}
		if err != nil || len(found) < page {
			return names, err
		}
	}
}

// A ring without a store keeps overrides at the keys' owners. Each node sets and removes them, and lists all in pages. It
// refuses a change of another version, or beyond the bounds.
func TestRingKeepsOverrides(t *testing.T) {
	const keys = 100
	nodes := newRingWorld(t, 3).ring(3)
	for k := range keys {
		is, err := nodes[k%3].set(k, &ratelimit.Override{Requests: 5, By: "ann"}, ratelimit.Match{})
		if err != nil || is.Set == 0 || is.Requests != 5 || is.By != "ann" {
			t.Fatalf("key %d: %+v %v", k, is, err)
		}
	}
	for i, n := range nodes {
		if _, err := n.set(i, nil, ratelimit.Match{Any: true}); err != nil {
			t.Error(err)
		}
		if _, err := n.set(9, nil, ratelimit.Match{Set: 1}); !errors.Is(err, ratelimit.ErrOverrideChanged) {
			t.Errorf("a change of another version: %v", err)
		}
		if _, err := n.set(9, &ratelimit.Override{Requests: -1}, ratelimit.Match{Any: true}); err == nil {
			t.Error("a limit of -1 is set")
		}
	}
	for _, n := range nodes {
		if names, err := n.listAll(30); err != nil || len(names) != keys-3 || !slices.IsSorted(names) {
			t.Errorf("%d of %d are listed: %v", len(names), keys-3, err)
		}
	}
}

// Overrides are set at any node while others join and leave, and streams break. Each key keeps the last override that
// was answered, or a later one without an answer.
func TestStepsOverridesAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			const keys = 200
			s := newScript(t, keys, 10)
			s.rule = overridable(10)
			s.rnd = rand.New(rand.NewPCG(seed, 9))
			s.delay, s.tail = time.Duration(s.rnd.Int64N(int64(2*time.Millisecond))), time.Duration(s.rnd.Int64N(int64(2*time.Millisecond)))
			s.ring("a:1", "b:1", "c:1")
			live := []string{"a:1", "b:1", "c:1"}
			may := make([]map[ratelimit.Tokens]bool, keys) // limits of each key; -1: the rule's
			for k := range may {
				may[k] = map[ratelimit.Tokens]bool{-1: true}
			}
			changes, failures, open := 0, 0, map[int]bool{}
			set := func() {
				k, n := s.rnd.IntN(keys), live[s.rnd.IntN(len(live))]
				if open[k] || s.rnd.IntN(4) == 0 {
					s.ask(n, k, 1)
					return
				}
				limit, o := ratelimit.Tokens(-1), (*ratelimit.Override)(nil)
				if s.rnd.IntN(4) > 0 {
					limit = ratelimit.Tokens(s.rnd.IntN(20))
					o = &ratelimit.Override{Requests: limit}
				}
				changes, open[k] = changes+1, true
				s.nodes[n].SetOverride(&ask{Rule: s.rule, Key: keyOf(k)}, o, func(_ ratelimit.Override, err error) {
					if err == nil {
						may[k] = map[ratelimit.Tokens]bool{}
					} else {
						failures++
					}
					may[k][limit] = true
					delete(open, k)
				})
			}
			for at := time.Duration(0); at < 4*time.Second; at += time.Millisecond {
				s.in(at, set)
			}
			s.churn(&live)
			s.play(10 * time.Second)
			s.agree(live)
			if changes < 1000 || failures > changes/10 {
				t.Errorf("%d of %d changes failed", failures, changes)
			}
			for k := range may {
				x, n := &setting{look: true}, s.nodes[live[k%len(live)]]
				n.begin(&task{done: func() {}}, func(ctx context.Context) {
					_, _ = n.atOwner(ctx, s.now, &ask{Rule: s.rule, Key: keyOf(k)}, x)
				})
				n.Pump()
				s.until("it is read", func() bool { return x.done })
				got := x.is.Requests
				if x.is.Set == 0 {
					got = -1
				}
				if !may[k][got] {
					t.Errorf("key %d has the limit %d, and may have %v", k, got, may[k])
				}
			}
		})
	}
}

// What cannot be a change, a list, or an answer to either changes nothing, and is counted.
func TestOddChangesAreRefused(t *testing.T) {
	s, n := newPair(t)
	s.rule = overridable(10)
	good := (&setting{set: &ratelimit.Override{Requests: 1}}).message()
	for what, m := range map[string]*wire.Ask{
		"a record that is none":    {Change: &wire.Change{Record: []byte("xxxx")}, Kind: uint32(ratelimit.Peek)},
		"of a version before 1970": {Change: &wire.Change{Look: true, Set: -1}, Kind: uint32(ratelimit.Peek)},
		"with a request":           {Change: good, Cost: 1, Kind: uint32(ratelimit.Spend)},
		"a list too long":          {List: &wire.List{Most: mostListed + 1}},
	} {
		m.Id, m.Key, m.Rule = 1, keyOf(0), ruleBytes(s.rule)
		before := n.Stats().Malformed
		serving := n.decideFor(context.Background(), s.now, &inlet{addr: "b:1", incarnation: 2}, []*wire.Ask{m})
		open, replies := serving.advance(s.now), serving.replies(s.now)
		if open || len(replies) != 1 || replies[0].GetStatus() != malformed || n.Stats().Malformed != before+1 {
			t.Errorf("%s: %v", what, replies)
		}
	}
	for what, r := range map[string]*wire.Reply{
		"no answer":        {},
		"a record":         {Changed: &wire.Changed{Record: []byte("xxxx")}},
		"a reason unknown": {Changed: &wire.Changed{Refused: 9}},
	} {
		if x := (&setting{}); x.apply(r) || x.done {
			t.Errorf("%s is taken", what)
		}
	}
	one := recordOf(&ratelimit.Override{Set: 1})
	for what, all := range map[string][]*wire.Listed{
		"another prefix": {{Key: "b", Record: one}}, "before the page": {{Key: "a1", Record: one}}, "no record": {{Key: "a3"}},
		"too many": {{Key: "a3", Record: one}, {Key: "a4", Record: one}, {Key: "a5", Record: one}},
	} {
		if _, ok := listedBy(&wire.List{Prefix: "a", After: "a2", Most: 2}, &wire.Reply{Listed: all}); ok {
			t.Errorf("%s is taken", what)
		}
	}
}

// A reset counts for the usage that is on its way to the key's owner, too.
func TestResetWaitsForTheAccount(t *testing.T) {
	s, a := newPair(t)
	key, err := a.ownedBy("a:1"), errors.New("it is not answered")
	for range 10 {
		s.nodes["b:1"].has(key)
	}
	a.mayHave("b:1")
	a.begin(&task{done: func() {}}, func(ctx context.Context) {
		err = a.Reset(ctx, s.now, &ask{Rule: s.rule, Key: key})
	})
	s.play(time.Second)
	if n := s.admits("a:1", key, 12); n != 10 || err != nil {
		t.Errorf("%d of 10 are admitted after a reset: %v", n, err)
	}
}
