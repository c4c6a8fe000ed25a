package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
	"github.com/sluice-gate/sluice/routing/wire"
)

// plainService is the same services of grpc-go, that answer OK and do nothing else.
type plainService struct {
	rls.UnimplementedRateLimitServiceServer
	rlqs.UnimplementedRateLimitQuotaServiceServer
	wire.UnimplementedPeerServer
}

func (plainService) ShouldRateLimit(_ context.Context, q *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	a := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
	for range q.GetDescriptors() {
		a.Statuses = append(a.Statuses, &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK})
	}
	return a, nil
}

func (plainService) StreamRateLimitQuotas(stream grpc.BidiStreamingServer[rlqs.RateLimitQuotaUsageReports, rlqs.RateLimitQuotaResponse]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

func (plainService) Exchange(stream grpc.BidiStreamingServer[wire.Frame, wire.Frame]) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}

// servePlain is a process with a port of callers and one of peers, as grpc-go serves them, within the bounds of ours.
func servePlain() {
	other := httptest.NewTLSServer(nil) // for its certificate
	certified := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: other.TLS.Certificates}
	open := func(streams uint32, message int, options ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		s := grpc.NewServer(append(options, grpc.MaxConcurrentStreams(streams), grpc.MaxRecvMsgSize(message), grpc.MaxHeaderListSize(8<<10))...)
		rls.RegisterRateLimitServiceServer(s, plainService{})
		rlqs.RegisterRateLimitQuotaServiceServer(s, plainService{})
		wire.RegisterPeerServer(s, plainService{})
		healthpb.RegisterHealthServer(s, health.NewServer())
		go func() { panic(s.Serve(l)) }()
		return l.Addr().String()
	}
	callers := open(1000, 256<<10)
	peers := open(4, 4<<20, grpc.Creds(credentials.NewTLS(certified)))
	fmt.Printf("HTTP on -, gRPC on %s, debug on %s\n", callers, peers)
	select {}
}

// plain starts such a process.
func plain(t *testing.T) *sluice {
	s := start(t, command([]string{"SLUICE_PLAIN=1", "GOMEMLIMIT=" + strconv.Itoa(hostileMemory) + "MiB"}))
	s.peers = hostile.TLS(s.debug)
	return s
}

// compared reports whether grpc-go has what a row is done to. It has no /json, and makes no decisions on requests and
// reports of thousands of keys.
func (a attack) compared() bool {
	decided := []string{"replies nobody reads", "replies without a window", "reports of RLQS"}
	return !strings.HasPrefix(a.name, "json") && !strings.Contains(a.name, "{}") && !strings.Contains(a.name, "bodies") && !slices.Contains(decided, a.name)
}

// outcome is what a row did to a server.
type outcome struct {
	*served
	grew, peak int           // MB of memory
	work       time.Duration // of the processor
}

// under does a row to a server.
func (s *sluice) under(a attack) *outcome {
	s.Helper()
	quiet, work := s.memory("VmRSS"), s.work()
	o := &outcome{served: s.attacked(a)}
	o.peak, o.work = s.memory("VmHWM"), s.work()-work
	o.grew = o.peak - quiet
	return o
}

// work is the processor time of the process so far.
func (s *sluice) work() time.Duration {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.cmd.Process.Pid))
	if err != nil {
		s.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ") // its name may have spaces
	fields := strings.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond
	return time.Duration(s.number(fields[user])+s.number(fields[system])) * tick
}

// perByte is the server's work for a byte of the attacker's, in nanoseconds. The honest client's is in it.
func (o *outcome) perByte() float64 { return float64(o.work) / float64(max(1, o.sent)) }

func (o *outcome) String() string {
	return fmt.Sprintf("p99 %v of %d calls, %d shed, %d failed; %d MB more; %v for %d KB, %.0f ns a byte",
		o.p99().Round(100*time.Microsecond), len(o.took), o.shed, o.failed, o.grew, o.work, o.sent>>10, o.perByte())
}

// judge fails the test if a plain server of grpc-go does better.
func (o *outcome) judge(t *testing.T, plain *outcome) {
	t.Helper()
	if o.shed+o.failed > plain.shed+plain.failed {
		t.Errorf("%d calls were shed or failed, with grpc-go %d", o.shed+o.failed, plain.shed+plain.failed)
	}
	// A node without anything to do differs by as much.
	const alike = 16
	if o.grew > plain.grew+alike {
		t.Errorf("it grew by %d MB, grpc-go by %d", o.grew, plain.grew)
	}
	// The clock of processors has ticks of 10 ms, and the honest client is a part of it.
	if float64(o.work) > 1.25*plain.perByte()*float64(o.sent)+float64(100*time.Millisecond) {
		t.Errorf("a byte took %.0f ns, with grpc-go %.0f", o.perByte(), plain.perByte())
	}
}
