package leasing

import (
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// recallScript is a node whose ledger recalls leases, and another holder's claims.
type recallScript struct {
	*nodeScript
	other    ratelimit.Claim
	recalled []ratelimit.Holder
}

func newRecallScript(t testing.TB, l ratelimit.Limit) *recallScript {
	s := &recallScript{nodeScript: newNodeScript(t, l)}
	s.Recalls()
	s.rule.Coordination.Lease.Auto = true
	s.ledger.OnRecall = func(_ string, holders []ratelimit.Holder) { s.recalled = append(s.recalled, holders...) }
	s.other = ratelimit.Claim{Key: string(keyOf(1)), Limit: l, Holder: 99, TTL: 10 * time.Second, Recall: true}
	return s
}

// otherAsks has the other holder claim, of which it spends all that it gets.
func (s *recallScript) otherAsks(waiting tokens) ratelimit.Grant {
	s.Helper()
	g := make([]ratelimit.Grant, 1)
	c := &s.other
	c.Seq++
	c.Waiting, c.Want = waiting, waiting
	s.ledger.Settle(s.Context(), []ratelimit.Claim{*c}, g)
	if g[0].Err != nil {
		s.Fatal(g[0].Err)
	}
	c.Window, c.Fence, c.Granted, c.Spent = g[0].Window, g[0].Fence, g[0].Granted, g[0].Granted
	return g[0]
}

var hundredAMinute = ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}

// While there is plenty, one claim fetches a share of the limit, and nothing is
// claimed for time's sake nor given back for idleness.
func TestPlentyIsLeasedOnce(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	c, g := s.exchange()
	if !c.Stretch || !c.Recall || !g.Plenty || g.Granted != 5 {
		t.Fatalf("claimed %+v, granted %+v", c, g)
	}
	r.says(false, ratelimit.FromClaim)
	for range 40 { // s, to the end of the window less a little
		s.passes(time.Second)
		s.Sweep(s.now)
		for b := s.Batch(); b != nil; b = s.Batch() {
			if len(b.Claims()) > 0 {
				t.Fatalf("it claims %+v", b.Claims())
			}
			b.Answer(nil)
		}
	}
	s.spends(1)
}

// What others wait for is given back at once, but for what the next moment needs.
func TestRecalledLeaseIsGivenBack(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(3)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(time.Second) // three a second: the next moment needs none
	s.otherAsks(96)
	if len(s.recalled) != 1 || s.recalled[0]>>1 != 1 {
		t.Fatalf("recalled from %v", s.recalled)
	}
	s.Recalled(string(keyOf(1)))
	c, _ := s.exchange()
	if c.Returned != 2 || c.Waiting != 0 || c.Want != 0 || c.Stretch {
		t.Fatalf("it claims %+v", c)
	}
	if g := s.otherAsks(2); g.Granted != 97 || g.RetryAfter != 0 {
		t.Errorf("the other has %+v", g)
	}
	s.Recalled(string(keyOf(1))) // late, or once more: there is nothing to say
	s.quiet("all has been given back")
	s.Recalled("no such key")
}

// What a node has spent the ledger need not know while there is plenty; when it is
// recalled, it tells.
func TestRecalledLeaseTellsWhatIsSpent(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(3)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.spends(2)
	s.Recalled(string(keyOf(1)))
	if c, _ := s.exchange(); c.Spent != 5 || c.Returned != 0 {
		t.Errorf("it tells %+v", c)
	}
}

// A recall that comes while a claim is under way is answered after it.
func TestRecallDuringAClaim(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	b, _ := s.sends()
	s.Recalled(string(keyOf(1)))
	s.settled(b, time.Millisecond)
	if c, _ := s.exchange(); c.Returned != 4 {
		t.Errorf("it claims %+v", c)
	}
	r.says(false, ratelimit.FromClaim) // which has waited for the first
}

// A request that waits for what was recalled is served when that comes, and claims
// again after a pause meanwhile; when nothing comes, it is refused, and
// on_store_failure has no say: the ledger was heard.
func TestRequestsWaitForWhatIsRecalled(t *testing.T) {
	for _, comes := range []bool{true, false} {
		s := newRecallScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
		s.rule.Coordination.OnStoreFailure = ratelimit.FailOpen
		s.otherAsks(10)
		s.other.Spent = 4 // and has the rest to give back
		s.otherTells()
		r := s.asks(2)
		_, g := s.exchange()
		if !g.Recalling || g.Recalled != 1 || r.decided() {
			t.Fatalf("the ledger says %+v", g)
		}
		s.quiet("it has just claimed")
		if comes {
			s.other.Returned = 6
			s.otherAsks(0)
		}
		claims := 0
		for range 15 {
			s.passes(time.Millisecond)
			if r.decided() {
				break
			}
			if b := s.Batch(); b != nil {
				claims++
				s.settled(b, 0)
			}
		}
		if !r.decided() {
			for more := r.wait.TimeOver(); more > 0; more = r.wait.TimeOver() {
				s.passes(more)
			}
		}
		r.says(!comes, ratelimit.FromClaim)
		if comes && claims != 1 || claims > 6 {
			t.Errorf("what comes %v: it claimed %d times", comes, claims)
		}
	}
}

