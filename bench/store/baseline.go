package store

import (
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
)

// Baseline asks Redis for each request, like envoyproxy/ratelimit's fixed window: INCRBY and EXPIRE of a key
// that names the window, in one pipeline, over one of ten connections (its REDIS_POOL_SIZE). It adds
// hits_addend of a descriptor, also if that is 0 or the limit is exceeded already.
type Baseline struct {
	Address, Redis string // HOST:PORT
	Limit          int64
	Window         time.Duration
}

type baseline struct {
	rls.UnimplementedRateLimitServiceServer
	Baseline
	client *redis.Client
}

// ShouldRateLimit implements rls.RateLimitServiceServer.
func (b *baseline) ShouldRateLimit(ctx context.Context, q *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	answer := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	seconds := max(1, int64(b.Window/time.Second))
	start := time.Now().Unix() / seconds * seconds
	for _, d := range q.GetDescriptors() {
		var key strings.Builder
		key.WriteString(q.GetDomain())
		for _, e := range d.GetEntries() {
			key.WriteString("_" + e.GetKey() + "_" + e.GetValue())
		}
		key.WriteString("_" + strconv.FormatInt(start, 10))
		pipe := b.client.Pipeline()
		hits := int64(1)
		if n := d.GetHitsAddend(); n != nil {
			hits = int64(n.GetValue()) //nolint:gosec // at most 1e9 from an Envoy
		}
		used := pipe.IncrBy(ctx, key.String(), hits)
		pipe.Expire(ctx, key.String(), time.Duration(seconds)*time.Second)
		if _, err := pipe.Exec(ctx); err != nil {
			return nil, fmt.Errorf("baseline: %w", err)
		}
		status := &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK, LimitRemaining: uint32(max(0, b.Limit-used.Val()))}
		if used.Val() > b.Limit {
			status.Code, answer.OverallCode = rls.RateLimitResponse_OVER_LIMIT, rls.RateLimitResponse_OVER_LIMIT
		}
		answer.Statuses = append(answer.Statuses, status)
	}
	return answer, nil
}

// Serve serves until ctx is done.
func (b Baseline) Serve(ctx context.Context, out io.Writer) error {
	l, err := net.Listen("tcp", b.Address)
	if err != nil {
		return fmt.Errorf("baseline: %w", err)
	}
	client := redis.NewClient(&redis.Options{Addr: b.Redis, PoolSize: 10})
	defer func() { _ = client.Close() }()
	s := grpc.NewServer()
	rls.RegisterRateLimitServiceServer(s, &baseline{Baseline: b, client: client})
	stop := context.AfterFunc(ctx, s.Stop)
	defer stop()
	fmt.Fprintf(out, "baseline on %s\n", l.Addr())
	return s.Serve(l)
}
