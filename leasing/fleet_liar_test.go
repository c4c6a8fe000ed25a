package leasing

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

// liar stands in a client of Redis, and changes what is answered.
type liar struct {
	lie atomic.Pointer[func(redis.Cmder)]
}

func (l *liar) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (l *liar) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }

func (l *liar) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		if lie := l.lie.Load(); lie != nil {
			for _, c := range cmds {
				(*lie)(c)
			}
		}
		return err
	}
}

// ofClaims changes the numbers that the script answers.
func ofClaims(lie func(n []float64)) func(redis.Cmder) {
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
func ofDraws(lie func(replies []any) []any) func(redis.Cmder) {
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
func ofTime(lie func(seconds int64) int64) func(redis.Cmder) {
	claims := ofClaims(func(n []float64) { n[7] = float64(lie(int64(n[7]/1e6))) * 1e6 })
	return func(cmd redis.Cmder) {
		claims(cmd)
		if c, ok := cmd.(*redis.TimeCmd); ok {
			c.SetVal(time.Unix(lie(c.Val().Unix()), 0))
		}
	}
}

// number has one of the script's numbers be another.
func number(i int, lie func(float64) float64) func(redis.Cmder) {
	return ofClaims(func(n []float64) { n[i] = lie(n[i]) })
}

func is(n float64) func(float64) float64 { return func(float64) float64 { return n } }

// A Redis that lies to one of two nodes: nothing breaks, both together admit the limit and not more, and when it tells
// the truth again the rest is admitted. Where it lies about what time it is, a window may be granted once more.
func TestRedisThatLies(t *testing.T) {
	t.Parallel()
	const limit, granted, total, sum = 100, 2, 3, 4
	hour := func(n int64) func(int64) int64 { return func(s int64) int64 { return s + n*3600 } }
	plus := func(by float64) func(float64) float64 { return func(n float64) float64 { return n + by } }
	lies := map[string]struct {
		lie  func(redis.Cmder)
		most int
	}{
		"no number":            {number(sum, is(math.NaN())), limit},
		"without end":          {number(sum, is(math.Inf(1))), limit},
		"half a token":         {number(sum, plus(0.5)), limit},
		"a sum without bound":  {number(sum, is(1<<53)), limit},
		"a sum that is large":  {number(sum, is(1<<51)), limit},
		"more than was wanted": {number(granted, plus(1e6)), limit},
		"more, and it adds up": {ofClaims(func(n []float64) {
			n[granted], n[total] = n[granted]+1e6, n[total]+1e6
		}), limit},
		"less than nothing":     {number(granted, is(-1)), limit},
		"the least grant":       {number(granted, is(-1<<53)), limit},
		"a total of others":     {number(total, plus(7)), limit},
		"in hand without bound": {number(5, is(1<<53)), limit},
		"another's answer":      {number(1, plus(1)), limit},
		"a code that is none":   {number(0, is(9)), limit},
		"always overtaken":      {number(0, is(1)), limit},
		"always over":           {number(0, is(2)), limit},
		"a fence below nothing": {number(6, is(-1)), limit},
		"always recalling":      {number(8, is(1)), limit},
		"draws of a large sum":  {ofDraws(func(r []any) []any { r[0] = int64(1) << 52; return r }), limit},
		"draws of no bound":     {ofDraws(func(r []any) []any { r[0] = int64(math.MaxInt64); return r }), limit},
		"draws that are lost":   {ofDraws(func(r []any) []any { r[1] = int64(0); return r }), limit},
		"draws that come twice": {ofDraws(func(r []any) []any { r[1] = r[1].(int64) * 2; return r }), limit},
		"draws of words":        {ofDraws(func(r []any) []any { r[0] = "many"; return r }), limit},
		"draws without account": {ofDraws(func(r []any) []any { r[2] = int64(0); return r }), limit},
		"draws that are cut":    {ofDraws(func(r []any) []any { return r[:2] }), limit},
		"no draws":              {ofDraws(func([]any) []any { return nil }), limit},
		"draws of nothing":      {ofDraws(func(r []any) []any { return make([]any, len(r)) }), limit},
		"1970":                  {ofTime(func(int64) int64 { return 1 }), 2 * limit},
		"before 1970":           {ofTime(func(int64) int64 { return -5 }), limit},
		"a year ago":            {ofTime(hour(-366 * 24)), 2 * limit},
		"in ten years":          {ofTime(hour(10 * 366 * 24)), 2 * limit},
		"in a million years":    {ofTime(hour(1e6 * 366 * 24)), limit},
	}
	l := &liar{}
	store := redistest.Start(t)
	connect, nodes := clientOf(store.Addr), 0
	c := newOnClients(t, 2, yearly(limit), func() redis.UniversalClient {
		client := connect()
		if nodes++; nodes == 1 {
			client.AddHook(l)
		}
		return client
	})
	c.strict()
	c.ready()
	drawn, claimed := c.rule, *c.rule
	claimed.Coordination.Audit = true // so that nothing is drawn
	for _, key := range slices.Sorted(maps.Keys(lies)) {
		x := lies[key]
		if c.rule = &claimed; strings.Contains(key, "draw") {
			c.rule = drawn
		}
		admitted, tries := 0, 0
		ask := func(node int) {
			if v, _ := c.attempt(node, key, 1); !v.OverLimit {
				admitted++
			}
		}
		l.lie.Store(&x.lie)
		for i := range 20 {
			ask(0)
			if i%2 == 0 {
				ask(1)
			}
		}
		l.lie.Store(nil)
		c.until(key+": it does not recover", func() bool {
			v, _ := c.attempt(0, key+" then", 1)
			return !v.OverLimit && v.Source != ratelimit.FromFallback
		})
		c.until(key+": the rest is not admitted", func() bool {
			tries++
			ask(tries % 2)
			return admitted >= limit
		})
		for i := range 10 {
			ask(i % 2)
		}
		if admitted > x.most {
			t.Errorf("%s: %d of %d were admitted", key, admitted, limit)
		}
	}
}
