package account

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// epochName is the name of the epoch of tests' ledgers on one server.
const epochName = "t:" + EpochName

func (m *moved) epochs(t *testing.T) ratelimit.Epoch {
	t.Helper()
	e, _, err := m.Settle(t.Context(), nil, nil)
	if err != nil || e.ID == 0 {
		t.Fatal(e, err)
	}
	return e
}

// another is a second node of the same Redis.
func another(t *testing.T, s *redistest.Server, now instant) *moved {
	m := newMoved(t, s)
	m.now = now
	return m
}

// A first epoch begins old. A node that has read another makes it young, if it began less than that ago.
func TestEpochBegins(t *testing.T) {
	s := redistest.Shared(t)
	m := another(t, s, epochAt)
	first := m.epochs(t)
	if first.Began != m.now || first.Ends != 0 {
		t.Errorf("the first is %+v", first)
	}
	m.now = m.now.Add(time.Minute)
	if e := m.epochs(t); e != first {
		t.Errorf("%+v, and it was %+v", e, first)
	}
	s.Do("FLUSHALL")
	late := another(t, s, m.now)
	if e := late.epochs(t); e.Began != m.now || e.Ends != 0 {
		t.Errorf("a process that knew nothing begins %+v", e)
	}
	m.now = m.now.Add(time.Second)
	if e := m.epochs(t); e.ID == first.ID || e.Ends != m.now.Add(ratelimit.YoungFor) {
		t.Errorf("who knew another finds %+v", e)
	}
	late.now = m.now
	if e := late.epochs(t); !e.Young(late.now) {
		t.Errorf("it is young for all, and that is %+v", e)
	}
	s.Do("FLUSHALL")
	if e := m.epochs(t); !e.Young(m.now) {
		t.Errorf("who knew another begins %+v", e)
	}
	s.Do("SET", "t:"+EpochName, "what is this")
	very := another(t, s, m.now)
	if e := very.epochs(t); e.Ends != 0 {
		t.Errorf("beside another form it begins %+v", e)
	}
	m.now = m.now.Add(ratelimit.YoungFor)
	if e := m.epochs(t); e.Ends != 0 {
		t.Errorf("two seconds later, who knew another finds %+v", e)
	}
}

// The redis-servers of tests have an old epoch: tests do not wait for it.
func TestStartedRedisHasAnOldEpoch(t *testing.T) {
	client := redistest.Shared(t).Client()
	defer client.Close()
	l, err := NewRedis(client, "")
	if err != nil {
		t.Fatal(err)
	}
	if e, err := l.Verify(t.Context()); err != nil || e.Began > 1 {
		t.Errorf("%+v, %v", e, err)
	}
}

