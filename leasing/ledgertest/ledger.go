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
	t.Run("overrides", func(t *testing.T) { overrides(t, open(t), open(t)) })
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
		for kind := account.Kind(0); kind <= account.Draws; kind++ {
			for seq := uint64(1); seq < 4; seq++ {
				c := Claim(fmt.Sprint(name, kind), 0xa00, seq, tokens(seq-1)*5, 5)
				c.Kind, c.Limit = kind, limit
				if limit.Algorithm == ratelimit.TokenBucket {
					c.Window, c.TTL = 0, time.Minute // a full bucket expires after two leases
				}
				g, err := Settle(t, l, c)
				want, failed := Settle(t, memory, c)
				if err != nil || failed != nil || g.Granted != want.Granted || g.Sum != want.Sum ||
					g.Total != want.Total || (g.Err == nil) != (want.Err == nil) {
					t.Errorf("%s, kind %d, message %d: %+v, %v; in memory %+v, %v", name, kind, seq, g, err, want,
						failed)
				}
			}
		}
	}
}

// overrides lets one node set overrides for another: a later version wins, usage continues to count, and lists are in
// the order of names.
func overrides(t *testing.T, l, other account.Ledger) {
	set, ok := l.(account.Overrider)
	reads, _ := other.(account.Overrider)
	if !ok {
		t.Fatal("it keeps no overrides")
	}
	limit, ctx := Year, t.Context()
	limit.Ceiling = 5000
	change := func(key string, o *ratelimit.Override, m ratelimit.Match) (ratelimit.Override, error) {
		return set.SetOverride(ctx, &account.OverrideChange{Key: key, Limit: limit, Override: o, Match: m})
	}
	seq, has := uint64(0), tokens(0)
	grants := func(want tokens, in, removed bool) {
		t.Helper()
		seq++
		c := Claim("over", 0xb00, seq, has, 10_000)
		c.Limit = limit
		c.Need, c.Want = 10_000, 10_000
		g, err := Settle(t, other, c)
		if has += g.Granted; err != nil || g.Err != nil || g.Granted != want ||
			(g.Override != nil) != in || in && g.Override.Removed != removed {
			t.Errorf("granted is %d, not %d: %+v, %v", g.Granted, want, g, err)
		}
	}
	grants(1000, false, false)
	first, err := change("over", &ratelimit.Override{Requests: 1200, By: "ann", Reason: "more"}, ratelimit.Match{})
	if err != nil || first.Set == 0 {
		t.Fatal(first, err)
	}
	grants(200, true, false)
	if is, err := change("over", nil, ratelimit.Match{}); !errors.Is(err, ratelimit.ErrOverrideChanged) || is != first {
		t.Errorf("a change of a missing override: %+v, %v", is, err)
	}
	second, err := change("over", &ratelimit.Override{Unlimited: true}, ratelimit.Match{Set: first.Set})
	if err != nil || second.Set <= first.Set {
		t.Fatal(second, err)
	}
	grants(3800, true, false)
	again := account.OverrideChange{Key: "over", Limit: limit, Override: &first, Again: true}
	if is, err := set.SetOverride(ctx, &again); err != nil || is != second {
		t.Errorf("an older one that is restated: %+v, %v", is, err)
	}
	for _, key := range []string{"list|b", "list|a", "list|c", "list}", "m"} {
		if _, err := change(key, &ratelimit.Override{}, ratelimit.Match{Any: true}); err != nil {
			t.Fatal(key, err)
		}
	}
	var listed []string
	for after, more := "", true; more; {
		page, err := reads.Overrides(ctx, "list|", after, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page {
			listed, after = append(listed, o.Key), o.Key
		}
		more = len(page) > 0
	}
	if fmt.Sprint(listed) != "[list|a list|b list|c]" {
		t.Errorf("listed are %q", listed)
	}
	if _, err = change("over", nil, ratelimit.Match{Any: true}); err != nil {
		t.Fatal(err)
	}
	if is, err := set.SetOverride(ctx, &again); err != nil || is.Set != 0 {
		t.Errorf("a removed one that is restated: %+v, %v", is, err)
	}
	if is, err := reads.Override(ctx, "over"); is.Set != 0 || err != nil {
		t.Errorf("there is %+v, %v", is, err)
	}
	grants(0, true, true)
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
