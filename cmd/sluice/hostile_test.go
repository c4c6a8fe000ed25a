package main

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	goflag "flag" // flag is a function here
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

var attackJudge = goflag.Bool("attack-judge", false, "whether the honest client's p99 is judged, and memory and work are compared with grpc-go: on a machine that does nothing else")

const (
	mostGrowth    = 256                    // more memory than a quiet process has, which any attack may cost, in MB
	mostP99       = 50 * time.Millisecond  // of an honest client meanwhile
	attackShare   = 0.5                    // of one processor, which an attacker may take
	honestRate    = 200                    // calls of the honest client a second
	hostileMemory = 512                    // MAX_MEMORY, in MiB
	hostileDrain  = 100 * time.Millisecond // DRAIN_TIME
)

// attack is one row of what is done to the ports. It is done again and again, each
// time anew, until the time is over; a process of its own does it.
type attack struct {
	name string
	once func(at target) error
	// meanwhile, if set, looks at the server in the midst of it.
	meanwhile func(s *sluice) error
}

// target is where a server is attacked: its ports of callers, for gRPC and /json, and that of peers,
// which has TLS.
type target struct{ rpc, web, peers string }

// Each row of the attacks on the ports, at a load that earlier ended the process or made it grow by more than
// half a gigabyte. It must grow by less than 256 MB, continue, and answer honest clients.
//
// The time of its answers is logged, and judged with -attack-judge only. Without a judgment, rows run side by side.
func TestHostilePorts(t *testing.T) {
	wired := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		return b
	}
	large := wired(hostileRequest(1000)) // its answer is as large as any
	usage := &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &rlqs.BucketId{Bucket: map[string]string{"k": "v"}}, NumRequestsAllowed: 1}
	reports := wired(&rlqs.RateLimitQuotaUsageReports{ // as many as fit
		Domain: "d", BucketQuotaUsages: slices.Repeat([]*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{usage}, 250<<10/(proto.Size(usage)+2)),
	})
	descriptors := func(n int) string {
		text, err := protojson.Marshal(hostileRequest(n))
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	posts := func(at target, n, size int) error {
		var all sync.WaitGroup
		for range n {
			all.Go(func() { _, _, _ = hostile.Post(at.web, hostile.Empties(size)) })
		}
		all.Wait()
		return nil
	}
	bodies := func(at target, n, size int) error {
		stop, err := hostile.HalfBodies(at.web, n, size)
		time.Sleep(time.Second / 2)
		stop()
		return err
	}
	unfinished := func(at target) error { // eight calls of each connection lack their last byte
		var all sync.WaitGroup
		for range 250 {
			all.Go(func() { _ = hostile.Unfinished(hostile.Method, at.rpc, 8, 10, 16<<10, time.Second/5) })
		}
		all.Wait()
		return nil
	}
	attacks := []attack{
		{"headers that unpack to 16 MB", func(at target) error { return hostile.PackedHeaders(at.rpc, 370) }, nil},
		{"unfinished messages of 4 MB", func(at target) error {
			return hostile.Unfinished(hostile.Method, at.rpc, 700, 4<<20, 16<<10, time.Second)
		}, nil},
		{"unfinished messages of 256 KB", func(at target) error {
			return hostile.Unfinished(hostile.Method, at.rpc, 1000, 256<<10, 16<<10, time.Second)
		}, nil},
		{"unfinished messages in frames of a byte", func(at target) error { return hostile.Unfinished(hostile.Method, at.rpc, 150, 60<<10, 1, time.Second) }, nil},
		{"replies nobody reads", func(at target) error { return hostile.Unread(at.rpc, large, 2*time.Second) }, nil},
		{"replies without a window", func(at target) error { return hostile.Windowless(at.rpc, large, 2*time.Second) }, nil},
		{"gzip bombs", func(at target) error { return hostile.Bombs(at.rpc, time.Second) }, nil},
		{"6000 silent connections", func(at target) error {
			done, err := hostile.Silent(at.rpc, 6000)
			time.Sleep(time.Second)
			done()
			return err
		}, func(s *sluice) error {
			if !becomes(func() bool { return s.sockets() <= 4096+32 }) {
				return fmt.Errorf("%d connections are open, and 4096 may be", s.sockets())
			}
			return nil
		}},
		{"headers of 4.3 KB", func(at target) error { return hostile.Headers(at.rpc, 4, 4300, time.Second) }, nil},
		{"pings", func(at target) error { return hostile.Frames(at.rpc, 4, hostile.Pings, time.Second) }, nil},
		{"priorities", func(at target) error { return hostile.Frames(at.rpc, 4, hostile.Priorities, time.Second) }, nil},
		{"settings", func(at target) error { return hostile.Frames(at.rpc, 4, hostile.Settings, time.Second) }, nil},
		{"empty data", func(at target) error { return hostile.Frames(at.rpc, 4, hostile.EmptyData, time.Second) }, nil},
		{"windows", func(at target) error { return hostile.Frames(at.rpc, 4, hostile.Windows, time.Second) }, nil},
		{"reports of RLQS", func(at target) error {
			return hostile.Endless(hostile.QuotaMethod, at.rpc, 100, bytes.Repeat(hostile.Message(0, reports), 20), 16<<10, time.Second)
		}, nil},
		{"4 MB of {} at once", func(at target) error { return posts(at, 8, 4<<20) }, nil},
		{"256 KB of {} at once", func(at target) error { return posts(at, 64, 250<<10) }, nil},
		{"300 bodies of 3.9 MB held open", func(at target) error { return bodies(at, 300, 39<<20/10) }, nil},
		{"1000 bodies of 255 KB held open", func(at target) error { return bodies(at, 1000, 255<<10) }, func(s *sluice) error {
			if code, said, err := hostile.Post(s.http, descriptors(1)); code != http.StatusOK {
				return fmt.Errorf("/json answers %d %s %w", code, said, err)
			}
			return nil
		}},
		{"calls without a path", func(at target) error { return hostile.NoPath(at.rpc, time.Second) }, nil},
		{"calls that never begin", func(at target) error { return hostile.NeverBegin(hostile.Method, at.rpc, 8, time.Second) }, nil},
		{"unfinished calls of 250 connections", func(at target) error { return unfinished(at) }, nil},
		{"answers that find no window", func(at target) error {
			return hostile.NeverTaken(hostile.Method, at.rpc, 8, wired(hostileRequest(1)), time.Second)
		}, nil},
		{"health watches of connections that close", func(at target) error { return hostile.Leave(hostile.WatchMethod, at.rpc, 60, time.Second) }, nil},
		{"health checks", func(at target) error { return hostile.Calls(hostile.CheckMethod, at.rpc, 64, nil, time.Second) }, nil},
		{"RLQS streams of connections that close", func(at target) error { return hostile.Leave(hostile.QuotaMethod, at.rpc, 60, time.Second) }, nil},
		{"windows of a thousand calls", func(at target) error { return hostile.Rewindow(hostile.QuotaMethod, at.rpc, 1, time.Second) }, nil},
		{"peers: calls without a path", func(at target) error { return hostile.NoPath(at.peers, time.Second) }, nil},
		{"peers: calls that never begin", func(at target) error { return hostile.NeverBegin(hostile.PeerMethod, at.peers, 8, time.Second) }, nil},
		{"peers: streams of connections that close", func(at target) error { return hostile.Leave(hostile.PeerMethod, at.peers, 60, time.Second) }, nil},
		{"peers: windows of open calls", func(at target) error { return hostile.Rewindow(hostile.PeerMethod, at.peers, 1, time.Second) }, nil},
		{"json: bodies that never end", func(at target) error { return bodies(at, 250, 1) }, nil},
		{"json: answers that are not read", func(at target) error { return hostile.Unheard(at.web, descriptors(1000), 250, time.Second) }, nil},
		{"json: connections that close", func(at target) error { return hostile.Unheard(at.web, descriptors(1), 0, time.Second) }, nil},
	}
	if name := os.Getenv("SLUICE_ATTACK"); name != "" {
		does(attacks[slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })])
	}
	if os.Getenv("SLUICE_PLAIN") != "" {
		servePlain()
	}
	length := time.Second
	if *attackJudge { // 400 calls of the honest client, of which the slowest four are beyond the p99
		length *= 2
	}
	lanes := 3
	for lane := range lanes {
		t.Run(fmt.Sprint("lane ", lane), func(t *testing.T) {
			if !*attackJudge {
				t.Parallel()
			}
			for i := lane; i < len(attacks); i += lanes {
				t.Run(attacks[i].name, func(t *testing.T) {
					a, peers := attacks[i], "127.0.0.1:"+freePort(t)
					env := []string{
						"DRAIN_TIME=" + hostileDrain.String(), fmt.Sprintf("MAX_MEMORY=%dMiB", hostileMemory),
						"PEERS=static:" + peers, "PEER_ADDR=" + peers, "PEER_SECRET=s3cret-of-the-tests",
					}
					s := &attacked{serve(t, env, "--config", rulesFile(t, rules(1<<30))), hostile.TLS(peers)}
					ours := s.under(t, a, length)
					t.Logf("%v", ours)
					if *attackJudge && (ours.p99() > mostP99 || ours.shed > 0) {
						t.Errorf("the p99 is over %v, or calls were shed", mostP99)
					}
					if ours.grew > mostGrowth || ours.peak > hostileMemory*6/5 {
						t.Errorf("it grew by %d to %d MB", ours.grew, ours.peak)
					}
					if ours.failed > 0 {
						t.Errorf("%d of %d honest calls had no answer: %v", ours.failed, len(ours.took), ours.why)
					}
					if !s.admits(1, "k", "after") {
						t.Error("after it, a call is refused")
					}
					const mostGoroutines, mostSockets, within = 200, 64, 2 * time.Second
					for begun := time.Now(); s.metric("go_goroutines") > mostGoroutines || s.sockets() > mostSockets; time.Sleep(20 * time.Millisecond) {
						if time.Since(begun) > within {
							t.Fatalf("%v after the attack it has %d goroutines, and %d descriptors", within, s.metric("go_goroutines"), s.sockets())
						}
					}
					// grpc-go has no /json, and makes no decisions on requests and reports of thousands of keys.
					apart := strings.Contains(a.name, "json") || strings.Contains(a.name, "{}") || strings.Contains(a.name, "bodies") ||
						strings.HasPrefix(a.name, "replies") || a.name == "reports of RLQS"
					if *attackJudge && !apart {
						plain := &attacked{sluice: start(t, helper(t, "SLUICE_PLAIN=1", "GOMEMLIMIT="+strconv.Itoa(hostileMemory)+"MiB"))}
						plain.peers = hostile.TLS(plain.debug)
						ours.judge(t, plain.under(t, a, length))
					}
					if *attackJudge || a.name == "replies nobody reads" || a.name == "pings" { // it takes graceTime
						s.endsUnder(t, a, length)
					} else {
						s.ends(syscall.SIGKILL)
					}
				})
			}
		})
	}
}