// A rule whose leases are sized or timed by hand is not stretched; and where many
// keys are tracked, idle ones are given back.
func TestStretchedRules(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	for what, change := range map[string]func(c *ratelimit.Coordination){
		"size": func(c *ratelimit.Coordination) { c.Lease.Fixed = 3 }, "max": func(c *ratelimit.Coordination) { c.Lease.Max = 3 },
		"ttl": func(c *ratelimit.Coordination) { c.Lease.Auto = false }, "eager": func(c *ratelimit.Coordination) { c.Reclaim = ratelimit.ReclaimEager },
	} {
		r := *s.rule
		change(&r.Coordination)
		if r.Stretched() || !s.rule.Stretched() {
			t.Errorf("%s is set, and leases are stretched", what)
		}
	}
	c := ratelimit.DefaultCoordination()
	if err := c.Set("lease.ttl", "3s"); err != nil || c.Lease.Auto || c.Lease.TTL != 3*time.Second {
		t.Errorf("%v: %+v", err, c.Lease)
	}
	if err := c.Set("lease.ttl", "auto"); err != nil || c.Lease != ratelimit.DefaultCoordination().Lease {
		t.Errorf("%v: %+v", err, c.Lease)
	}
}

// keyHeld is what the node has of its one key.
func (s *nodeScript) keyHeld() *busyKey {
	sh, _, h := s.fleet.locked(keyOf(1))
	defer sh.mu.Unlock()
	return h
}

// A lease of which the ledger knows all that was spent is given back, too: to the
// last token, and once.
func TestRecallOfTheLastToken(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	s.rule.Coordination.Lease.Fixed, s.rule.Coordination.Lease.Auto = 2, false
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(3 * time.Second)
	h := s.keyHeld()
	h.Reported = h.Lease.Spent // as after a report
	s.Recalled(string(keyOf(1)))
	if c, _ := s.exchange(); c.Returned != 1 || c.Spent != 1 {
		t.Errorf("it claims %+v", c)
	}
	s.Recalled(string(keyOf(1)))
	s.quiet("there is nothing left to say")
}

// A recall during a claim has one more claim sent after that, and no other.
func TestRecallDuringAClaimIsAnsweredOnce(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	b, _ := s.sends()
	s.Recalled(string(keyOf(1)))
	s.quiet("a claim is under way")
	s.settled(b, time.Millisecond)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.asks(1)
	s.exchange()
	s.quiet("the recall was answered")
}

// A recalled node keeps what it spends in 20 ms at the rate that it is sure of, if it has
// as much.
func TestRecalledNodeKeepsItsNextMoment(t *testing.T) {
	for _, c := range []struct{ spends, returned tokens }{{99, 384}, {489, 0}} {
		s := newRecallScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10_000})
		r := s.asks(1)
		s.exchange() // 500: a twentieth
		r.says(false, ratelimit.FromClaim)
		s.passes(100 * time.Millisecond)
		s.spends(c.spends) // with the first one, 100 in 100 ms, which prove 800 a second; or 490, which prove 4457
		s.Recalled(string(keyOf(1)))
		if got, _ := s.exchange(); got.Spent != c.spends+1 || got.Returned != c.returned {
			t.Errorf("it spent %d of 500 in 100 ms, and returns %d; it should return %d", got.Spent, got.Returned, c.returned)
		}
	}
}

// What a recalled node gives back with a claim that is lost, it gives back when it
// is idle: its lease is not stretched any more.
func TestRecallWhoseClaimIsLost(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.Recalled(string(keyOf(1)))
	b, _ := s.sends()
	b.Fail(errors.New("lost"))
	s.passes(3 * time.Second)
	s.sweeps()
	if c, _ := s.exchange(); c.Returned != 4 {
		t.Errorf("it claims %+v", c)
	}
}

// The ledger calls accounts by names that people can read; what is no such name is
// nobody's.
func TestRecallByName(t *testing.T) {
	s := newRecallScript(t, hundredAMinute)
	s.fleet.RawNames = false
	r := s.asks(1)
	c, _ := s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(time.Second)
	s.Recalled("no such name")
	s.Recalled(string(keyOf(1)))
	s.quiet("it holds no such accounts")
	s.Recalled(c.Key)
	if c, _ := s.exchange(); c.Returned != 4 {
		t.Errorf("it claims %+v", c)
	}
}

