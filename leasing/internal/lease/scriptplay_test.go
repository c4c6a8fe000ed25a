package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A script's times count from here: an hour of the node's clock, and 15 s into a minute of
// the ledger's, as in the examples of docs/protocol.md.
const (
	scriptBegins = instant(time.Hour)
	ledgerBegins = ledgerTime(1_800_000_015_000_000)
)

// scriptName is the node's even name.
const scriptName ratelimit.Holder = 40

// script is one node and one of its keys: the Held, and what the shell around it keeps
// (leasing/fleet.go, flight.go and waiting.go), without locks and queues.
type script struct {
	t     *testing.T
	at    string // the command, for errors
	out   strings.Builder
	now   instant
	rules *ratelimit.Rule
	drift DriftShare

	key   Held
	cold  []byte // the packed key, if it is packed now
	cools bool   // it is packed after each command

	there    LedgerClock
	chance   float64 // what the next answer draws
	seq      uint64
	flying   *Flight            // the claim under way
	left     map[uint64]*Flight // all that have left
	requests []*scriptRequest   // that wait
	report   Report
	last     scriptRequest // that was decided
	booked   scriptRequest // that on_store_failure has admitted

	charged map[window]tokens // by verdicts, and not undone
}

// scriptRequest is a request that waits.
type scriptRequest struct {
	ask
	behind *Flight // what it waits for the end of
	wakes  instant // or when it is looked at again
	v      verdict
}

func newScript(t *testing.T, packs bool) *script {
	s := &script{t: t, now: scriptBegins, cools: packs, left: map[uint64]*Flight{}, charged: map[window]tokens{}}
	s.key.Begin(scriptName)
	return s
}

// pack packs the key, where that may be.
func (s *script) pack() bool {
	if s.cold != nil || !s.key.Packable() {
		return s.cold != nil
	}
	s.cold = s.key.Pack(nil, 3)
	s.key = Held{Rule: s.key.Rule}
	return true
}

func (s *script) unpack() {
	if s.cold == nil {
		return
	}
	rule := s.key.Rule
	s.key = Held{}
	s.key.Unpack(s.cold, rule, scriptName)
	s.cold = nil
}

// does has done what the key wants done.
func (s *script) does() {
	todo := s.key.Ready()
	if todo == nil {
		return
	}
	for _, fl := range todo.LastWords {
		s.says("wants its last word on %s told, as %s: granted %d, spent %d, returned %d", windowName(fl.Claim.Window),
			holderName(fl.Claim.Holder), fl.Claim.Granted, fl.Claim.Spent, fl.Claim.Returned)
	}
	if todo.Claim != nil {
		s.launches(todo.Claim, "wants")
	}
	if todo.Report.At != 0 {
		s.report = todo.Report
		s.says("wants to be asked at %s whether a report is due", s.instant(todo.Report.At))
	}
}

// launches sends a claim for which nobody waits.
func (s *script) launches(fl *Flight, who string) {
	s.flying = fl
	s.key.Queued(fl)
	s.says("%s a claim, %s", who, errandName(fl))
}

// rule begins, or changes the rule as a reload does.
func (c *command) rule() {
	text, algorithm := c.word(1), ratelimit.FixedWindow
	for i, name := range ratelimit.Algorithms {
		if c.has(name) {
			algorithm = ratelimit.Algorithm(i)
		}
	}
	limit, unit, _ := strings.Cut(text, "/")
	l := ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Minute, Requests: c.tokens(limit), Burst: c.number("burst", 0)}
	if unit != l.Unit.String() {
		c.t.Fatalf("%s: scripts are of limits a minute", c.at)
	}
	c.rules = testRule(l)
	c.rules.Counters = new(ratelimit.RuleCounters)
	c.rules.Coordination.OnDeny = ratelimit.DenyRefunds
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := c.value(field); ok {
			if err := c.rules.Coordination.Set(field, text); err != nil {
				c.t.Fatalf("%s: %v", c.at, err)
			}
		}
	}
	if errs := c.rules.Coordination.Validate(); len(errs) > 0 {
		c.t.Fatalf("%s: %v", c.at, errs)
	}
}

// passes has time pass, and does in its order what was to be done by then.
func (c *command) passes() {
	end := scriptBegins.Add(c.duration(c.word(1)))
	if end < c.now {
		c.t.Fatalf("%s: it is %s already", c.at, c.instant(c.now))
	}
	for {
		first := end
		for _, r := range c.requests {
			if r.behind == nil {
				first = min(first, r.wakes)
			}
		}
		if due := c.report.At; due != 0 && due <= first {
			c.now = max(c.now, due)
			of := c.report
			c.report = Report{}
			if c.key.ReportDue(of) {
				c.launches(new(Flight), "reports by")
			}
			continue
		}
		c.now = first
		if c.looks(func(r *scriptRequest) bool { return r.behind == nil && r.wakes <= c.now }); first == end {
			return
		}
	}
}