// hostileRequest has n descriptors that rules(...) limits.
func hostileRequest(n int) *rls.RateLimitRequest {
	q := asking()
	for i := range n {
		q.Descriptors = append(q.Descriptors, descriptor(1, "k", strconv.Itoa(i)))
	}
	return q
}

// helper is a process of TestHostilePorts, whose CPU time is separate from the honest client's.
func helper(t *testing.T, env ...string) *exec.Cmd {
	cmd := command(append(env, "SLUICE_RUN_MAIN="), "-test.run=^TestHostilePorts$")
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	return cmd
}

// does an attack, from a signal on.
func does(a attack) {
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	hostile.Pace(attackShare)
	length, err := time.ParseDuration(os.Getenv("SLUICE_ATTACK_FOR"))
	if err != nil {
		panic(err)
	}
	at := target{os.Getenv("SLUICE_ATTACK_RPC"), os.Getenv("SLUICE_ATTACK_HTTP"), os.Getenv("SLUICE_ATTACK_PEERS")}
	for end := time.Now().Add(length); time.Now().Before(end); {
		if err := a.once(at); err != nil { // an early end is no fault: servers end connections
			fmt.Println(err)
		}
	}
	fmt.Printf("sent %d\n", hostile.Sent())
	os.Exit(0)
}

