package leasing

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// gone is a ledger that answers as long as it is there.
type gone struct {
	account.Ledger
	away bool
}

var errGone = errors.New("it is gone")

func (g *gone) Settle(
	ctx context.Context, claims []account.Claim, grants []account.Grant,
) (ratelimit.Epoch, ratelimit.LedgerTime, error) {
	if g.away {
		return ratelimit.Epoch{}, 0, errGone
	}
	return g.Ledger.Settle(ctx, claims, grants)
}

// What is admitted without the store is booked, and taken back where it was taken: of this node's own budget, and of
// what is to be told.
func TestUndoWithoutTheStore(t *testing.T) {
	for policy, own := range map[ratelimit.FailurePolicy]tokens{ratelimit.FailLocal: 10, ratelimit.FailOpen: 1000} {
		t.Run(policy.String(), func(t *testing.T) {
			rule := &ratelimit.Rule{
				Domain: "d", Path: "p", Limit: ratelimit.Limit{Unit: ratelimit.Year, Requests: 100},
				Coordination: ratelimit.DefaultCoordination(),
			}
			rule.Coordination.OnStoreFailure = policy
			now := instant(time.Hour)
			clock := func() instant { return now }
			ledger := &gone{Ledger: account.NewMemory(func() ratelimit.LedgerTime { return 1_800_000_000_000_000 })}
			node := NewStepped(account.NewHolder(), 100, clock, time.Now(), func(time.Duration, func()) {},
				func() float64 { return 0.5 })
			ask := ratelimit.Ask{Rule: rule, Key: []byte("k"), Cost: 1}
			decide := func() ratelimit.Verdict { return decided(t, node, ledger, ask) }
			if v := decide(); v.OverLimit || v.Source != ratelimit.FromClaim {
				t.Fatalf("%+v", v)
			}
			s, _, c := node.find(ask.Key)
			s.mu.Unlock()
			k := &c.Val
			ledger.away = true
			for k.InHand(now) > 0 {
				decide()
			}
			before := k.Spent
			for i := range 3 * own {
				v := decide()
				if v.OverLimit || v.Charged != 1 || v.Source != ratelimit.FromFallback || k.Spent != before+1 {
					t.Fatalf("request %d: %+v, spent %d of %d before", i, v, k.Spent, before)
				}
				node.Undo(now, []ratelimit.Ask{ask}, []ratelimit.Verdict{v})
				if k.Spent != before {
					t.Fatalf("request %d was undone, and %d are spent, %d before", i, k.Spent, before)
				}
			}
		})
	}
}

// decided asks a node, and has the ledger answer until it has decided.
func decided(t testing.TB, node *Stepped, ledger account.Ledger, a ratelimit.Ask) ratelimit.Verdict {
	t.Helper()
	verdicts := make([]ratelimit.Verdict, 1)
	w := node.Ask(node.clock(), []ratelimit.Ask{a}, verdicts)
	for w != nil {
		b := node.Batch()
		if b == nil {
			t.Fatal("it waits, and nothing is under way")
		}
		grants := make([]account.Grant, len(b.Claims()))
		epoch, at, err := ledger.Settle(t.Context(), b.Claims(), grants)
		if err != nil {
			b.Fail(err)
		} else {
			b.Answer(epoch, at, grants)
		}
		if !w.Advance(node.clock()) {
			w = nil
		}
	}
	return verdicts[0]
}

// A refund while a window turns, without an answer in time, reports the window of its booking, like a charge.
func TestRefundWithoutTheStoreSaysWhere(t *testing.T) {
	for _, kind := range []ratelimit.Kind{ratelimit.Refund, ratelimit.Spend} {
		s := newStage(t, 1, 100, 100, map[string]string{"on_store_failure": "open"})
		s.ask(0, "k", 5)
		k := s.key(0, "k")
		s.now = s.now.Add(s.rule.Limit.WindowEnd(k.Window).Sub(s.time())) // the window may be over, or not
		spent, verdicts := k.Spent, make([]verdict, 1)
		w := s.nodes[0].Ask(s.now, []ask{{Rule: s.rule, Key: []byte("k"), Cost: 2, Kind: kind}}, verdicts)
		if w == nil {
			t.Fatalf("it is certain which window goes on: %+v", verdicts[0])
		}
		w.TimeOver()
		waits, v := w.Advance(s.now), &verdicts[0]
		if waits || v.Source != ratelimit.FromFallback || v.Booked != k.Window || k.Spent == spent {
			t.Errorf("kind %d: %+v, of window %d, and %d are spent of %d before", kind, v, k.Window, k.Spent, spent)
		}
	}
}

// One that comes before the node's first answer credits no window: that which the answer names may be a later one, of
// which nothing was given back.
func TestRefundBeforeTheFirstAnswer(t *testing.T) {
	s := newStage(t, 2, 100, 100, nil)
	s.ask(0, "k", 30)
	s.overdue(1, ask{Rule: s.rule, Key: []byte("k"), Cost: 30, Kind: ratelimit.Refund})
	s.now = s.now.Add(time.Hour + time.Second) // until it is certain that the window has turned
	for range 100 {
		if v := s.ask(0, "k", 1); v.OverLimit {
			t.Fatalf("%+v", v)
		}
	}
	if v := s.ask(1, "k", 1); !v.OverLimit {
		t.Errorf("101 of 100 are admitted: %+v", v)
	}
}
