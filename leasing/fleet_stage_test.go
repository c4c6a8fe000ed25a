package leasing

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// stage is some nodes on one ledger in memory, in a time that the test keeps. The store drops what is over at once, and
// may be down, or take its time.
type stage struct {
	*testing.T
	now    instant
	rule   *ratelimit.Rule
	ledger *account.Memory
	nodes  []*Stepped
	timers []timer
	claims int
	ahead  time.Duration // the ledger's clock
	looks  uint64        // into the ledger

	down   bool
	oneWay time.Duration // of a message
	events []timer
	asked  []func() // recalls of the ledger
}

type timer struct {
	at instant
	do func()
}

func newStage(t *testing.T, n, maxKeys int, limit tokens, fields map[string]string) *stage {
	t.Helper()
	s := &stage{T: t, now: instant(time.Hour)}
	s.rule = &ratelimit.Rule{
		Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Hour, Multiplier: 1, Requests: limit},
		Coordination: ratelimit.DefaultCoordination(),
	}
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := fields[field]; ok {
			if err := s.rule.Coordination.Set(field, text); err != nil {
				t.Fatal(err)
			}
		}
	}
	s.ledger = account.NewMemory(s.time)
	for i := range n {
		after := func(d time.Duration, do func()) { s.timers = append(s.timers, timer{s.now.Add(d), do}) }
		node := NewStepped(ratelimit.Holder(i+1)<<28, maxKeys, func() instant { return s.now }, time.UnixMicro(0), after,
			func() float64 { return 0.5 })
		node.Nodes = func() int { return n }
		node.Peers = node.Nodes
		s.nodes = append(s.nodes, node)
	}
	return s
}

// time is what the ledger's clock shows.
func (s *stage) time() ratelimit.LedgerTime {
	return 1_800_144_000_000_000 + ratelimit.LedgerTime(s.now.Add(s.ahead)/1000)
}

func (s *stage) after(d time.Duration, do func()) {
	if d == 0 {
		do()
		return
	}
	s.events = append(s.events, timer{s.now.Add(d), do})
}

// dropEnded drops ended accounts, as stores do.
func (s *stage) dropEnded() {
	if err := s.ledger.Sweep(context.Background()); err != nil {
		s.Fatal(err)
	}
}

// recalling has the ledger's recalls reach the nodes.
func (s *stage) recalling() {
	s.ledger.OnRecall = func(h ratelimit.Holder, key string, w window) {
		s.asked = append(s.asked, func() {
			i := slices.IndexFunc(s.nodes, func(n *Stepped) bool { return h>>28 == n.name>>28 })
			s.nodes[i].Recalled(key, w)
		})
	}
}

// settle has the ledger settle all that is to be sent.
func (s *stage) settle() {
	s.dropEnded()
	for again := true; again; {
		again = len(s.asked) > 0
		recalls := s.asked
		s.asked = nil
		for _, recall := range recalls {
			recall()
		}
		for _, n := range s.nodes {
			if n.RegisterDue(s.now) {
				again = true
				s.register(n)
			}
			for b := n.Batch(); b != nil; b = n.Batch() {
				again = true
				s.send(b)
			}
		}
	}
}

func (s *stage) register(n *Stepped) {
	err := errors.New("down")
	if !s.down {
		err = s.ledger.Register(context.Background(), n.name)
	}
	n.RegisterAnswered(s.now, err)
}

func (s *stage) send(b *Batch) {
	if s.down {
		b.Fail(errors.New("down"))
		return
	}
	s.after(s.oneWay, func() {
		s.dropEnded()
		s.claims += len(b.Claims())
		grants := make([]account.Grant, len(b.Claims()))
		epoch, at, err := s.ledger.Settle(context.Background(), b.Claims(), grants)
		if err != nil {
			s.Fatal(err)
		}
		s.after(s.oneWay, func() { b.Answer(epoch, at, grants) })
	})
}

// goOn has time pass, and with it timers and sweeps.
func (s *stage) goOn(d time.Duration) {
	for end := s.now.Add(d); s.now < end; {
		s.now = s.now.Add(time.Millisecond)
		s.run(&s.timers)
		s.run(&s.events)
		if s.now%instant(SweepEvery) == 0 {
			for _, n := range s.nodes {
				n.Sweep(s.now)
			}
		}
		s.settle()
		if s.now%instant(beatEvery) == 0 && !s.down {
			for _, n := range s.nodes {
				reclaimShort(s.T, n, s.ledger)
			}
		}
	}
}

// reclaimShort takes back what ended nodes have in hand of a node's accounts that are short.
func reclaimShort(t *testing.T, n *Stepped, ledger reclaimer) {
	t.Helper()
	for _, of := range n.takeShort(n.clock()) {
		if err := n.takeBack(context.Background(), ledger, of); err != nil {
			t.Fatal(err)
		}
	}
}

func (s *stage) run(of *[]timer) {
	due := *of
	*of = nil
	for _, t := range due {
		if t.at > s.now {
			*of = append(*of, t)
		} else {
			t.do()
		}
	}
}

// ask has a node decide.
func (s *stage) ask(node int, key string, cost tokens) ratelimit.Verdict {
	return s.decide(node, ask{Rule: s.rule, Key: []byte(key), Cost: cost})
}

func (s *stage) decide(node int, a ask) ratelimit.Verdict {
	asks, v := []ask{a}, make([]verdict, 1)
	drifts := false
	start, w := s.now, s.nodes[node].Ask(s.now, asks, v)
	for w != nil && w.Advance(s.now) {
		if s.settle(); !w.Advance(s.now) {
			break
		}
		if d := s.now.Sub(start); !drifts && d >= w.Patience() || d >= a.Rule.Coordination.Deadline() {
			w.TimeOver()
			if drifts = true; !w.Advance(s.now) {
				break
			}
		}
		s.goOn(time.Millisecond)
	}
	return v[0]
}

