package account

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// wrapped is a client in another's clothes.
type wrapped struct{ redis.UniversalClient }

func TestClientsThatAreRefused(t *testing.T) {
	one := redis.NewClient(&redis.Options{MaxRetries: -1, ContextTimeoutEnabled: true})
	for what, c := range map[string]redis.UniversalClient{
		"a ring":               redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "localhost:1"}}),
		"a wrapped one":        wrapped{one},
		"one that retries":     redis.NewClient(&redis.Options{ContextTimeoutEnabled: true}),
		"one without timeouts": redis.NewClient(&redis.Options{MaxRetries: -1}),
		"a cluster that does": redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"localhost:1"}, MaxRetries: 2, ContextTimeoutEnabled: true,
		}),
		"none": nil,
	} {
		if _, err := NewRedis(c, ""); !errors.Is(err, ErrClient) {
			t.Errorf("%s: %v", what, err)
		}
		if c != nil {
			c.Close()
		}
	}
}

// Draws and claims of one Settle, of plain commands and of scripts, see each other: the claims are settled first.
func TestMessagesOfOneTrip(t *testing.T) {
	s := redistest.Shared(t)
	r := newLive(t, s.Client(), weekly(100))
	g := r.settle(
		r.draw("k", 1, 60), r.claim("k", 2, 1, 10), r.draw("k", 1, 5), r.claim("j", 2, 1, 10), r.draw("j", 3, 1),
	)
	for i, want := range []Grant{
		{Total: 60, Sum: 70},
		{Granted: 10, Total: 10, Sum: 10},
		{Total: 65, Sum: 75},
		{Granted: 10, Total: 10, Sum: 10},
		{Total: 1, Sum: 11},
	} {
		is := Grant{Granted: g[i].Granted, Total: g[i].Total, Sum: g[i].Sum}
		if g[i].Err != nil || is != want || g[i].At == 0 {
			t.Errorf("message %d: %+v, want %+v", i, g[i], want)
		}
	}
	if n := s.Commands("multi"); n == 0 {
		t.Error("no draw was a plain one")
	}
	expires(t, s.Client())
}

// A server without the scripts receives them.
func TestForgottenScripts(t *testing.T) {
	s := redistest.Shared(t)
	s.Do("SCRIPT", "FLUSH")
	r := newLive(t, s.Client(), weekly(100))
	if g := r.settle(r.claim("k", 1, 1, 7), r.draw("k", 2, 1), Claim{}); g[0].Granted != 7 || g[1].Total != 1 {
		t.Errorf("%+v", g)
	}
}

// What another program wrote in an account's place is an error, changes nothing, and grants nothing.
func TestForeignData(t *testing.T) {
	s := redistest.Shared(t)
	c := s.Client()
	zeros, nan := strings.Repeat("\x00", 64), strings.Repeat("\x00\x00\x00\x00\x00\x00\xf8\x7f", 8)
	const text = "a string, and no hash"
	packed := []string{"", "short", zeros + "1", nan}
	integers := []string{"1e17", "abc", "9223372036854775807", "-9223372036854775808", "", "1.5", "nan", " 1"}
	for _, of := range []struct {
		limit  ratelimit.Limit
		field  string
		values []string
		draws  bool // they read it
	}{
		{weekly(100), "sum", integers, true},
		{weekly(100), "h:1", integers, true},
		{weekly(100), "c:1", []string{"", "1", zeros, nan[:32], "1 2 3 4"}, false},
		{weekly(100), "a", packed, false},
		{weekly(100), text, []string{""}, true},
		{bucketOf(100, 10), "b", packed, false},
		{bucketOf(100, 10), text, []string{""}, false},
	} {
		r := newLive(t, s.Client(), of.limit)
		at := r.nameOf("k", r.window)
		for _, v := range of.values {
			c.Del(t.Context(), at)
			if of.field == text {
				c.Set(t.Context(), at, text, time.Hour)
			} else {
				c.HSet(t.Context(), at, of.field, v)
			}
			before := c.Dump(t.Context(), at).Val()
			if g := r.settle(r.claim("k", 1, 1, 5))[0]; g.Err == nil || g.Granted != 0 {
				t.Errorf("%v: %s is %q: %+v", of.limit, of.field, v, g)
			}
			if c.Dump(t.Context(), at).Val() != before {
				t.Errorf("%v: %s is %q: a claim changed it", of.limit, of.field, v)
			}
			if !of.draws {
				continue
			}
			if g := r.settle(r.draw("k", 1, 5))[0]; g.Err == nil {
				t.Errorf("%v: %s is %q: a draw found %+v", of.limit, of.field, v, g)
			}
		}
	}
}

// cutConn breaks after so many bytes were sent, of all connections.
type cutConn struct {
	net.Conn
	left *int
}

