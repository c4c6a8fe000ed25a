package ledger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// epochTeller is a ledger in a Redis whose data may be lost.
type epochTeller struct {
	testing.TB
	*movedRedis
	server *redistest.Server
}

func newEpochTeller(t testing.TB) *epochTeller {
	s := redistest.Start(t)
	return &epochTeller{t, newMovedRedis(t, s), s}
}

func (s *epochTeller) epoch(q ratelimit.EpochQuery, claims ...ratelimit.Claim) (ratelimit.Epoch, ledgerTime) {
	s.Helper()
	e, at, err := s.SettleEpoch(s.Context(), q, claims, make([]ratelimit.Grant, len(claims)))
	if err != nil {
		s.Fatal(err)
	}
	return e, at
}

var (
	verify  = ratelimit.EpochQuery{Verify: true}
	telling = ratelimit.EpochQuery{Telling: true}
)

// The first who looks after an epoch begins it: for two seconds it is young. Who
// looks again finds the same, and that one is verified does not make it young for
// longer.
func TestRedisEpochBegins(t *testing.T) {
	s := newEpochTeller(t)
	first, at := s.epoch(verify)
	if want := (ratelimit.Epoch{ID: first.ID, Began: ledgertest.Epoch, Learning: ledgertest.Epoch.Add(2 * time.Second)}); first != want || first.ID == 0 || at != s.now {
		t.Errorf("at %d, %+v, want %+v", at, first, want)
	}
	s.now = s.now.Add(time.Second)
	claim := ratelimit.Claim{Key: "k", Limit: perMinute100, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second}
	for what, look := range map[string]func() (ratelimit.Epoch, ledgerTime){
		"verified": func() (ratelimit.Epoch, ledgerTime) { return s.epoch(verify) },
		"read":     func() (ratelimit.Epoch, ledgerTime) { return s.epoch(ratelimit.EpochQuery{}) },
		"read with a claim": func() (ratelimit.Epoch, ledgerTime) {
			return s.epoch(ratelimit.EpochQuery{}, claim)
		},
	} {
		if e, at := look(); e != first || at != s.now {
			t.Errorf("%s a second later: at %d, %+v, and it was %+v", what, at, e, first)
		}
	}
	s.now = 1_000_000_000_000_000 // long ago: what is read goes by the ledger's clock, and by none other
	if _, at := s.epoch(ratelimit.EpochQuery{}); at != s.now {
		t.Errorf("at %d, and the ledger's clock shows %d", at, s.now)
	}
}

// While a node has something to tell, the ledger learns for two seconds from then on,
// but not any more once it has learned.
func TestRedisLearnsWhileItIsTold(t *testing.T) {
	s := newEpochTeller(t)
	s.epoch(verify)
	s.now = s.now.Add(time.Second)
	if e, _ := s.epoch(telling); e.Learning != s.now.Add(2*time.Second) {
		t.Errorf("it is told at %d, and learns until %d", s.now, e.Learning)
	}
	s.now = s.now.Add(2 * time.Second)
	if e, _ := s.epoch(telling); e.Learning != s.now {
		t.Errorf("it has learned at %d, and learns until %d", s.now, e.Learning)
	}
}

// A clock that goes back does not have the ledger learn for as long as the step was,
// whoever reads the epoch.
func TestEpochLearnsNoLongerForAStep(t *testing.T) {
	claim := ratelimit.Claim{Key: "k", Limit: perMinute100, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second}
	for what, q := range map[string]ratelimit.EpochQuery{"read": {}, "verified": verify, "told": telling} {
		s := newEpochTeller(t)
		began, _ := s.epoch(verify)
		s.now = s.now.Add(-time.Hour)
		for _, claims := range [][]ratelimit.Claim{{claim}, {}} {
			if e, at := s.epoch(q, claims...); e.ID != began.ID || e.Learning != at.Add(RelearnTime) || at != s.now {
				t.Errorf("%s at %d: %+v", what, at, e)
			}
		}
		s.now = s.now.Add(RelearnTime)
		if e, at := s.epoch(ratelimit.EpochQuery{}); e.Young(at) {
			t.Errorf("%s, and %v later it still learns: %+v at %d", what, RelearnTime, e, at)
		}
	}
	now := ledgertest.Epoch
	m := NewLosable(NewMemory(10, func() ledgerTime { return now }))
	m.Forget()
	now = now.Add(-time.Hour)
	if e, at, _ := m.SettleEpoch(t.Context(), ratelimit.EpochQuery{}, nil, nil); e.Learning != at.Add(RelearnTime) {
		t.Errorf("in memory, at %d: %+v", at, e)
	}
}

