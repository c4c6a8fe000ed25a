package account

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	twinSeeds = flag.Uint64("twins", 120, "how many seeds TestTwins plays")
	twinFirst = flag.Uint64("twins-first", 0, "the first of them")
)

// moved is a ledger in Redis whose clock the test moves.
type moved struct {
	*Redis
	now instant
}

func newMoved(t *testing.T, s *redistest.Server) *moved {
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	l, err := NewRedis(client, "t:")
	if err != nil {
		t.Fatal(err)
	}
	m := &moved{Redis: l, now: epochAt}
	m.GoBy(func() ratelimit.LedgerTime { return m.now })
	return m
}

// twins are the two ledgers, and holders that send to both.
type twins struct {
	*testing.T
	*rand.Rand
	redis  *moved
	memory *Memory
	key    string
	limit  ratelimit.Limit
	told   []Claim // what each holder last said
	met    map[string]int
}

// Random messages through the scripts and plain draws, and through the code in Go: every answer is the same.
func TestTwins(t *testing.T) {
	s := redistest.Shared(t)
	m, met := newMoved(t, s), map[string]int{}
	for seed := *twinFirst; seed < *twinFirst+*twinSeeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			newTwins(t, m, seed, met).play(150)
		})
	}
	t.Log(met)
	if *twinSeeds < 100 {
		return // too few for each kind to come
	}
	for _, kind := range []string{
		"draw", "claim", "overtaken", "over", "cut", "recalling", "granted",
		"lost", "evicted", "full", "bucket", "leased", "carried on", "stated", "sliding", "back",
	} {
		if met[kind] < 5 {
			t.Errorf("%q came %d times", kind, met[kind])
		}
	}
}

func newTwins(t *testing.T, m *moved, seed uint64, met map[string]int) *twins {
	w := &twins{
		T: t, Rand: rand.New(rand.NewPCG(seed, 5)), redis: m, key: fmt.Sprint("k", seed), met: met,
	}
	m.now = epochAt.Add(time.Duration(w.IntN(1000)) * time.Millisecond)
	w.memory = NewMemory(func() ratelimit.LedgerTime { return m.now })
	w.limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(seed % 3),
		Unit:      []ratelimit.Unit{ratelimit.Second, ratelimit.Minute, ratelimit.Day}[w.IntN(3)],
		Requests:  []tokens{0, 1, 3, 20, 100, 1000, 1_000_000, 700_000_000_000}[w.IntN(8)],
	}
	w.limit.Burst = w.limit.Requests * tokens(1+w.IntN(3)) / 2
	if seed%12 == 3 {
		w.limit.Algorithm, w.limit.Unit = ratelimit.FixedWindow, ratelimit.CalendarMonth
	}
	w.told = make([]Claim, 2+w.IntN(6))
	return w
}

func (w *twins) play(steps int) {
	w.Helper()
	if d := w.differ(steps); d != "" {
		w.Fatal(d)
	}
}

// differ says where the ledgers answer differently, or an invariant is broken; "" if all is well.
func (w *twins) differ(steps int) string {
	for step := range steps {
		w.pass()
		// Every second draw is a plain one: of a window that goes on, as far as the ledger's clock is known.
		w.redis.latest.Store(int64(w.redis.now) * int64(step%2))
		c := w.next()
		got, want := make([]Grant, 1), make([]Grant, 1)
		if _, _, err := w.memory.Settle(w.Context(), []Claim{c}, want); err != nil {
			return err.Error()
		}
		if _, _, err := w.redis.Settle(w.Context(), []Claim{c}, got); err != nil {
			return err.Error()
		}
		if d := cmp.Diff(shown(want[0]), shown(got[0])); d != "" {
			return fmt.Sprintf("step %d at %d, %+v: memory -, Redis +\n%s", step, w.redis.now, c, d)
		}
		if err := w.holds(&c); err != nil {
			return err.Error()
		}
		w.count(&c, &want[0])
		w.hear(&c, &want[0])
	}
	for at := range w.memory.records {
		if key, window, ok := ParseName("", at); ok {
			if d := w.same(window, w.memory.account(key, window)); d != "" {
				return d
			}
		}
	}
	return ""
}

// shown is a grant with its error as text: what went wrong is the same, not how it is said.
func shown(g Grant) string {
	err := g.Err
	g.Err = nil
	return fmt.Sprintf("%+v %v", g, err)
}

// pass has time pass, and sometimes data be lost.
func (w *twins) pass() {
	period := int64(w.limit.Period())
	by := time.Duration(w.Int64N(period / 200))
	switch n := w.IntN(200); {
	case n < 60:
		by = time.Duration(w.Int64N(20)) * time.Millisecond
	case n < 65:
		by = time.Duration(w.Int64N(2 * period))
	case n < 68:
		by = -time.Duration(w.Int64N(period))
		w.met["back"]++
	case n < 70:
		w.memory.Lose(nil, fmt.Sprint(w.Uint64()))
		w.del("t:{" + w.key + "}*")
		w.met["lost"]++
	case n < 78:
		win := w.window()
		w.memory.Evict(w.key, win)
		w.del(w.redis.nameOf(w.key, win))
		w.met["evicted"]++
	}
	w.redis.now = max(epochAt-instant(period/1000), w.redis.now.Add(by))
}

func (w *twins) del(pattern string) {
	c := w.redis.one.client
	for _, name := range c.Keys(w.Context(), pattern).Val() {
		if err := c.Del(w.Context(), name).Err(); err != nil {
			w.Fatal(err)
		}
	}
}