// Who has something to state prolongs the youth while it goes on, until the epoch is ten seconds old. An end from before
// a clock was set back is none. A clock that is behind does not bring it forward.
func TestEpochIsProlonged(t *testing.T) {
	s := redistest.Shared(t)
	m := another(t, s, epochAt)
	memory := NewMemory(func() ratelimit.LedgerTime { return m.now })
	_, _ = memory.Verify(t.Context())
	m.epochs(t)
	memory.Lose(nil, "7")
	s.Do("FLUSHALL")
	step := func(by time.Duration, tell bool, want instant, young bool) {
		t.Helper()
		m.now = m.now.Add(by)
		for what, l := range map[string]Ledger{"memory": memory, "Redis": m} {
			if tell {
				if _, err := l.(interface {
					Prolong(context.Context) (ratelimit.Epoch, error)
				}).Prolong(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if e, _, err := l.Settle(t.Context(), nil, nil); err != nil || e.Ends != want || e.Young(m.now) != young {
				t.Errorf("%s at %d: %+v, %v, want it to be young until %d: %v", what, m.now, e, err, want, young)
			}
		}
	}
	step(0, false, epochAt.Add(2*time.Second), true)
	step(time.Second, false, epochAt.Add(2*time.Second), true)
	step(0, true, epochAt.Add(3*time.Second), true)
	step(-time.Hour, true, epochAt.Add(3*time.Second), false)
	step(time.Hour, true, epochAt.Add(3*time.Second), true)
	step(-time.Second, true, epochAt.Add(3*time.Second), true)
	step(-5*time.Second, true, epochAt.Add(3*time.Second), true)
	step(6*time.Second, true, epochAt.Add(3*time.Second), true)
	for at := 2; at < 10; at++ {
		step(time.Second, true, epochAt.Add(time.Duration(at+2)*time.Second), true)
	}
	step(time.Second, true, epochAt.Add(11*time.Second), true)
	step(time.Second, true, epochAt.Add(11*time.Second), false)
}

// An epoch that names another run is not this server's; nor is one of another replication, if the server was a replica
// since.
func TestEpochOfAnotherServer(t *testing.T) {
	s := redistest.Shared(t)
	m := another(t, s, epochAt)
	first := m.epochs(t)
	value := s.Do("GET", epochName).(string)
	fields := strings.Fields(value)
	put := func(run, replid string) {
		s.Do("SET", epochName, strings.Join([]string{fields[0], fields[1], fields[2], run, replid}, " "))
	}
	put(fields[3], strings.Repeat("a", 40))
	if e, err := m.Verify(t.Context()); err != nil || e != first {
		t.Errorf("its first replica has come: %+v, %v", e, err)
	}
	put(strings.Repeat("a", 40), fields[4])
	second := m.epochs(t) // seen with the messages, for the connection has another name
	if second.ID == first.ID || second.Ends != m.now.Add(ratelimit.YoungFor) {
		t.Errorf("%+v", second)
	}
	fields = strings.Fields(s.Do("GET", epochName).(string))
	put("-", "-")
	if e := m.epochs(t); e.ID != second.ID {
		t.Errorf("that of a server that did not say who it is: %+v", e)
	}
}

// restarted is a server that comes back with its data of before: the connections' names tell.
func TestEpochAfterARestart(t *testing.T) {
	s := redistest.Start(t)
	m := another(t, s, epochAt)
	first := m.epochs(t)
	value := s.Do("GET", epochName)
	s.Kill()
	if _, _, err := m.Settle(t.Context(), nil, nil); err == nil {
		t.Error("a dead server told its epoch")
	}
	s.Run()
	s.Do("SET", epochName, value)
	if e := m.epochs(t); e.ID == first.ID || !e.Young(m.now) {
		t.Errorf("%+v, and it was %+v", e, first)
	}
}

// A master that was a replica for a moment goes on with what the other had, on connections that were kept.
func TestEpochAfterAFailoverAndBack(t *testing.T) {
	a, b := redistest.Start(t, "--repl-diskless-sync-delay", "0"), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	m := another(t, a, epochAt)
	first := m.epochs(t)
	replicate := func(of, from *redistest.Server) {
		host, port, _ := net.SplitHostPort(from.Addr)
		of.Do("REPLICAOF", host, port)
		of.UntilInfo("replication", "master_link_status:up")
	}
	replicate(b, a)
	if e, err := m.Verify(t.Context()); err != nil || e != first {
		t.Errorf("a replica has come: %+v, %v", e, err)
	}
	b.Do("REPLICAOF", "NO", "ONE")
	replicate(a, b)
	g := make([]Grant, 1)
	l := fixed(10)
	c := Claim{Key: "k", Window: l.WindowAt(m.now), Limit: l, Holder: 1, Seq: 1, Want: 1, Need: 1}
	if _, _, err := m.Settle(t.Context(), []Claim{c}, g); err == nil && g[0].Err == nil {
		t.Error("a replica settled a claim")
	}
	a.Do("REPLICAOF", "NO", "ONE")
	// What it answered as a replica has it looked at without waiting for a heartbeat.
	if e := m.epochs(t); e.ID == first.ID {
		t.Errorf("%+v", e)
	}
	second := m.epochs(t)
	replicate(a, b)
	if e, _, err := m.Settle(t.Context(), nil, nil); err == nil {
		t.Errorf("a replica told its epoch: %+v", e)
	}
	a.Do("REPLICAOF", "NO", "ONE")
	third := m.epochs(t)
	if third.ID == second.ID {
		t.Errorf("%+v", third)
	}
	// No message saw it as a replica.
	replicate(a, b)
	a.Do("REPLICAOF", "NO", "ONE")
	if e := m.epochs(t); e.ID == third.ID {
		t.Errorf("%+v", e)
	}
}

// If the connections of a client end at two servers that both have the data, a message counts for the known epoch
// only if the epoch's server settled it.
func TestConnectionsToTwoServers(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	to := a.Addr
	client := redis.NewClient(&redis.Options{
		MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolFIFO: true, PoolSize: 3,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, to)
		},
	})
	r := newLive(t, client, daily(100))
	first, _, err := r.Settle(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	b.Do("SET", epochName, a.Do("GET", epochName)) // b is a replica of a that was promoted
	blocked := make(chan struct{})
	go func() { // has the connection to a, so that another one is dialled
		defer close(blocked)
		pipe := client.Pipeline()
		pipe.BLPop(context.Background(), 0, "a list")
		_, _ = pipe.Exec(context.Background())
	}()
	a.UntilInfo("clients", "blocked_clients:1")
	to = b.Addr
	e, _, err := r.Settle(t.Context(), nil, nil)
	if err == nil && e.ID == first.ID {
		t.Errorf("settled at b in the epoch of a: %+v", e)
	}
	a.Do("RPUSH", "a list", "go on")
	<-blocked
	counts := map[string]int{}
	for range 10 {
		before := a.Commands("hincrby")
		grants := make([]Grant, 1)
		e, _, err := r.Settle(t.Context(), []Claim{r.draw("k", 1, 1)}, grants)
		atA := a.Commands("hincrby") > before
		counts[fmt.Sprint(atA)]++
		if (err != nil) != (grants[0].Err != nil) || err == nil && (e.ID == first.ID) != atA {
			t.Errorf("at a: %v, %+v, %v", atA, e, err)
		}
	}
	if len(counts) != 2 {
		t.Errorf("all went to one of them: %v", counts)
	}
}

// fake answers each command like a Redis, except one.
type fake struct {
	*testing.T
	spoilt, reply string
}

func (f *fake) serve(c net.Conn) {
	defer c.Close()
	in := bufio.NewReader(c)
	queued := 0
	for {
		args, err := readCommand(in)
		if err != nil {
			return
		}
		command := strings.ToLower(args[0])
		reply := f.good(command, args)
		switch {
		case command == "multi":
			queued = 1
		case command == "exec":
			queued = 0
		case queued > 0:
			reply = "+QUEUED\r\n"
		}
		if command == f.spoilt && reply != "+QUEUED\r\n" {
			reply = f.reply
		}
		if _, err := io.WriteString(c, reply); err != nil {
			return
		}
	}
}

func bulk(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }

const aTime = "*2\r\n$10\r\n1800057600\r\n$1\r\n5\r\n"

func (f *fake) good(command string, args []string) string {
	switch command {
	case "hello":
		return "-ERR unknown command\r\n"
	case "info":
		return bulk("run_id:abc\r\nmaster_replid:def\r\n")
	case "time":
		return aTime
	case "client":
		return bulk("sluice-abc")
	case "exists":
		return ":1\r\n"
	case "exec":
		epoch := bulk("1f 1 2 abc def")
		if f.spoilt == "get" {
			epoch = f.reply
		}
		return "*4\r\n:5\r\n:5\r\n:1\r\n" + epoch
	case "evalsha":
		if args[1] == epochScript.Hash() && f.spoilt != "get" {
			return bulk("1f 1 2 abc def")
		}
		return bulk(answer(0, 1, 5, 5, 5, 0, 9, 1_800_057_600_000_005, 0))
	}
	return "+OK\r\n"
}

func readCommand(in *bufio.Reader) ([]string, error) {
	n, err := readSize(in)
	args := make([]string, n)
	for i := range args {
		size, err := readSize(in)
		if err != nil {
			return nil, err
		}
		b := make([]byte, size+2)
		if _, err := io.ReadFull(in, b); err != nil {
			return nil, err
		}
		args[i] = string(b[:size])
	}
	return args, err
}

func readSize(in *bufio.Reader) (int, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(line[1:]))
}

