package main

import (
	"bufio"
	"bytes"
	goflag "flag" // flag is a function here
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/net/http2"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/redistest/freeport"
	"github.com/sluice-gate/sluice/ratelimit/transport/hostile"
)

// attack is one row of what is done to the ports. It is done again and again, each
// time anew, until the time is over; a process of its own does it (attacker).
type attack struct {
	name string
	once func(at target) error
	// meanwhile, if set, looks at the server in the midst of it.
	meanwhile func(s *sluice) error
}

// target is where a server is attacked: its ports of callers, for gRPC and /json, and that of peers, which has TLS.
type target struct{ rpc, web, peers string }

var attacks = []attack{
	{"headers that unpack to 16 MB", func(at target) error { return hostile.PackedHeaders(at.rpc, 370) }, nil},
	{"unfinished messages of 4 MB", func(at target) error {
		return hostile.Unfinished(hostile.Method, at.rpc, 700, 4<<20, 16<<10, time.Second)
	}, nil},
	{"unfinished messages of 256 KB", func(at target) error {
		return hostile.Unfinished(hostile.Method, at.rpc, 1000, 256<<10, 16<<10, time.Second)
	}, nil},
	{"unfinished messages in frames of a byte", func(at target) error { return hostile.Unfinished(hostile.Method, at.rpc, 150, 60<<10, 1, time.Second) }, nil},
	{"replies nobody reads", func(at target) error { return hostile.Unread(at.rpc, large(), 2*time.Second) }, nil},
	{"replies without a window", func(at target) error { return hostile.Windowless(at.rpc, large(), 2*time.Second) }, nil},
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
		return hostile.Endless(hostile.QuotaMethod, at.rpc, 100, bytes.Repeat(hostile.Message(0, wired(usages())), 20), 16<<10, time.Second)
	}, nil},
	{"4 MB of {} at once", func(at target) error { return posts(at.web, 8, hostile.Empties(4<<20)) }, nil},
	{"256 KB of {} at once", func(at target) error { return posts(at.web, 64, hostile.Empties(250<<10)) }, nil},
	{"300 bodies of 3.9 MB held open", func(at target) error { return bodies(at.web, 300, 39<<20/10) }, nil},
	{"1000 bodies of 255 KB held open", func(at target) error { return bodies(at.web, 1000, 255<<10) }, func(s *sluice) error {
		if code := s.post("k", "x"); code != http.StatusOK {
			return fmt.Errorf("/json answers %d", code)
		}
		return nil
	}},
	{"calls without a path", func(at target) error { return hostile.NoPath(at.rpc, time.Second) }, nil},
	{"calls that never begin", func(at target) error { return hostile.NeverBegin(hostile.Method, at.rpc, 8, time.Second) }, nil},
	{"unfinished calls of 250 connections", func(at target) error { return unfinished(hostile.Method, at.rpc) }, nil},
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
	{"json: bodies that never end", func(at target) error { return bodies(at.web, 250, 1) }, nil},
	{"json: answers that are not read", func(at target) error { return hostile.Unheard(at.web, descriptors(1000), 250, time.Second) }, nil},
	{"json: connections that close", func(at target) error { return hostile.Unheard(at.web, descriptors(1), 0, time.Second) }, nil},
}

// unfinished has 250 connections hold eight calls each for 200 ms that lack their last byte.
func unfinished(method, address string) error {
	var all sync.WaitGroup
	for range 250 {
		all.Go(func() { _ = hostile.Unfinished(method, address, 8, 10, 16<<10, 200*time.Millisecond) })
	}
	all.Wait()
	return nil
}

// descriptors is a request of /json with n of them that rules(...) limits.
func descriptors(n int) string {
	text, err := protojson.Marshal(hostileRequest(n))
	if err != nil {
		panic(err)
	}
	return string(text)
}

// large is a request whose answer is as large as any.
func large() []byte { return wired(hostileRequest(1000)) }