func (c cutConn) Write(b []byte) (int, error) {
	n := min(len(b), *c.left)
	*c.left -= n
	if n < len(b) {
		_, _ = c.Conn.Write(b[:n])
		c.Close()
		return n, net.ErrClosed
	}
	return c.Conn.Write(b)
}

// A connection that is cut at any byte leaves no account that never expires, and no draw half done.
func TestPipelineThatIsCut(t *testing.T) {
	s := redistest.Shared(t)
	probe := s.Client()
	defer probe.Close()
	for cut, whole := 0, false; !whole; cut += 7 {
		left := math.MaxInt
		client := redis.NewClient(&redis.Options{
			Addr: s.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 1,
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				return cutConn{c, &left}, err
			},
		})
		r := newLive(t, client, weekly(100))
		left = cut
		claims := []Claim{r.draw("a", 1, 5), r.claim("b", 1, 1, 5), r.draw("b", 2, 5), r.draw("c", 1, 5)}
		grants := make([]Grant, len(claims))
		_, _, err := r.Settle(t.Context(), claims, grants)
		whole = err == nil
		for i := range grants {
			if (grants[i].Err == nil) != whole {
				t.Errorf("cut at %d: %+v", cut, grants[i])
			}
		}
		expires(t, probe)
		for _, key := range []string{"a", "b", "c"} {
			all := probe.HGetAll(t.Context(), r.nameOf(key, r.window)).Val()
			sum, records := int64(0), int64(0)
			for f, v := range all {
				n, _ := readInteger(v)
				if f == "sum" {
					sum = n
				} else if strings.HasPrefix(f, "h:") {
					records += n
				}
			}
			if sum != records {
				t.Errorf("cut at %d: %s is %v", cut, key, all)
			}
		}
		probe.Del(t.Context(), probe.Keys(t.Context(), "t:{*").Val()...)
		client.Close()
	}
}

// A recall reaches exactly the holders with tokens in hand, with the key and the window.
func TestRecallsThroughRedis(t *testing.T) {
	r := newLive(t, redistest.Shared(t).Client(), weekly(100))
	heard := make(chan string, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Recalls(ctx, 0xbeef, func(key string, w ratelimit.Window) { heard <- fmt.Sprint(key, w) })
	}()
	const channel = recallChannel + "beef"
	for r.one.client.PubSubNumSub(t.Context(), channel).Val()[channel] == 0 { // the test's deadline bounds it
	}
	r.settle(r.draw("k", 0xbeef, 90), r.claim("k", 2, 1, 10))
	if g := r.settle(r.claim("k", 3, 1, 5))[0]; !g.Recalling || g.Granted != 0 || g.InHand != 90 {
		t.Errorf("%+v", g)
	}
	if got := <-heard; got != fmt.Sprint("k", r.window) {
		t.Errorf("recalled %s", got)
	}
	cancel()
	<-ended
}

// People see of a bucket what the next claim will find: its tokens of now, and not those of the last claim.
func TestBucketIsShownAsOfNow(t *testing.T) {
	l := ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Minute, Requests: 10, Burst: 10}
	now := instant(time.Now().Add(-time.Minute / 2).UnixMicro())
	began, client := now, redistest.Shared(t).Client()
	inRedis := dialled(t, client)
	inRedis.LookThrough(client)
	inRedis.GoBy(func() ratelimit.LedgerTime { return began }) // not for views
	for _, ledger := range []interface {
		Ledger
		Look(context.Context, string, ratelimit.Window, *ratelimit.Limit) (*ratelimit.AccountLook, error)
	}{NewCAS(NewMemoryStore(func() ratelimit.LedgerTime { return now }), ""), inRedis} {
		now = began
		if g := settle(t, ledger, claim(l, "k", 1<<63, 1, 10))[0]; g.Err != nil || g.Granted != 10 {
			t.Fatal(g)
		}
		now = now.Add(time.Minute / 2)
		if v, err := ledger.Look(t.Context(), "k", 0, &l); err != nil || v == nil || v.Free < 4 || v.Free > 6 {
			t.Errorf("half a minute after a grant of all 10, of %T people see %+v, %v", ledger, v, err)
		}
	}
}

