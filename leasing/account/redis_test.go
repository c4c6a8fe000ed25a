package account

import (
	"context"
	"encoding/binary"
	"errors"
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

// live is a ledger in a Redis that goes by Redis' own clock.
type live struct {
	*testing.T
	*Redis
	limit  ratelimit.Limit
	window ratelimit.Window
}

func newLive(t *testing.T, client redis.UniversalClient, l ratelimit.Limit) *live {
	t.Helper()
	t.Cleanup(func() { client.Close() })
	ledger, err := NewRedis(client, "t:")
	if err != nil {
		t.Fatal(err)
	}
	r := &live{T: t, Redis: ledger, limit: l}
	r.settle() // so that the ledger's clock is read
	if l.Algorithm != ratelimit.TokenBucket {
		r.window = l.WindowAt(instant(ledger.latest.Load()))
	}
	return r
}

// daily has no turn of a window in a test.
func daily(n tokens) ratelimit.Limit { return ratelimit.Limit{Unit: ratelimit.Week, Requests: n} }

func (r *live) claim(key string, h ratelimit.Holder, seq uint64, need tokens) Claim {
	return Claim{Key: key, Window: r.window, Limit: r.limit, Holder: h, Seq: seq, Need: need, Want: need}
}

func (r *live) draw(key string, h ratelimit.Holder, n tokens) Claim {
	return Claim{Key: key, Window: r.window, Limit: r.limit, Holder: h, Want: n}
}

func (r *live) settle(claims ...Claim) []Grant {
	r.Helper()
	grants := make([]Grant, len(claims))
	if _, _, err := r.Settle(r.Context(), claims, grants); err != nil {
		r.Fatal(err)
	}
	return grants
}

// expires checks that every account does.
func expires(t *testing.T, c *redis.Client) {
	t.Helper()
	for _, name := range c.Keys(context.Background(), "t:{*").Val() {
		if ttl := c.PTTL(context.Background(), name).Val(); ttl <= 0 {
			t.Errorf("%s never expires: %v", name, c.HGetAll(context.Background(), name).Val())
		}
	}
}

// wrapped is a client in another's clothes.
type wrapped struct{ redis.UniversalClient }

func TestClientsThatAreRefused(t *testing.T) {
	one := redis.NewClient(&redis.Options{MaxRetries: -1, ContextTimeoutEnabled: true})
	for what, c := range map[string]redis.UniversalClient{
		"a ring":                redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "localhost:1"}}),
		"a wrapped one":         wrapped{one},
		"one that retries":      redis.NewClient(&redis.Options{ContextTimeoutEnabled: true}),
		"one without timeouts":  redis.NewClient(&redis.Options{MaxRetries: -1}),
		"a cluster that does":   redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"localhost:1"}, MaxRetries: 2, ContextTimeoutEnabled: true}),
		"none":                  nil,
		"one wrapped in itself": &wrapped{one},
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
	r := newLive(t, s.Client(), daily(100))
	g := r.settle(r.draw("k", 1, 60), r.claim("k", 2, 1, 10), r.draw("k", 1, 5), r.claim("j", 2, 1, 10), r.draw("j", 3, 1))
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
	r := newLive(t, s.Client(), daily(100))
	if g := r.settle(r.claim("k", 1, 1, 7), r.draw("k", 2, 1)); g[0].Granted != 7 || g[1].Total != 1 {
		t.Errorf("%+v", g)
	}
	if _, _, err := r.Settle(t.Context(), []Claim{{}}, make([]Grant, 1)); err != nil {
		t.Error(err)
	}
}

