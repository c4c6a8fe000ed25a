package leasing

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// gathering is a node to whose ledger round trips are dear, with a lease of 20, of which 12 were spent in
// about two seconds: it is due to be renewed, and nobody waits for that.
func gathering(t *testing.T) *nodeScript {
	s := newNodeScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.leased(20)
	s.spendsSlowly(9)
	s.passes(200 * time.Millisecond)
	s.spends(2)
	return s
}

// roomyLedger has accounts for many keys.
func roomyLedger(s *nodeScript) *ledger.Memory {
	return ledger.NewMemory(100_000, func() ledgerTime { return ledgertest.Epoch.Add(s.now.Sub(instant(time.Hour))) })
}

// spendsSlowly spends five tokens a second.
func (s *nodeScript) spendsSlowly(n int) {
	s.Helper()
	for range n {
		s.passes(200 * time.Millisecond)
		s.spends(1)
	}
}

// asksOf asks for another key.
func (s *nodeScript) asksOf(key uint64) *nodeRequest {
	r := &nodeRequest{nodeScript: s, v: make([]verdict, 1)}
	r.wait = s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(key), Cost: 1}}, r.v)
	return r
}

// A claim for which nobody waits leaves after a while, if none for which somebody does leaves before.
func TestRenewalWaitsForCompany(t *testing.T) {
	s := gathering(t)
	s.passes(lease.Company - time.Millisecond)
	s.quiet("nobody waits for the renewal")
	s.passes(time.Millisecond)
	if _, c := s.sends(); c.Waiting != 0 || c.Spent != 12 {
		t.Errorf("not the renewal: %+v", c)
	}
	s.passes(time.Second)
	s.quiet("it has left")

	s = gathering(t)
	s.passes(time.Millisecond)
	s.asksOf(2)
	b := s.Batch()
	if b == nil || len(b.Claims()) != 2 || b.Claims()[0].Waiting != 0 || b.Claims()[1].Waiting != 1 {
		t.Fatalf("the renewal was to travel with what another key waits for: %+v", b)
	}
	s.settled(b, 0)
	s.passes(time.Second)
	s.quiet("it has left with others")
}

// A request that comes to need the renewal has it leave at once, and so has a recall.
func TestRenewalThatIsWaitedForLeaves(t *testing.T) {
	s := gathering(t)
	r := s.asks(9)
	if r.decided() {
		t.Error("there were 8 left, and 9 are admitted")
	}
	b, c := s.sends()
	if c.Waiting != 9 {
		t.Errorf("9 wait: %+v", c)
	}
	s.settled(b, 0)
	r.says(false, ratelimit.FromClaim)

	// Nor do others wait for the renewal's round trip first: it becomes the answer.
	s = gathering(t)
	s.Recalls()
	s.passes(10 * time.Millisecond)
	s.Recalled(string(keyOf(1)))
	if _, c := s.sends(); c.Returned != 8 || c.Want != 0 {
		t.Errorf("it was recalled: %+v", c)
	}
}

// What others wait for, what expiry may undo, what was spent unasked and what does not last until an answer
// could be here is told at once.
func TestWhoDoesNotWaitForCompany(t *testing.T) {
	for what, of := range map[string]func(s *nodeScript){
		"a recall": func(s *nodeScript) { s.Recalls(); s.leased(20); s.Recalled(string(keyOf(1))) },
		"reclaim: eager": func(s *nodeScript) {
			s.rule.Coordination.Reclaim = ratelimit.ReclaimEager
			s.leased(20)
			s.passes(time.Second)
			s.spends(11)
		},
		"a claim ahead, of a busy key": func(s *nodeScript) {
			s.rule.Coordination.Lease.TTL = time.Minute
			s.passes(44 * time.Second)
			s.leased(20)
			s.passes(20 * time.Millisecond)
			s.spends(15)
		},
		"a sliding window": func(s *nodeScript) {
			s.rule.Limit.Algorithm = ratelimit.SlidingWindow
			s.leased(20)
			s.spendsSlowly(9)
			s.passes(200 * time.Millisecond)
			s.spends(2)
		},
		"a busy key": func(s *nodeScript) { s.leased(20); s.passes(20 * time.Millisecond); s.spends(11) },
		"the window's end": func(s *nodeScript) {
			s.rule.Coordination.Lease.TTL = time.Minute
			s.leased(20)
			s.passes(45*time.Second - 2*lease.Company)
			s.spends(1) // has the next window claimed
		},
	} {
		s := newNodeScript(t, perMinute100)
		s.Gathers()
		of(s)
		if b := s.Batch(); b == nil || len(b.Claims()) != 1 {
			t.Errorf("%s waits for company: %+v", what, b)
		}
	}

	d, _ := newDriftScript(t, perMinute100)
	d.Gathers()
	d.drifts(4)
	d.sends()
}

