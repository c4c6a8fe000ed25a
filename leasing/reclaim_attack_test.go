package leasing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

func newAttacked(t *testing.T, limit ratelimit.Limit, more map[string]string) *arena {
	fields := map[string]string{"on_deny": "refund", "reclaim": "eager", "on_store_failure": "closed"}
	for f, v := range more {
		fields[f] = v
	}
	x := newArena(t, limit, fields)
	x.start(2)
	x.start(2)
	x.goOn(2 * time.Second)
	return x
}

// all has a node admit all that it can of a key for a time.
func (x *arena) all(node int, key string, d time.Duration) (n tokens) {
	for end := x.now.Add(d); x.now < end; x.goOn(20 * time.Millisecond) {
		for range 50 {
			if x.ask(node, key, 1).OverLimit {
				break
			}
			n++
		}
	}
	return n
}

// Promise 2. Requests leave before a slow answer, so that their tokens are in hand. The next claim states them as in
// hand, and they are more than a lease.
func TestAttackAbandonedRequests(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, nil)
	admitted := tokens(0)
	count := func(v *verdict) {
		if !v.OverLimit {
			admitted++
		}
	}
	x.ask(0, "k", 1)
	admitted++
	x.goOn(time.Second)
	p := x.nodes[0]
	p.oneWay = 5 * time.Millisecond
	for range 300 { // the first claim has a need of 1, and the next one is answered after they have left
		x.begin(0, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, count)
	}
	x.goOn(300 * time.Millisecond)
	p.oneWay = 500 * time.Microsecond
	look := p.Look(t.Context(), x.now, &ask{Rule: x.rule, Key: []byte("k")})
	each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
	t.Logf("in hand %d, admitted %d, each %d", look.Lease.Unspent, admitted, each)
	hand := look.Lease.Unspent
	for range hand {
		x.begin(0, ask{Rule: x.rule, Key: []byte("k"), Cost: 1}, count)
	}
	p.gone = true
	admitted += x.all(1, "k", 14*time.Second)
	if admitted > 1000+each {
		t.Errorf("%d of 1000 were admitted, one lease is %d", admitted, each)
	}
}

// Promise 2. A large request is refused, and what was granted for it stays in hand: more than a lease.
func TestAttackRefusedLarge(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, nil)
	p, admitted := x.nodes[0], tokens(0)
	for range 2 {
		if !x.ask(0, "k", 600).OverLimit {
			admitted += 600
		}
	}
	x.goOn(50 * time.Millisecond)
	a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
	hand := p.Look(t.Context(), x.now, &a).Lease.Unspent
	each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
	t.Logf("in hand %d, admitted %d, each %d", hand, admitted, each)
	for range hand {
		x.begin(0, a, func(v *verdict) {
			if !v.OverLimit {
				admitted++
			}
		})
	}
	p.gone = true
	admitted += x.all(1, "k", 14*time.Second)
	if admitted > 1000+each {
		t.Errorf("%d of 1000 were admitted, one lease is %d", admitted, each)
	}
}

// Promise 3, of more keys than are looked at in a beat.
func TestAttackManyKeys(t *testing.T) {
	const keys = 60
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"lease.size": "5"})
	inHand := tokens(0)
	taken := map[string]tokens{}
	for i := range keys {
		k := fmt.Sprint("k", i)
		for range 3 {
			if !x.ask(0, k, 1).OverLimit {
				taken[k]++
			}
		}
	}
	for i := range keys {
		inHand += x.nodes[0].Look(t.Context(), x.now, &ask{Rule: x.rule, Key: []byte(fmt.Sprint("k", i))}).Lease.Unspent
	}
	x.nodes[0].gone = true
	crashed := x.now
	for x.now.Sub(crashed) < ratelimit.ReclaimedWithin {
		for i := range keys {
			k := fmt.Sprint("k", i)
			for taken[k] < 120 && !x.ask(1, k, 1).OverLimit {
				taken[k]++
			}
		}
		x.goOn(20 * time.Millisecond)
	}
	short := 0
	for _, n := range taken {
		if n < 100 {
			short++
		}
	}
	if short > 0 {
		t.Errorf("%d of %d keys lack tokens after %v; %d were in hand", short, keys, ratelimit.ReclaimedWithin, inHand)
	}
}