// Another epoch begins when the data was lost, for whoever reads next, and when
// another server has it, for whoever verifies.
func TestRedisBeginsAnotherEpoch(t *testing.T) {
	s := newEpochTeller(t)
	first, _ := s.epoch(verify)
	s.server.Do("FLUSHALL")
	s.now = s.now.Add(time.Hour)
	second, _ := s.epoch(ratelimit.EpochQuery{})
	if second.ID == first.ID || second.ID == 0 || second.Learning != s.now.Add(2*time.Second) {
		t.Errorf("all was lost, and %+v goes on as %+v", first, second)
	}
	elsewhere := func() { // as if the data had come from another server
		id := fmt.Sprintf("%x", second.ID)
		s.server.Do("SET", "t:"+epochName, id+" 1 2 5555")
	}
	elsewhere()
	for what, q := range map[string]ratelimit.EpochQuery{"read": {}, "told": telling} {
		if e, _ := s.epoch(q); e.ID != second.ID || e.Began != 1 || e.Learning != 2 {
			t.Errorf("%s only, and another epoch began: %+v", what, e)
		}
	}
	for _, q := range []ratelimit.EpochQuery{verify, {Verify: true, Telling: true}} {
		elsewhere()
		if e, _ := s.epoch(q); e.ID == second.ID || e.Began != s.now {
			t.Errorf("another server has the data, which is verified by %+v, and the epoch is %+v", q, e)
		}
	}
}

// By its own clock, a Redis says what time it is also to who has no claims.
func TestRedisTellsTheTimeWithAnEpoch(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "")
	time := func() ledgerTime { return ledgerTime(client.Time(t.Context()).Val().UnixMicro()) }
	claim := ratelimit.Claim{Key: "k", Limit: perMinute100, Holder: 1, Seq: 1, TTL: 1e9}
	for _, q := range []ratelimit.EpochQuery{verify, {}} {
		for _, claims := range [][]ratelimit.Claim{nil, {claim}} {
			before := time()
			e, at, err := l.SettleEpoch(t.Context(), q, claims, make([]ratelimit.Grant, len(claims)))
			if after := time(); err != nil || at < before || at > after || e.ID == 0 || e.Began == 0 || e.Began > after {
				t.Errorf("%+v of %d claims, from %d to %d: at %d, %+v, %v", q, len(claims), before, after, at, e, err)
			}
		}
	}
}

// answersInstead answers scripts in a server's place.
type answersInstead struct {
	redis.Hook
	answer []any
}

func (a answersInstead) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if c, ok := cmd.(*redis.Cmd); ok {
			c.SetVal(a.answer)
			return nil
		}
		return next(ctx, cmd)
	}
}

func (a answersInstead) DialHook(next redis.DialHook) redis.DialHook { return next }

func (a answersInstead) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// What a store says of the epoch is an error when it makes no sense, and why it
// cannot be asked is told as it is.
func TestRedisEpochMakesNoSense(t *testing.T) {
	for _, answer := range [][]any{{"1 2 3 4", "x"}, {"1 2 3 4"}, {"1 2 3 4", "5", "6"}} {
		client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
		client.AddHook(answersInstead{answer: answer})
		if e, _, err := NewRedis(client, "").SettleEpoch(t.Context(), verify, nil, nil); err == nil || e.ID != 0 {
			t.Errorf("%v was taken for %+v", answer, e)
		}
		client.Close()
	}
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	client.Close()
	if _, _, err := NewRedis(client, "").SettleEpoch(t.Context(), verify, nil, nil); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("the client is closed, and the error is %v", err)
	}
}

// Each part of a Cluster has its epoch twice: in the first and in the last of its
// slots.
func TestClusterEpochsAreAtTheEnds(t *testing.T) {
	for _, parts := range []int{16, 7} {
		for p, names := range clusterEpochs("t:", parts) {
			first, last := int(Slot(names[0])), int(Slot(names[1]))
			in := func(slot int) bool { return slot >= 0 && slot < slots && slot*parts/slots == p }
			if !in(first) || in(first-1) || !in(last) || in(last+1) {
				t.Errorf("part %d of %d has its epochs in slots %d and %d", p, parts, first, last)
			}
		}
	}
}