// What is spent unasked while the claim under way waits for company has it leave.
func TestDriftEndsWaitingForCompany(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.Gathers()
	s.Recalls()
	s.rule.Coordination.Lease.Auto, s.rule.Coordination.Lease.Fixed = true, 0
	s.asks(1)
	if _, g := s.exchange(); !g.Plenty {
		t.Fatalf("granted %+v", g)
	}
	s.spendsSlowly(int(s.keyHeld().Lease.Unspent()))
	s.quiet("the next lease waits for company")
	s.drifts(1)
	s.sends()
}

// The first request of a window of which nothing was heard is admitted by the node's share, and told of when there is
// company, within a second; a second one has the claim leave, and waits for its answer.
func TestFirstDriftWaitsForCompany(t *testing.T) {
	first := func(limit ratelimit.Limit) *nodeScript {
		s, _ := newDriftScript(t, limit)
		s.ledger = roomyLedger(s)
		s.Gathers()
		s.Recalls()
		s.rule.Coordination.Lease.Auto, s.rule.Coordination.Lease.Fixed = true, 0
		if r := s.asksOf(2); !r.decided() || r.v[0].OverLimit || r.v[0].Source != ratelimit.FromDrift || r.v[0].Remaining != 99 {
			t.Fatalf("the first request of a key: %+v", r.v[0])
		}
		return s
	}
	s := first(perMinute100)
	s.passes(lease.LongCompany - time.Millisecond)
	s.quiet("nobody waits")
	s.passes(time.Millisecond)
	if _, c := s.sends(); c.Spent != 1 || c.Granted != 0 || c.Want != 1 || c.Waiting != 0 || c.Draw == 0 {
		t.Errorf("the ledger is to hear of it, by a draw: %+v", c)
	}

	s = first(perMinute100)
	s.passes(100 * time.Millisecond)
	r := s.asksOf(2)
	s.waitsFor(r, 2*time.Millisecond)
	b, c := s.sends()
	if c.Spent != 1 || c.Waiting != 1 {
		t.Errorf("it goes with the second: %+v", c)
	}
	s.settled(b, 0)
	if !r.decided() || r.v[0].OverLimit || r.v[0].Source != ratelimit.FromClaim {
		t.Errorf("the second, by the ledger: %+v", r.v[0])
	}

	s = first(perMinute100)
	for key := range uint64(3) {
		s.asksOf(key + 3)
	}
	s.passes(lease.LongCompany)
	if b := s.Batch(); b == nil || len(b.Claims()) != 4 {
		t.Errorf("they travel together: %+v", b)
	}

	// Where the window may end before they travel, they leave at once; and of other algorithms.
	s, _ = newDriftScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.passes(44 * time.Second)
	s.asksOf(2)
	s.sends()
	sliding := perMinute100
	sliding.Algorithm = ratelimit.SlidingWindow
	s = first(sliding)
	s.sends()
}

// spentElsewhere has another node spend 100 tokens of the key.
func (s *nodeScript) spentElsewhere() {
	s.Helper()
	s.other(ratelimit.Claim{Seq: 1, Waiting: 100})
	at := s.ledger.Booked(&ratelimit.Claim{Key: string(keyOf(1))}).Current
	s.other(ratelimit.Claim{Seq: 2, Window: at, Granted: 100, Spent: 100})
}

// A refusal that is asked for again waits, for nobody waits for that.
func TestAskingAgainWaitsForCompany(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Gathers()
	s.spentElsewhere()
	r := s.asks(1)
	s.exchange()
	r.says(true, ratelimit.FromClaim)
	s.passes(lease.RefusalHold + time.Millisecond)
	s.asks(1).says(true, ratelimit.FromLease)
	s.quiet("it was refused by itself")
	s.passes(lease.Company)
	if _, c := s.sends(); c.Waiting != 1 {
		t.Errorf("%+v", c)
	}
}