// Promise 3, of a sliding window that turns after the crash, before the other node needs the tokens.
func TestAttackSlidingTurn(t *testing.T) {
	for _, reclaims := range []string{"given back", "crashed"} {
		x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000, Algorithm: ratelimit.SlidingWindow},
			map[string]string{"lease.size": "50"})
		hour := instant(time.Hour)
		toTurn := time.Duration(hour - (instant(x.time()*1000) % hour))
		x.goOn(0)
		x.now = x.now.Add(toTurn - 20*time.Second) // idle
		x.goOn(15 * time.Second)
		for range 10 {
			x.ask(0, "k", 1)
		}
		hand := x.nodes[0].Look(t.Context(), x.now, &ask{Rule: x.rule, Key: []byte("k")}).Lease.Unspent
		if reclaims == "crashed" {
			x.nodes[0].gone = true
		}
		x.goOn(6 * time.Second) // into the next window
		n := x.all(1, "k", ratelimit.ReclaimedWithin+2*time.Second)
		t.Logf("%s: %d in hand, %d admitted at the other node", reclaims, hand, n)
		if n < 980 {
			t.Errorf("%s: only %d admitted, %d were in hand", reclaims, n, hand)
		}
	}
}

// Promise 1: undone charges of before a lapse are tokens in hand again, after others took the lease back.
func TestAttackUndoAfterLapse(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"lease.size": "50"})
	p := x.nodes[0]
	for range 10 {
		x.ask(0, "k", 1)
	}
	x.goOn(time.Second)
	var undo []verdict
	a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
	hand := p.Look(t.Context(), x.now, &a).Lease.Unspent
	for range hand {
		x.begin(0, a, func(v *verdict) {
			if !v.OverLimit {
				undo = append(undo, *v)
			}
		})
	}
	p.paused = true
	b := x.all(1, "k", 14*time.Second)
	p.paused = false
	for x.goOn(time.Millisecond); !p.Registered(x.now); x.goOn(time.Millisecond) {
	}
	look := func() tokens { return p.Look(t.Context(), x.now, &a).Lease.Unspent }
	before := look()
	for _, v := range undo {
		p.Undo(x.now, []ask{a}, []verdict{v})
	}
	claims, spent := p.claims, 0
	for range undo {
		x.begin(0, a, func(v *verdict) {
			if !v.OverLimit && p.claims == claims {
				spent++
			}
		})
	}
	t.Logf("%d undone, in hand %d then %d; other has %d; claims %d", len(undo), before, look(), b, p.claims-claims)
	if spent > 0 {
		t.Errorf("it spent %d tokens without a claim, after the other was granted %d of 1000", spent, b)
	}
}

// Promise 4. A window turns in the silence, and a request comes before the node drops its leases.
func TestAttackTurnBeforeLapse(t *testing.T) {
	for _, first := range []string{"registration", "request"} {
		x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000, Algorithm: ratelimit.SlidingWindow},
			map[string]string{"lease.size": "50"})
		p := x.nodes[0]
		x.nodes[1].ledger.OnRecall = func(ratelimit.Holder, string, window) {} // it does not reach a suspended process
		hour := instant(time.Hour)
		x.now = x.now.Add(time.Duration(hour-(instant(x.time()*1000)%hour)) - 30*time.Second)
		x.goOn(13 * time.Second)
		admitted := tokens(0)
		x.spend(0, 10, &admitted)
		x.goOn(time.Second)
		a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
		hand := p.Look(t.Context(), x.now, &a).Lease.Unspent
		for range hand { // at once: a message that renews the lease does not leave
			v := make([]verdict, 1)
			if p.Ask(x.now, []ask{a}, v) == nil && !v[0].OverLimit {
				admitted++
			}
		}
		p.paused = true
		other := x.all(1, "k", 14*time.Second)
		x.goOn(4 * time.Second) // the window has turned
		w := x.rule.Limit.WindowAt(x.time())
		p.paused = false
		if first == "request" {
			x.begin(0, a, func(*verdict) {})
		}
		x.goOn(5 * time.Second)
		is, err := p.ledger.Look(t.Context(), "k", w-1, &x.rule.Limit)
		if err != nil {
			t.Fatal(err)
		}
		if is.Charged < admitted+other {
			t.Errorf("%s first: %d and %d were admitted in the window, the ledger has %d of them", first, admitted,
				other, is.Charged)
		}
	}
}

