package account

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	twinSeeds = flag.Uint64("twins", 120, "how many seeds TestTwins plays")
	twinFirst = flag.Uint64("twins-first", 0, "the first of them")
)

// twins are both ledgers, and holders that send to them.
type twins struct {
	*pair
	*rand.Rand
	key  string
	told []Claim // what each node last said
	// names count how often each node dropped the key. A node uses it under another name after that.
	names []ratelimit.Holder
	met   map[string]int
}

// Random messages through the scripts and plain draws, and through the code in Go: every answer is the same.
func TestTwins(t *testing.T) {
	r, met := newMoved(t, redistest.Shared(t)), map[string]int{"lost": 0, "evicted": 0, "back": 0}
	for seed := *twinFirst; seed < *twinFirst+*twinSeeds; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			if err := newTwins(r, seed, met).play(150); err != nil {
				t.Fatal(err)
			}
		})
	}
	t.Log(met)
	if *twinSeeds < 100 {
		return // too few for each kind to come
	}
	for kind, n := range met {
		if n < 5 {
			t.Errorf("%q came %d times", kind, n)
		}
	}
}

func newTwins(r *live, seed uint64, met map[string]int) *twins {
	w := &twins{Rand: rand.New(rand.NewPCG(seed, 5)), key: fmt.Sprint("k", seed), met: met}
	r.now = epochAt.Add(time.Duration(w.IntN(1000)) * time.Millisecond)
	l := ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(seed % 3),
		Unit:      []ratelimit.Unit{ratelimit.Second, ratelimit.Minute, ratelimit.Day}[w.IntN(3)],
		Requests:  []tokens{0, 1, 3, 20, 100, 1000, 1_000_000, 700_000_000_000}[w.IntN(8)],
	}
	l.Burst = l.Requests * tokens(1+w.IntN(3)) / 2
	if seed%12 == 3 {
		l.Algorithm, l.Unit = ratelimit.FixedWindow, ratelimit.CalendarMonth
	}
	w.pair = paired(r, l)
	w.told = make([]Claim, 2+w.IntN(6))
	w.names = make([]ratelimit.Holder, len(w.told))
	return w
}

// play says where the ledgers answer differently, or an invariant is broken.
func (w *twins) play(steps int) error {
	for step := range steps {
		w.pass()
		// Every second draw is a plain one: of a window that goes on, as far as the ledger's clock is known.
		w.latest.Store(int64(w.now) * int64(step%2))
		c := w.next()
		g, err := w.both(c)
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		w.count(&c, &g)
		w.hear(&c, &g)
	}
	for at := range w.memory.records {
		if key, of, ok := ParseName("", at); ok {
			k := w.memory.account(key, of)
			if err := w.same(of, k); err != nil {
				return err
			}
			w.met["dropped"] += int(one(k.dropped() > 0))
		}
	}
	return nil
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
	case n < 70: // all accounts, in memory as in Redis, where the epoch stays
		w.memory.Lose(nil, fmt.Sprint(w.Uint64()))
		c := w.one.client
		for _, name := range c.Keys(w.Context(), "t:{"+w.key+"}*").Val() {
			if err := c.Del(w.Context(), name).Err(); err != nil {
				w.Fatal(err)
			}
		}
		w.met["lost"]++
	case n < 78:
		w.evicts(w.key, w.some())
		w.met["evicted"]++
	}
	w.now = max(epochAt-instant(period/1000), w.now.Add(by))
}

// some is a window, often the one of now.
func (w *twins) some() ratelimit.Window {
	if w.limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return w.limit.WindowAt(w.now) + ratelimit.Window([]int{0, 0, 0, 0, 0, 0, 1, -1, -2, 2}[w.IntN(10)])
}

// size is a number of tokens of the limit's size.
func (w *twins) size() tokens { return tokens(w.Int64N(2 + int64(w.limit.Capacity())/3)) }

