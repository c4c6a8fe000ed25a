package account

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

func TestMain(m *testing.M) {
	code := m.Run()
	redistest.EndShared()
	os.Exit(code)
}

// epochAt is when tests begin: the start of a minute, of an hour and of a day. It is in the future, for a Redis' own
// clock, by which accounts expire.
const epochAt instant = 20_834 * 86_400 * 1_000_000

func fixed(n tokens) ratelimit.Limit { return ratelimit.Limit{Unit: ratelimit.Minute, Requests: n} }

// weekly has no turn of a window in a test.
func weekly(n tokens) ratelimit.Limit { return ratelimit.Limit{Unit: ratelimit.Week, Requests: n} }

// bucketOf is a bucket of so many tokens, and so many more a second.
func bucketOf(burst, rate tokens) ratelimit.Limit {
	return ratelimit.Limit{Algorithm: ratelimit.TokenBucket, Unit: ratelimit.Second, Requests: rate, Burst: burst}
}

// window is that of a time; 0 of a bucket.
func window(l *ratelimit.Limit, at instant) ratelimit.Window {
	if l.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return l.WindowAt(at)
}

// claim is one of the window in which tests begin.
func claim(l ratelimit.Limit, key string, h ratelimit.Holder, seq uint64, need tokens) Claim {
	return Claim{Key: key, Window: window(&l, epochAt), Limit: l, Holder: h, Seq: seq, Need: need, Want: need}
}

// settle settles claims. A failure of all is the caller's, if each grant has it.
func settle(t testing.TB, l Ledger, claims ...Claim) []Grant {
	t.Helper()
	grants := make([]Grant, len(claims))
	_, _, err := l.Settle(t.Context(), claims, grants)
	for i := range grants {
		if err != nil && grants[i].Err == nil {
			t.Fatalf("%v, and a grant is %+v", err, grants[i])
		}
	}
	return grants
}

// epochOf is a ledger's epoch.
func epochOf(t testing.TB, l Ledger) ratelimit.Epoch {
	t.Helper()
	e, _, err := l.Settle(t.Context(), nil, nil)
	if err != nil || e.ID == 0 {
		t.Fatal(e, err)
	}
	return e
}

// live is a ledger in Redis.
type live struct {
	*testing.T
	*Redis
	limit  ratelimit.Limit
	window ratelimit.Window
	now    instant // its clock, if the test moves it
}

// newLive is one that goes by Redis' clock.
func newLive(t *testing.T, client redis.UniversalClient, l ratelimit.Limit) *live {
	t.Helper()
	r := dialled(t, client)
	r.limit = l
	r.settle() // so that the ledger's clock is read
	r.window = window(&l, instant(r.latest.Load()))
	return r
}

// newMoved is one whose clock the test moves.
func newMoved(t *testing.T, s *redistest.Server) *live {
	t.Helper()
	r := dialled(t, s.Client())
	r.now = epochAt
	r.GoBy(func() ratelimit.LedgerTime { return r.now })
	return r
}

func dialled(t *testing.T, client redis.UniversalClient) *live {
	t.Helper()
	l, err := NewRedis(client, "t:")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return &live{T: t, Redis: l}
}

func (r *live) claim(key string, h ratelimit.Holder, seq uint64, need tokens) Claim {
	c := claim(r.limit, key, h, seq, need)
	c.Window = r.window
	return c
}

func (r *live) draw(key string, h ratelimit.Holder, n tokens) Claim {
	return Claim{Key: key, Window: r.window, Limit: r.limit, Holder: h, Want: n}
}