// Who waits for what was recalled claims again after two milliseconds: all at once,
// for one timer wakes them.
func TestPauseAfterARecall(t *testing.T) {
	s := newRecallScript(t, ratelimit.Limit{Unit: ratelimit.Minute, Requests: 10})
	s.otherAsks(10)
	s.other.Spent = 4
	s.asks(2)
	s.otherTells()
	if _, g := s.exchange(); !g.Recalling {
		t.Fatalf("the ledger says %+v", g)
	}
	before := len(s.timers)
	r := []*nodeRequest{s.asks(1), s.asks(1)}
	if n := len(s.timers) - before; n > 1 {
		t.Errorf("%d timers for one pause", n)
	}
	s.passes(2*time.Millisecond - 1)
	for _, r := range r {
		r.decided()
	}
	s.quiet("the other has had no time to answer")
	s.passes(1)
	for _, r := range r {
		r.decided()
	}
	if c, _ := s.exchange(); c.Waiting == 0 {
		t.Errorf("it claims %+v", c)
	}
}

// otherTells has the other holder say what it has spent.
func (s *recallScript) otherTells() {
	s.other.Seq++
	c := s.other
	c.Waiting, c.Want = 0, 0
	s.ledger.Settle(s.Context(), []ratelimit.Claim{c}, make([]ratelimit.Grant, 1))
}

// A request whose time is over is refused where the ledger was heard within the
// time that a request may wait, of this window, and had too little. Before its time
// is over, so is one for which others were asked to give back.
func TestRefusedLate(t *testing.T) {
	for _, c := range []struct {
		what            string
		kind            ratelimit.Kind
		cost            tokens
		late, recalling bool
		heard           time.Duration // ago
		refused         bool
	}{
		{"its time is over", ratelimit.Spend, 100, true, false, 15 * time.Millisecond, true},
		{"its time is over, and what it waited for was recalled", ratelimit.Spend, 100, true, true, 0, true},
		{"what it waits for is recalled", ratelimit.Spend, 100, false, true, 0, true},
		{"it has some time", ratelimit.Spend, 100, false, false, 0, false},
		{"there is enough", ratelimit.Spend, 99, true, false, 0, false},
		{"the ledger was heard a while ago, and is not gone", ratelimit.Spend, 100, true, false, aliveFor - 1, true},
		{"the ledger may be gone", ratelimit.Spend, 100, true, false, aliveFor, false},
		{"it was recalled a while ago, and it has some time", ratelimit.Spend, 100, false, true, 15*time.Millisecond + 1, false},
		{"it gives back", ratelimit.Refund, 100, true, false, 0, false},
		{"of the window before", ratelimit.Spend, 100, true, false, 50 * time.Second, false},
	} {
		s := newRecallScript(t, hundredAMinute)
		s.asks(1)
		s.exchange() // 95 are left, and 4 of 5 unspent
		h := s.keyHeld()
		h.Lease.Spent++
		h.Recalling = c.recalling
		s.passes(c.heard)
		a := ask{Rule: s.rule, Key: keyOf(1), Cost: c.cost, Kind: c.kind}
		v, ok := s.fleet.refusedLate(s.now, &a, c.late)
		if ok != c.refused || ok && (!v.OverLimit || v.Source != ratelimit.FromClaim) {
			t.Errorf("%s: refused %v, and it should be %v: %+v", c.what, ok, c.refused, v)
		}
		if _, ok := s.fleet.refusedLate(s.now, &ask{Rule: s.rule, Key: keyOf(2), Cost: c.cost}, c.late); ok {
			t.Errorf("%s: a key of which nothing is known was refused", c.what)
		}
	}
}

// Redis tells the holders whom it asks, and nobody else, by a message of the
// account's name; another deployment's names are left alone. When the client is
// closed, nobody listens any more.
func TestRedisRecalls(t *testing.T) {
	s := redistest.Start(t)
	client, listener := s.Client(), s.Client()
	t.Cleanup(func() { client.Close() })
	l, heard, ended := ledger.NewRedis(client, "t:"), make(chan string, 10), make(chan struct{})
	go func() {
		defer close(ended)
		ledger.NewRedis(listener, "t:").Recalls(t.Context(), []ratelimit.Holder{1, 2}, func(account string) { heard <- account })
	}()
	channel := ledger.RecallChannel(1)
	for s.Do("PUBSUB", "NUMSUB", channel).([]any)[1].(int64) == 0 { // until it listens
		time.Sleep(time.Millisecond)
	}
	settle := func(c ratelimit.Claim) {
		c.Key, c.Limit, c.Seq, c.TTL, c.Want, c.Recall = "k", hundredAMinute, 1, time.Second, c.Waiting, true
		l.Settle(t.Context(), []ratelimit.Claim{c}, make([]ratelimit.Grant, 1))
	}
	s.Do("PUBLISH", channel, "other:k")
	settle(ratelimit.Claim{Holder: 1, Waiting: 60})
	settle(ratelimit.Claim{Holder: 3, Waiting: 70})
	if got := <-heard; got != "k" {
		t.Errorf("recalled from %q", got)
	}
	listener.Close()
	<-ended
	if len(heard) > 0 {
		t.Errorf("recalled once more, from %q", <-heard)
	}
}
