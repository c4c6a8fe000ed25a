package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	goflag "flag" // flag is a function here
	"fmt"
	"io"
	"net"
	"net/http"
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
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

var attackJudge = goflag.Bool("attack-judge", false, "whether the honest client's p99 is judged: on a machine that does nothing else")

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
	length := time.Second
	if *attackJudge { // 400 calls of the honest client, of which the slowest four are beyond the p99
		length *= 2
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
			most := 0
			for end := time.Now().Add(4 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) { // to open them takes a while
				most = max(most, s.sockets())
			}
			if most < 1000 || most > 4096+64 {
				return fmt.Errorf("%d connections are open, and 4096 may be", most)
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
	if name := os.Getenv("SLUICE_ATTACK"); name != "" { // this is the process of an attacker, which begins on a signal
		a := attacks[slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })]
		_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
		hostile.Pace(attackShare)
		at := target{os.Getenv("SLUICE_ATTACK_RPC"), os.Getenv("SLUICE_ATTACK_HTTP"), os.Getenv("SLUICE_ATTACK_PEERS")}
		for end := time.Now().Add(length); time.Now().Before(end); {
			if err := a.once(at); err != nil { // an early end is no fault: servers end connections
				fmt.Println(err)
			}
		}
		fmt.Printf("sent %d\n", hostile.Sent())
		os.Exit(0)
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

// attacked is a node that is attacked.
type attacked struct {
	*sluice
	peers string
}

// attacker is a process that does a row to the server as soon as it reads a line.
func (s *attacked) attacker(t *testing.T, a attack, said io.Writer) (cmd *exec.Cmd, begin io.Writer) {
	t.Helper()
	cmd = command([]string{
		"SLUICE_ATTACK=" + a.name, "SLUICE_ATTACK_RPC=" + s.rpc, "SLUICE_ATTACK_HTTP=" + s.http, "SLUICE_ATTACK_PEERS=" + s.peers, "SLUICE_RUN_MAIN=",
	}, "-test.run=^TestHostilePorts$", fmt.Sprint("-attack-judge=", *attackJudge))
	t.Cleanup(func() { _ = cmd.Process.Kill() })
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
	quiet := s.memory("VmRSS")
	var said bytes.Buffer
	cmd, begin := s.attacker(t, a, &said)
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
	if ended != nil {
		t.Fatalf("the attacker: %v\n%s", ended, said.String())
	}
	_, o.sent, _ = strings.Cut(strings.TrimSpace(said.String()), "sent ")
	o.peak = s.memory("VmHWM")
	o.grew = o.peak - quiet
	return o
}

// outcome is what a row did to a server, and an honest client had of it.
type outcome struct {
	took       []time.Duration // by rising length
	shed       int             // calls that were answered UNAVAILABLE at once
	failed     int             // calls that had no answer
	why        error           // one of these
	sent       string          // bytes of the attacker
	grew, peak int             // MB of memory
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

func (o *outcome) String() string {
	return fmt.Sprintf("p99 %v of %d calls, %d shed, %d failed; %d MB more; the attacker sent %s bytes",
		o.p99().Round(100*time.Microsecond), len(o.took), o.shed, o.failed, o.grew, o.sent)
}

// memory is what the process has (VmRSS) or had at most (VmHWM), in MB.
func (s *attacked) memory(what string) (kb int) {
	s.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.Fatalf("the process has ended: %v\n%s", err, s.log())
	}
	_, rest, _ := strings.Cut(string(text), what+":")
	if _, err := fmt.Sscan(rest, &kb); err != nil {
		s.Fatal(err)
	}
	return kb / 1024
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
	cmd, begin := s.attacker(t, a, nil)
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