// Claims of a part that two shards share read the epoch where they go: a shard that
// is down keeps no other's waiting. Who has no claims reads both.
func TestClusterEpochsOfAShard(t *testing.T) {
	const border = 8192 + 300 // in the part from 8192 to 9215
	client := redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{"127.0.0.1:1", "127.0.0.1:2"},
		ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
			return []redis.ClusterSlot{
				{Start: 0, End: border - 1, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:1"}}},
				{Start: border, End: slots - 1, Nodes: []redis.ClusterNode{{Addr: "127.0.0.1:2"}}},
			}, nil
		},
	})
	defer client.Close()
	l := NewRedis(client, "t:")
	keyIn := func(from, to int) ratelimit.Claim {
		for i := 0; ; i++ {
			if at := int(Slot(fmt.Sprint("t:", i))); from <= at && at < to {
				return ratelimit.Claim{Key: fmt.Sprint(i)}
			}
		}
	}
	low, high := keyIn(8192, border), keyIn(border, 9216)
	names := l.epochNames(l.Partition(low.Key))
	for _, c := range []struct {
		claims []ratelimit.Claim
		want   []string
	}{
		{nil, names},
		{[]ratelimit.Claim{low}, names[:1]},
		{[]ratelimit.Claim{high}, names[1:]},
		{[]ratelimit.Claim{high, low}, names},
	} {
		if got := l.near(t.Context(), names, c.claims); !slices.Equal(got, c.want) {
			t.Errorf("claims %v read %v, want %v", c.claims, got, c.want)
		}
	}
}

// What is known of the epoch is said also where nothing said what time it is: in a Cluster a
// batch without claims hears no clock.
func TestEpochWithoutAClock(t *testing.T) {
	l := NewRedis(nil, "")
	l.keep("one", "a 5 7 -")
	e, at, err := l.inEpoch([]string{"one"}, 0, nil)
	if want := (ratelimit.Epoch{ID: 10, Began: 5, Learning: 7}); e != want || at != 0 || err != nil {
		t.Errorf("%+v at %d, %v", e, at, err)
	}
	if _, _, err := l.inEpoch([]string{"one"}, 0, redis.ErrClosed); !errors.Is(err, redis.ErrClosed) {
		t.Errorf("nothing answered, and the error is %v", err)
	}
	if e, at, err := l.inEpoch([]string{"one"}, 9, redis.ErrClosed); e != (ratelimit.Epoch{}) || at != 9 || err != nil {
		t.Errorf("not all answered: %+v at %d, %v", e, at, err)
	}
}

// A new connection that comes to another server, whose data says of itself what that of the first did: it is another
// epoch, though nobody asked for it to be verified, and nothing was under way when the server changed.
func TestEpochOfAnotherServerWithTheSameData(t *testing.T) {
	s := newEpochTeller(t)
	other := redistest.Start(t)
	var to atomic.Pointer[redistest.Server]
	to.Store(s.server)
	client := redis.NewClient(&redis.Options{Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", to.Load().Addr)
	}})
	defer client.Close()
	l := NewRedis(client, "")
	first, _, err := l.SettleEpoch(t.Context(), verify, nil, nil)
	if err != nil || first.ID == 0 {
		t.Fatal(first, err)
	}
	ask := func() ratelimit.Epoch {
		t.Helper()
		claim := ratelimit.Claim{Key: "k", Limit: perMinute100, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second}
		for range 5 { // an old connection is noticed when it is used
			e, _, err := l.SettleEpoch(t.Context(), ratelimit.EpochQuery{}, []ratelimit.Claim{claim}, make([]ratelimit.Grant, 1))
			if err == nil && e.ID != 0 {
				return e
			}
		}
		t.Fatal("no epoch is heard of")
		return ratelimit.Epoch{}
	}
	if e := ask(); e.ID != first.ID {
		t.Fatalf("the same server is in epoch %x, and was in %x", e.ID, first.ID)
	}
	other.Do("SET", epochName, s.server.Do("GET", epochName))
	to.Store(other)
	s.server.Do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
	if e := ask(); e.ID == first.ID {
		t.Errorf("another server has the data, and it is in epoch %x as before", e.ID)
	}
}