// settles has a fake Redis settle a claim and a draw.
func (f *fake) settles() []Grant {
	as := *f // connections may outlive it by a moment
	client := redis.NewClient(&redis.Options{
		MaxRetries: -1, DisableIdentity: true, Protocol: 2, ReadTimeout: 20 * time.Millisecond, ContextTimeoutEnabled: true,
		Dialer: func(context.Context, string, string) (net.Conn, error) {
			here, there := net.Pipe()
			go as.serve(there)
			return here, nil
		},
	})
	defer client.Close()
	l, err := NewRedis(client, "t:")
	if err != nil {
		f.Fatal(err)
	}
	l.latest.Store(int64(epochAt))
	limit := fixed(100)
	c := Claim{Key: "k", Window: limit.WindowAt(epochAt), Limit: limit, Holder: 1, Seq: 1, Want: 5, Need: 5}
	d := c
	d.Seq = 0
	grants := make([]Grant, 2)
	if _, _, err := l.Settle(f.Context(), []Claim{c, d}, grants); err != nil {
		for _, g := range grants {
			if g.Err == nil {
				f.Errorf("%s is %q: the epoch is not known, and %+v", f.spoilt, f.reply, g)
			}
		}
	}
	return grants
}

// Whatever one command is answered, none of the messages that it is about is granted anything.
func TestGarbage(t *testing.T) {
	f := &fake{T: t}
	for i, g := range f.settles() {
		if g.Err != nil || g.Total != 5 {
			t.Fatalf("message %d of a Redis that is well: %+v", i, g)
		}
	}
	all := []string{
		"+OK\r\n", ":1\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n", "-ERR no\r\n", "$0\r\n\r\n", "$3\r\nabc\r\n", "*1\r\n:1\r\n",
		"*3\r\n:1\r\n:2\r\n:3\r\n", "*4\r\n:1\r\n:2\r\n:3\r\n:1\r\n", "*3\r\n$1\r\n5\r\n:5\r\n:1\r\n",
		"*3\r\n:5\r\n:5\r\n:0\r\n", "*3\r\n:5\r\n-ERR hash value is not an integer\r\n:1\r\n",
		"*3\r\n:9223372036854775807\r\n:5\r\n:1\r\n", "*4\r\n:5\r\n:5\r\n:1\r\n:1\r\n", "*2\r\n$1\r\nx\r\n$1\r\n5\r\n", bulk(strings.Repeat("\xff", 8*answerFields)),
		bulk(strings.Repeat("\x00", 8*answerFields)), bulk("1f 1 2 abc"), "!\r\n", "$99999\r\nshort\r\n",
	}
	about := map[string][]int{"evalsha": {0}, "exec": {1}, "time": {0, 1}, "get": {0, 1}}
	for f.spoilt = range about {
		for _, f.reply = range all {
			grants := f.settles()
			for _, i := range about[f.spoilt] {
				if f.spoilt == "time" && f.reply == "*0\r\n" {
					continue // the client takes it for no time at all
				}
				if grants[i].Err == nil {
					t.Errorf("%s is %q: %+v", f.spoilt, f.reply, grants[i])
				}
			}
		}
	}
}