// A server answers late while a connection introduces itself. The connection is not used: an answer of before would be
// taken for that of a later command.
func TestSlowIntroduction(t *testing.T) {
	s := redistest.Start(t)
	full := SlotAsk{Key: "full", Op: SlotTake, Slot: 1, Limit: 1, TTL: time.Hour}
	dialled(t, s.Client()).Slots(t.Context(), []SlotAsk{full}, make([]SlotAnswer, 1))
	proxy := redistest.NewProxy(t, s.Addr)
	ledger := dialled(t, redis.NewClient(&redis.Options{
		Addr: proxy.Addr, MaxRetries: -1, ContextTimeoutEnabled: true, ReadTimeout: 200 * time.Millisecond,
		DisableIdentity: true,
		OnConnect: func(context.Context, *redis.Conn) error {
			proxy.Delay(300 * time.Millisecond)
			time.AfterFunc(250*time.Millisecond, func() { proxy.Delay(0) })
			return nil
		},
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	free := full
	free.Key, free.Slot, full.Slot = "free", 2, 3
	answers := make([]SlotAnswer, 2)
	ledger.Slots(ctx, []SlotAsk{free, full}, answers)
	if answers[1].Err == nil && answers[1].Has {
		t.Error("the slot of another request was taken")
	}
}

// An account takes little of Redis' memory: a hash that Redis packs while it has few holders.
//
//	go test -v -run TestAccountInRedisIsSmall ./leasing/account
func TestAccountInRedisIsSmall(t *testing.T) {
	r := newLive(t, redistest.Shared(t).Client(), weekly(1_000_000))
	for _, c := range []struct {
		holders, claimed int
		most             int64 // bytes, with the account's name
	}{{1, 0, 200}, {3, 0, 240}, {3, 1, 400}, {3, 3, 620}, {10, 10, 1600}} {
		key := fmt.Sprint("day|edge|user=", c.holders, ".", c.claimed)
		for h := range c.holders {
			holder := NewHolder()
			r.settle(r.draw(key, holder, 50_000))
			if h < c.claimed {
				claim := r.claim(key, holder, 1, 1)
				claim.Taken, claim.Spent = 50_000, 40_000
				r.settle(claim)
			}
		}
		used, err := r.one.client.MemoryUsage(t.Context(), r.nameOf(key, r.window)).Result()
		if err != nil || used > c.most {
			t.Errorf("%d holders, %d with claims: %d bytes, more than %d (%v)", c.holders, c.claimed, used, c.most, err)
		}
		t.Logf("%d holders, %d with claims: %d bytes", c.holders, c.claimed, used)
	}
}

// answer packs numbers as the scripts do.
func answer(all ...float64) string {
	var b []byte
	for _, n := range all {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}

// replied is a reply of the client.
func replied(text string) *redis.Cmd {
	a := redis.NewCmd(context.Background())
	a.SetVal(text)
	return a
}

// An answer that is not exactly a grant of the claim is an error.
func TestAnswers(t *testing.T) {
	c := claim(fixed(100), "k", 1, 3, 0)
	c.Taken, c.Spent, c.Want = 4, 3, 5
	good := []float64{0, 3, 5, 9, 9, 4, 1, 1, 1}
	set := func(field int, n float64) []float64 {
		all := slices.Clone(good)
		all[field] = n
		return all
	}
	for _, all := range [][]float64{good, set(4, 10)} {
		if g := readGrant(&c, replied(answer(all...)), nil); g.Err != nil {
			t.Errorf("%v is a grant: %+v", all, g)
		}
	}
	more := set(2, 6)
	more[3] = 10 // it adds up, and is more than was wanted
	wrong := [][]float64{more}
	for field, values := range map[int][]float64{
		0: {3, -1, 1, 2},
		1: {2},
		2: {6, -1, 0.5, math.NaN(), math.Inf(1), 4}, // what the holder had, and 4, are not 9
		3: {1 << 54, -(1 << 54), 10, -7},
		5: {0.5, math.NaN()},
		6: {-1},
		7: {0},
	} {
		for _, n := range values {
			wrong = append(wrong, set(field, n))
		}
	}
	for _, all := range wrong {
		if g := readGrant(&c, replied(answer(all...)), nil); g.Err == nil {
			t.Errorf("%v: %+v", all, g)
		}
	}
}

// A trip whose server answers what makes no sense grants nothing, whichever answer it is.
func FuzzAnswers(f *testing.F) {
	f.Add(strings.Repeat("\x00", 8*answerFields), int64(1), int64(1))
	f.Add("", int64(-1), int64(math.MaxInt64))
	c := Claim{Key: "k", Window: 20, Limit: fixed(100), Holder: 1, Seq: 3, Want: 5}
	d := c
	d.Seq = 0
	f.Fuzz(func(t *testing.T, text string, sum, total int64) {
		if g := readGrant(&c, replied(text), nil); g.Err == nil && (g.Granted < 0 || g.Granted > c.Want || g.At <= 0) {
			t.Errorf("%+v", g)
		}
		g := readDraw(&d, []any{sum, total, int64(1)}, spanOf(&d.Limit, d.Window).begins)
		if n := g.Owned(d.Want, &d.Limit); g.Err == nil && (n < 0 || n > d.Want) {
			t.Errorf("%d owned of %+v", n, g)
		}
		for _, garbage := range [][]any{
			{text, total, int64(1)}, {sum, text, int64(1)}, {sum, total, text}, {nil, total, int64(1)},
		} {
			if g := readDraw(&d, garbage, epochAt); g.Err == nil {
				t.Errorf("%v: %+v", garbage, g)
			}
		}
	})
}
