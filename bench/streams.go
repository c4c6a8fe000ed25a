package bench

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/process"
)

// StreamCost is the cost of streams while another server is called.
type StreamCost struct {
	Sent    float64 `json:"messages_per_second"`
	Answers float64 `json:"answers_per_second"`
	Cores   float64 `json:"cores"`
}

// reporters are streams of the quota service that report in turn, for as long as they live: the messages of
// Envoys, without their decisions.
type reporters struct {
	server        *contender // nil: there are none
	wires         caller.Pool
	streams       []grpc.ClientStream
	reports       [][]byte // of each group of streams
	sent, answers atomic.Int64
	ended         atomic.Pointer[error] // why the server has ended a stream
	stop          context.CancelFunc
	wg            sync.WaitGroup
	// Sums of the time in which others were called.
	spent, took       time.Duration
	sentIn, answersIn int64
}

// sharing is how many streams share their buckets.
const sharing = 100

// perBucket is how many requests each report says of each bucket.
const perBucket = 20

// reportOf is a message about so many buckets; the first has no time passed.
func reportOf(group, buckets int, elapsed time.Duration) []byte {
	m := &rlqs.RateLimitQuotaUsageReports{Domain: "bench"}
	for i := range buckets {
		u := &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqs.BucketId{Bucket: map[string]string{"bucket": fmt.Sprintf("%d-%d", group, i)}}, NumRequestsDenied: 1,
		}
		if elapsed > 0 {
			u.TimeElapsed, u.NumRequestsAllowed, u.NumRequestsDenied = durationpb.New(elapsed), perBucket, 0
		}
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, u)
	}
	return caller.Encoded(m)
}

// openReporters opens streams to a server, and has each send its first report. Each connection has a hundred streams,
// so that what is measured is streams and not connections.
func openReporters(ctx context.Context, server *contender, o *CostOptions) (*reporters, error) {
	ctx, stop := context.WithCancel(ctx)
	r := &reporters{server: server, stop: stop, streams: make([]grpc.ClientStream, o.Streams)}
	for range max(1, o.Streams/sharing) {
		if err := r.wires.Add(server.fleet.Nodes[0].Address, caller.Raw()); err != nil {
			r.close()
			return nil, err
		}
	}
	var opening errgroup.Group
	opening.SetLimit(64)
	every := time.Duration(float64(o.Streams) / o.Reports * float64(time.Second)) // of each stream
	for group := range (o.Streams + sharing - 1) / sharing {
		first := reportOf(group, o.Buckets, 0)
		r.reports = append(r.reports, reportOf(group, o.Buckets, every))
		for i := group * sharing; i < min(o.Streams, (group+1)*sharing); i++ {
			opening.Go(func() error { return r.open(ctx, i, first) })
		}
	}
	if err := opening.Wait(); err != nil {
		r.close()
		return nil, err
	}
	r.wg.Go(func() { r.send(ctx, o.Reports) })
	return r, nil
}

// open opens a stream, and reads its answers.
func (r *reporters) open(ctx context.Context, i int, first []byte) error {
	stream, err := r.wires.Next().NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true},
		rlqs.RateLimitQuotaService_StreamRateLimitQuotas_FullMethodName)
	if err != nil {
		return fmt.Errorf("opening stream %d: %w", i, err)
	}
	if err := stream.SendMsg(first); err != nil {
		return fmt.Errorf("reporting on stream %d: %w", i, err)
	}
	r.streams[i] = stream
	r.wg.Go(func() {
		var answer []byte
		for {
			if err := stream.RecvMsg(&answer); err != nil {
				if ctx.Err() == nil {
					r.ended.Store(&err)
				}
				return
			}
			r.answers.Add(1)
		}
	})
	return nil
}

// err says that a stream has ended: then fewer than were meant to be were measured.
func (r *reporters) err() error {
	if err := r.ended.Load(); err != nil {
		return fmt.Errorf("the server has ended a stream (raise MAX_MEMORY): %w", *err)
	}
	return nil
}

// send has the streams report in turn. A tick is the least for which a goroutine sleeps: streams of
// many Envoys do not report several at once, and what comes at once waits for each other.
func (r *reporters) send(ctx context.Context, perSecond float64) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	began := time.Now()
	for sent := 0; ; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for due := int(time.Since(began).Seconds() * perSecond); sent < due; sent++ {
			i := sent % len(r.streams)
			if r.streams[i].SendMsg(r.reports[i/sharing]) == nil {
				r.sent.Add(1)
			}
		}
	}
}

func (r *reporters) close() {
	r.stop()
	r.wg.Wait()
	r.wires.Close()
}

// meanwhile has a server be called. If that is another one, it measures what the streams take meanwhile.
func (r *reporters) meanwhile(called *contender, call func() error) error {
	if r.server == nil || r.server == called {
		return call()
	}
	sent, answers, began := r.sent.Load(), r.answers.Load(), time.Now()
	spent, err := process.Spent(r.server.fleet, call)
	r.spent += spent
	r.took += time.Since(began)
	r.sentIn += r.sent.Load() - sent
	r.answersIn += r.answers.Load() - answers
	return err
}

func (r *reporters) cost() StreamCost {
	took := r.took.Seconds()
	return StreamCost{Sent: float64(r.sentIn) / took, Answers: float64(r.answersIn) / took, Cores: r.spent.Seconds() / took}
}