func (c *command) asks() {
	a := ask{Rule: c.rules, Cost: c.tokens(c.word(1))}
	switch {
	case c.has("peek"):
		a.Kind = ratelimit.Peek
	case c.has("refund"):
		a.Kind = ratelimit.Refund
	}
	r := &scriptRequest{ask: a}
	// As fleetShard.spendCold does.
	if c.cold != nil && a.Kind == ratelimit.Spend && a.Cost > 0 && c.key.Rule == c.rules && SpendPacked(c.cold, c.now, &r.ask, &r.v) {
		c.decided(r, "")
		return
	}
	c.unpack()
	c.decides(r, false)
}

// decides decides on a request, or has it wait, as Fleet.decide and waiting.decide do.
func (s *script) decides(r *scriptRequest, waited bool) {
	if s.key.Take(s.now, &r.ask, waited, &r.v) {
		s.decided(r, "")
		s.does()
		return
	}
	if !waited && s.drifts(r, NotYet) {
		return
	}
	how, fl := s.key.Join(s.now, &r.ask)
	switch how {
	case Alone:
		s.flying = &fl
		s.key.Flies(&fl)
		r.behind = &fl
		s.says("%s waits for a claim of its own", r)
	case Behind:
		r.behind = s.flying
		s.says("%s waits for the claim that is under way", r)
	case UntilTurn:
		r.behind, r.wakes = nil, s.key.TurnsAt()
		s.says("%s waits until %s, when the next window has begun", r, s.instant(r.wakes))
	case UntilAgain:
		r.behind, r.wakes = nil, s.key.AgainAt()
		s.says("%s waits until %s for what others give back", r, s.instant(r.wakes))
	case Paused:
		s.says("%s cannot wait: the key is not claimed now; on_store_failure decides", r)
		return
	}
	s.requests = append(s.requests, r)
}

// drifts decides on a request by the node's share, if it has one.
func (s *script) drifts(r *scriptRequest, waited Waited) bool {
	if !r.Rule.Drifts() || r.Kind != ratelimit.Spend {
		return false
	}
	defer s.does()
	s.key.Turn(s.now)
	if _, ok := s.key.Drifts(s.now, s.there, &r.ask, waited); !ok {
		return false
	}
	v, ok := s.key.Drift(s.now, s.there, &r.ask, s.drift, waited)
	if !ok {
		s.says("%s is more than the share allows", r)
		return false
	}
	r.v = v
	s.decided(r, "")
	return true
}

func (c *command) shares() {
	c.drift = DriftShare{Tokens: c.tokens(c.word(1)), Heir: ratelimit.Fence(c.number("heir", 0))}
}

// looks looks at requests that wait for nothing any more.
func (s *script) looks(free func(*scriptRequest) bool) {
	waiting := s.requests
	s.requests = nil
	for _, r := range waiting {
		if free(r) {
			s.decides(r, true)
		} else {
			s.requests = append(s.requests, r)
		}
	}
}

// checked decides on those who wait, after check_timeout.
func (c *command) checked() { c.decidesLate(Lateness{}) }

// late decides on those who wait, after store_deadline.
func (c *command) late() { c.decidesLate(Lateness{Late: true, Alive: c.has("alive")}) }

func (c *command) decidesLate(by Lateness) {
	waiting := c.requests
	c.requests = nil
	for _, r := range waiting {
		v, ok := verdict{}, false
		if r.Kind == ratelimit.Spend {
			v, ok = c.key.RefuseLate(c.now, &r.ask, by)
		}
		switch {
		case ok:
			r.v = v
			c.decided(r, " as what was last heard says")
		case c.drifts(r, Fully):
		case by.Late:
			c.says("on_store_failure decides on %s", r)
		default:
			c.says("%s waits on", r)
			c.requests = append(c.requests, r)
		}
	}
}

func (c *command) undoes() {
	r := &c.last
	c.key.Undo(&r.ask, &r.v)
	c.charged[r.v.Window] -= r.v.Charged
	c.says("what %s was charged is taken back: %s", r, c.leaseNow())
}

func (c *command) books() {
	n := c.tokens(c.word(1))
	r := scriptRequest{ask: ask{Rule: c.rules, Cost: n}}
	r.v = verdict{Charged: n, Booked: c.key.Book(c.now, &r.ask, n)}
	c.booked = r
	switch w := r.v.Booked; w {
	case 0:
		c.says("%d were admitted without the ledger, in a window that is not known yet", n)
	default:
		c.charged[w] += n
		c.says("%d were admitted without the ledger, and are spent of %s", n, windowName(w))
	}
}

