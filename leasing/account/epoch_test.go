package account

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// epochName is the name of the epoch of tests' ledgers on one server.
const epochName = "t:" + EpochName

// A first epoch begins old. A node that has read another makes it young, if it began less than that ago.
func TestEpochBegins(t *testing.T) {
	s := redistest.Shared(t)
	m := newMoved(t, s)
	at := func(now instant) *live {
		other := newMoved(t, s)
		other.now = now
		return other
	}
	first := epochOf(t, m)
	if first.Began != m.now || first.Ends != 0 {
		t.Errorf("the first is %+v", first)
	}
	m.now = m.now.Add(time.Minute)
	if e := epochOf(t, m); e != first {
		t.Errorf("%+v, and it was %+v", e, first)
	}
	s.Do("FLUSHALL")
	late := at(m.now)
	if e := epochOf(t, late); e.Began != m.now || e.Ends != 0 {
		t.Errorf("a process that knew nothing begins %+v", e)
	}
	m.now = m.now.Add(time.Second)
	if e := epochOf(t, m); e.ID == first.ID || e.Ends != m.now.Add(ratelimit.YoungFor) {
		t.Errorf("who knew another finds %+v", e)
	}
	late.now = m.now
	if e := epochOf(t, late); !e.Young(late.now) {
		t.Errorf("it is young for all, and that is %+v", e)
	}
	s.Do("FLUSHALL")
	if e := epochOf(t, m); !e.Young(m.now) {
		t.Errorf("who knew another begins %+v", e)
	}
	s.Do("SET", epochName, "what is this")
	if e := epochOf(t, at(m.now)); e.Ends != 0 {
		t.Errorf("beside another form it begins %+v", e)
	}
	m.now = m.now.Add(ratelimit.YoungFor)
	if e := epochOf(t, m); e.Ends != 0 {
		t.Errorf("two seconds later, who knew another finds %+v", e)
	}
}

