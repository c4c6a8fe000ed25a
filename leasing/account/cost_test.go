package account

import (
	"fmt"
	"testing"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// An account takes little of Redis' memory: a hash that Redis packs while it has few holders.
//
//	go test -v -run TestAccountInRedisIsSmall ./leasing/account
func TestAccountInRedisIsSmall(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	r := newLive(t, client, daily(1_000_000))
	for _, c := range []struct {
		holders, claimed int
		most             int64 // bytes, with the account's name
	}{{1, 0, 200}, {3, 0, 240}, {3, 1, 400}, {3, 3, 620}, {10, 10, 1600}} {
		key := fmt.Sprint("day|edge|user=", c.holders, ".", c.claimed)
		for h := range c.holders {
			holder := NewHolder()
			r.settle(r.draw(key, holder, 50_000))
			if h < c.claimed {
				claim := r.claim(key, holder, 1, 1)
				claim.Taken, claim.Spent = 50_000, 40_000
				r.settle(claim)
			}
		}
		used, err := client.MemoryUsage(t.Context(), "t:{"+key+"}"+fmt.Sprint(int64(r.window))).Result()
		if err != nil || used > c.most {
			t.Errorf("%d holders, %d of which have claimed: %d bytes, more than %d (%v)", c.holders, c.claimed, used, c.most, err)
		}
		t.Logf("%d holders, %d of which have claimed: %d bytes", c.holders, c.claimed, used)
	}
}