// What another program wrote in an account's place is an error, changes nothing, and grants nothing.
func TestForeignData(t *testing.T) {
	s := redistest.Shared(t)
	c := s.Client()
	packed := strings.Repeat("\x00", 64)
	nan := strings.Repeat("\x00\x00\x00\x00\x00\x00\xf8\x7f", 8)
	for _, bucket := range []bool{false, true} {
		l := daily(100)
		if bucket {
			l = ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: 10, Burst: 100}
		}
		r := newLive(t, s.Client(), l)
		at := r.nameOf("k", r.window)
		for field, values := range map[string][]string{
			"sum": {"1e17", "abc", "9223372036854775807", "-9223372036854775808", "", "1.5", "nan"},
			"h:1": {"1e17", "abc", "9223372036854775807", " 1"},
			"c:1": {"", "1", packed, nan[:32], "1 2 3 4"},
			"a":   {"", "short", packed + "1", nan},
			"b":   {"", "short", packed + "1", nan},
		} {
			if bucket != (field == "b") {
				continue // not a field of it
			}
			for _, v := range values {
				c.Del(t.Context(), at)
				c.HSet(t.Context(), at, field, v)
				before := c.Dump(t.Context(), at).Val()
				g := r.settle(r.claim("k", 1, 1, 5))[0]
				if g.Err == nil || g.Granted != 0 {
					t.Errorf("%s is %q: %+v", field, v, g)
				}
				if c.Dump(t.Context(), at).Val() != before {
					t.Errorf("%s is %q: a claim changed it", field, v)
				}
				if bucket || field == "c:1" || field == "a" {
					continue // draws do not read it
				}
				if g := r.settle(r.draw("k", 1, 5))[0]; g.Err == nil {
					t.Errorf("%s is %q: a draw found %+v", field, v, g)
				}
			}
		}
		c.Del(t.Context(), at)
		c.Set(t.Context(), at, "a string", time.Hour)
		if g := r.settle(r.claim("k", 1, 1, 5))[0]; g.Err == nil {
			t.Errorf("a string: %+v", g)
		}
		if bucket {
			continue
		}
		if g := r.settle(r.draw("k", 1, 5))[0]; g.Err == nil {
			t.Errorf("a string: %+v", g)
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
		r := newLive(t, client, daily(100))
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
	s := redistest.Shared(t)
	r := newLive(t, s.Client(), daily(100))
	type told struct {
		key    string
		window ratelimit.Window
	}
	heard := make(chan told, 10)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r.Recalls(ctx, 0xbeef, func(key string, w ratelimit.Window) { heard <- told{key, w} })
	}()
	for subscribed := int64(0); subscribed == 0; {
		subscribed = r.one.client.PubSubNumSub(t.Context(), recallChannel+"beef").Val()[recallChannel+"beef"]
	}
	r.settle(r.draw("k", 0xbeef, 90), r.claim("k", 2, 1, 10))
	if g := r.settle(r.claim("k", 3, 1, 5))[0]; !g.Recalling || g.Granted != 0 || g.InHand != 90 {
		t.Errorf("%+v", g)
	}
	if got := <-heard; got != (told{"k", r.window}) {
		t.Errorf("recalled %+v", got)
	}
	cancel()
	<-ended
}

// answer packs numbers as the scripts do.
func answer(all ...float64) string {
	var b []byte
	for _, n := range all {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(n))
	}
	return string(b)
}

// An answer that is not exactly a grant of the claim is an error.
func TestAnswers(t *testing.T) {
	c := Claim{Key: "k", Window: 20, Limit: fixed(100), Holder: 1, Seq: 3, Taken: 4, Spent: 3, Want: 5}
	good := []float64{0, 3, 5, 9, 9, 4, 1, 1, 1}
	for _, spoilt := range []struct {
		field int
		n     float64
		ok    bool
	}{
		{2, 5, true},
		{2, 6, false},
		{2, -1, false},
		{2, 0.5, false},
		{2, math.NaN(), false},
		{2, math.Inf(1), false},
		{0, 3, false},
		{0, -1, false},
		{0, 1, false},
		{0, 2, false},
		{1, 2, false},
		{6, -1, false},
		{7, 0, false},
		{3, 1 << 54, false},
		{3, -(1 << 54), false},
		{2, 4, false}, // what the holder had, and 4, are not 9
		{3, 10, false},
		{3, -7, false},
		{4, 10, true},
		{5, 0.5, false},
		{5, math.NaN(), false},
	} {
		all := slices.Clone(good)
		all[spoilt.field] = spoilt.n
		if spoilt.field == 2 && spoilt.n == 6 {
			all[3] = 10 // it adds up, and is more than was wanted
		}
		a := redis.NewCmd(context.Background())
		a.SetVal(answer(all...))
		if g := readGrant(&c, a, nil); (g.Err == nil) != spoilt.ok {
			t.Errorf("field %d is %v: %+v", spoilt.field, spoilt.n, g)
		}
	}
}

// A trip whose server answers what makes no sense grants nothing, whichever answer it is.
func FuzzAnswers(f *testing.F) {
	good := strings.Repeat("\x00", 8*answerFields)
	f.Add(good, int64(1), int64(1))
	f.Add("", int64(-1), int64(math.MaxInt64))
	c := Claim{Key: "k", Window: 20, Limit: fixed(100), Holder: 1, Seq: 3, Want: 5}
	d := c
	d.Seq = 0
	f.Fuzz(func(t *testing.T, text string, sum, total int64) {
		a := redis.NewCmd(context.Background())
		a.SetVal(text)
		if g := readGrant(&c, a, nil); g.Err == nil && (g.Granted < 0 || g.Granted > c.Want || g.At <= 0) {
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
