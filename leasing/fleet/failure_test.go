package fleet

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
			ledger := &gone{Ledger: account.NewMemory(10, func() ratelimit.LedgerTime { return 1_800_000_000_000_000 })}
			f := New(ledger, account.NewHolder(), 100, clock, time.Now())
			ask := ratelimit.Ask{Rule: rule, Key: []byte("k"), Cost: 1}
			decide := func() ratelimit.Verdict {
				w := waiter{ask: &ask, verdict: new(ratelimit.Verdict)}
				for f.look(now, &w); !w.done; f.look(now, &w) {
					select {
					case fl := <-f.lane.queue:
						f.settle([]*flight{fl})
					default:
						t.Fatal("it waits, and nothing is under way")
					}
				}
				return *w.verdict
			}
			if v := decide(); v.OverLimit || v.Source != ratelimit.FromClaim {
				t.Fatalf("%+v", v)
			}
			_, _, k := f.find(&ask)
			f.shards[f.ShardOf(f.Hash.ID(ask.Key))].mu.Unlock()
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
				f.Undo(now, []ratelimit.Ask{ask}, []ratelimit.Verdict{v})
				if k.Spent != before {
					t.Fatalf("request %d was undone, and %d are spent, %d before", i, k.Spent, before)
				}
			}
		})
	}
}
