package leasing

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// play is one example: nodes, a ledger on a clock of its own, the wires between
// them, and what is printed of all that. Every number of an example's text comes
// from here.
type play struct {
	testing.TB
	out    strings.Builder
	rule   *ratelimit.Rule
	now    instant // the nodes' clock; it begins at an hour
	ledger *ledger.LosableMemory
	redis  *timedRedis
	server *redistest.Server
	nodes  []*actor
	timers []playTimer

	admitted tokens // by all nodes
}

type playTimer struct {
	at   instant
	of   *actor
	call func()
}

// wire is how long a message of an example travels.
const wire = time.Millisecond

// hanging is where the second line of what somebody says begins.
const hanging = "                         "

const playBegins = instant(time.Hour)

func newPlay(t testing.TB, server *redistest.Server) *play {
	p := &play{TB: t, now: playBegins, server: server, redis: newTimedRedis(t, server)}
	memory := ledger.NewMemory(10, p.clock)
	memory.OnRecall = func(_ string, holders []ratelimit.Holder) {
		for _, h := range holders {
			p.recalls(h)
		}
	}
	p.ledger = ledger.NewLosable(memory)
	p.redis.GoBy(p.clock)
	return p
}

// clock is the ledger's. It shows 15 s into a minute when the example begins.
func (p *play) clock() ledgerTime { return ledgertest.Epoch.Add(p.now.Sub(playBegins)) }

// begin states the rule that the example is about.
func (p *play) begin(l ratelimit.Limit, change func(*ratelimit.Coordination)) {
	p.rule = testRule(l)
	c := &p.rule.Coordination
	c.OnStoreFailure, c.OnDeny = ratelimit.FailClosed, ratelimit.DenyRefunds
	change(c)
	size := "auto"
	if c.Lease.Fixed > 0 {
		size = fmt.Sprint(c.Lease.Fixed)
	}
	ttl := "auto"
	if !c.Lease.Auto {
		ttl = c.Lease.TTL.String()
	}
	fmt.Fprintf(&p.out, "rule    %d a %v, %v; mode %v, lease.size %s, lease.ttl %s, reclaim %v\n", l.Requests, l.Unit, l.Algorithm, c.Mode, size, ttl, c.Reclaim)
	fmt.Fprintf(&p.out, "window  number %d, ends at %s\n\n", l.WindowAt(p.clock()), p.at(l.WindowEnd(l.WindowAt(p.clock()))))
}

// at is a time of the ledger as the examples write it.
func (p *play) at(t ledgerTime) string {
	return fmt.Sprintf("%.3fs", t.Sub(ledgertest.Epoch).Seconds())
}

// says prints one line of what happens now, and who does it.
func (p *play) says(who, format string, args ...any) {
	at := p.at(p.clock())
	if strings.HasPrefix(format, " ") { // it goes on
		at = ""
	}
	fmt.Fprintf(&p.out, "%8s  %-7s %s\n", at, who, fmt.Sprintf(format, args...))
}

func (p *play) passes(d time.Duration) { p.until(p.now.Add(d).Sub(playBegins)) }

// until has the time be so much after the beginning, and what nodes wanted to do
// by then done, in its order, but for those that stand still.
func (p *play) until(d time.Duration) {
	end := playBegins.Add(d)
	if end < p.now {
		p.Fatalf("the example is at %v already, and %v is to come", p.now.Sub(playBegins), d)
	}
	for {
		next := -1
		for i := range p.timers {
			if t := &p.timers[i]; t.at <= end && !t.of.stopped && (next < 0 || t.at < p.timers[next].at) {
				next = i
			}
		}
		if next < 0 {
			p.now = end
			return
		}
		timer := p.timers[next]
		p.timers = slices.Delete(p.timers, next, next+1)
		p.now = max(p.now, timer.at)
		timer.call()
	}
}

// actor is a node of an example.
type actor struct {
	*Stepped
	*play
	name     string
	stopped  bool
	recalled bool // the ledger has asked it to give back
	requests []*playRequest
	epoch    uint64 // of which it was told last; a node that does not hear of epochs stays at the first
}

