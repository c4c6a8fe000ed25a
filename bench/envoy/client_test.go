package envoy

import (
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluice-gate/sluice/ratelimit"
)

// tape keeps what a client sends.
type tape struct {
	refuses bool
	opened  int
	sent    []*rlqs.RateLimitQuotaUsageReports
}

// Open implements Wire.
func (w *tape) Open() bool {
	if !w.refuses {
		w.opened++
	}
	return !w.refuses
}

// Send implements Wire.
func (w *tape) Send(m *rlqs.RateLimitQuotaUsageReports) { w.sent = append(w.sent, m) }

const t0 = ratelimit.Instant(time.Hour)

func at(d time.Duration) ratelimit.Instant { return t0.Add(d) }

var id = map[string]string{"k": "v"}

func client(q Quirks) (*Client, *tape) {
	w := &tape{}
	return New(Options{Domain: "d", Quirks: q}, w), w
}

func give(s *typev3.RateLimitStrategy) *rlqs.RateLimitQuotaResponse { return giveFor(s, time.Hour) }

func giveFor(s *typev3.RateLimitStrategy, ttl time.Duration) *rlqs.RateLimitQuotaResponse {
	x := &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction{
		RateLimitStrategy: s, AssignmentTimeToLive: durationpb.New(ttl),
	}
	return &rlqs.RateLimitQuotaResponse{BucketAction: []*rlqs.RateLimitQuotaResponse_BucketAction{{
		BucketId:     &rlqs.BucketId{Bucket: id},
		BucketAction: &rlqs.RateLimitQuotaResponse_BucketAction_QuotaAssignmentAction_{QuotaAssignmentAction: x},
	}}}
}

func bucketOf(n, fill uint32, every time.Duration) *typev3.RateLimitStrategy {
	return &typev3.RateLimitStrategy{Strategy: &typev3.RateLimitStrategy_TokenBucket{TokenBucket: &typev3.TokenBucket{
		MaxTokens: n, TokensPerFill: wrapperspb.UInt32(fill), FillInterval: durationpb.New(every),
	}}}
}

const year = 365 * 24 * time.Hour

// passes is how many of n requests are allowed.
func passes(c *Client, now ratelimit.Instant, n int) (allowed int) {
	for range n {
		if c.Request(now, id) {
			allowed++
		}
	}
	return allowed
}

// The first report of a bucket is its subscription, is sent at once, and counts the request
// that had no assignment; then all are reported every 5 s, as differences.
func TestReports(t *testing.T) {
	c, w := client(Stock())
	if c.Request(t0, id) {
		t.Error("a request without an assignment passes under DENY_ALL")
	}
	if len(w.sent) != 1 || w.sent[0].Domain != "d" || w.sent[0].BucketQuotaUsages[0].NumRequestsDenied != 1 {
		t.Fatalf("subscribed with %v", w.sent)
	}
	c.Receive(t0, give(bucketOf(2, 1, year)))
	passes(c, at(time.Second), 5)
	c.Tick(at(5900 * time.Millisecond))
	u := w.sent[len(w.sent)-1].BucketQuotaUsages[0]
	if u.NumRequestsAllowed != 2 || u.NumRequestsDenied != 3 || u.TimeElapsed.AsDuration() != 5*time.Second {
		t.Errorf("reported %v", u)
	}
	c.Tick(at(11 * time.Second))
	if u = w.sent[2].BucketQuotaUsages[0]; u.NumRequestsAllowed+u.NumRequestsDenied != 0 {
		t.Errorf("reported again: %v", u)
	}
}

// What was counted while there is no stream is lost; the stream is opened again with the
// next reports, and assignments go on meanwhile.
func TestBrokenStream(t *testing.T) {
	for _, loses := range []bool{true, false} {
		q := Stock()
		q.LosesReports = loses
		c, w := client(q)
		c.Request(t0, id)
		c.Receive(t0, give(bucketOf(4, 1, year)))
		c.Broken()
		w.refuses = true
		if n := passes(c, at(time.Second), 1); n != 1 {
			t.Fatal("the assignment ended with the stream")
		}
		c.Tick(at(5 * time.Second))
		w.refuses = false
		if n := passes(c, at(6*time.Second), 2); n != 2 {
			t.Fatal("the assignment ended with the stream")
		}
		c.Tick(at(10 * time.Second))
		want := uint64(3)
		if loses {
			want = 2
		}
		if got := w.sent[len(w.sent)-1].BucketQuotaUsages[0].NumRequestsAllowed; got != want || w.opened != 2 {
			t.Errorf("loses %t: it reported %d and opened %d streams, want %d and 2", loses, got, w.opened, want)
		}
	}
}

// A client that stood still goes on with an ended lease until it looks at its timers.
func TestStoodStill(t *testing.T) {
	c, _ := client(Stock())
	c.Request(t0, id)
	c.Receive(t0, giveFor(bucketOf(10, 1, year), time.Second))
	if n := passes(c, at(time.Minute), 3); n != 3 {
		t.Errorf("%d of 3 requests pass before it looks", n)
	}
	c.Tick(at(time.Minute))
	if n := passes(c, at(time.Minute), 20); n != 0 {
		t.Errorf("%d requests pass of a lease that has ended", n)
	}
}
