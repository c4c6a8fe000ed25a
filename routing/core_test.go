package routing

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
	"github.com/sluice-gate/sluice/routing/ring"
	"github.com/sluice-gate/sluice/routing/wire"
)

// What a message says of a rule is what the rule says, as far as its owner must
// know: under mode routing, reclaim: eager never credits an owner's lease.
func TestRuleTravelsWithItsMode(t *testing.T) {
	var rules ruleCache
	for mode := range ratelimit.ModeNames() {
		r := routed(1000)
		r.Coordination.Mode, r.Coordination.Reclaim = ratelimit.Mode(mode), ratelimit.ReclaimEager
		got, err := rules.get(ruleMessage(r))
		if err != nil {
			t.Fatal(err)
		}
		if got.Coordination.Mode != r.Coordination.Mode || got.Coordination.Eager() != r.Coordination.Eager() {
			t.Errorf("%v: the owner has mode %v, eager %v", r.Coordination.Mode, got.Coordination.Mode, got.Coordination.Eager())
		}
	}
	odd := ruleMessage(routed(1000))
	odd.Mode = 99
	if _, err := rules.get(odd); err == nil {
		t.Error("a mode that there is not was read")
	}
}

// The owner reads overrides up to the rule's ceiling, and says which limit it has decided by.
func TestRuleTravelsWithItsCeiling(t *testing.T) {
	var rules ruleCache
	r := routed(1000)
	r.Limit.Ceiling = 5000
	got, err := rules.get(ruleMessage(r))
	if err != nil || got.Limit != r.Limit {
		t.Fatalf("it travels as %+v, %v", got, err)
	}
	odd := ruleMessage(r)
	odd.Ceiling = -1
	if _, err := rules.get(odd); err == nil {
		t.Error("a ceiling below 0 is taken")
	}
	say := &call{reply: &wire.Reply{Status: answered, Override: &wire.Override{Requests: 7}}}
	a := &ask{Rule: r, Cost: 1}
	if v, ok := verdictOf(a, say); !ok || v.Limit == nil || v.Limit.Requests != 7 {
		t.Errorf("the verdict is %+v, %v", v, ok)
	}
	for _, o := range []*wire.Override{{Requests: -1}, {Burst: int64(ratelimit.MaxLimit) + 1}} {
		say.reply.Override = o
		if _, ok := verdictOf(a, say); ok {
			t.Errorf("the limit %v is taken", o)
		}
	}
}

// Debt is carried of a fixed window alone.
func TestRuleTravelsWithItsDebt(t *testing.T) {
	var rules ruleCache
	for _, carries := range []bool{false, true} {
		for _, onDeny := range []ratelimit.OnDeny{ratelimit.DenyCharges, ratelimit.DenyRefunds} { // leases for Envoys refund
			r := routed(1000)
			r.Limit.Carries, r.Coordination.OnDeny = carries, onDeny
			got, err := rules.get(ruleMessage(r))
			if err != nil || got.Limit.Carries != carries || got.Coordination.OnDeny != onDeny {
				t.Errorf("carries %v, on_deny %v: %+v, %v", carries, onDeny, got, err)
			}
		}
	}
	odd := ruleMessage(routed(1000))
	odd.CarryDebt, odd.Algorithm = true, uint32(ratelimit.SlidingWindow)
	if got, err := rules.get(odd); err == nil {
		t.Errorf("a sliding window carries debt: %+v", got)
	}
	own := routed(1000)
	if own.Limit.Carries = true; own.LocalShare(0).Limit.Carries {
		t.Error("what a node owes of an outage's budget is carried")
	}
}

// A rule's billing period travels by name, and only with a month of a fixed window. What
// was written before there were such, is read as it was.
func TestRuleTravelsWithItsCalendar(t *testing.T) {
	var rules ruleCache
	calendar, err := zone.Calendar(15, "America/New_York")
	if err != nil {
		t.Fatal(err)
	}
	r := routed(1000)
	r.Limit = r.Limit.Billed(calendar)
	bytes, err := proto.Marshal(ruleMessage(r))
	if err != nil {
		t.Fatal(err)
	}
	said := &wire.Rule{}
	if err := proto.Unmarshal(bytes, said); err != nil {
		t.Fatal(err)
	}
	if got, err := rules.get(said); err != nil || got.Limit != r.Limit {
		t.Errorf("%+v, %v, want %v", got, err, r.Limit)
	}
	for what, spoil := range map[string]func(*wire.Rule){
		"no day": func(m *wire.Rule) { m.BillingDay = 0 }, "day 32": func(m *wire.Rule) { m.BillingDay = 32 },
		"no zone": func(m *wire.Rule) { m.TimeZone = "" }, "no such zone": func(m *wire.Rule) { m.TimeZone = "Europe/Berln" },
		"an algorithm without": func(m *wire.Rule) { m.Algorithm = uint32(ratelimit.SlidingWindow) },
		"several months":       func(m *wire.Rule) { m.Multiplier = 2 },
		"a unit without":       func(m *wire.Rule) { m.Unit = uint32(ratelimit.Month) },
		"a unit that is none":  func(m *wire.Rule) { m.Unit = 10 },
	} {
		m := ruleMessage(r)
		spoil(m)
		if got, err := rules.get(m); err == nil {
			t.Errorf("%s: read as %v", what, got.Limit)
		}
	}
	// A rule without one is said in the bytes that it was said in before.
	before := ruleMessage(routed(1000))
	if before.ProtoReflect().Has(before.ProtoReflect().Descriptor().Fields().ByName("billing_day")) || before.GetTimeZone() != "" {
		t.Errorf("%v", before)
	}
	if got, err := rules.get(before); err != nil || got.Limit != routed(1000).Limit {
		t.Errorf("%+v, %v", got, err)
	}
}

