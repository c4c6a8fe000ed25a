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

// What a claim costs Redis, in processor time: claims of keys that are known, in
// pipelines of 100, by how many holders share the key.
//
//	go test -run '^$' -bench RedisClaim ./leasing/ledger
func BenchmarkRedisClaim(b *testing.B) {
	for _, holders := range []int{1, 3, 100, 1000} {
		b.Run(fmt.Sprint("holders ", holders), func(b *testing.B) { benchmarkClaims(b, holders, 100) })
	}
	b.Run("alone", func(b *testing.B) { benchmarkClaims(b, 1, 1) })
	b.Run("new keys", func(b *testing.B) { benchmarkClaims(b, 0, 100) })
}

func benchmarkClaims(b *testing.B, holders, batch int) {
	s := redistest.Start(b)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "")
	const keys = 100
	claims := make([]ratelimit.Claim, keys)
	grants := make([]ratelimit.Grant, keys)
	limit := ratelimit.Limit{Unit: ratelimit.Day, Multiplier: 1, Requests: 1_000_000}
	settle := func() {
		for i := 0; i < keys; i += batch {
			l.Settle(context.Background(), claims[i:i+batch], grants[i:i+batch])
		}
		for i := range claims {
			if grants[i].Err != nil {
				b.Fatal(grants[i].Err)
			}
		}
	}
	for h := range max(1, holders) {
		for i := range claims {
			claims[i] = ratelimit.Claim{
				Key: fmt.Sprint("minute|edge|user=", i), Limit: limit, Holder: ratelimit.Holder(1)<<60 + ratelimit.Holder(h), Seq: 1, Waiting: 1, Want: 2,
				TTL: time.Hour, Stretch: true, Recall: true,
			}
		}
		settle()
	}
	before := cpuOf(b, s)
	n := 0
	for b.Loop() {
		for i := range claims {
			c, g := &claims[i], &grants[i]
			c.Seq++
			c.Window, c.Fence, c.Granted, c.Spent = g.Window, g.Fence, g.Granted, g.Granted
			if holders == 0 {
				c.Key = fmt.Sprint("minute|edge|user=", i, "/", n)
				c.Seq, c.Window, c.Fence, c.Granted, c.Spent = 1, 0, 0, 0, 0
			}
		}
		settle()
		n++
	}
	b.ReportMetric((cpuOf(b, s)-before).Seconds()*1e6/float64(n*keys), "redis-us/claim")
}

// cpuOf is the processor time that Redis has used.
func cpuOf(t testing.TB, s *redistest.Server) time.Duration {
	t.Helper()
	total := 0.0
	for _, line := range strings.Split(s.Do("INFO", "cpu").(string), "\r\n") {
		for _, name := range []string{"used_cpu_sys:", "used_cpu_user:"} {
			if text, ok := strings.CutPrefix(line, name); ok {
				v, err := strconv.ParseFloat(text, 64)
				if err != nil {
					t.Fatal(err)
				}
				total += v
			}
		}
	}
	return time.Duration(total * float64(time.Second))
}

// What round trips cost Redis, in processor time, that come at once when the one before is back, or seldom, so that
// Redis has slept and the caches have other things in them: most trips of a fleet are of the second kind.
//
//	go test -run '^$' -bench RedisTrips -benchtime 2000x ./leasing/ledger
func BenchmarkRedisTrips(b *testing.B) {
	limit := ratelimit.Limit{Unit: ratelimit.Hour, Multiplier: 1, Requests: 60}
	for _, trip := range []struct {
		name         string
		draw, others bool // it is a draw; others have drawn before
		known        bool // the account was settled before
	}{
		{name: "ping"},
		{name: "incrby and expire"}, // what envoyproxy/ratelimit does for a decision
		{name: "time"},
		{name: "draw", draw: true},
		{name: "script, new account"},
		{name: "script, new holder", known: true},
		{name: "script that books what was drawn", others: true},
	} {
		for _, pause := range []time.Duration{0, 3 * time.Millisecond} {
			b.Run(fmt.Sprintf("%s/pause %v", trip.name, pause), func(b *testing.B) {
				s := redistest.Start(b)
				client := s.Client()
				defer client.Close()
				l := NewRedis(client, "")
				settle := func(key int, h ratelimit.Holder, draw bool) {
					c := ratelimit.Claim{
						Key: fmt.Sprint("hour|edge|user=", key), Limit: limit, Holder: h, Seq: 2, Waiting: 1, Want: 2, TTL: 10 * time.Second,
						Stretch: true, Recall: true,
					}
					if draw {
						c.Draw = limit.WindowAt(ledgerTime(time.Now().UnixMicro()))
					}
					var g [1]ratelimit.Grant
					if l.Settle(context.Background(), []ratelimit.Claim{c}, g[:]); g[0].Err != nil || g[0].Drawn != draw {
						b.Fatalf("%+v was answered %+v", c, g[0])
					}
				}
				for i := range b.N {
					if trip.others || trip.known {
						settle(i, 4, trip.others)
					}
				}
				before := cpuOf(b, s)
				b.ResetTimer()
				for i := range b.N {
					switch trip.name {
					case "ping":
						client.Ping(context.Background())
					case "incrby and expire":
						pipe := client.Pipeline()
						pipe.IncrBy(context.Background(), fmt.Sprint("edge_user_", i), 1)
						pipe.Expire(context.Background(), fmt.Sprint("edge_user_", i), time.Hour)
						if _, err := pipe.Exec(context.Background()); err != nil {
							b.Fatal(err)
						}
					case "time":
						client.Time(context.Background())
					default:
						settle(i, 2, trip.draw)
					}
					time.Sleep(pause)
				}
				b.ReportMetric((cpuOf(b, s)-before).Seconds()*1e6/float64(b.N), "redis-us/trip")
			})
		}
	}
}