type playRequest struct {
	cost tokens
	wait *Wait
	v    []verdict
}

// node is another node. Its holder ids are twice its number, and one more.
func (p *play) node(name string) *actor {
	n := &actor{play: p, name: name, epoch: 1}
	after := func(d time.Duration, call func()) {
		p.timers = append(p.timers, playTimer{p.now.Add(d), n, call})
	}
	p.nodes = append(p.nodes, n)
	n.Stepped = NewStepped(ratelimit.Holder(len(p.nodes)), 10, func() instant { return p.now }, time.UnixMicro(int64(p.clock())), after, func() float64 { return 0 })
	return n
}

// of is who a holder is.
func (p *play) of(h ratelimit.Holder) string {
	if i := int(h/2) - 1; i >= 0 && i < len(p.nodes) {
		if h%2 == 1 {
			return p.nodes[i].name + "'"
		}
		return p.nodes[i].name
	}
	return fmt.Sprint("holder ", h)
}

func (p *play) recalls(h ratelimit.Holder) {
	p.says("ledger", "recalls: %s is to give back what it does not need", p.of(h))
	p.nodes[h/2-1].recalled = true
}

// asks is a request that comes to the node.
func (n *actor) asks(cost tokens) {
	r := &playRequest{cost: cost, v: make([]verdict, 1)}
	r.wait = n.Ask(n.now, []ask{{Rule: n.rule, Key: keyOf(1), Cost: cost}}, r.v)
	if r.wait == nil {
		n.decided(r)
		return
	}
	n.says(n.name, "has a request for %d, which waits", cost)
	n.requests = append(n.requests, r)
}

// decided prints how a request was decided.
func (n *actor) decided(r *playRequest) {
	v, does := &r.v[0], "admits"
	if v.OverLimit {
		does = "refuses"
	}
	n.admitted += v.Charged
	n.says(n.name, "%s %d, by its %s; remaining %d", does, r.cost, ratelimit.Sources[v.Source], v.Remaining)
}

// looks has requests that wait decided, where that can be.
func (n *actor) looks() {
	n.requests = slices.DeleteFunc(n.requests, func(r *playRequest) bool {
		if r.wait.Advance(n.now) {
			return false
		}
		n.decided(r)
		return true
	})
}

// letter is a batch of one claim, or of none, on its way.
type letter struct {
	*Batch
	from   *actor
	grants []ratelimit.Grant
	epoch  ratelimit.Epoch
	at     ledgerTime
}

// sends takes what the node has to send now: one claim, or only the question in
// which epoch the ledger's data is.
func (n *actor) sends() *letter {
	n.Helper()
	b := n.Batch()
	if b == nil || len(b.Claims()) > 1 {
		n.Fatalf("%s has not one claim to send, but %v", n.name, b)
	}
	if len(b.Claims()) == 0 {
		n.says(n.name, "asks for the epoch")
	} else {
		n.says(n.name, "claims  %s", n.claim(&b.Claims()[0]))
	}
	return &letter{Batch: b, from: n, grants: make([]ratelimit.Grant, len(b.Claims()))}
}

func (p *play) claim(c *ratelimit.Claim) string {
	text := fmt.Sprintf("seq %d as %s, about window %d", c.Seq, p.of(c.Holder), c.Window)
	if c.Window == 0 {
		text = fmt.Sprintf("seq %d as %s, about no window yet", c.Seq, p.of(c.Holder))
	}
	if c.Fence != 0 {
		text += ", fence " + p.fence(c.Fence)
	}
	text += fmt.Sprintf("; waiting %d, want %d", c.Waiting, c.Want)
	for _, f := range []struct {
		set  bool
		name string
	}{{c.Ahead, "ahead"}, {c.Final, "final"}, {c.Stretch, "stretch"}, {c.Recall, "recall"}, {c.Last, "last"}} {
		if f.set {
			text += ", " + f.name
		}
	}
	if c.Learning != 0 {
		text += ", learning until " + p.at(c.Learning)
	}
	return text + fmt.Sprintf("\n%s totals: granted %d, spent %d, returned %d", hanging, c.Granted, c.Spent, c.Returned)
}