// unbooks takes back what the last request was charged by on_store_failure.
func (c *command) unbooks() {
	r := &c.booked
	c.key.Unbook(&r.ask, &r.v)
	c.charged[r.v.Booked] -= r.v.Charged
	c.says("what on_store_failure charged for %s is taken back: %s", r, c.leaseNow())
}

func (c *command) cached() {
	r := &scriptRequest{ask: ask{Rule: c.rules, Cost: c.tokens(c.word(1))}}
	r.v = c.key.Cached(c.now, &r.ask)
	r.v.Window, r.v.Source = r.v.Booked, ratelimit.FromFallback
	if r.v.ResetAfter == 0 { // as Fleet.fail does
		r.v.ResetAfter = c.rules.Limit.Period()
	}
	c.booked = *r
	c.decided(r, "")
}

// leaves has the claim under way written.
func (c *command) leaves() {
	if c.flying == nil {
		c.t.Fatalf("%s: nothing is to be sent", c.at)
	}
	c.seq++
	c.flying.Reset = c.has("reset")
	claim := c.key.Write(c.now, c.there, c.seq, c.flying, c.has("recalls"))
	c.left[c.seq] = c.flying
	c.says("claim %s", c.claim(c.flying, &claim))
	// The package's guarantee: each claim says all that was spent.
	if claim.Window != 0 && claim.Spent < c.charged[claim.Window] && claim.Limit.Algorithm != ratelimit.TokenBucket {
		c.t.Errorf("%s: requests were charged %d of %s, and the claim says %d", c.at, c.charged[claim.Window],
			windowName(claim.Window), claim.Spent)
	}
	c.does()
}

// answered has an answer come: to the claim under way, or to an older one that of= names.
func (c *command) answered() {
	seq := uint64(c.number("of", tokens(c.seq)))
	fl := c.left[seq]
	if fl == nil {
		c.t.Fatalf("%s: claim %d has not left", c.at, seq)
	}
	g := c.grant(fl)
	c.chance = float64(c.number("chance", 0)) / 100
	if g.Err == nil && g.At != 0 {
		c.there.Heard(fl.at, c.now, g.At)
	}
	c.takesIn(fl, &g)
}

// lost has the claim under way stay without an answer.
func (c *command) lost() {
	if c.flying == nil || !c.flying.written {
		c.t.Fatalf("%s: nothing is under way", c.at)
	}
	c.takesIn(c.flying, &ratelimit.Grant{Err: context.DeadlineExceeded})
}

func (s *script) takesIn(fl *Flight, g *ratelimit.Grant) {
	if s.flying == fl {
		s.flying = nil
		s.key.Lands()
	}
	r, drifted := s.key.Answer(fl.at, s.now, s.there, fl, g, func() float64 { return s.chance })
	s.hears(fl, g)
	if drifted {
		s.says("of %d that drifted, %d are confirmed; %d went over the limit, %d of them by on_store_failure",
			r.Drift, r.Confirmed, r.Over, r.ByPolicy)
	}
	s.does()
	if g.Err != nil && !errors.Is(g.Err, ratelimit.ErrStaleClaim) && !errors.Is(g.Err, ErrYoung) {
		s.requests = slices.DeleteFunc(s.requests, func(r *scriptRequest) bool {
			if r.behind == fl {
				s.says("on_store_failure decides on %s", r)
			}
			return r.behind == fl
		})
	}
	s.looks(func(r *scriptRequest) bool { return r.behind == fl })
}

// falseFence is what the shell makes of an answer whose fence cannot be (leasing/ledger/check.go).
type falseFence struct{}

func (falseFence) Error() string                 { return "its fence cannot be" }
func (falseFence) Rejected() ratelimit.Rejection { return ratelimit.RejectedFence }

