package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
	"github.com/sluice-gate/sluice/routing/wire"
)

// memory is what the process has (VmRSS) or had at most (VmHWM), in MB.
func (s *sluice) memory(what string) int {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Fatalf("the process has ended: %v\n%s", err, s.log())
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, what+":"); ok {
			kb, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				s.Fatal(err)
			}
			return kb / 1024
		}
	}
	s.Fatalf("no %s in /proc: %s", what, text)
	return 0
}

// sockets is how many files and connections the process has open.
func (s *sluice) sockets() int {
	s.Helper()
	open, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
	if err != nil {
		s.Fatal(err)
	}
	return len(open)
}

// served is what an honest client had of the server.
type served struct {
	took   []time.Duration // by rising length
	shed   int             // calls that were answered UNAVAILABLE at once
	failed int             // calls that had no answer
	why    error           // one of these
	sent   int             // bytes of the attacker
}

func (v *served) p99() time.Duration { return v.took[len(v.took)*99/100] }

// honest asks at honestRate, over a connection of its own, until ctx is done.
func (s *sluice) honest(ctx context.Context) *served {
	s.Helper()
	client := rls.NewRateLimitServiceClient(s.dial())
	q := hostileRequest(1)
	if _, err := client.ShouldRateLimit(context.Background(), q); err != nil {
		s.Fatal(err)
	}
	var v served
	var mu sync.Mutex // guards v
	var calls sync.WaitGroup
	for due := time.Now(); ctx.Err() == nil; due = due.Add(time.Second / honestRate) {
		// A client that was late makes up for it, so that no time is passed over.
		time.Sleep(time.Until(due))
		calls.Go(func() {
			begun := time.Now()
			bounded, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			_, err := client.ShouldRateLimit(bounded, q)
			mu.Lock()
			defer mu.Unlock()
			v.took = append(v.took, time.Since(begun))
			switch {
			case errors.Is(err, shed.Err):
				v.shed++
			case err != nil:
				v.failed, v.why = v.failed+1, err
			}
		})
	}
	calls.Wait()
	slices.Sort(v.took)
	return &v
}

// attacker is a process that does a row to the server as soon as it reads a line.
func (s *sluice) attacker(a attack, said io.Writer) (cmd *exec.Cmd, begin io.Writer) {
	s.Helper()
	cmd = command([]string{
		"SLUICE_ATTACK=" + a.name, "SLUICE_ATTACK_FOR=" + attackFor().String(),
		"SLUICE_ATTACK_RPC=" + s.rpc, "SLUICE_ATTACK_HTTP=" + s.http, "SLUICE_ATTACK_PEERS=" + s.peers,
	})
	cmd.Stdout, cmd.Stderr = said, said
	begin, err := cmd.StdinPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd, begin
}

// attacked is what an honest client has of the server while a row is done to it.
func (s *sluice) attacked(a attack) *served {
	s.Helper()
	var said bytes.Buffer
	cmd, begin := s.attacker(a, &said)
	ctx, cancel := context.WithCancel(context.Background())
	var ended error
	go func() {
		defer cancel()
		_, _ = io.WriteString(begin, "\n")
		ended = cmd.Wait()
	}()
	looked := make(chan error, 1)
	time.AfterFunc(attackFor()/2, func() {
		if a.meanwhile == nil {
			looked <- nil
			return
		}
		looked <- a.meanwhile(s)
	})
	v := s.honest(ctx)
	if err := <-looked; err != nil {
		s.Errorf("meanwhile: %v", err)
	}
	if ended != nil {
		s.Fatalf("the attacker: %v\n%s", ended, said.String())
	}
	_, text, _ := strings.Cut(said.String(), "sent ")
	v.sent = s.number(strings.TrimSpace(text))
	return v
}

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
