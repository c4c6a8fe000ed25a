package ledgertest

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Ledger tests a ledger. open opens it for each node.
func Ledger(t *testing.T, open func(*testing.T) account.Ledger) {
	t.Run("messages", func(t *testing.T) { messages(t, open(t)) })
	t.Run("contention", func(t *testing.T) { contention(t, open) })
}

// messages settles all kinds of messages, in windows and buckets, here and in memory.
func messages(t *testing.T, l account.Ledger) {
	store := account.NewMemoryStore(func() ratelimit.LedgerTime { return ratelimit.LedgerTime(time.Now().UnixMicro()) })
	memory := Node(store)
	bucket, sliding := Year, Year
	bucket.Algorithm, sliding.Algorithm = ratelimit.TokenBucket, ratelimit.SlidingWindow
	bucket.Burst = bucket.Requests
	for name, limit := range map[string]ratelimit.Limit{"fixed": Year, "sliding": sliding, "bucket": bucket} {
		for _, kind := range []string{"claim", "draw"} {
			for seq := uint64(1); seq < 4; seq++ {
				c := Claim(fmt.Sprint(name, kind), 0xa00, seq, tokens(seq-1)*5, 5)
				c.Limit = limit
				if kind == "draw" {
					c.Seq = 0
				}
				if limit.Algorithm == ratelimit.TokenBucket {
					c.Window = 0
				}
				g, err := Settle(t, l, c)
				want, failed := Settle(t, memory, c)
				if err != nil || failed != nil || g.Granted != want.Granted || g.Sum != want.Sum ||
					g.Total != want.Total || (g.Err == nil) != (want.Err == nil) {
					t.Errorf("%s, a %s, message %d: %+v, %v; in memory %+v, %v", name, kind, seq, g, err, want,
						failed)
				}
			}
		}
	}
}

// contention lets sixteen nodes claim from three accounts: each limit is granted completely, and not exceeded.
func contention(t *testing.T, open func(*testing.T) account.Ledger) {
	const nodes, accounts = 16, 3
	var granted [accounts]atomic.Int64
	var sent, contended atomic.Int64
	var all sync.WaitGroup
	began := time.Now()
	for n := range nodes {
		l := open(t)
		all.Go(func() {
			var has [accounts]tokens
			for seq, full := uint64(1), 0; full < accounts; seq++ {
				claims, grants := make([]account.Claim, accounts), make([]account.Grant, accounts)
				for i := range claims {
					claims[i] = Claim(fmt.Sprint("k", i), ratelimit.Holder(0xa00+n), seq, has[i], 13)
				}
				sent.Add(1)
				if _, _, err := l.Settle(t.Context(), claims, grants); err != nil {
					t.Error(err)
					return
				}
				full = 0
				for i := range grants {
					switch g := &grants[i]; {
					case errors.Is(g.Err, account.ErrContended):
						contended.Add(1)
					case g.Err != nil:
						t.Error(g.Err)
						return
					default:
						has[i] += g.Granted
						granted[i].Add(int64(g.Granted))
						if g.Granted == 0 {
							full++
						}
					}
				}
			}
		})
	}
	all.Wait()
	l := open(t)
	for i := range granted {
		g, err := Settle(t, l, Claim(fmt.Sprint("k", i), 0xfff, 1, 0, 0))
		if err != nil || granted[i].Load() != 1000 || g.Sum != 1000 {
			t.Errorf("account %d: %d granted, %d charged, of 1000: %v", i, granted[i].Load(), g.Sum, err)
		}
	}
	t.Logf("%d messages of three claims by %d nodes in %v; %d claims gave up", sent.Load(), nodes,
		time.Since(began).Round(time.Millisecond), contended.Load())
}