// attacked is a node, or a server of grpc-go, that is attacked.
type attacked struct {
	*sluice
	peers string
}

// attacker is a process that does a row to the server as soon as it reads a line.
func (s *attacked) attacker(t *testing.T, a attack, length time.Duration, said io.Writer) (cmd *exec.Cmd, begin io.Writer) {
	t.Helper()
	cmd = helper(t, "SLUICE_ATTACK="+a.name, "SLUICE_ATTACK_FOR="+length.String(),
		"SLUICE_ATTACK_RPC="+s.rpc, "SLUICE_ATTACK_HTTP="+s.http, "SLUICE_ATTACK_PEERS="+s.peers)
	cmd.Stdout, cmd.Stderr = said, said
	begin, err := cmd.StdinPipe()
	if err := errors.Join(err, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	return cmd, begin
}

// under does a row to a server, and returns what an honest client has of it meanwhile.
func (s *attacked) under(t *testing.T, a attack, length time.Duration) *outcome {
	t.Helper()
	quiet, work := s.memory("VmRSS"), s.work()
	var said bytes.Buffer
	cmd, begin := s.attacker(t, a, length, &said)
	ctx, cancel := context.WithCancel(context.Background())
	var ended error
	go func() {
		defer cancel()
		_, _ = io.WriteString(begin, "\n")
		ended = cmd.Wait()
	}()
	looked := make(chan error, 1)
	time.AfterFunc(length/2, func() {
		if a.meanwhile == nil {
			looked <- nil
			return
		}
		looked <- a.meanwhile(s.sluice)
	})
	o := s.honest(ctx)
	if err := <-looked; err != nil {
		t.Errorf("meanwhile: %v", err)
	}
	_, sent, _ := strings.Cut(strings.TrimSpace(said.String()), "sent ")
	n, err := strconv.Atoi(sent)
	if err := errors.Join(ended, err); err != nil {
		t.Fatalf("the attacker: %v\n%s", err, said.String())
	}
	o.sent, o.peak, o.work = n, s.memory("VmHWM"), s.work()-work
	o.grew = o.peak - quiet
	return o
}

// outcome is what a row did to a server, and an honest client had of it.
type outcome struct {
	took       []time.Duration // by rising length
	shed       int             // calls that were answered UNAVAILABLE at once
	failed     int             // calls that had no answer
	why        error           // one of these
	sent       int             // bytes of the attacker
	grew, peak int             // MB of memory
	work       time.Duration   // of the processor
}

// honest asks at honestRate, over a connection of its own, until ctx is done.
func (s *attacked) honest(ctx context.Context) *outcome {
	s.Helper()
	client := rls.NewRateLimitServiceClient(s.dial())
	q := hostileRequest(1)
	if _, err := client.ShouldRateLimit(context.Background(), q); err != nil {
		s.Fatal(err)
	}
	var o outcome
	var mu sync.Mutex // guards o
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
			o.took = append(o.took, time.Since(begun))
			if errors.Is(err, shed.Err) {
				o.shed++
			} else if err != nil {
				o.failed++
				o.why = err
			}
		})
	}
	calls.Wait()
	slices.Sort(o.took)
	return &o
}

