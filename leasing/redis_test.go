package leasing_test

import (
	"context"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// rest asks until the limit of a key is admitted, for 20 s at most, and then a little more.
func (c *cluster) rest(key string, admitted, limit int) int {
	for end := time.Now().Add(20 * time.Second); admitted < limit && time.Now().Before(end); {
		admitted += c.load(60, 6, 2*time.Millisecond, key)[key]
	}
	return admitted + c.load(300, 6, 0, key)[key]
}

// For any fault of Redis, or of the network to it, admissions stay within the limit. After the fault, the whole limit is
// available.
func TestFaultsOfRedis(t *testing.T) {
	const limit = 3000
	for name, fault := range map[string]func(s *redistest.Server, p *redistest.Proxy, is bool){
		"lost replies": func(_ *redistest.Server, p *redistest.Proxy, is bool) { p.Swallow(map[bool]int{true: 20}[is]) },
		"cut":          func(_ *redistest.Server, p *redistest.Proxy, _ bool) { p.Cut() },
		"refused":      func(_ *redistest.Server, p *redistest.Proxy, is bool) { p.Refuse(is); p.Cut() },
		"slow": func(_ *redistest.Server, p *redistest.Proxy, is bool) {
			p.Delay(map[bool]time.Duration{true: 50 * time.Millisecond}[is])
		},
		"garbage": func(_ *redistest.Server, p *redistest.Proxy, is bool) {
			if p.Garbage(is); !is {
				p.Cut()
			}
		},
		"out of memory": func(s *redistest.Server, _ *redistest.Proxy, is bool) {
			s.Do("CONFIG", "SET", "maxmemory", map[bool]string{true: "1", false: "0"}[is])
		},
		"read-only": func(s *redistest.Server, _ *redistest.Proxy, is bool) {
			s.Do("CONFIG", "SET", "min-replicas-to-write", map[bool]string{true: "3", false: "0"}[is])
		},
		"scripts forgotten": func(s *redistest.Server, _ *redistest.Proxy, _ bool) { s.Do("SCRIPT", "FLUSH") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t)
			p := redistest.NewProxy(t, s.Addr)
			c := onRedis(t, 3, fixed(limit, ratelimit.Year), clientOf(p.Addr))
			before := c.load(1200, 6, 0, "k")
			fault(s, p, true)
			during := c.load(900, 6, time.Millisecond, "k")
			fault(s, p, false)
			if n := c.rest("k", before["k"]+during["k"], limit); n != limit {
				t.Errorf("%d of %d were admitted, %d of them before and %d meanwhile", n, limit, before["k"], during["k"])
			}
		})
	}
}

// hook changes what a client of Redis reads.
type hook struct {
	lie atomic.Pointer[func(redis.Cmder)]
}

func newHook(lie func(redis.Cmder)) *hook {
	h := &hook{}
	h.lie.Store(&lie)
	return h
}