func (r *live) settle(claims ...Claim) []Grant {
	r.Helper()
	return settle(r.T, r.Redis, claims...)
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

// pair is a ledger in memory and one in Redis, by one clock.
type pair struct {
	*live
	memory *Memory
	asked  []ratelimit.Holder // by the ledger in memory
	seqs   map[string]uint64
}

// newPair is on an empty Redis.
func newPair(t *testing.T, l ratelimit.Limit) *pair {
	t.Helper()
	p := paired(newMoved(t, redistest.Shared(t)), l)
	epochOf(t, p.Redis) // so that draws are plain ones
	return p
}

func paired(r *live, l ratelimit.Limit) *pair {
	r.limit = l
	p := &pair{live: r, seqs: map[string]uint64{}}
	p.memory = NewMemory(func() ratelimit.LedgerTime { return r.now })
	p.memory.OnRecall = func(h ratelimit.Holder, _ string, _ ratelimit.Window) { p.asked = append(p.asked, h) }
	return p
}

// both settles a claim in both ledgers. An error says how they differ, or which invariant is broken.
func (p *pair) both(c Claim) (Grant, error) {
	var want, got [1]Grant
	_, _, err := p.memory.Settle(p.Context(), []Claim{c}, want[:])
	_, _, other := p.Settle(p.Context(), []Claim{c}, got[:])
	if err := errors.Join(err, other); err != nil {
		return want[0], err
	}
	if d := cmp.Diff(answered(want[0]), answered(got[0])); d != "" {
		return want[0], fmt.Errorf("at %d, %+v: memory -, Redis +\n%s", p.now, c, d)
	}
	if k := p.memory.account(c.Key, c.account()); k != nil {
		return want[0], k.invariants(&p.limit)
	}
	return want[0], nil
}

// must is the answer of both ledgers.
func (p *pair) must(c Claim) Grant {
	p.Helper()
	g, err := p.both(c)
	if err != nil {
		p.Fatal(err)
	}
	return g
}

// answered is a grant with its error as text: what went wrong is the same, not how it is said.
func answered(g Grant) string {
	err := g.Err
	g.Err = nil
	return fmt.Sprintf("%+v %v", g, err)
}

// loses empties both ledgers without a sign to their holders.
func (p *pair) loses() {
	p.memory.Lose(nil, fmt.Sprint("life ", p.now))
	if err := p.one.client.FlushAll(p.Context()).Err(); err != nil {
		p.Fatal(err)
	}
}

// evicts loses one account.
func (p *pair) evicts(key string, w ratelimit.Window) {
	p.memory.Evict(key, w)
	if err := p.one.client.Del(p.Context(), p.nameOf(key, w)).Err(); err != nil {
		p.Fatal(err)
	}
}

// account is what the store has of an account; nil: nothing.
func (m *Memory) account(key string, w ratelimit.Window) *kept {
	k, data := &kept{}, m.records[NameOf("", key, w)].Data
	if data == nil {
		return nil
	}
	if err := k.decode(data); err != nil {
		panic(err)
	}
	return k
}

var errInvariant = errors.New("an invariant is broken")

// invariants tells which invariant of an account is broken.
func (k *kept) invariants(l *ratelimit.Limit) error {
	if b := k.bucket; b != nil {
		if b.hand < 0 || b.old < 0 || b.level > 0 && b.level > b.room(burstOf(l)) {
			return fmt.Errorf("%w: bucket %+v", errInvariant, *b)
		}
		return nil
	}
	a := &k.account
	spent := a.dropped()
	for i := range a.records {
		r := &a.records[i]
		spent += r.spent
		if r.inHand() < 0 || r.fence > a.fence {
			return fmt.Errorf("%w: record %+v, fence %d", errInvariant, *r, a.fence)
		}
	}
	if spent != a.spent || a.dropped() < 0 || a.sum < 0 {
		return fmt.Errorf("%w: sum %d, dropped %d of it; spent %d of records' %d",
			errInvariant, a.sum, a.dropped(), a.spent, spent)
	}
	return nil
}

// dropped is the part of the sum that no record has. It was spent.
func (a *account) dropped() tokens {
	sum := a.sum
	for i := range a.records {
		sum -= a.records[i].taken
	}
	return sum
}

// limitOf reads "100 a minute", "sliding 100 a minute", or "10 a second, burst 10".
func limitOf(t testing.TB, text string) (l ratelimit.Limit) {
	t.Helper()
	words := strings.Fields(strings.ReplaceAll(text, ",", ""))
	if words[0] == "sliding" {
		l.Algorithm = ratelimit.SlidingWindow
		words = words[1:]
	}
	unit, ok := ratelimit.ParseUnit(words[2])
	l.Unit, l.Requests = unit, number(t, words[0])
	if len(words) > 3 {
		l.Algorithm, l.Burst = ratelimit.TokenBucket, number(t, words[4])
	}
	if !ok {
		t.Fatal(text)
	}
	return l
}

func number(t testing.TB, text string) tokens {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return tokens(n)
}

// says plays one line of an example, at a time after its begin, by a holder of one letter or by the ledger. It returns
// what both ledgers answer.
func (p *pair) says(after time.Duration, who, message string) string {
	p.Helper()
	p.now = epochAt.Add(after)
	of, rest, _ := strings.Cut(message, " ")
	switch of {
	case "loses":
		p.loses()
		return "done"
	case "evicts":
		p.evicts("k", window(&p.limit, p.now))
		return "done"
	case "limits":
		p.limit = limitOf(p.T, rest)
		return "done"
	case "keeps":
		return fmt.Sprint(p.memory.account("k", window(&p.limit, p.now)).over.Sub(p.now))
	}
	c := p.message(who, strings.Fields(strings.ReplaceAll(message, " ms", "")))
	g := p.must(c)
	if of == "fence" {
		return fmt.Sprintf("fence %v", instant(g.Fence).Sub(epochAt))
	}
	return p.shown(&c, g)
}

// message reads "draw 5", or "claim taken 5 spent 3 need 1", with more of the same kind.
func (p *pair) message(who string, words []string) Claim {
	p.Helper()
	p.seqs[who]++
	c := claim(p.limit, "k", ratelimit.Holder(who[0]), p.seqs[who], 0)
	c.Window = window(&p.limit, p.now)
	if words[0] == "draw" {
		c.Seq, c.Want = 0, number(p.T, words[1])
		words = words[1:]
	}
	for words = words[1:]; len(words) > 1; words = words[2:] {
		n := number(p.T, words[1])
		switch words[0] {
		case "taken":
			c.Taken = n
		case "spent":
			c.Spent = n
		case "need":
			c.Need, c.Want = n, n
		case "want", "lease":
			c.Want = n
		case "unit":
			c.Unit = n
		case "seq":
			c.Seq = uint64(n)
		case "window":
			c.Window += ratelimit.Window(n)
		case "slot":
			c.Window = BucketSlotAt(epochAt, &p.limit) + ratelimit.Window(n)
		case "states":
			c.Window, c.Taken = Stated, n
		default:
			p.Fatal(words)
		}
	}
	return c
}

// shown is an answer, as the page of the protocol has it.
func (p *pair) shown(c *Claim, g Grant) string {
	p.Helper()
	switch {
	case errors.Is(g.Err, ErrOvertaken):
		return "overtaken"
	case errors.Is(g.Err, ErrOver):
		return "over"
	case g.Err != nil:
		p.Fatal(g.Err)
	case c.Draws():
		return fmt.Sprintf("total %d, sum %d: owns %d", g.Total, g.Sum, g.Owned(c.Want, &p.limit))
	}
	text := fmt.Sprintf("granted %d, total %d, sum %d, in hand %d", g.Granted, g.Total, g.Sum, g.InHand)
	if cut := g.Cut(c); cut != 0 {
		text += fmt.Sprintf(", cut %d", cut)
	}
	if g.Recalling {
		text += ", recalling"
	}
	return text
}