func (o *outcome) p99() time.Duration { return o.took[len(o.took)*99/100] }

// perByte is the server's work for a byte of the attacker's, in nanoseconds. The honest client's is in it.
func (o *outcome) perByte() float64 { return float64(o.work) / float64(max(1, o.sent)) }

func (o *outcome) String() string {
	return fmt.Sprintf("p99 %v of %d calls, %d shed, %d failed; %d MB more; %v for %d KB, %.0f ns a byte",
		o.p99().Round(100*time.Microsecond), len(o.took), o.shed, o.failed, o.grew, o.work, o.sent>>10, o.perByte())
}

// judge fails the test if a plain server of grpc-go does better.
func (o *outcome) judge(t *testing.T, plain *outcome) {
	t.Helper()
	t.Logf("grpc-go: %v", plain)
	if o.shed+o.failed > plain.shed+plain.failed {
		t.Errorf("%d calls were shed or failed, with grpc-go %d", o.shed+o.failed, plain.shed+plain.failed)
	}
	const alike = 16 // a node without anything to do differs by as much
	if o.grew > plain.grew+alike {
		t.Errorf("it grew by %d MB, grpc-go by %d", o.grew, plain.grew)
	}
	// The clock of processors has ticks of 10 ms, and the honest client is a part of it.
	if float64(o.work) > 1.25*plain.perByte()*float64(o.sent)+float64(100*time.Millisecond) {
		t.Errorf("a byte took %.0f ns, with grpc-go %.0f", o.perByte(), plain.perByte())
	}
}

