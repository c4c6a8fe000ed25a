package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// A claim that was written just before the node's clock called the epoch young is answered in the young epoch. It stated
// no level: that the bucket was empty is not lost with it.
func TestClaimThatIsOvertakenByAYoungEpoch(t *testing.T) {
	limit := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Year, Multiplier: 1, Requests: 100, Burst: 100}
	now, at := instant(time.Hour), ledgerTime(1_800_000_000_000_000)
	ledger := account.NewMemory(func() ledgerTime { return at })
	k := Entry{&Key{}, &Use{}}
	k.Enter(now, &LedgerClock{At: 1}, &limit)
	var seq uint64
	send := func(need tokens, epoch ratelimit.Epoch, young bool) (account.Claim, bool) {
		var m Message
		seq++
		k.Waits(need)
		c := account.Claim{Key: "k", Limit: limit, Holder: 7, Seq: seq, Need: need}
		k.Write(&m, uint32(seq), c, &Asking{Now: now, Epoch: epoch, Young: young})
		g := make([]account.Grant, 1)
		if _, _, err := ledger.Settle(t.Context(), []account.Claim{m.Claim}, g); err != nil || g[0].Err != nil {
			t.Fatal(err, g[0].Err)
		}
		applied := k.Apply(&m, &g[0], &Answer{Now: now, Epoch: epoch})
		k.Granted = 0
		return m.Claim, applied
	}
	send(100, ratelimit.Epoch{ID: 1}, false) // all of the bucket
	ledger.Lose(nil, "2")
	young := ratelimit.Epoch{ID: 2, Began: at, Ends: at.Add(ratelimit.YoungFor)}
	if _, applied := send(1, young, false); applied {
		t.Fatal("a grant in a young epoch counts")
	}
	if c, _ := send(0, young, true); c.Taken > 1 {
		t.Errorf("the node states a level of at most %d, and the bucket was empty", c.Taken)
	}
}