// Promise 4: a full table drops a key between the end of its registration and the lapse: its tokens are lost.
func TestAttackFullTableBeforeLapse(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}, map[string]string{"lease.size": "5"})
	p := x.nodes[0]
	for i := range 200 {
		x.ask(0, fmt.Sprint("k", i), 1)
	}
	known := map[string]bool{}
	for i := range 200 {
		k := fmt.Sprint("k", i)
		_, _, c := p.findFree(k)
		known[k] = c != nil && c.Val.Unspent() > 0
	}
	p.paused = true
	x.goOn(registered + 200*time.Millisecond) // no other node needs the tokens meanwhile
	p.paused = false
	x.begin(0, ask{Rule: x.rule, Key: []byte("new"), Cost: 1}, func(*verdict) {})
	dropped := ""
	for i := range 200 {
		k := fmt.Sprint("k", i)
		if _, _, c := p.findFree(k); c == nil && known[k] {
			dropped = k
		}
	}
	if dropped == "" {
		t.Skip("none was dropped")
	}
	x.goOn(3 * time.Second)
	got := x.all(1, dropped, 30*time.Second)
	t.Logf("dropped %s, the other got %d", dropped, got)
	is, _ := p.ledger.Look(t.Context(), dropped, x.rule.Limit.WindowAt(x.time()), &x.rule.Limit)
	if got < 98 {
		t.Errorf("the other node got %d of 100 of %s, though 1 was spent: %+v", got, dropped, is)
	}
}

func (p *process) findFree(key string) (*shard, bool, *cell) {
	s, _, c := p.find([]byte(key))
	s.mu.Unlock()
	return s, true, c
}

// Promise 2, in windows that turn, with undone requests, charges after the fact, and drift.
func TestAttackAtRandom(t *testing.T) {
	for seed := range *reclaimSeeds / 3 {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { attackAtRandom(t, seed) })
	}
}

func attackAtRandom(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 77))
	limit := tokens(200 + r.IntN(300))
	fields := map[string]string{"on_deny": []string{"refund", "charge"}[r.IntN(2)], "on_store_failure": "closed", "reclaim": "eager"}
	drift := tokens(0)
	if r.IntN(3) == 0 {
		fields["mode"], fields["max_nodes"] = "approx", "3"
	}
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}, fields)
	safe := *x.rule
	safe.Coordination.Reclaim = ratelimit.ReclaimSafe
	for range 3 {
		x.start(3)
	}
	x.goOn(2 * time.Second)
	rules := [3]*ratelimit.Rule{x.rule, x.rule, x.rule}
	each := x.rule.Declare(3, ratelimit.SharedStore).Over.EachSilent
	admitted, silent := map[window]tokens{}, map[window]tokens{}
	at := func() window { return x.rule.Limit.WindowAt(x.time()) }
	type done struct {
		node int
		a    ask
		v    verdict
	}
	var last []done
	for range 250 {
		node := r.IntN(3)
		p := x.nodes[node]
		switch r.IntN(25) {
		case 0:
			p.paused = !p.paused
		case 1:
			p.down = !p.down
		case 2:
			p.mute = !p.mute
		case 3:
			rules[node] = []*ratelimit.Rule{x.rule, &safe}[r.IntN(2)]
		case 4:
			p.hangs = time.Duration(r.IntN(3000)) * time.Millisecond
		case 5:
			x.goOn(time.Duration(r.IntN(12)) * time.Second)
		}
		for _, p := range x.nodes { // any node that is not in order may be silent in this window, once
			if p.paused || p.down || p.mute {
				silent[at()] |= 1 << (p.name >> 28)
			}
		}
		if !p.paused {
			for range r.IntN(25) {
				a := ask{Rule: rules[node], Key: []byte("k"), Cost: tokens(1 + r.IntN(3))}
				v := x.decide(node, a)
				if !v.OverLimit {
					admitted[v.Window] += a.Cost
					last = append(last, done{node, a, v})
				}
			}
			if len(last) > 0 && r.IntN(4) == 0 {
				n := r.IntN(len(last))
				if d := last[n]; !x.nodes[d.node].paused && d.v.Window == at() {
					x.nodes[d.node].Undo(x.now, []ask{d.a}, []verdict{d.v})
					admitted[d.v.Window] -= d.a.Cost
				}
				last = append(last[:n], last[n+1:]...)
			}
		}
		x.goOn(time.Duration(r.IntN(400)) * time.Millisecond)
	}
	if x.rule.Drifts() {
		drift = 3 * x.rule.DriftShare()
	}
	for w, n := range admitted {
		count := tokens(0)
		for s := silent[w] | silent[w-1]; s > 0; s >>= 1 {
			count += s & 1
		}
		// A minute has time for five silences of a node.
		if most := limit + 5*count*each + drift; n > most {
			t.Errorf("%d of %d were admitted in %d, with silent %b for %d each", n, limit, w, silent[w], each)
		}
	}
}