// A rule's reserve travels with its name, for the owner has a share of it by its own rules; what no rule could hold
// back is malformed. A rule without one is said in the bytes that it was said in before.
func TestRuleTravelsWithItsReserve(t *testing.T) {
	var rules ruleCache
	r := routed(1000)
	r.Domain, r.Path = "d", "tier.key"
	r.Coordination.MaxNodes, r.Coordination.Lease.Reserve = 7, ratelimit.Share{PPM: 10_000}
	got, err := rules.get(ruleMessage(r))
	if err != nil {
		t.Fatal(err)
	}
	at, want := got.AtLedger(), r.AtLedger()
	if at.Limit != want.Limit || at.DriftShare() != want.DriftShare() || at.Domain != "d" || at.Path != "tier.key" {
		t.Errorf("%v of %s.%s, a share of %d; want %v, %d", at.Limit, at.Domain, at.Path, at.DriftShare(), want.Limit, want.DriftShare())
	}
	if other := got.AtLedger(); other != at {
		t.Error("it is made anew for each request")
	}
	for what, spoil := range map[string]func(*wire.Rule){
		"less than nothing":        func(m *wire.Rule) { m.Reserve = -1 },
		"more than the limit":      func(m *wire.Rule) { m.Reserve = 1001 },
		"of no node":               func(m *wire.Rule) { m.MaxNodes = 0 },
		"less than one for each":   func(m *wire.Rule) { m.MaxNodes = 11 },
		"more than a tenth":        func(m *wire.Rule) { m.Reserve = 105 },
		"of a sliding window":      func(m *wire.Rule) { m.Algorithm = uint32(ratelimit.SlidingWindow) },
		"of an audited rule":       func(m *wire.Rule) { m.Audit = "d.other" },
		"of mode approx":           func(m *wire.Rule) { m.Mode = uint32(ratelimit.Approx) + 1 },
		"of too many nodes":        func(m *wire.Rule) { m.MaxNodes = ratelimit.MaxMaxNodes + 1 },
		"a long name":              func(m *wire.Rule) { m.Path = strings.Repeat("x", maxAuditName) },
		"a name without a reserve": func(m *wire.Rule) { m.Reserve, m.MaxNodes = 0, 0 },
	} {
		m := ruleMessage(r)
		spoil(m)
		if got, err := rules.get(m); err == nil {
			t.Errorf("%s: read as %v of %v", what, got.Coordination.Lease.Reserve, got.Limit)
		}
	}
	without := ruleMessage(routed(1000))
	if without.GetReserve() != 0 || without.GetMaxNodes() != 0 || without.GetDomain() != "" || without.GetPath() != "" {
		t.Errorf("%v", without)
	}
}

// A node of an earlier release that has another weight would build another ring.
func TestOtherWeightsAreRefused(t *testing.T) {
	h := &wire.Hello{Version: version, Addr: "a:1", Nonce: newNonce(), Incarnation: 7, Weight: weight}
	if err := check(h); err != nil {
		t.Error(err)
	}
	h.Weight++
	if err := check(h); err == nil {
		t.Error("it was let in")
	}
}

// A node's own keys cost no allocation.
func TestOwnKeysDoNotAllocate(t *testing.T) {
	w := newRingWorld(t, 1)
	n := w.start(0, known)
	w.eventually("ready", n.Ready)
	a, v := []ask{{Rule: routed(1 << 30), Key: keyOf(1), Cost: 1}}, make([]verdict, 1)
	ctx := context.Background()
	if got := testing.AllocsPerRun(1000, func() { n.Decide(ctx, n.clock(), a, v) }); got > 0 {
		t.Errorf("%v allocations", got)
	}
}