// servePlain is a process with a port of callers and one of peers, as grpc-go serves them, within the bounds of ours. It
// answers decisions with OK, reads what streams bring, and does nothing else.
func servePlain() {
	serves := func(_ any, stream grpc.ServerStream) error {
		if name, _ := grpc.MethodFromServerStream(stream); name != rls.RateLimitService_ShouldRateLimit_FullMethodName {
			for {
				if err := stream.RecvMsg(new(emptypb.Empty)); err != nil {
					return err
				}
			}
		}
		var q rls.RateLimitRequest
		if err := stream.RecvMsg(&q); err != nil {
			return err
		}
		a := &rls.RateLimitResponse{OverallCode: rls.RateLimitResponse_OK}
		for range q.Descriptors {
			a.Statuses = append(a.Statuses, &rls.RateLimitResponse_DescriptorStatus{Code: rls.RateLimitResponse_OK})
		}
		return stream.SendMsg(a)
	}
	open := func(streams uint32, message int, options ...grpc.ServerOption) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			panic(err)
		}
		s := grpc.NewServer(append(options, grpc.MaxConcurrentStreams(streams), grpc.MaxRecvMsgSize(message),
			grpc.MaxHeaderListSize(8<<10), grpc.UnknownServiceHandler(serves))...)
		go func() { panic(s.Serve(l)) }()
		return l.Addr().String()
	}
	other := httptest.NewTLSServer(nil) // for its certificate
	certified := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: other.TLS.Certificates}
	callers := open(1000, 256<<10)
	peers := open(4, 4<<20, grpc.Creds(credentials.NewTLS(certified)))
	fmt.Printf("HTTP on -, gRPC on %s, debug on %s\n", callers, peers)
	select {}
}

// proc is a file of the kernel about the process.
func (s *attacked) proc(name string) string {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", s.cmd.Process.Pid, name))
	if err != nil {
		s.Fatalf("the process has ended: %v\n%s", err, s.log())
	}
	return string(text)
}

// memory is what the process has (VmRSS) or had at most (VmHWM), in MB.
func (s *attacked) memory(what string) (kb int) {
	s.Helper()
	_, rest, _ := strings.Cut(s.proc("status"), what+":")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		s.Fatal(err)
	}
	return kb / 1024
}

// work is the processor time of the process so far.
func (s *attacked) work() time.Duration {
	s.Helper()
	_, rest, _ := strings.Cut(s.proc("stat"), ") ") // its name may have spaces
	const user, system, tick = 11, 12, 10 * time.Millisecond
	fields := strings.Fields(rest)
	ticks := 0
	for _, field := range []int{user, system} {
		n, err := strconv.Atoi(fields[field])
		if err != nil {
			s.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
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

// endsUnder has a node end by SIGTERM while it is attacked: within the time that it has for it, whatever the
// attacker does.
func (s *attacked) endsUnder(t *testing.T, a attack, length time.Duration) {
	t.Helper()
	cmd, begin := s.attacker(t, a, length, nil)
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	_, _ = io.WriteString(begin, "\n")
	// Callers that have not shaken hands: one says nothing, one half of its first frame in two pieces.
	for _, half := range []bool{false, true} {
		c, err := net.Dial("tcp", s.rpc)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if half {
			_, _ = io.WriteString(c, http2.ClientPreface+"\x00\x00\x3c\x04")
			time.Sleep(length / 20)
			_, _ = io.WriteString(c, "\x00\x00\x00\x00\x00")
			time.Sleep(length / 20)
		}
	}
	s.Signal(syscall.SIGTERM)
	const within = hostileDrain + graceTime + 2*time.Second
	select {
	case err := <-s.exited:
		if err != nil {
			t.Errorf("SIGTERM while it is attacked: %v", err)
		}
	case <-time.After(within):
		t.Errorf("SIGTERM while it is attacked: it goes on after %v", within)
		s.ends(syscall.SIGKILL)
	}
}