// spendHand has a node spend all that it has in hand, without a message, and then crash.
func (x *arena) spendHand(node int, rule *ratelimit.Rule) (n tokens) {
	p, a := x.nodes[node], ask{Rule: rule, Key: []byte("k"), Cost: 1}
	for range p.Look(x.Context(), x.now, &a).Lease.Unspent {
		v := make([]verdict, 1)
		if p.Ask(x.now, []ask{a}, v) == nil && !v[0].OverLimit {
			n++
		}
	}
	p.gone = true
	return n
}

// Promises 2 and 3, after peeks.
func TestAttackPeek(t *testing.T) {
	for _, then := range []string{"claim", "claim and spend"} {
		x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, nil)
		p := x.nodes[0]
		admitted := tokens(0)
		x.spend(0, 1, &admitted)
		x.decide(0, ask{Rule: x.rule, Key: []byte("k"), Cost: 300, Kind: ratelimit.Peek})
		a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
		hand := p.Look(t.Context(), x.now, &a).Lease.Unspent
		p.visit(x.now, []byte("k"), func(k entry) { k.Restate() })
		x.goOn(200 * time.Millisecond)
		if then == "claim and spend" {
			admitted += x.spendHand(0, x.rule)
		}
		p.gone = true
		admitted += x.all(1, "k", 14*time.Second)
		t.Logf("%s: %d in hand, %d admitted", then, hand, admitted)
		if each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent; admitted > 1000+each || admitted < 1000 {
			t.Errorf("%s: %d of 1000 were admitted, one lease is %d", then, admitted, each)
		}
	}
}

// Promise 2, after all nodes have a lower limit.
func TestAttackLowered(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, nil)
	admitted := tokens(0)
	x.spend(0, 20, &admitted)
	lower := *x.rule
	lower.Limit.Requests = 100
	x.rule = &lower
	x.spend(0, 1, &admitted)
	x.goOn(2 * time.Second)
	x.spend(0, 1, &admitted)
	x.goOn(100 * time.Millisecond)
	hand := x.nodes[0].Look(t.Context(), x.now, &ask{Rule: x.rule, Key: []byte("k")}).Lease.Unspent
	admitted += x.spendHand(0, x.rule)
	admitted += x.all(1, "k", 14*time.Second)
	each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
	t.Logf("%d in hand, %d admitted", hand, admitted)
	if admitted > 100+each {
		t.Errorf("%d of 100 were admitted, one lease is %d", admitted, each)
	}
}

type failing struct{ reclaimer }

func (failing) Over(context.Context, []ratelimit.Holder) ([]ratelimit.Holder, error) {
	return nil, errors.New("a slow moment")
}

// Promise 3, after a single error of the store.
func TestAttackErrorOfALook(t *testing.T) {
	x, admitted := newReclaimed(t, "eager")
	x.nodes[0].gone = true
	crashed := x.now
	x.spend(1, 1100, admitted)
	for x.now.Sub(crashed) < ratelimit.ReclaimedWithin {
		x.goOn(20 * time.Millisecond)
		x.spend(1, 5, admitted)
		if d := x.now.Sub(crashed); d > 6*time.Second && d < 10*time.Second {
			n := x.nodes[1]
			for _, of := range n.takeShort(x.now) {
				_ = n.takeBack(t.Context(), failing{n.ledger}, of)
			}
		}
	}
	at := *admitted
	for x.now.Sub(crashed) < 30*time.Second && *admitted < 1000 {
		x.goOn(20 * time.Millisecond)
		x.spend(1, 5, admitted)
	}
	if at < 1000 {
		t.Errorf("%d of 1000 were admitted in time, and all after %v", at, x.now.Sub(crashed))
	}
}