// fence is written as what it is beyond the example's first instant.
func (p *play) fence(f ratelimit.Fence) string {
	return fmt.Sprintf("+%d", f-ratelimit.Fence(ledgertest.Epoch))
}

// arrives has the ledgers settle it. They must say the same.
func (l *letter) arrives() *letter {
	p := l.from.play
	p.Helper()
	p.passes(wire)
	claims := l.Claims()
	var err error
	if l.epoch, l.at, err = p.ledger.SettleEpoch(context.Background(), l.Query(), claims, l.grants); err != nil {
		p.Fatal(err)
	}
	p.redisAgrees(claims, l.grants)
	for i := range claims {
		if l.grants[i].Err != nil {
			p.says("ledger", "books nothing: the claim is stale")
			continue
		}
		p.books(&claims[i])
	}
	return l
}

func (p *play) redisAgrees(claims []ratelimit.Claim, grants []ratelimit.Grant) {
	p.Helper()
	same := make([]ratelimit.Grant, len(grants))
	p.redis.Settle(context.Background(), claims, same)
	for i := range claims {
		here, there := p.grant(&claims[i], &grants[i]), p.grant(&claims[i], &same[i])
		if d := cmp.Diff(here, there); d != "" {
			p.Errorf("claim %+v (-memory +redis):\n%s", claims[i], d)
		}
	}
}

// books prints what the account says of the claimant, and in all.
func (p *play) books(c *ratelimit.Claim) {
	b := p.ledger.Booked(c)
	p.says("ledger", "books   %s: granted %d, in flight %d, spent %d, returned %d, in window %d",
		p.of(c.Holder), b.Granted, b.InFlight, b.Spent, b.Returned, b.Window)
	if c.Final { // of a window that is over: nothing is leased any more
		return
	}
	p.says("", "        charged to %s: %d, a lease until %s; in all %d, available %d",
		p.of(c.Holder), b.Charged, p.at(b.Expires), b.InAll, b.Available)
}

// answered has the ledger's answer travel back, and be taken in.
func (l *letter) answered() {
	n := l.from
	n.passes(wire)
	for i := range l.grants {
		n.says(n.name, "hears   %s", n.grant(&l.Claims()[i], &l.grants[i]))
	}
	if l.epoch.ID != n.epoch {
		learning := ""
		if l.epoch.Young(l.at) {
			learning = ", which learns until " + n.at(l.epoch.Learning)
		}
		n.says(n.name, "hears   epoch %d%s", l.epoch.ID, learning)
		n.epoch = l.epoch.ID
	}
	if len(l.grants) > 0 && !trusted(l.known, l.epoch, l.at) {
		n.says(n.name, "takes nothing of it: the claim did not know that the ledger learns")
	}
	l.AnswerIn(l.epoch, l.at, l.grants)
	n.looks()
}

// lost has the answer lost, or the claim; after a second the node gives up.
func (l *letter) lost() {
	l.Fail(context.DeadlineExceeded)
	l.from.looks()
}

func (p *play) grant(c *ratelimit.Claim, g *ratelimit.Grant) string {
	if g.Err != nil {
		return g.Err.Error()
	}
	if c.Final {
		return fmt.Sprintf("over-admitted %d", g.OverAdmitted)
	}
	text := fmt.Sprintf("granted %d, fence %s, for %v; available %d, outstanding %d", g.Granted, p.fence(g.Fence), g.TTL, g.Available, g.Outstanding)
	if g.RetryAfter > 0 {
		text += fmt.Sprintf(", retry after %v", g.RetryAfter)
	}
	for _, f := range []struct {
		set  bool
		name string
	}{{g.Plenty, "plenty"}, {g.Void, "void"}, {g.Recalling, "recalling"}, {g.Relearning, "relearning"}} {
		if f.set {
			text += ", " + f.name
		}
	}
	if g.OverAdmitted > 0 {
		text += fmt.Sprintf(", over-admitted %d", g.OverAdmitted)
	}
	return text
}