func (h *hook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (h *hook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (h *hook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if lie := h.lie.Load(); lie != nil {
			for _, c := range cmds {
				(*lie)(c)
			}
		}
		return err
	}
}

// A Redis that lies to one of two nodes: nothing breaks, both together admit the limit and not more, and when it tells
// the truth again the rest is admitted. Where it lies about what time it is, a window may be granted once more.
func TestRedisThatLies(t *testing.T) {
	t.Parallel()
	const limit, granted, total, sum = 100, 2, 3, 4
	// ofClaims changes the numbers that the script answers.
	ofClaims := func(lie func(n []float64)) func(redis.Cmder) {
		return func(cmd redis.Cmder) {
			c, ok := cmd.(*redis.Cmd)
			text, isText := "", false
			if ok {
				text, isText = c.Val().(string)
			}
			if !isText || cmd.Name() != "evalsha" && cmd.Name() != "eval" || len(text)%8 != 0 {
				return
			}
			n, packed := make([]float64, len(text)/8), []byte(nil)
			for i := range n {
				n[i] = math.Float64frombits(binary.LittleEndian.Uint64([]byte(text[8*i:])))
			}
			lie(n)
			for i := range n {
				packed = binary.LittleEndian.AppendUint64(packed, math.Float64bits(n[i]))
			}
			c.SetVal(string(packed))
		}
	}
	// ofDraws changes what the transaction answers of draws: of each three replies. The epoch comes after them.
	ofDraws := func(lie func(replies []any) []any) func(redis.Cmder) {
		return func(cmd redis.Cmder) {
			if c, ok := cmd.(*redis.Cmd); ok && cmd.Name() == "exec" {
				replies, _ := c.Val().([]any)
				if draws := len(replies) - 1; draws > 0 {
					c.SetVal(append(lie(replies[:draws:draws]), replies[draws]))
				}
			}
		}
	}
	// ofTime changes what time it is, wherever that is said.
	ofTime := func(lie func(seconds int64) int64) func(redis.Cmder) {
		claims := ofClaims(func(n []float64) { n[7] = float64(lie(int64(n[7]/1e6))) * 1e6 })
		return func(cmd redis.Cmder) {
			claims(cmd)
			if c, ok := cmd.(*redis.TimeCmd); ok {
				c.SetVal(time.Unix(lie(c.Val().Unix()), 0))
			}
		}
	}
	hour := func(n int64) func(int64) int64 { return func(s int64) int64 { return s + n*3600 } }
	is := func(i int, n float64) func(redis.Cmder) { return ofClaims(func(all []float64) { all[i] = n }) }
	plus := func(i int, by float64) func(redis.Cmder) { return ofClaims(func(all []float64) { all[i] += by }) }
	reply := func(i int, is any) func(redis.Cmder) { return ofDraws(func(r []any) []any { r[i] = is; return r }) }
	lies := map[string]struct {
		lie  func(redis.Cmder)
		most int
	}{
		"a sum without bound":   {is(sum, 1<<53), limit},
		"a sum that is large":   {is(sum, 1<<51), limit},
		"more, and it adds up":  {ofClaims(func(n []float64) { n[granted] += 1e6; n[total] += 1e6 }), limit},
		"a total of others":     {plus(total, 7), limit},
		"in hand without bound": {is(5, 1<<53), limit},
		"always overtaken":      {is(0, 1), limit},
		"always over":           {is(0, 2), limit},
		"a fence below nothing": {is(6, -1), limit},
		"always recalling":      {is(8, 1), limit},
		"draws of a large sum":  {reply(0, int64(1)<<52), limit},
		"draws of no bound":     {reply(0, int64(math.MaxInt64)), limit},
		"draws that are lost":   {reply(1, int64(0)), limit},
		"draws that come twice": {ofDraws(func(r []any) []any { r[1] = r[1].(int64) * 2; return r }), limit},
		"draws without account": {reply(2, int64(0)), limit},
		"1970":                  {ofTime(func(int64) int64 { return 1 }), 2 * limit},
		"before 1970":           {ofTime(func(int64) int64 { return -5 }), limit},
		"a year ago":            {ofTime(hour(-366 * 24)), 2 * limit},
		"in ten years":          {ofTime(hour(10 * 366 * 24)), 2 * limit},
		"in a million years":    {ofTime(hour(1e6 * 366 * 24)), limit},
	}
	liar, connect, nodes := &hook{}, clientOf(redistest.Start(t).Addr), 0
	c := onRedis(t, 2, fixed(limit, ratelimit.Year), func() redis.UniversalClient {
		client := connect()
		if nodes++; nodes == 1 {
			client.AddHook(liar)
		}
		return client
	})
	drawn, claimed := c.rule, *c.rule
	claimed.Coordination.Audit = true // so that nothing is drawn
	for _, key := range slices.Sorted(maps.Keys(lies)) {
		x := lies[key]
		if c.rule = &claimed; strings.Contains(key, "draw") {
			c.rule = drawn
		}
		admitted, tries := 0, 0
		try := func(node int) {
			if c.attempt(node, key) {
				admitted++
			}
		}
		liar.lie.Store(&x.lie)
		for i := range 20 {
			try(0)
			if i%2 == 0 {
				try(1)
			}
		}
		liar.lie.Store(nil)
		c.until(key+": it does not recover", func() bool {
			v := c.decide(0, ask{Key: []byte(key + " then"), Cost: 1})
			return !v.OverLimit && v.Source != ratelimit.FromFallback
		})
		c.until(key+": the rest is not admitted", func() bool {
			tries++
			try(tries % 2)
			return admitted >= limit
		})
		for i := range 10 {
			try(i % 2)
		}
		if admitted > x.most {
			t.Errorf("%s: %d of %d were admitted", key, admitted, limit)
		}
	}
}