// A node's announcements travel on two streams, and may arrive in another order. An announcement from before
// its last join or departure no longer counts: otherwise accounts on their way to it would begin again here.
func TestOldWordsOfANodeCountNoMore(t *testing.T) {
	s := newScript(t, 10, 10)
	s.addrs = []string{"a", "b"}
	for _, addr := range s.addrs {
		s.start(addr)
	}
	a := s.nodes["a"].core
	s.until("both are in the ring", func() bool { return a.isReady(s.now) && len(a.view.Load().ring.Members()) == 2 })
	b := a.members["b"]
	from, joined := &inlet{addr: "b", incarnation: b.incarnation}, b.changes
	if joined < 2 {
		t.Fatalf("b has joined, and says that it has changed %d times", joined)
	}
	if !a.presence(s.now, from, false, joined-1) || !b.alive {
		t.Error("b is out of the ring for what it said before it joined")
	}
	alone := ring.Of([]string{"a"})
	if a.saidDone("b", 42, joined-1); b.done == 42 {
		t.Error("b is done, by what it said before it joined")
	}
	if a.saidDone("b", 42, joined); b.done != 42 {
		t.Error("b is not done, and says so")
	}
	if !a.presence(s.now, from, false, joined+1) || b.alive || len(a.view.Load().ring.Members()) != len(alone.Members()) {
		t.Error("b is in the ring, and says that it has left")
	}
	b.done, b.doneBy = a.view.Load().print, joined
	if !b.mayHave(a.view.Load()) {
		t.Error("b has left, and may have accounts still: it was done before that")
	}
}

