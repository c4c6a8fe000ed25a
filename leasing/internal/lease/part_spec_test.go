package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// scene is one part, and what it says to a ledger that is played by hand.
type scene struct {
	*testing.T
	Part
	limit  ratelimit.Limit
	q      Asking
	number uint32
	last   Message
}

func newScene(t *testing.T, limit tokens) *scene {
	return &scene{
		T: t, Part: Part{Window: 7, Deadline: Never}, limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit},
		q: Asking{Now: 1e9, Epoch: ratelimit.Epoch{ID: 1}},
	}
}

// says has the part write a message, and returns it.
func (s *scene) says(need, want tokens) *account.Claim {
	s.number++
	s.Write(&s.last, s.number, account.Claim{
		Limit: s.limit, Holder: 5, Seq: uint64(s.number), Need: need, Want: want,
	}, &s.q)
	return &s.last.Claim
}

// hears answers the last message after a millisecond.
func (s *scene) hears(g account.Grant) bool {
	return s.hearsLater(g, time.Millisecond)
}

func (s *scene) hearsLater(g account.Grant, after time.Duration) bool {
	s.q.Now = s.q.Now.Add(after)
	return s.Apply(&s.last, &g, &Answer{Now: s.q.Now, Epoch: s.q.Epoch})
}

func (s *scene) has(taken, spent, hand tokens) {
	s.Helper()
	if s.Taken != taken || s.Spent != spent || s.InHand(s.q.Now) != hand {
		s.Fatalf("taken %d, spent %d, in hand %d; want %d, %d, %d", s.Taken, s.Spent, s.InHand(s.q.Now), taken, spent, hand)
	}
}

func (s *scene) draws(want bool) {
	s.Helper()
	if c := s.says(1, 1); c.Draws() != want {
		s.Fatalf("%+v; want a draw: %v", c, want)
	}
	s.Lost(&s.last)
}

func TestSpecDraws(t *testing.T) {
	s := newScene(t, 100)
	if c := s.says(1, 20); !c.Draws() || c.Want != 20 || c.Window != 7 {
		t.Fatalf("%+v", c)
	}
	if !s.hears(account.Grant{Total: 20, Sum: 90}) {
		t.Fatal("the answer does not count")
	}
	if s.InFlight() || s.hears(account.Grant{Total: 20, Sum: 90}) {
		t.Fatal("it counts twice")
	}
	s.has(20, 0, 20)
	s.draws(false) // 90 of 100 are more than seven eighths
	s = newScene(t, 100)
	s.says(1, 20)
	s.hears(account.Grant{Total: 20, Sum: 110})
	s.has(10, 0, 10) // of 91 to 110 it owns those up to 100
	if c := s.says(1, 1); c.Draws() || c.Taken != 10 {
		t.Fatalf("what lay beyond is not given back: %+v", c)
	}
	s.hears(account.Grant{Total: 10, Sum: 101, Granted: 0})
	s.has(10, 0, 10)
}

// Each of these has the next message be a claim.
func TestSpecClaimsInsteadOfDraws(t *testing.T) {
	for name, change := range map[string]func(s *scene){
		"no epoch is known":             func(s *scene) { s.q.Epoch = ratelimit.Epoch{} },
		"the ledger may have lost data": func(s *scene) { s.q.Young = true },
		"its lease may be reclaimed":    func(s *scene) { s.Part.Deadline = s.q.Now.Add(time.Hour) },
		"a message was not answered":    func(s *scene) { s.says(1, 1); s.Lost(&s.last) },
		"a refund is to be told":        func(s *scene) { s.Refund(3) },
		"tokens are to be given back":   func(s *scene) { s.GiveBack(0) },
		"the limit is a bucket": func(s *scene) {
			s.limit = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 1, Burst: 9}
			s.bucket = true
		},
		"others took nearly all":        func(s *scene) { s.Sum = 89 },
		"more than any limit is needed": func(s *scene) { s.Spent += 2 * ratelimit.MaxLimit },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 100)
			s.says(1, 20)
			s.hears(account.Grant{Total: 20, Sum: 20})
			change(s)
			s.draws(false)
		})
	}
	s := newScene(t, 100)
	s.says(1, 20)
	s.hears(account.Grant{Total: 20, Sum: 20})
	s.draws(true)
}

// A bucket with a debt of centuries is kept by its node, and refuses for that long.
func TestBucketInDeepDebt(t *testing.T) {
	limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 1, Burst: 9}
	const century = 100 * 365 * 24 * time.Hour
	if d := limit.Refill(account.MostBooked); d < century {
		t.Errorf("it refills after %v", d)
	}
	k := Key{Part: Part{Window: 1, Sum: account.MostBooked, LastAnswer: 1, flags: flags{bucket: true}}}
	if k.Full(instant(century), &limit) {
		t.Error("it is dropped within a century")
	}
}