// A claim that is waited for leaves with the next batch, however many others are there.
func TestCompanyIsNotStarved(t *testing.T) {
	s := gathering(t)
	r := s.asks(9)
	for key := range uint64(2 * batchSize) {
		s.asksOf(1000 + key)
	}
	s.settled(s.Batch(), 0)
	r.says(false, ratelimit.FromClaim)
}

// One bell is set for those that have little patience, and one for those that have much, and each is set again when it
// has rung.
func TestTwoBells(t *testing.T) {
	type bell struct {
		after time.Duration
		ring  func()
	}
	var set []bell
	f := &Fleet{after: func(d time.Duration, ring func()) { set = append(set, bell{d, ring}) }}
	l := &lane{company: newCompany(1)}
	for range 2 {
		for _, d := range []time.Duration{lease.Company, lease.LongCompany, lease.Company, lease.LongCompany} {
			l.ringAfter(f, d)
		}
		if len(set) != 2 || set[0].after != lease.Company || set[1].after != lease.LongCompany {
			t.Fatalf("%d bells are set: %+v", len(set), set)
		}
		if l.rung() {
			t.Error("one rings at once")
		}
		for _, b := range set {
			if b.ring(); !l.rung() {
				t.Errorf("the bell of %v does not ring", b.after)
			}
		}
		set = nil
	}
}

// A batch that is full may have left others behind: the next one leaves at once.
func TestFullBatchIsFollowedAtOnce(t *testing.T) {
	for _, n := range []int{batchSize - 1, batchSize, batchSize + 1} {
		l := &lane{queue: make(chan *flight, 2*batchSize), company: newCompany(1)}
		for range n {
			l.queue <- &flight{}
		}
		if took := len(l.take()); took != min(n, batchSize) || l.rung() != (n >= batchSize) {
			t.Errorf("%d of %d leave, and the bell is wrong", took, n)
		}
	}
}

// Of many claims that wait for company as many leave as travel together, and where no more can wait, they
// are sent at once: none is dropped.
func TestCompanyOfManyClaims(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.rule.Coordination.Lease.Fixed = 20
	const room = 512 // that of a part of a Cluster
	l := &s.fleet.lanes[0]
	l.queue, l.company = make(chan *flight, room), newCompany(room)
	claims := 0
	answer := func() {
		for b := s.Batch(); b != nil; b = s.Batch() {
			claims += len(b.Claims())
			s.settled(b, 0)
		}
	}
	const keys = 3*batchSize - 1
	for key := range uint64(keys) {
		s.asksOf(key)
		answer()
	}
	s.passes(4 * time.Second)
	claims = 0
	for key := range uint64(keys) {
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(key), Cost: 11}}, make([]verdict, 1))
	}
	if l := len(l.queue); l != keys-room {
		t.Errorf("%d are sent at once, and %d could not wait", l, keys-room)
	}
	if answer(); claims != keys {
		t.Errorf("%d renewals of %d left", claims, keys)
	}
}

// As many as travel together do not wait for the end of their patience.
func TestCompanyOfABatchLeaves(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.rule.Coordination.Lease.Fixed = 20
	for key := range uint64(batchSize) {
		s.asksOf(key)
		s.settled(s.Batch(), 0)
	}
	s.passes(4 * time.Second)
	for key := range uint64(batchSize) {
		if b := s.Batch(); b != nil {
			t.Fatalf("%d of %d renewals left", len(b.Claims()), key)
		}
		s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(key), Cost: 11}}, make([]verdict, 1))
	}
	s.Ask(s.now, []ask{{Rule: s.rule, Key: keyOf(0), Cost: 1}}, make([]verdict, 1))
	if b := s.Batch(); b == nil || len(b.Claims()) != batchSize {
		t.Errorf("of %d renewals left %+v", batchSize, b)
	}
}