// grant is what the ledger answers: what is not said is as an honest ledger says it that
// grants nothing. It handled the claim half-way between its leaving and now.
func (c *command) grant(fl *Flight) ratelimit.Grant {
	claim := &fl.Claim
	handled := scriptBegins.Add(c.lasts("handled", (fl.at + (c.now-fl.at)/2).Sub(scriptBegins)))
	at := ledgerBegins.Add(handled.Sub(scriptBegins))
	for word, err := range map[string]error{
		"stale": ratelimit.ErrStaleClaim, "young": ErrYoung, "false": falseFence{},
	} {
		if c.has(word) {
			return ratelimit.Grant{Err: err}
		}
	}
	g := ratelimit.Grant{
		Seq: claim.Seq, Fence: ratelimit.Fence(at), Window: claim.Window, At: at, Holders: int(c.number("holders", 1)),
		Available: c.number("available", 0), Outstanding: c.number("outstanding", 0), OverAdmitted: c.number("over", 0),
		TTL: c.lasts("ttl", claim.TTL), RetryAfter: c.lasts("retry", 0),
		Stranded: c.number("stranded", 0),
		Plenty:   c.has("plenty"), Recalling: c.has("recalling"), Relearning: c.has("relearning"), Void: c.has("void"),
		Drawn: c.has("drawn"),
	}
	g.Over = g.OverAdmitted
	l := claim.Limit
	switch {
	case l.Algorithm == ratelimit.TokenBucket && g.Window == 0:
		g.Window = window(at)
	case l.Algorithm != ratelimit.TokenBucket && !claim.Ahead:
		g.Window = l.WindowAt(at)
	}
	if l.Algorithm != ratelimit.TokenBucket {
		g.ResetAfter = l.WindowEnd(g.Window).Sub(at)
	}
	g.Shut = l.Algorithm == ratelimit.FixedWindow && (c.has("shut") || g.Available <= l.Capacity()/8)
	g.ResetAfter = c.lasts("reset", g.ResetAfter)
	// A new window's totals begin at 0.
	if g.Carried = claim.Window == g.Window; g.Carried {
		g.Granted = claim.Granted
	}
	g.Granted = c.number("granted", g.Granted)
	if c.has("timeless") {
		g.At = 0
	}
	return g
}

func (c *command) isRecalled() {
	c.key.Recall(c.now)
	c.says("is recalled")
	c.does()
}

func (c *command) sweeps() {
	if c.flying != nil { // then the shell passes by: the answer will say what is to be done
		c.t.Fatalf("%s: a claim is under way", c.at)
	}
	if ended := c.key.Sweep(c.now, !c.has("full")); ended {
		c.says("is swept: its window is over")
	} else {
		c.says("is swept")
	}
	c.does()
}

func (c *command) tells() {
	since := func(name string) instant {
		if d := c.lasts(name, -1); d >= 0 {
			return scriptBegins.Add(d)
		}
		return 0
	}
	what := c.key.Tell(c.now, Retelling{Doubt: since("doubt"), Lapsed: since("lapsed"), UsedUp: c.has("used-up")})
	c.says("%s", [...]string{AllTold: "is told already", TellLater: "is told later", TellNow: "is to be told now"}[what])
	c.does()
	if what == TellNow {
		c.launches(new(Flight), "tells by")
	}
}

func (c *command) mayGo() {
	may := "must stay"
	if c.key.MayGo(c.now, c.has("full")) {
		may = "may be dropped"
	}
	c.says("%s", may)
}

// hearsOfClock has another key's answer tell what time it is at the ledger.
func (c *command) hearsOfClock() {
	sent := c.now.Add(-2 * time.Millisecond)
	c.there.Heard(sent, c.now, ledgerBegins.Add(sent.Add(time.Millisecond).Sub(scriptBegins)))
	c.says("knows what time it is at the ledger")
}

// ends has the node end: it gives back the next window's lease, or else this one's.
func (c *command) ends() {
	c.launches(&Flight{Errand: Errand{GiveUp: true, Last: true, Ahead: c.key.Next != nil}}, "ends, by")
}

// counts prints what metrics have of the key.
func (c *command) counts() {
	n := c.rules.Counters
	c.says("metrics: leased %d, drifting %d, stranded %d; over %d, %d of them by on_store_failure; under %d; shares used up %d",
		n.Leased.Load(), n.Drifting.Load(), n.Stranded.Load(), n.OverAdmitted.Load(), n.OverByPolicy.Load(),
		n.UnderAdmitted.Load(), n.ShareUsedUp.Load())
}

// isLookedAt prints what people see of the lease.
func (c *command) isLookedAt() {
	l := c.key.Lease.Look(c.now)
	fenced := "no fence"
	if l.Fence != 0 {
		fenced = "a fence"
	}
	c.says("of %s, with %s: granted %d, spent %d, returned %d; unspent %d, drifted %d, elsewhere %d; expires in %s, resets in %s, refuses for %s",
		windowName(l.Window), fenced, l.Granted, l.Spent, l.Returned, l.Unspent, l.Drifted, l.Elsewhere, l.Expires, l.Resets, l.Refuses)
}

// leavesSeat prints whether whoever has the node's seat next may use a share at once.
func (c *command) leavesSeat() {
	if c.key.Drifting(c.now) {
		c.says("drift of it counts: who has the seat next must wait")
		return
	}
	c.says("no drift of it counts: who has the seat next need not wait")
}

func (c *command) packs() {
	if !c.pack() {
		c.says("cannot be packed: it has a claim under way, or the next window's lease")
		return
	}
	c.says("is packed, and unpacked")
	c.unpack()
}

func (s *script) says(format string, args ...any) {
	fmt.Fprintf(&s.out, "%8s  %s\n", s.instant(s.now), fmt.Sprintf(format, args...))
}
