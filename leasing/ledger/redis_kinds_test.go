package ledger

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// kind is a kind of rule, as claims see it.
type kind struct {
	name  string
	limit ratelimit.Limit
	set   func(*ratelimit.Claim)
}

func kinds() []kind {
	second := ratelimit.Limit{Unit: ratelimit.Second, Multiplier: 1, Requests: 1_000_000}
	sliding, bucket := second, second
	sliding.Algorithm, bucket.Algorithm, bucket.Burst = ratelimit.SlidingWindow, ratelimit.TokenBucket, 1_000_000
	return []kind{
		{"fixed window", second, func(*ratelimit.Claim) {}},
		{"claimed ahead", second, func(c *ratelimit.Claim) { c.Ahead = true }},
		{"approx", second, func(c *ratelimit.Claim) { c.Tally = true }},
		{"approx, ahead", second, func(c *ratelimit.Claim) { c.Tally, c.Ahead = true, true }},
		{"sliding window", sliding, func(*ratelimit.Claim) {}},
		{"token bucket", bucket, func(*ratelimit.Claim) {}},
		{"eager", second, func(c *ratelimit.Claim) { c.Reclaim = ratelimit.ReclaimEager }},
		{"eager, bucket", bucket, func(c *ratelimit.Claim) { c.Reclaim = ratelimit.ReclaimEager }},
	}
}

// sharers are holders of one key, each of which claims twice in each window: at its
// beginning and halfway. Windows turn all the time.
type sharers struct {
	testing.TB
	redis  *Redis
	now    ledgerTime
	claims []ratelimit.Claim
	grants []ratelimit.Grant
}

func newSharers(t testing.TB, s *redistest.Server, k *kind, holders int) *sharers {
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	w := &sharers{
		TB: t, redis: NewRedis(client, ""), now: 1_700_000_000_000_000, claims: make([]ratelimit.Claim, holders),
		grants: make([]ratelimit.Grant, holders),
	}
	w.redis.GoBy(func() ratelimit.LedgerTime { return w.now })
	for i := range w.claims {
		w.claims[i] = ratelimit.Claim{
			Key: "second|edge|user=1", Limit: k.limit, Holder: ratelimit.Holder(1)<<60 + 2*ratelimit.Holder(i), Waiting: 1, Want: 2,
			TTL: 10 * time.Second, Stretch: k.limit.Algorithm != ratelimit.TokenBucket, Recall: true,
		}
		k.set(&w.claims[i])
	}
	return w
}

func (w *sharers) round() {
	w.Helper()
	w.now += 500_000
	for i := range w.claims {
		c, g := &w.claims[i], &w.grants[i]
		c.Seq++
		c.Window, c.Fence, c.Granted, c.Spent = g.Window, g.Fence, g.Granted, g.Granted
		// Half a second before a window begins, under the name that the window before last had.
		if at := c.Limit.WindowAt(w.now); c.Ahead && c.Limit.WindowAt(w.now+500_000) > at {
			c.Holder ^= 1
			c.Window, c.Fence, c.Granted, c.Spent = at+1, 0, 0, 0
		}
	}
	w.redis.Settle(context.Background(), w.claims, w.grants)
	for i := range w.grants {
		if g := &w.grants[i]; g.Err != nil || g.RetryAfter > 0 {
			w.Fatalf("claim %+v was answered %+v", w.claims[i], *g)
		}
	}
}

// In each kind of rule, a claim reads the account and its own record: what must see all records is
// the first claim in a window, and what finds that a lease has expired.
func TestClaimsTakeTheShortWay(t *testing.T) {
	s := redistest.Start(t)
	for _, k := range kinds() {
		for _, holders := range []int{20, 300} {
			s.Do("FLUSHALL")
			w := newSharers(t, s, &k, holders)
			before := callsOf(t, s, "hgetall")
			w.round()
			if n := callsOf(t, s, "hgetall") - before; n > 2 {
				t.Errorf("%s: of %d new holders %d read all records, and only the first must", k.name, holders, n)
			}
			for range 5 { // they are all known by then
				w.round()
			}
			before = callsOf(t, s, "hgetall")
			const windows = 5
			for range 2 * windows {
				w.round()
			}
			if n := callsOf(t, s, "hgetall") - before; n > 2*windows {
				t.Errorf("%s, %d holders: %d claims read all records %d times in %d windows", k.name, holders, 2*windows*holders, n, windows)
			}
		}
	}
}

// callsOf is how often Redis has run a command, in scripts or not.
func callsOf(t testing.TB, s *redistest.Server, command string) int {
	t.Helper()
	_, after, found := strings.Cut(s.Do("INFO", "commandstats").(string), "cmdstat_"+command+":calls=")
	if !found {
		return 0
	}
	count, _, _ := strings.Cut(after, ",")
	n, err := strconv.Atoi(count)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// What claims cost Redis by the kind of rule, and by how many holders share a key.
//
//	go test -run '^$' -bench RedisKinds ./leasing/ledger
func BenchmarkRedisKinds(b *testing.B) {
	for _, k := range kinds() {
		for _, holders := range []int{3, 100, 1000} {
			b.Run(fmt.Sprintf("%s/holders %d", k.name, holders), func(b *testing.B) {
				s := redistest.Start(b)
				w := newSharers(b, s, &k, holders)
				for range 6 {
					w.round()
				}
				before, n := cpuOf(b, s), 0
				for b.Loop() {
					w.round()
					n += holders
				}
				b.ReportMetric((cpuOf(b, s)-before).Seconds()*1e6/float64(n), "redis-us/claim")
			})
		}
	}
}