// next is the next message of a holder.
func (w *twins) next() Claim {
	i := w.IntN(len(w.told))
	last := &w.told[i]
	if w.IntN(4) == 0 {
		w.names[i]++
		*last = Claim{}
	}
	c := Claim{
		Key: w.key, Window: w.some(), Limit: w.limit, Holder: holderOf(i) + w.names[i], Seq: last.Seq + 1,
		Taken: last.Taken, Spent: last.Spent, Need: w.size(), Want: w.size(), Unit: tokens(w.IntN(4)),
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
		c.Spent += w.size() // charged
	case 1:
		n := w.size()
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
	if !c.bucket() && w.IntN(4) == 0 {
		c.Seq, c.Want = 0, 1+w.size()
	}
	if w.IntN(20) == 0 {
		c.Limit.Requests /= 2
		c.Limit.Burst /= 2
	}
	return c
}

// holderOf is the first name of a node.
func holderOf(node int) ratelimit.Holder { return 1<<63 + ratelimit.Holder(node)<<namesOfANode }

// hear applies the answer at the holder. Sometimes the answer is lost.
func (w *twins) hear(c *Claim, g *Grant) {
	last := &w.told[(c.Holder-holderOf(0))>>namesOfANode]
	last.Seq = max(last.Seq, c.Seq)
	switch {
	case g.Err != nil:
	case c.bucket():
		last.Window, last.Taken, last.Spent = BucketSlotAt(g.At, &c.Limit), g.Total, 0
	case !c.Draws():
		*last = *c
		last.Taken, last.Spent = clamped(c.Taken), clamped(c.Spent)
		if w.IntN(5) > 0 {
			last.Taken += g.Granted + g.Cut(c)
			last.Spent += g.Cut(c)
		}
	case last.Window == c.Window:
		last.Taken += g.Owned(c.Want, &c.Limit)
	}
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
		w.met[kind] += int(one(is))
	}
}

// same compares the fields of an account in memory with those in Redis, and their ends.
func (w *twins) same(of ratelimit.Window, k *kept) error {
	at := w.nameOf(w.key, of)
	fields := w.one.client.HGetAll(w.Context(), at).Val()
	ends := w.one.client.PExpireTime(w.Context(), at).Val()
	over := time.Duration(k.over) * time.Microsecond
	if len(fields) > 0 && (ends < over || ends > over+time.Millisecond) {
		return fmt.Errorf("%s expires at %v, and must at %v", at, ends, over)
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
		return fmt.Errorf("%s: memory -, Redis +\n%s", at, d)
	}
	return nil
}

// Faults in the scripts are noticed.
func TestPlantedScripts(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a Redis, and takes seconds")
	}
	s := redistest.Shared(t)
	claims, buckets := claimScript, bucketScript
	defer func() { claimScript, bucketScript = claims, buckets }()
	noticed := func() bool {
		r := newMoved(t, s)
		for seed := range uint64(400) {
			if newTwins(r, seed, map[string]int{}).play(150) != nil {
				return true
			}
		}
		return false
	}
	text, err := os.ReadFile("testdata/plants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range strings.Split(strings.TrimSpace(string(text)), "\n\n")[1:] { // after the remarks
		of := map[byte][]string{}
		for line := range strings.SplitSeq(entry, "\n") {
			of[line[0]] = append(of[line[0]], strings.TrimPrefix(line[1:], " "))
		}
		right, wrong := strings.Join(of['-'], "\n"), strings.Join(of['+'], "\n")
		claim, bucket := commonLua+claimLua, commonLua+bucketLua
		if strings.Count(commonLua+claimLua+bucketLua, right) != 1 {
			t.Errorf("%q is not in the scripts once", right)
			continue
		}
		claimScript = redis.NewScript(strings.Replace(claim, right, wrong, 1))
		bucketScript = redis.NewScript(strings.Replace(bucket, right, wrong, 1))
		if !noticed() {
			t.Errorf("NOT NOTICED: %q", wrong)
		}
		s.Do("FLUSHALL")
	}
}
