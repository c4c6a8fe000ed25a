package leasing

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

var reclaimSeeds = flag.Uint64("reclaim-seeds", 60, "how many histories of crash reclaim are played")

// newReclaimed is an arena of two nodes that have spent some tokens of a key, and have leases of it.
func newReclaimed(t *testing.T, reclaim string) (x *arena, admitted *tokens) {
	x = newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{
		"on_deny": "refund", "reclaim": reclaim, "lease.size": "50", "on_store_failure": "closed",
	})
	admitted = new(tokens)
	x.start(2)
	x.start(2)
	x.goOn(2 * time.Second)
	for node := range 2 {
		x.spend(node, 10, admitted)
	}
	return x, admitted
}

// spend has a node admit what it can of n tokens of one key, and counts it.
func (x *arena) spend(node int, n int, admitted *tokens) {
	for range n {
		if v := x.ask(node, "k", 1); !v.OverLimit {
			*admitted++
		}
	}
}

// What a crashed node had in hand is free within the declared time for a node that needs it. What the crashed one spent
// of its last lease is granted once more at most. Without reclaim it stays charged.
func TestCrashedNodeIsReclaimed(t *testing.T) {
	for _, reclaim := range []string{"eager", "safe"} {
		x, admitted := newReclaimed(t, reclaim)
		inHand := x.nodes[0].Look(t.Context(), x.now, &ask{Rule: x.rule, Key: []byte("k")}).Lease.Unspent
		x.nodes[0].gone = true
		crashed := x.now
		x.spend(1, 1100, admitted)
		if *admitted != 1000-inHand || inHand < 10 {
			t.Fatalf("%s: %d of 1000 were admitted, and %d were in hand", reclaim, *admitted, inHand)
		}
		for x.now.Sub(crashed) < ratelimit.ReclaimedWithin {
			x.goOn(20 * time.Millisecond)
			x.spend(1, 5, admitted)
		}
		most := 1000 + x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
		if reclaim == "safe" {
			most = 1000 - inHand
		}
		if *admitted < min(1000, most) || *admitted > most {
			t.Errorf("%s: %d of 1000 were admitted", reclaim, *admitted)
		}
	}
}

// A suspended node loses its leases, and spends none of them when it continues. Nor does one that cannot register.
func TestPausedNodeIsReclaimed(t *testing.T) {
	for _, how := range []string{"paused", "cut off"} {
		x, admitted := newReclaimed(t, "eager")
		p := x.nodes[0]
		p.paused, p.down = how == "paused", how != "paused"
		if !p.paused {
			x.goOn(registered)
			if v := x.ask(0, "k", 1); !v.OverLimit {
				t.Error("it spends a lease that others may have")
			}
		}
		x.goOn(ratelimit.RegisteredFor)
		for range 100 {
			x.spend(1, 20, admitted)
			x.goOn(20 * time.Millisecond)
		}
		most := 1000 + x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
		if *admitted < 1000 || *admitted > most {
			t.Fatalf("%s: %d of 1000 were admitted", how, *admitted)
		}
		p.paused, p.down = false, false
		if v := x.ask(0, "k", 1); !v.OverLimit {
			t.Errorf("%s: at once when it comes back, it spends a lease that others have", how)
		}
		x.goOn(3 * time.Second)
		if x.spend(0, 5, admitted); *admitted > most {
			t.Errorf("%s: %d of 1000 were admitted after it came back", how, *admitted)
		}
	}
}

// In a long outage, in which a registration ends, requests do not wait for another one.
func TestUnregisteredNodeDoesNotWait(t *testing.T) {
	x, _ := newReclaimed(t, "eager")
	x.nodes[0].down = true
	x.goOn(registered + time.Second)
	for range 20 {
		before := x.now
		if v := x.ask(0, "k", 1); v.Source != ratelimit.FromFallback || x.now.Sub(before) > time.Millisecond {
			t.Errorf("after %v: %+v", x.now.Sub(before), v)
		}
		x.goOn(37 * time.Millisecond)
	}
}

// Nodes are suspended, cut off, and answered late, and rules change node by node. At most one lease is spent twice for
// each time that a node was silent.
func TestReclaimAtRandom(t *testing.T) {
	for seed := range *reclaimSeeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { playReclaim(t, seed) })
	}
}

func playReclaim(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 11))
	limit := tokens(20 + r.IntN(300))
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: limit}, map[string]string{
		"on_deny": "refund", "reclaim": "eager", "on_store_failure": "closed",
	})
	safe := *x.rule
	safe.Coordination.Reclaim = ratelimit.ReclaimSafe
	for range 3 {
		x.start(3)
	}
	x.goOn(2 * time.Second)
	admitted, silent := tokens(0), tokens(0)
	rules := [3]*ratelimit.Rule{x.rule, x.rule, x.rule}
	for range 150 {
		node := r.IntN(3)
		p := x.nodes[node]
		switch r.IntN(30) {
		case 0:
			p.paused = !p.paused
			silent++
		case 1:
			p.down = !p.down
			silent++
		case 2:
			p.mute = !p.mute
			silent++
		case 3:
			rules[node] = []*ratelimit.Rule{x.rule, &safe}[r.IntN(2)]
		case 4:
			p.hangs = time.Duration(r.IntN(3000)) * time.Millisecond
		case 5:
			x.goOn(time.Duration(r.IntN(12)) * time.Second)
		}
		if !p.paused {
			for range r.IntN(8) {
				cost := tokens(1 + r.IntN(4))
				if v := x.decide(node, ask{Rule: rules[node], Key: []byte("k"), Cost: cost}); !v.OverLimit {
					admitted += cost
				}
			}
		}
		x.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
	}
	each := x.rule.Declare(3, ratelimit.SharedStore).Over.EachSilent
	if most := limit + silent*each; admitted > most {
		t.Errorf("%d of %d were admitted, and nodes were silent %d times for %d each", admitted, limit, silent, each)
	}
}