// What counts as no answer: tokens of it are never spent, and the next claim takes them back.
func TestSpecNoAnswer(t *testing.T) {
	for name, g := range map[string]account.Grant{
		"more than was drawn, for a draw came late": {Total: 41, Sum: 41},
		"less, for the record was lost":             {Total: 5, Sum: 5},
		"an error":                                  {Total: 25, Sum: 25, Err: account.ErrOver},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, 100)
			s.says(1, 20)
			s.hears(account.Grant{Total: 20, Sum: 20})
			s.says(1, 5)
			if s.hears(g) {
				t.Error("it counts")
			}
			s.has(20, 0, 20)
			if c := s.says(1, 1); c.Draws() || c.Taken != 20 {
				t.Errorf("%+v", c)
			}
		})
	}
	t.Run("of another epoch", func(t *testing.T) {
		s := newScene(t, 100)
		s.says(1, 20)
		s.q.Epoch.ID = 2
		if s.hears(account.Grant{Total: 20, Sum: 20}) {
			t.Error("it counts")
		}
		s.has(0, 0, 0)
	})
	t.Run("of a young epoch", func(t *testing.T) {
		s := newScene(t, 100)
		s.says(1, 20)
		s.q.Epoch.Ends = 9
		if s.hears(account.Grant{Total: 20, Sum: 20, At: 8}) {
			t.Error("it counts")
		}
		s.has(0, 0, 0)
	})
	t.Run("to an earlier message", func(t *testing.T) {
		s := newScene(t, 100)
		s.says(1, 20)
		first := s.last
		if s.Lost(&first); s.InFlight() {
			t.Error("a lost message is awaited, so that no other is due")
		}
		s.says(1, 3)
		if s.Apply(&first, &account.Grant{Total: 20, Sum: 20}, &Answer{Now: s.q.Now, Epoch: s.q.Epoch}) {
			t.Error("it counts")
		}
		s.has(0, 0, 0)
	})
}

// What lapses is gone, and so is the answer to a claim of before: others may have reclaimed it.
func TestSpecLapse(t *testing.T) {
	s := newScene(t, 100)
	s.says(1, 60)
	s.hears(account.Grant{Total: 60, Sum: 60})
	s.Spent = 3
	s.says(1, 1)
	s.Lapse()
	s.has(3, 3, 0)
	if s.hears(account.Grant{Granted: 1, Total: 61, Sum: 61}) {
		t.Error("the answer to a claim of before the lapse counts")
	}
	s.has(3, 3, 0)
	if c := s.says(1, 1); c.Draws() || c.Taken != 3 || c.Spent != 3 {
		t.Errorf("it says %+v", c)
	}
}

func TestSpecAnswerAfterTheDeadline(t *testing.T) {
	s := newScene(t, 100)
	s.Part.Deadline = s.q.Now.Add(750 * time.Millisecond)
	s.says(1, 60)
	s.hears(account.Grant{Granted: 60, Total: 60, Sum: 60})
	s.has(60, 0, 60)
	s.says(1, 1)
	if s.hearsLater(account.Grant{Granted: 1, Total: 61, Sum: 61}, 760*time.Millisecond) {
		t.Error("it counts")
	}
	s.has(60, 0, 0)
	if c := s.says(1, 1); c.Taken != 0 {
		t.Errorf("it claims %d as its own", c.Taken)
	}
}

// A charge beyond the tokens in hand is reported whole; tokens of the limit confirm it as far as possible.
func TestSpecChargesBeyondTheLimit(t *testing.T) {
	s := newScene(t, 100)
	s.says(1, 10)
	s.hears(account.Grant{Total: 10, Sum: 60})
	s.Spent += 150
	if c := s.says(0, 0); !c.Draws() || c.Want != 140 {
		t.Fatalf("%+v", c)
	}
	s.hears(account.Grant{Total: 150, Sum: 200})
	if s.Taken != 50 || s.Drift() != 100 {
		t.Errorf("taken %d, drift %d", s.Taken, s.Drift())
	}
	if c := s.says(0, 0); c.Draws() || c.Spent != 150 {
		t.Errorf("%+v", c)
	}
	s.hears(account.Grant{Total: 150, Sum: 200})
	if s.Taken != 50 {
		t.Errorf("taken %d", s.Taken)
	}
	s.Refund(30)
	s.says(0, 0)
	old := s.q.Epoch
	s.q.Epoch.Ends = 9
	s.hears(account.Grant{Total: 120, Sum: 70, At: 1})
	if s.q.Epoch = old; s.Taken != 20 {
		t.Errorf("a young epoch confirms: taken %d", s.Taken)
	}
	s.says(0, 0)
	s.hears(account.Grant{Total: 120, Sum: 90}) // others gave back
	if s.Taken != 120 || s.Drift() != 0 {
		t.Errorf("taken %d, drift %d", s.Taken, s.Drift())
	}
}

// Tokens in hand at the end of a lease are the ledger's again: they are not spent in addition to the share.
func TestExpiredHandIsNoDrift(t *testing.T) {
	rule := &ratelimit.Rule{
		Limit:        ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 100, Burst: 100},
		Coordination: ratelimit.DefaultCoordination(),
	}
	e := Entry{&Key{Part: Part{Taken: 45, Spent: 5, booked: 45, Deadline: 1e9, LastAnswer: 1, flags: flags{bucket: true}}}, &Use{}}
	admitted := 0
	for e.SpendShare(2e9, &ratelimit.Ask{Rule: rule, Cost: 1}, 2, &ratelimit.Verdict{}) {
		admitted++
	}
	if admitted != 2 || !e.Unreported() {
		t.Errorf("%d were admitted, of a share of 2; told %v", admitted, !e.Unreported())
	}
}