// The real node's renewals leave, too: by themselves, and with what another key waits for.
func TestFleetSendsWhatWaitedForCompany(t *testing.T) {
	for _, alone := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newFleetWorld(t, 1, time.Millisecond)
			defer w.end()
			w.nodes[0].gathers = true
			rule := testRule(perMinute100)
			rule.Coordination.Lease.Fixed = 20
			w.ask(0, rule, 1, 1)
			time.Sleep(2 * time.Second)
			w.ask(0, rule, 1, 11)
			time.Sleep(lease.Company / 2)
			if n := w.ledger.count(); n != 1 {
				t.Errorf("%d claims have left, and nobody waits for the second", n)
			}
			want := 2
			if alone {
				time.Sleep(lease.Company)
			} else {
				w.ask(0, rule, 2, 1)
				want = 3
			}
			if n := w.ledger.count(); n != want {
				t.Errorf("%d claims have left, and it should have been %d", n, want)
			}
		})
	}
}

// usedUp is a node whose lease of plenty has just been used up, of a key that is seldom asked for.
func usedUp(t *testing.T, gathers bool) *nodeScript {
	s := newNodeScript(t, perMinute100)
	s.Recalls()
	if gathers {
		s.Gathers()
	}
	s.rule.Coordination.Lease.Auto = true
	s.asks(1) // whose caller is gone when the answer is there
	if _, g := s.exchange(); g.Granted != 5 || !g.Plenty {
		t.Fatalf("granted %+v", g)
	}
	s.spendsSlowly(5)
	return s
}

// A lease of plenty that is used up is claimed anew where another claim leaves anyway, or somebody waits,
// or after a while.
func TestUsedUpLeaseIsClaimedInCompany(t *testing.T) {
	s := usedUp(t, true)
	s.passes(lease.LongCompany - time.Millisecond)
	s.quiet("nobody has asked since")
	s.asksOf(2)
	b := s.Batch()
	if b == nil || len(b.Claims()) != 2 || b.Claims()[0].Waiting != 0 || b.Claims()[0].Want == 0 {
		t.Fatalf("the next lease was to be claimed in company: %+v", b)
	}
	s.settled(b, 0)
	s.spends(1)

	s = usedUp(t, true)
	s.asks(1)
	if _, c := s.sends(); c.Waiting != 1 {
		t.Errorf("one waits: %+v", c)
	}

	s = usedUp(t, true)
	s.passes(lease.LongCompany)
	s.exchange()
	s.spends(1)

	s = usedUp(t, false)
	s.passes(2 * lease.LongCompany)
	s.quiet("it would travel alone")
}

// A last word that waits for company when its node ends is said all the same.
func TestLastWordsAreSaidAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFleetWorld(t, 1, time.Millisecond)
		f := w.nodes[0]
		f.gathers = true
		rule := testRule(ratelimit.Limit{Unit: ratelimit.Second, Requests: 1000})
		c := &rule.Coordination
		c.Mode, c.MaxNodes, c.SyncInterval, c.Lease.Fixed, c.Lease.TTL = ratelimit.Approx, 2, time.Second, 20, time.Hour
		c.DriftBudget = ratelimit.Share{Tokens: 20}
		w.ask(0, rule, 1, 1)
		w.ask(0, rule, 1, 3)
		for len(f.lanes[0].calm) == 0 { // until a sweep has said it
			time.Sleep(time.Millisecond)
		}
		w.end()
		if n := f.Stats().ClaimsBy[ratelimit.ClaimFinal]; n != 1 {
			t.Errorf("%d last words were said", n)
		}
		time.Sleep(lease.LongCompany) // its bell
	})
}

// turned is a node, a moment after the minute has ended in which it used its key so many times.
func turned(t *testing.T, gathers bool, used int, moment time.Duration) *nodeScript {
	s := newNodeScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Recalls()
	s.fleet.gathers = gathers
	s.rule.Coordination.Lease.Auto = true
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.spendsSlowly(used - 1)
	s.passes(instant(time.Hour+45*time.Second).Sub(s.now) + moment)
	for range 3 * sweepParts {
		s.Sweep(s.now)
	}
	return s
}

// A key that was used more than once in a window has its lease of the next one claimed in company, soon after
// that has begun: its first request does not wait. One that was used once does not.
func TestUsedKeyGoesOnInCompany(t *testing.T) {
	for _, used := range []int{2, 1} {
		s := turned(t, true, used, 100*time.Millisecond)
		s.quiet("nobody has asked in this window")
		s.asksOf(2)
		b := s.Batch()
		if n := len(b.Claims()); n != used {
			t.Fatalf("used %d times: %d claims, one for the other key", used, n)
		}
		s.settled(b, 0)
		if used > 1 {
			s.spends(1)
		}
	}
}