// Promise 1 and 2, between nodes with different clocks, and while a registration fails and claims succeed.
func TestAttackSkew(t *testing.T) {
	for _, skew := range []time.Duration{0, -2 * time.Second, 2 * time.Second} {
		x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{
			"on_deny": "refund", "reclaim": "eager", "lease.size": "50", "on_store_failure": "closed",
		})
		x.skew = skew
		x.start(2)
		x.skew = 0
		x.start(2)
		x.start(2)
		x.goOn(2 * time.Second)
		admitted := tokens(0)
		x.spend(0, 10, &admitted)
		p := x.nodes[0]
		p.reclaim.asked = x.now.Add(time.Hour) // its registration fails from now on
		for range 800 {
			x.goOn(20 * time.Millisecond)
			x.spend(0, 1, &admitted)
			x.spend(1, 10, &admitted)
			x.spend(2, 10, &admitted)
		}
		p.reclaim.asked = 0
		x.goOn(time.Second)
		x.spend(0, 100, &admitted)
		each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
		t.Logf("%v: %d admitted", skew, admitted)
		if admitted > 1000+each || admitted < 1000 {
			t.Errorf("%v: %d of 1000 were admitted", skew, admitted)
		}
	}
}

// Promise 3, of a key that was first used under a rule that does not reclaim, before its first window was known.
func TestAttackFirstName(t *testing.T) {
	x := newArena(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{
		"on_deny": "refund", "reclaim": "eager", "lease.size": "50", "on_store_failure": "closed",
	})
	x.start(2)
	x.start(2)
	safe := *x.rule
	safe.Coordination.Reclaim = ratelimit.ReclaimSafe
	x.nodes[0].down = true
	x.decide(0, ask{Rule: &safe, Key: []byte("k"), Cost: 1}) // the store is not there yet
	x.nodes[0].down = false
	x.goOn(2 * time.Second)
	admitted := tokens(0)
	x.spend(0, 10, &admitted)
	x.nodes[0].gone = true
	if admitted += x.all(1, "k", 14*time.Second); admitted < 1000 {
		t.Errorf("%d of 1000 were admitted", admitted)
	}
}

// Promise 2, with an older copy of the data, while all nodes are alive, and one is silent.
func TestAttackOlderCopy(t *testing.T) {
	for _, old := range []time.Duration{time.Second, 5 * time.Second, 20 * time.Second} {
		x, admitted := newReclaimed(t, "eager")
		older := x.store.Copy()
		for end := x.now.Add(old); x.now < end; x.goOn(100 * time.Millisecond) {
			x.spend(0, 1, admitted)
			x.spend(1, 1, admitted)
		}
		x.store.Lose(older, "2")
		for range 400 {
			x.goOn(20 * time.Millisecond)
			x.spend(0, 1, admitted)
			x.spend(1, 5, admitted)
		}
		*admitted += x.all(1, "k", 14*time.Second)
		t.Logf("%v: %d admitted", old, *admitted)
		if *admitted > 1050 {
			t.Errorf("%v: %d of 1000 were admitted", old, *admitted)
		}
	}
}

// Promise 2, of a sliding window: a crashed node's usage after its last claim is lost in two windows, of which both
// count.
func TestAttackTwoWindows(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000, Algorithm: ratelimit.SlidingWindow},
		map[string]string{"lease.size": "50"})
	p := x.nodes[0]
	x.nodes[1].ledger.OnRecall = func(ratelimit.Holder, string, window) {} // a lost recall costs refusals only
	a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
	at := func() window { return x.rule.Limit.WindowAt(x.time()) }
	hour := instant(time.Hour)
	x.now = x.now.Add(time.Duration(hour-(instant(x.time()*1000)%hour)) - 30*time.Second)
	x.goOn(28200 * time.Millisecond)
	was, is := tokens(0), tokens(0)
	x.spend(0, 10, &was)
	x.goOn(300 * time.Millisecond)
	if !x.ask(1, "k", 700).OverLimit {
		was += 700
	}
	x.ask(1, "k", 700) // it is noted that this one is short
	w := at()
	for x.rule.Limit.WindowAt(x.time()+6000) == w {
		x.goOn(time.Millisecond)
	}
	for range p.Look(t.Context(), x.now, &a).Lease.Unspent {
		v := make([]verdict, 1)
		if p.Ask(x.now, []ask{a}, v) == nil && !v[0].OverLimit {
			was++
		}
	}
	x.goOn(200 * time.Millisecond)
	if at() == w {
		t.Fatal("the window has not turned")
	}
	x.spend(0, 5, &is)
	x.goOn(100 * time.Millisecond)
	is += x.spendHand(0, x.rule)
	x.goOn(12 * time.Second)
	is += x.all(1, "k", 3*time.Second)
	left := float64(x.rule.Limit.WindowEnd(at())-x.time()) / 3600e6
	count := float64(is) + left*float64(was)
	each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
	t.Logf("%d and %d were admitted: the count is %.0f", was, is, count)
	if count > float64(1000+each+2) {
		t.Errorf("%d and %d were admitted: the count is %.0f of 1000, and one lease is %d", was, is, count, each)
	}
}