// exchange sends what there is to send, and has it answered.
func (n *actor) exchange() {
	n.Helper()
	n.sends().arrives().answered()
}

// sweeps has the node look after its leases, as a Fleet does ten times a second.
func (n *actor) sweeps() {
	for range sweepParts {
		n.Sweep(n.now)
	}
}

// lease is what the node knows of its lease.
func (n *actor) lease() (l lease.Lease, next *lease.NextLease) {
	s, _, c := n.fleet.locked(keyOf(1))
	defer s.mu.Unlock()
	return c.Lease, c.Next
}

// maySpend prints what the node may spend without asking.
func (n *actor) maySpend() {
	l, _ := n.lease()
	n.says(n.name, "may spend %d until %s", l.Unspent(), n.instant(l.Deadline))
}

// total prints what all requests of an example got, beside what the rule declares
// to over-admit at most: at all times, and each time that the ledger loses its data.
func (p *play) total(losses tokens) {
	declared := p.rule.Declare(len(p.nodes), ratelimit.SharedStore)
	p.says("", "admitted in all: %d of %d; declared: at most %d more", p.admitted, p.rule.Limit.Requests, declared.Over.Tokens+losses*declared.OnLoss)
	if p.admitted > p.rule.Limit.Requests+declared.Over.Tokens+losses*declared.OnLoss {
		p.Error("more was admitted than is declared")
	}
}

func fixedSize(n tokens, ttl time.Duration) func(*ratelimit.Coordination) {
	return func(c *ratelimit.Coordination) {
		c.Lease.Fixed, c.Lease.TTL, c.Lease.Auto = n, ttl, false
	}
}

// crashes ends the node. What it had to send is lost with it.
func (n *actor) crashes() {
	n.stopped = true
	n.says(n.name, "crashes")
}

// turns prints how the node goes from one window's lease to the next one's.
func (n *actor) turns() {
	_, next := n.lease()
	n.says(n.name, "spends the old lease until %s, and the new one of %d from %s", n.instant(next.Over), next.Lease.Unspent(), n.instant(next.Start))
}

// instant is an instant of the nodes' clock, which goes with the ledger's.
func (p *play) instant(i instant) string { return p.at(ledgertest.Epoch.Add(i.Sub(playBegins))) }

// sits has the node apply for a seat, and spend the share that it brings.
func (n *actor) sits(seats approx.Seats) {
	n.Helper()
	keeper := approx.NewKeeper(seats, n.fleet.name, func() instant { return n.now })
	plan := approx.NewPlan([]*ratelimit.Rule{n.rule})
	a, due := keeper.Due(n.now, plan)
	if !due {
		n.Fatalf("%s wants no seat", n.name)
	}
	t, err := seats.Sit(context.Background(), a)
	if err != nil {
		n.Fatal(err)
	}
	keeper.Answer(n.now, a, plan, t, nil)
	n.SetDrift(keeper)
	share, _ := keeper.Share(n.now, n.rule, n.rule.Limit.WindowEnd(n.rule.Limit.WindowAt(n.clock())-1))
	n.says(n.name, "takes seat %d of %d, until %s; its share is %d", t.Seat, a.Seats, n.at(n.clock().Add(t.TTL)), share)
}

// isRecalled delivers the ledger's recall.
func (n *actor) isRecalled() {
	n.Helper()
	if !n.recalled {
		n.Fatalf("%s was not recalled", n.name)
	}
	n.recalled = false
	n.Recalled(string(keyOf(1)))
}

// decides has a node decide on a request that comes to it, from its own memory.
func (p *play) decides(who string, l *Local, cost tokens) {
	v := decideOne(l, p.now, ask{Rule: p.rule, Key: keyOf(1), Cost: cost})
	does := "admits"
	if v.OverLimit {
		does = "refuses"
	}
	p.admitted += v.Charged
	p.says(who, "%s %d; remaining %d, reset after %v", does, cost, v.Remaining, v.ResetAfter)
}