func wired(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// usages is a message of RLQS with as many reports as fit.
func usages() *rlqs.RateLimitQuotaUsageReports {
	u := &rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{BucketId: &rlqs.BucketId{Bucket: map[string]string{"k": "v"}}, NumRequestsAllowed: 1}
	all := slices.Repeat([]*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{u}, 250<<10/(proto.Size(u)+2))
	return &rlqs.RateLimitQuotaUsageReports{Domain: "d", BucketQuotaUsages: all}
}

func posts(web string, n int, body string) error {
	var all sync.WaitGroup
	for range n {
		all.Go(func() { _, _, _ = hostile.Post(web, body) })
	}
	all.Wait()
	return nil
}

func bodies(web string, n, size int) error {
	stop, err := hostile.HalfBodies(web, n, size)
	time.Sleep(500 * time.Millisecond)
	stop()
	return err
}

// hostileRequest has n descriptors that rules(...) limits.
func hostileRequest(n int) *rls.RateLimitRequest {
	q := asking()
	for i := range n {
		q.Descriptors = append(q.Descriptors, descriptor(1, "k", strconv.Itoa(i)))
	}
	return q
}

// attackFor is how long an attack goes on. To judge an honest client takes 400 calls, of which the slowest four are
// beyond the p99.
func attackFor() time.Duration {
	if *attackJudge {
		return 2 * time.Second
	}
	return time.Second
}

// attacker runs an attack in a process of its own, whose CPU time is separate from the honest client's. It
// begins on a signal.
func attacker(name string) {
	i := slices.IndexFunc(attacks, func(a attack) bool { return a.name == name })
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	hostile.Pace(attackShare)
	length, err := time.ParseDuration(os.Getenv("SLUICE_ATTACK_FOR"))
	if err != nil {
		panic(err)
	}
	for end := time.Now().Add(length); time.Now().Before(end); {
		// An early end of an attack is reported, and is no fault: servers end connections.
		if err := attacks[i].once(target{os.Getenv("SLUICE_ATTACK_RPC"), os.Getenv("SLUICE_ATTACK_HTTP"), os.Getenv("SLUICE_ATTACK_PEERS")}); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Printf("sent %d\n", hostile.Sent())
	os.Exit(0)
}

// attackShare is the part of one processor that an attacker may take, and honestRate the calls a second of the honest
// client.
const attackShare, honestRate = 0.5, 200

var attackJudge = goflag.Bool("attack-judge", false, "whether the honest client's p99 is judged: on a machine that does nothing else")

// mostGrowth is how much more memory than a quiet process any attack may cost, in MB.
const mostGrowth = 256

// mostP99 is what an honest client's p99 may be meanwhile.
const mostP99 = 50 * time.Millisecond

// Each row of the attacks on the ports, at a load that earlier ended the process or made it grow by more than
// half a gigabyte. It must grow by less than 256 MB, continue, and answer honest clients.
//
// The time of its answers is logged, and judged with -attack-judge only. Without a judgment, two rows run at the
// same time.
func TestHostilePorts(t *testing.T) {
	for half := range 2 {
		t.Run(fmt.Sprint("half ", half), func(t *testing.T) {
			if !*attackJudge {
				t.Parallel()
			}
			for i := half; i < len(attacks); i += 2 {
				t.Run(attacks[i].name, func(t *testing.T) { hostilePorts(t, attacks[i]) })
			}
		})
	}
}

func hostilePorts(t *testing.T, a attack) {
	file := rulesFile(t, rules(1<<30))
	ports, err := freeport.Find(1)
	if err != nil {
		t.Fatal(err)
	}
	peers := "127.0.0.1:" + ports[0]
	env := []string{
		"DRAIN_TIME=" + hostileDrain.String(), fmt.Sprintf("MAX_MEMORY=%dMiB", hostileMemory),
		"PEERS=static:" + peers, "PEER_ADDR=" + peers, "PEER_SECRET=s3cret-of-the-tests",
	}
	s := serve(t, env, "--config", file)
	s.peers = hostile.TLS(peers)
	ours := s.under(a)
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
	if got := s.post("k", "after"); got != 200 {
		t.Errorf("after it: %d", got)
	}
	s.settles()
	if *attackJudge && a.compared() {
		theirs := plain(t).under(a)
		t.Logf("grpc-go: %v", theirs)
		ours.judge(t, theirs)
	}
	if ends := []string{"headers of 4.3 KB", "pings", "replies nobody reads", "unfinished messages of 4 MB"}; *attackJudge ||
		slices.Contains(ends, a.name) {
		s.endsUnder(a)
	} else {
		s.ends(syscall.SIGKILL)
	}
}

// hostileMemory is the MAX_MEMORY of these tests, in MiB.
const hostileMemory = 512

// settles waits until the process has given back what an attack took: goroutines and descriptors.
func (s *sluice) settles() {
	s.Helper()
	const mostGoroutines, mostSockets, within = 200, 64, 2 * time.Second
	begun := time.Now()
	for s.metric("go_goroutines") > mostGoroutines || s.sockets() > mostSockets {
		if time.Since(begun) > within {
			s.Errorf("%v after the attack it has %d goroutines, and %d descriptors", within, s.metric("go_goroutines"), s.sockets())
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// endsUnder has a node end by SIGTERM while it is attacked: within the time that it has for it, whatever the
// attacker does.
func (s *sluice) endsUnder(a attack) {
	s.Helper()
	cmd, begin := s.attacker(a, nil)
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	_, _ = io.WriteString(begin, "\n")
	// Callers that have not shaken hands: one says nothing, one half of its first frame in two pieces.
	silent, half := s.stranger(), s.stranger()
	defer silent.Close()
	defer half.Close()
	_, _ = io.WriteString(half, http2.ClientPreface+"\x00\x00\x3c\x04")
	time.Sleep(attackFor() / 20)
	_, _ = io.WriteString(half, "\x00\x00\x00\x00\x00")
	time.Sleep(attackFor() / 20)
	s.Signal(syscall.SIGTERM)
	select {
	case err := <-s.exited:
		if err != nil {
			s.Errorf("SIGTERM while it is attacked: %v", err)
		}
	case <-time.After(hostileDrain + graceTime + 2*time.Second):
		s.Errorf("SIGTERM while it is attacked: it goes on after %v", hostileDrain+graceTime+2*time.Second)
		s.ends(syscall.SIGKILL)
	}
}

// stranger is a connection to the gRPC port.
func (s *sluice) stranger() net.Conn {
	s.Helper()
	c, err := net.Dial("tcp", s.rpc)
	if err != nil {
		s.Fatal(err)
	}
	return c
}

// hostileDrain is the DRAIN_TIME of these tests.
const hostileDrain = 100 * time.Millisecond