// Keys stay where they were when other nodes have gone, and nothing else has
// happened.
func TestOnlyOthersHaveGone(t *testing.T) {
	see := func(mine bool, nodes ...string) *view { return &view{ring: ring.Of(nodes), mine: mine} }
	const a, b = "a:1", "b:1"
	for _, c := range []struct {
		what      string
		old, next *view
		less      bool
	}{
		{"nothing", see(true, a, b), see(true, a, b), true},
		{"another has gone", see(true, a, b), see(true, a), true},
		{"another has come", see(true, a), see(true, a, b), false},
		{"this one has gone", see(true, a, b), see(false, b), false},
		{"this one has come", see(false, b), see(true, a, b), false},
		{"another has gone, before this one came", see(false, b), see(false), true},
	} {
		if got := lessOnly(c.old, c.next); got != c.less {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// A key was kept if it was this node's own in each ring since the last complete handover. Without a known ring,
// that cannot be told.
func TestKeptKeys(t *testing.T) {
	alone, other := ring.Of([]string{"a:1"}), ring.Of([]string{"b:1"})
	for _, c := range []struct {
		since []*ring.Ring
		kept  bool
	}{
		{nil, false}, {[]*ring.Ring{alone}, true}, {[]*ring.Ring{other}, false}, {[]*ring.Ring{alone, other}, false}, {[]*ring.Ring{other, alone}, false}, {[]*ring.Ring{alone, alone}, true},
	} {
		if got := (&view{since: c.since}).kept(5, "a:1"); got != c.kept {
			t.Errorf("%d rings: kept %v", len(c.since), got)
		}
	}
}

// wakes counts the wake-ups of a core.
type wakes struct {
	hands
	n int
}

func (w *wakes) wake() { w.n++ }

func (w *wakes) yield() {}

// A node that did not run for longer than TakeOver is no owner from its first decision on, which also starts a
// check. A node that was never checked has not begun.
func TestWhoHasLapsed(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	w := &wakes{}
	c.hands = w
	at := instant(c.ticked.Load())
	if c.lapsed(at.Add(lapseAfter)) || w.n > 0 {
		t.Error("others have waited for it")
	}
	if !c.lapsed(at.Add(lapseAfter+1)) || w.n != 1 {
		t.Errorf("others may own its keys; it was woken %d times", w.n)
	}
	if !c.lapsed(at) {
		t.Error("it has lapsed, and nobody has looked after that")
	}
	c.expired.Store(false)
	c.ticked.Store(0)
	if c.lapsed(at.Add(time.Hour)) {
		t.Error("it has not begun")
	}
	c.ticked.Store(1)
	if !c.lapsed(at.Add(time.Hour)) {
		t.Error("it has begun an hour ago")
	}
}

// Errors of a peer are reported, if there is a listener, and only if there are any.
func TestWhatWentWrongIsTold(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	c.options.OnPeer = nil
	c.tell("b:1", errPeerGone)
	told := ""
	c.options.OnPeer = func(addr string, err error) { told += fmt.Sprintln(addr, err) }
	c.tell("b:1", nil)
	c.tell("b:1", errPeerGone)
	if want := fmt.Sprintln("b:1", errPeerGone); told != want {
		t.Errorf("told %q, want %q", told, want)
	}
}

// A node with a store has no time of its own to send.
func TestStamp(t *testing.T) {
	s := newScript(t, 1, 10)
	s.ring("a:1")
	c := s.nodes["a:1"].core
	if got := c.stamp(); got != int64(c.local.LedgerNow(c.clock())) {
		t.Errorf("its ledger's clock shows %d, and it says %d", c.local.LedgerNow(c.clock()), got)
	}
	c.local = nil
	if got := c.stamp(); got != 0 {
		t.Errorf("it has no ledger of its own, and says %d", got)
	}
}

// deadlines notes until when it may decide.
type deadlines struct {
	ratelimit.Limiter
	until time.Time
	bound bool
}

func (d *deadlines) Decide(ctx context.Context, _ ratelimit.Instant, _ []ratelimit.Ask, _ []ratelimit.Verdict) {
	d.until, d.bound = ctx.Deadline()
}

// What has a time of its own is decided within that; what has none, within its caller's.
func TestDecidingHasItsTime(t *testing.T) {
	d := &deadlines{}
	if w := (blocking{d}).ask(context.Background(), 1, 0, nil, nil); w != nil || d.bound {
		t.Errorf("it has no time of its own, and decides until %v", d.until)
	}
	before := time.Now()
	(blocking{d}).ask(context.Background(), 1, time.Hour, nil, nil)
	if !d.bound || d.until.Before(before.Add(time.Hour)) || d.until.After(time.Now().Add(time.Hour)) {
		t.Errorf("it has an hour, and decides until %v", d.until)
	}
}

// A core begins when it is made, and each view when it comes into force.
func TestWhenViewsBegin(t *testing.T) {
	s := newScript(t, 1, 10)
	s.now = s.now.Add(time.Hour)
	c := s.start("a:1").core
	if c.began != s.now {
		t.Errorf("it began %v ago", s.now.Sub(c.began))
	}
	s.now = s.now.Add(time.Minute)
	c.mu.Lock()
	c.turn()
	c.unlock()
	if v := c.view.Load(); v.began != s.now {
		t.Errorf("its view began %v ago", s.now.Sub(v.began))
	}
}

// Rings of other nodes have other names.
func TestRingsHaveNames(t *testing.T) {
	s, a := newPair(t)
	c := a.core
	name := func(alive bool) uint64 {
		c.members["b:1"].alive = alive
		return c.build(nil).print
	}
	if both := name(true); name(false) == both || name(true) != both || both != s.nodes["b:1"].core.view.Load().print {
		t.Error("the names of rings do not say who is in them")
	}
}

// A view remembers the rings since all had handed over to this node: after that the
// one before, with those before it, up to so many. More, or none known: nothing is.
func TestRingsSinceAllHadHandedOver(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	now := c.view.Load().ring
	for _, x := range []struct {
		mine, stable bool
		had, want    int
	}{{true, true, 0, 1}, {true, true, 3, 1}, {true, false, 0, 0}, {true, false, 1, 2}, {true, false, mostSince - 1, mostSince}, {true, false, mostSince, 0}, {false, true, 0, 0}, {false, false, 3, 0}} {
		old := &view{ring: now, mine: x.mine, since: make([]*ring.Ring, x.had)}
		old.stable.Store(x.stable)
		v := c.build(old)
		if len(v.since) != x.want || x.want > 0 && v.since[0] != now {
			t.Errorf("%+v: it remembers %d rings", x, len(v.since))
		}
	}
}

// When another node comes, all is walked through; when one has only gone, nothing is
// another's that was not.
func TestWhatATurnHasWalkedThrough(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	w := &wakes{hands: c.hands}
	c.hands = w
	for _, x := range []struct {
		alive bool
		left  int
	}{{false, 0}, {true, c.local.Parts()}} {
		c.members["b:1"].alive = x.alive
		before := w.n
		c.mu.Lock()
		c.turn()
		c.unlock()
		if c.mover.left != x.left || w.n == before || c.view.Load().ring.Has("b:1") != x.alive {
			t.Errorf("the other is there %v: %d parts are to be walked through, woken %d times", x.alive, c.mover.left, w.n-before)
		}
	}
}

// With a store there is no handover, so that each ring counts as complete.
func TestTurnWithAStore(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	c.local = nil
	c.mu.Lock()
	c.turn()
	c.unlock()
	if !c.view.Load().stable.Load() {
		t.Error("it waits for others to hand over")
	}
}

// A node that once had all its keys goes on to be ready when it leaves.
func TestOnceStable(t *testing.T) {
	_, a := newPair(t)
	c := a.core
	if !c.wasStable {
		t.Fatal("it has its keys")
	}
	c.mu.Lock()
	c.quitRing()
	for _, m := range c.members {
		m.alive, m.holds = false, false
	}
	c.turn()
	c.unlock()
	if !c.view.Load().stable.Load() || !c.wasStable {
		t.Errorf("stable %v, once %v", c.view.Load().stable.Load(), c.wasStable)
	}
}