// Who has something to state prolongs the youth while it goes on, until the epoch is ten seconds old. An end from
// before a clock was set back is none. A clock that is behind does not bring it forward.
func TestEpochIsProlonged(t *testing.T) {
	p := newPair(t, fixed(1))
	epochOf(t, p.memory)
	p.loses()
	step := func(by time.Duration, tell bool, ends time.Duration, young bool) {
		t.Helper()
		p.now = p.now.Add(by)
		for _, l := range []interface {
			Ledger
			Prolong(ctx context.Context) (ratelimit.Epoch, error)
		}{p.memory, p.Redis} {
			if tell {
				if _, err := l.Prolong(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if e := epochOf(t, l); e.Ends != epochAt.Add(ends) || e.Young(p.now) != young {
				t.Errorf("%T at %d: %+v, want it to be young until %v: %v", l, p.now, e, ends, young)
			}
		}
	}
	step(0, false, 2*time.Second, true)
	step(time.Second, false, 2*time.Second, true)
	step(0, true, 3*time.Second, true)
	step(-time.Hour, true, 3*time.Second, false)
	for _, by := range []time.Duration{time.Hour, -time.Second, -5 * time.Second, 6 * time.Second} {
		step(by, true, 3*time.Second, true)
	}
	for at := 2; at < 10; at++ {
		step(time.Second, true, time.Duration(at+2)*time.Second, true)
	}
	step(time.Second, true, 11*time.Second, true)
	step(time.Second, true, 11*time.Second, false)
}

// An epoch that names another run is not this server's; nor is one of another replication, if the server was a replica
// since.
func TestEpochOfAnotherServer(t *testing.T) {
	s := redistest.Shared(t)
	m := newMoved(t, s)
	first := epochOf(t, m)
	fields := strings.Fields(s.Do("GET", epochName).(string))
	put := func(run, replid string) {
		s.Do("SET", epochName, strings.Join([]string{fields[0], fields[1], fields[2], run, replid}, " "))
	}
	put(fields[3], strings.Repeat("a", 40))
	if e, err := m.Verify(t.Context()); err != nil || e != first {
		t.Errorf("its first replica has come: %+v, %v", e, err)
	}
	put(strings.Repeat("a", 40), fields[4])
	second := epochOf(t, m) // seen with the messages, for the connection has another name
	if second.ID == first.ID || second.Ends != m.now.Add(ratelimit.YoungFor) {
		t.Errorf("%+v", second)
	}
	fields = strings.Fields(s.Do("GET", epochName).(string))
	put("-", "-")
	if e := epochOf(t, m); e.ID != second.ID {
		t.Errorf("that of a server that did not say who it is: %+v", e)
	}
}

// A server comes back with its data of before: the connections' names tell.
func TestEpochAfterARestart(t *testing.T) {
	s := redistest.Start(t)
	m := newMoved(t, s)
	first := epochOf(t, m)
	value := s.Do("GET", epochName)
	s.Kill()
	if _, _, err := m.Settle(t.Context(), nil, nil); err == nil {
		t.Error("a dead server told its epoch")
	}
	s.Run()
	s.Do("SET", epochName, value)
	if e := epochOf(t, m); e.ID == first.ID || !e.Young(m.now) {
		t.Errorf("%+v, and it was %+v", e, first)
	}
}

// A master that was a replica for a moment goes on with what the other had, on connections that were kept. It refuses
// messages meanwhile. Whether it received any or not, no later one counts in the epoch of before.
func TestEpochAfterAFailoverAndBack(t *testing.T) {
	a, b := redistest.Start(t, "--repl-diskless-sync-delay", "0"), redistest.Start(t, "--repl-diskless-sync-delay", "0")
	r := newLive(t, a.Client(), weekly(100))
	replicate := func(of, from *redistest.Server) {
		host, port, _ := net.SplitHostPort(from.Addr)
		of.Do("REPLICAOF", host, port)
		of.UntilInfo("replication", "master_link_status:up")
	}
	last := epochOf(t, r)
	replicate(b, a)
	if e, err := r.Verify(t.Context()); err != nil || e != last {
		t.Errorf("a replica has come: %+v, %v", e, err)
	}
	b.Do("REPLICAOF", "NO", "ONE")
	seq := uint64(0)
	send := func(kind string) (ratelimit.Epoch, error) {
		seq++
		messages := map[string][]Claim{"draw": {r.draw("k", 1, 1)}, "claim": {r.claim("k", 1, seq, 1)}}[kind]
		g := make([]Grant, len(messages))
		e, _, err := r.Settle(t.Context(), messages, g)
		for i := range g {
			err = errors.Join(err, g[i].Err)
		}
		return e, err
	}
	for _, kind := range []string{"claim", "look", "draw", "draw, and none as a replica"} {
		kind, quietly := strings.CutSuffix(kind, ", and none as a replica")
		if e, err := send(kind); err == nil {
			last = e
		}
		replicate(a, b)
		if !quietly {
			if e, err := send(kind); err == nil {
				t.Errorf("a replica answers a %s: %+v", kind, e)
			}
		}
		a.Do("REPLICAOF", "NO", "ONE")
		for range 3 {
			if e, err := send(kind); err == nil && e.ID == last.ID {
				t.Errorf("after a failover and back, a %s counts in %+v", kind, e)
			}
		}
		if e := epochOf(t, r); e.ID == last.ID {
			t.Errorf("after a failover and back, and a %s: %+v", kind, e)
		}
	}
}

// Both servers of a part lost their data a moment ago. Their clocks differ. A message at either is in a young epoch.
func TestYoungAtServersWhoseClocksDiffer(t *testing.T) {
	for _, ahead := range []time.Duration{0, 300 * time.Millisecond, 3 * time.Second, -3 * time.Second} {
		var servers []*server
		for _, by := range []time.Duration{0, ahead} {
			s, is := &server{}, life{run: "a", replid: "b"}
			is.ID, is.Began, is.Ends = 1, epochAt.Add(by), epochAt.Add(by+ratelimit.YoungFor)
			s.life.Store(&is)
			servers = append(servers, s)
		}
		e := new(Redis).epochOf(&layout{all: servers, parts: [][]*server{servers}}, []int{0})
		for _, by := range []time.Duration{0, ahead} {
			if at := epochAt.Add(by + 100*time.Millisecond); !e.Young(at) {
				t.Errorf("the second server is ahead by %v: at one that is ahead by %v, it is not young", ahead, by)
			}
		}
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
	r := newLive(t, client, weekly(100))
	first := epochOf(t, r)
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
	if e, _, err := r.Settle(t.Context(), nil, nil); err == nil && e.ID == first.ID {
		t.Errorf("settled at b in the epoch of a: %+v", e)
	}
	a.Do("RPUSH", "a list", "go on")
	<-blocked
	atBoth := map[bool]int{}
	for range 10 {
		before := a.Commands("hincrby")
		grants := make([]Grant, 1)
		e, _, err := r.Settle(t.Context(), []Claim{r.draw("k", 1, 1)}, grants)
		atA := a.Commands("hincrby") > before
		atBoth[atA]++
		if (err != nil) != (grants[0].Err != nil) || err == nil && (e.ID == first.ID) != atA {
			t.Errorf("at a: %v, %+v, %v", atA, e, err)
		}
	}
	if len(atBoth) != 2 {
		t.Errorf("all went to one of them: %v", atBoth)
	}
}

// spoils changes the replies to commands of a name. "get" is the epoch, in a trip and of its script.
type spoils struct {
	command string
	reply   any // an error, too
}

func (s *spoils) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *spoils) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if s.command == "get" || cmd.Name() == s.command {
			err = s.spoil(cmd)
		}
		return err
	}
}