func (w *twins) window() ratelimit.Window {
	if w.limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return w.limit.WindowAt(w.redis.now) + ratelimit.Window([]int{0, 0, 0, 0, 0, 0, 1, -1, -2, 2}[w.IntN(10)])
}

// some is a number of tokens of the limit's size.
func (w *twins) some() tokens { return tokens(w.Int64N(2 + int64(w.limit.Capacity())/3)) }

// next is the next message of a holder.
func (w *twins) next() Claim {
	i := w.IntN(len(w.told))
	last := &w.told[i]
	c := Claim{
		Key: w.key, Window: w.window(), Limit: w.limit, Holder: ratelimit.Holder(0xabc0 + i), Seq: last.Seq + 1,
		Taken: last.Taken, Spent: last.Spent, Need: w.some(), Want: w.some(), Unit: tokens(w.IntN(4)),
	}
	if c.bucket() {
		c.Window = []ratelimit.Window{last.Window, last.Window, last.Window, 0, Stated}[w.IntN(5)]
		c.Need *= tokens(w.IntN(2))
	}
	if last.Window == c.Window && c.Taken > c.Spent {
		c.Spent += tokens(w.Int64N(int64(c.Taken-c.Spent) + 1))
	}
	switch w.IntN(12) {
	case 0:
		c.Spent += w.some() // charged
	case 1:
		n := w.some()
		c.Spent, c.Taken = c.Spent-n, c.Taken-n // refunded
	case 2, 3:
		c.Taken = min(c.Taken, c.Spent) // given back
	case 4:
		c.Taken, c.Spent = 0, 0
	case 5:
		c.Seq = uint64(w.Int64N(int64(c.Seq) + 1))
	case 6:
		if w.IntN(6) == 0 {
			c.Taken, c.Spent = tokens(w.Int64())-1<<62, tokens(w.Int64())-1<<62
		}
	}
	if w.limit.Algorithm != ratelimit.TokenBucket && w.IntN(4) == 0 {
		c.Seq, c.Want = 0, 1+w.some()
	}
	if w.IntN(20) == 0 {
		c.Limit.Requests /= 2
		c.Limit.Burst /= 2
	}
	return c
}

// hear applies the answer at the holder; sometimes the answer is lost.
func (w *twins) hear(c *Claim, g *Grant) {
	last := &w.told[c.Holder-0xabc0]
	if c.bucket() {
		if g.Err == nil {
			last.Window, last.Taken, last.Spent = BucketSlotAt(g.At, &c.Limit), g.Total, 0
		}
		last.Seq = max(last.Seq, c.Seq)
		return
	}
	if c.Draws() && g.Err == nil && last.Window == c.Window {
		last.Taken += g.Owned(c.Want, &c.Limit)
	} else if !c.Draws() && g.Err == nil {
		*last = *c
		last.Taken, last.Spent = max(-MostBooked, min(last.Taken, MostBooked)), max(-MostBooked, min(last.Spent, MostBooked))
		if w.IntN(5) > 0 {
			last.Taken += g.Granted + g.Cut(c)
			last.Spent += g.Cut(c)
		}
	}
	last.Seq = max(last.Seq, c.Seq)
}

// holds tells which invariant of the account in memory is broken.
func (w *twins) holds(c *Claim) error {
	k := w.memory.account(c.Key, c.account())
	if k == nil {
		return nil
	}
	return k.invariants(&w.limit)
}

func (w *twins) count(c *Claim, g *Grant) {
	for kind, is := range map[string]bool{
		"draw": c.Draws() && g.Err == nil, "claim": !c.Draws() && g.Err == nil,
		"overtaken": errors.Is(g.Err, ErrOvertaken), "over": errors.Is(g.Err, ErrOver),
		"cut": g.Cut(c) > 0, "recalling": g.Recalling, "granted": g.Granted > 0,
		"bucket":     c.bucket() && g.Granted > 0,
		"leased":     c.bucket() && g.Granted > c.Need,
		"carried on": c.bucket() && g.Total > g.Granted,
		"stated":     c.bucket() && c.Window == Stated,
		"sliding":    c.Limit.Algorithm == ratelimit.SlidingWindow && g.Granted > 0,
		"full":       !c.Draws() && g.Err == nil && g.Granted == 0 && c.Want > 0,
	} {
		if is {
			w.met[kind]++
		}
	}
}

// same compares an account in memory with that in Redis, field by field, and that it expires.
func (w *twins) same(window ratelimit.Window, k *kept) string {
	at := w.redis.nameOf(w.key, window)
	fields := w.redis.one.client.HGetAll(w.Context(), at).Val()
	ttl := w.redis.one.client.PExpireTime(w.Context(), at).Val()
	if len(fields) > 0 && ttl <= 0 {
		return at + " never expires"
	}
	want := map[string]string{}
	for i := range k.records {
		r := &k.records[i]
		want["h:"+HolderName(r.holder)] = fmt.Sprint(int64(r.taken))
		if r.seq > 0 {
			want["c:"+HolderName(r.holder)] = ""
		}
	}
	if k.bucket == nil {
		want["sum"] = fmt.Sprint(int64(k.sum))
	}
	delete(fields, "a")
	delete(fields, "b")
	for f := range fields {
		if f[0] == 'c' {
			fields[f] = ""
		}
	}
	if d := cmp.Diff(want, fields); d != "" {
		return fmt.Sprintf("%s: memory -, Redis +\n%s", at, d)
	}
	return ""
}