// It does not where the window has ended long ago, nor where a claim would travel alone in any case.
func TestWhatDoesNotGoOn(t *testing.T) {
	for _, s := range []*nodeScript{turned(t, true, 3, 10*time.Second), turned(t, false, 3, 100*time.Millisecond)} {
		s.passes(lease.LongCompany)
		s.quiet("nobody has asked in this window")
	}
}

// A lease that is used up is not claimed again for nobody where its window ends soon, where the ledger does not
// let it be drawn, or where the claim would travel alone in any case.
func TestWhatIsUsedUpAndNotClaimed(t *testing.T) {
	for what, of := range map[string]func(s *nodeScript){
		"the window's end": func(s *nodeScript) { s.passes(43970 * time.Millisecond) },
		"an audited rule":  func(s *nodeScript) { s.rule.Coordination.Audit = true },
		"no company":       func(s *nodeScript) { s.fleet.gathers = false },
		"a Cluster":        func(s *nodeScript) { s.fleet.lanes = append(s.fleet.lanes, lane{}) },
	} {
		s := newNodeScript(t, perMinute100)
		s.Recalls()
		s.Gathers()
		s.rule.Coordination.Lease.Auto = true
		of(s)
		r := s.asks(1)
		s.exchange()
		r.says(false, ratelimit.FromClaim)
		s.spends(4)
		s.passes(lease.LongCompany)
		s.quiet(what)
	}
}

// A recall that finds the next window's claim waiting for company is answered at once, and the next window is
// claimed after that.
func TestRecallOfAClaimAheadInCompany(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.Recalls()
	s.Gathers()
	s.rule.Coordination.Lease.Auto = true
	s.passes(40 * time.Second)
	r := s.asks(1)
	s.exchange()
	r.says(false, ratelimit.FromClaim)
	s.passes(4*time.Second + time.Millisecond)
	s.spends(1)
	s.quiet("the next window's claim waits for company")
	s.Recalled(string(keyOf(1)))
	if c, _ := s.exchange(); c.Returned != 3 {
		t.Errorf("%+v", c)
	}
	s.asks(0)
	s.passes(lease.Company)
	if _, c := s.sends(); !c.Ahead {
		t.Errorf("%+v", c)
	}
}

// Last words that are found when a node gives back what it has are said, too.
func TestLastWordsFoundAtTheEnd(t *testing.T) {
	s, _ := newDriftScript(t, perMinute100)
	s.Gathers()
	s.rule.Coordination.Lease.Fixed = 20
	answer := func() {
		for b := s.Batch(); b != nil; b = s.Batch() {
			s.settled(b, 0)
		}
	}
	s.passes(40 * time.Second)
	s.asks(1)
	answer()
	s.passes(4*time.Second + time.Millisecond)
	s.asks(1)
	s.passes(30 * time.Millisecond)
	answer()
	s.asks(3)
	s.asks(1)
	if h := s.keyHeld(); h.Next == nil || h.Lease.Spent == h.Reported {
		t.Fatalf("it has nothing to say: %+v", h.Lease)
	}
	s.passes(2 * time.Second)
	claims := s.Release(s.now)
	if !slices.ContainsFunc(claims, func(c ratelimit.Claim) bool { return c.Final }) {
		t.Errorf("no last word: %+v", claims)
	}
}

// A request that needs this window's lease need not wait for the next one's claim, which waits for company: it
// takes its place, and the next window is claimed after that.
func TestRequestBeforeAClaimAheadInCompany(t *testing.T) {
	s := newNodeScript(t, perMinute100)
	s.ledger = roomyLedger(s)
	s.Gathers()
	s.rule.Coordination.Lease.TTL = time.Minute
	s.passes(40 * time.Second)
	s.leased(20)
	s.passes(4*time.Second + time.Millisecond)
	s.spends(1)
	s.quiet("the next window's claim waits for company")
	r := s.asks(30)
	if _, g := s.exchange(); g.Window != ratelimit.Window(30000001) {
		t.Errorf("%+v", g)
	}
	r.says(false, ratelimit.FromClaim)
	s.spends(1)
	s.passes(lease.Company)
	if _, c := s.sends(); !c.Ahead {
		t.Errorf("%+v", c)
	}
}