func (s *spoils) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			if c, ok := cmd.(*redis.Cmd); ok && s.command == "get" && cmd.Name() == "exec" {
				if all, ok := c.Val().([]any); ok { // it has not been discarded
					all[len(all)-1] = s.reply
				}
			}
			if cmd.Name() == s.command && s.command != "get" {
				_ = s.spoil(cmd)
			}
		}
		return err
	}
}

func (s *spoils) spoil(cmd redis.Cmder) error {
	err, _ := s.reply.(error)
	cmd.SetErr(err)
	switch c := cmd.(type) {
	case *redis.Cmd:
		c.SetVal(s.reply)
	case *redis.TimeCmd:
		at, _ := s.reply.(time.Time)
		c.SetVal(at)
	}
	return err
}

// Whatever one command is answered, none of the messages that it is about is granted anything. Later ones are.
func TestGarbage(t *testing.T) {
	client, hook, tries := redistest.Shared(t).Client(), &spoils{}, 0
	client.AddHook(hook)
	r := newLive(t, client, weekly(100))
	settles := func() []Grant {
		tries++
		key := fmt.Sprint("k", tries)
		return r.settle(r.claim(key, 1, 1, 5), r.draw(key, 2, 5))
	}
	no, words := errors.New("ERR no"), "5 5 1"
	all := []any{
		no, redis.Nil, nil, "", "OK", "abc", "1f 1 2 abc", strings.Repeat("\xff", 8*answerFields),
		strings.Repeat("\x00", 8*answerFields), int64(1), int64(math.MaxInt64),
		[]any{},
		[]any{int64(1)},
		[]any{int64(5), int64(5), int64(0)},
		[]any{words, int64(5), int64(1)},
		[]any{int64(5), no, int64(1)},
		[]any{int64(math.MaxInt64), int64(5), int64(1), int64(1)},
		[]any{int64(5), int64(5), int64(1), no},
	}
	times := []any{no, redis.Nil, time.Time{}, time.Unix(1<<45, 0)}
	for command, row := range map[string]struct {
		replies []any
		about   []int
	}{"evalsha": {all, []int{0}}, "exec": {all, []int{1}}, "time": {times, []int{0, 1}}, "get": {all, []int{0, 1}}} {
		for _, reply := range row.replies {
			*hook = spoils{command, reply}
			grants := settles()
			for _, i := range row.about {
				if grants[i].Err == nil {
					t.Errorf("%s is %#v: %+v", command, reply, grants[i])
				}
			}
			*hook = spoils{}
			for i, g := range settles() {
				if g.Err != nil || g.Total != 5 {
					t.Fatalf("message %d of a Redis that is well, after a %s of %#v: %+v", i, command, reply, g)
				}
			}
		}
	}
}