// Admissions by on_store_failure are charges, also of a node that ends before it has registered again.
func TestAttackEndUnregistered(t *testing.T) {
	for _, reclaim := range []string{"safe", "eager"} {
		x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{
			"reclaim": reclaim, "on_store_failure": "open",
		})
		p, admitted := x.nodes[0], tokens(0)
		x.spend(0, 10, &admitted)
		p.reclaim.asked = x.now.Add(time.Hour) // its registration fails, and claims succeed
		p.reclaim.failed.Store(true)
		p.down = true
		x.goOn(9 * time.Second)
		for range 200 {
			x.spend(0, 1, &admitted)
		}
		p.down = false
		x.goOn(time.Second)
		claims := p.Release()
		grants := make([]account.Grant, len(claims))
		if _, _, err := p.ledger.Settle(t.Context(), claims, grants); err != nil {
			t.Fatal(err)
		}
		is, err := p.ledger.Look(t.Context(), "k", x.rule.Limit.WindowAt(x.time()), &x.rule.Limit)
		if err != nil || is == nil || is.Charged < admitted {
			t.Errorf("%s: %d were admitted, and the ledger has %+v", reclaim, admitted, is)
		}
	}
}

// Promise 2, of a key that a full table drops again and again: each name has a lease that was spent whole.
func TestAttackDroppedKeys(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"lease.size": "50"})
	p, admitted := x.nodes[0], tokens(0)
	wholeLease := func(key string) (n tokens) {
		if !x.ask(0, key, 1).OverLimit {
			n++
		}
		a := ask{Rule: x.rule, Key: []byte(key), Cost: 1}
		if c := p.Look(t.Context(), x.now, &a); c.Lease != nil && c.Lease.Unspent > 0 {
			if hand := c.Lease.Unspent; !x.ask(0, key, hand).OverLimit {
				n += hand
			}
		}
		return n
	}
	drops := 0
	for range 6 {
		admitted += wholeLease("k")
		for i := range 600 {
			if _, _, c := p.findFree("k"); c == nil {
				drops++
				break
			}
			wholeLease(fmt.Sprint("other", drops, " ", i))
		}
	}
	p.gone = true
	crashed := admitted
	admitted += x.all(1, "k", 16*time.Second)
	each := x.rule.Declare(2, ratelimit.SharedStore).Over.EachSilent
	t.Logf("%d drops; %d and %d were admitted", drops, crashed, admitted-crashed)
	if admitted > 1000+each {
		t.Errorf("%d of 1000 were admitted after %d drops, one lease is %d", admitted, drops, each)
	}
}

// Promise 2: a node that ends in order is not silent, and costs nothing. (It does: a lease that was spent whole is not
// stated at its end.)
func TestAttackOrderlyEnd(t *testing.T) {
	x := newAttacked(t, ratelimit.Limit{Unit: ratelimit.Hour, Requests: 1000}, map[string]string{"lease.size": "50"})
	p, admitted := x.nodes[0], tokens(0)
	x.spend(0, 1, &admitted)
	a := ask{Rule: x.rule, Key: []byte("k"), Cost: 1}
	hand := p.Look(t.Context(), x.now, &a).Lease.Unspent
	if !x.ask(0, "k", hand).OverLimit {
		admitted += hand
	}
	x.goOn(3 * time.Second)
	claims := p.Release()
	if _, _, err := p.ledger.Settle(t.Context(), claims, make([]account.Grant, len(claims))); err != nil {
		t.Fatal(err)
	}
	p.gone = true
	if admitted += x.all(1, "k", 16*time.Second); admitted > 1000 {
		t.Errorf("%d of 1000 were admitted, after %d last claims", admitted, len(claims))
	}
}