// overdue has a node decide without an answer in time.
func (s *stage) overdue(node int, a ask) ratelimit.Verdict {
	asks, v := []ask{a}, make([]verdict, 1)
	for w := s.nodes[node].Ask(s.now, asks, v); w != nil && w.Advance(s.now); {
		w.TimeOver()
	}
	return v[0]
}

// limited has all nodes ask under another limit from now on. A bucket's burst changes in proportion.
func (s *stage) limited(n tokens) {
	own := *s.rule
	own.Limit.Requests, own.Limit.Burst = n, own.Limit.Burst*n/own.Limit.Requests
	s.rule = &own
}

// key is what a node has of a key.
func (s *stage) key(node int, name string) entry {
	of, id, c := s.nodes[node].find([]byte(name))
	defer of.mu.Unlock()
	return of.entry(s.now, id, c)
}

// used is what the ledger has of a key.
func (s *stage) used(key string) tokens {
	if s.rule.Limit.Algorithm == ratelimit.TokenBucket {
		return s.usedIn(key, 0)
	}
	return s.usedIn(key, s.rule.Limit.WindowAt(s.time()))
}

// usedIn is what the ledger has of a key in a window.
func (s *stage) usedIn(key string, w window) tokens {
	s.Helper()
	var g [1]account.Grant
	s.looks++
	limit := s.rule.Limit
	_, _, err := s.ledger.Settle(context.Background(), []account.Claim{{
		Key: key, Window: w, Limit: limit, Holder: 1, Seq: s.looks,
	}}, g[:])
	if err != nil || g[0].Err != nil {
		s.Fatal(err, g[0].Err)
	}
	return g[0].Sum
}

// A node that gives back its tokens, because the key is idle or the node ends, does not take more with the same
// message: these would be stranded.
func TestWhoGivesBackTakesNothing(t *testing.T) {
	s := newStage(t, 2, 100, 1000, map[string]string{"lease.size": "30"})
	s.ask(1, "k", 900)
	s.ask(0, "k", 1) // then there is no plenty
	s.goOn(10 * time.Second)
	if used := s.used("k"); used != 901 {
		t.Errorf("%d are used of an idle key, and 901 were admitted", used)
	}
	s.ask(0, "k", 1)
	claims := s.nodes[0].Release()
	if len(claims) == 0 || slices.ContainsFunc(claims, func(c account.Claim) bool { return c.Need > 0 || c.Want > 0 }) {
		t.Errorf("the last words are %+v", claims)
	}
}

// always is a drift budget that this node has a share of.
type always struct{ share tokens }

func (a always) Share(instant, *ratelimit.Rule, ledgerTime) tokens {
	return a.share
}

// If a clock of the ledger is set, nodes read at once which window is current. They do not claim for the old one in a
// loop until its end. After one window, the ledger still has the account of the old one.
func TestClockSetByMoreThanAWindow(t *testing.T) {
	for _, by := range []time.Duration{time.Hour, 5 * time.Hour, -5 * time.Hour} {
		s := newStage(t, 1, 100, 100, nil)
		s.ask(0, "k", 1)
		s.goOn(time.Second)
		s.ahead += by
		s.claims = 0
		for range 50 {
			if v := s.ask(0, "k", 1); v.OverLimit || v.Source == ratelimit.FromFallback {
				t.Fatalf("by %v: %+v", by, v)
			}
		}
		if used := s.used("k"); s.claims > 100 || used < 40 {
			t.Errorf("by %v: %d claims for 50 requests, and %d are used of the window that goes on", by, s.claims, used)
		}
	}
}

// Drift of a node in a sliding window counts against its share in the next one, so the key is not dropped during
// that.
func TestDriftOfTheWindowBeforeIsKept(t *testing.T) {
	s := newStage(t, 1, 100, 100, map[string]string{"mode": "approx", "check_timeout": "0s", "drift_budget": "4", "max_nodes": "1"})
	s.rule.Limit.Algorithm, s.rule.Limit.Unit = ratelimit.SlidingWindow, ratelimit.Minute
	n := s.nodes[0]
	n.Drift = always{4}
	s.ask(0, "other", 1) // what time it is there
	s.goOn(50 * time.Second)
	for range 4 {
		if v := s.overdue(0, ask{Rule: s.rule, Key: []byte("k"), Cost: 1}); v.Source != ratelimit.FromDrift {
			t.Fatalf("%+v", v)
		}
	}
	k := s.key(0, "k")
	before, there := k.Window, n.lane(k).time()
	s.now = s.now.Add(20 * time.Second) // no report was sent, and the window has turned
	k.use.flight = nil
	drifts := n.Drifting() // without a request since the turn
	if certain := n.enterLocked(s.now, &there, k); !certain || k.Window != before+1 {
		t.Fatalf("window %d follows %d, %v", k.Window, before, certain)
	}
	if !drifts || n.mayGoLocked(k.shard, s.now, k.cell) {
		t.Error("a key may be forgotten whose drift still counts, or the next node with its seat may spend the share again")
	}
}

// A sweep does not give back tokens for a waiting request before the request is awake, though the key was not used
// before.
func TestWhatWasWaitedForIsKept(t *testing.T) {
	s := newStage(t, 1, 100, 100, nil)
	s.ask(0, "other", 1) // what time it is there
	verdicts := make([]verdict, 1)
	w := s.nodes[0].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 95}}, verdicts)
	s.settle()
	s.nodes[0].Sweep(s.now)
	if w.Advance(s.now) || verdicts[0].OverLimit {
		t.Errorf("it waits still, and 95 were granted: %+v", verdicts[0])
	}
}
