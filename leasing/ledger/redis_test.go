package ledger

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-gate/sluice/leasing/ledgertest"
	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// movedRedis is a ledger whose clock stands still and is moved by the test.
type movedRedis struct {
	*Redis
	now ledgerTime
}

func newMovedRedis(t testing.TB, s *redistest.Server) *movedRedis {
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	m := &movedRedis{Redis: NewRedis(client, "t:"), now: ledgertest.Epoch}
	m.at = func() ledgerTime { return m.now }
	return m
}

func TestRedisConforms(t *testing.T) {
	s := redistest.Start(t)
	ledgertest.Run(t, func(t *testing.T) ledgertest.Harness {
		s.Do("FLUSHALL")
		m := newMovedRedis(t, s)
		return ledgertest.Harness{
			Ledger:  m,
			Advance: func(d time.Duration) { m.now = m.now.Add(d) },
			Forget:  func() { s.Do("FLUSHALL") },
		}
	})
}

// What the comparison of the two ledgers plays: so many seeds from the first on.
var (
	compared      = flag.Uint64("compared", 600, "how many seeds TestRedisAnswersAsMemoryDoes plays")
	comparedFirst = flag.Uint64("compared-first", 0, "the first of them")
)

// Random claims through the script and through the account in Go: every answer
// is the same, to the microsecond and the token.
func TestRedisAnswersAsMemoryDoes(t *testing.T) {
	s := redistest.Start(t)
	m, audited := newMovedRedis(t, s), audits{kinds: map[string]int{}}
	recalled, drawn, glanced := 0, 0, 0
	for seed := *comparedFirst; seed < *comparedFirst+*compared; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			r, d, g := compareLedgers(t, m, seed, anyLimit)
			recalled, drawn, glanced = recalled+r, drawn+d, glanced+g
			if seed%2 == 1 {
				audited.compare(t, m, fmt.Sprint("seed", seed))
			}
		})
	}
	if *compared < 600 {
		return // too few for each kind to come
	}
	if drawn < 100 || glanced < 30 {
		t.Errorf("only %d draws, and %d glances", drawn, glanced)
	}
	for _, kind := range []string{"grant", "refused", "return", "report", "expiry", "fenced", "recovery", "reset", "final", "stale", "clock"} {
		if audited.kinds[kind] == 0 {
			t.Errorf("no %s in all records: %v", kind, audited.kinds)
		}
	}
	if recalled < 100 {
		t.Errorf("%d claims recalled something", recalled)
	}
	if audited.exact < 5 {
		t.Errorf("%d records say to the token what the ledger has charged", audited.exact)
	}
}

// The same of fixed windows only, and with draws in each: a twelfth of the histories above are so, and what the quick
// way makes of a till is met in these.
func TestRedisBooksDrawsAsMemoryDoes(t *testing.T) {
	m := newMovedRedis(t, redistest.Start(t))
	drawn := 0
	for seed := uint64(0); seed < 600; seed += 2 {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			_, d, _ := compareLedgers(t, m, seed, drawnLimit)
			drawn += d
		})
	}
	if drawn < 1000 {
		t.Errorf("only %d draws", drawn)
	}
}

// audits compares records of accounts with the accounts.
type audits struct {
	kinds map[string]int
	exact int
}

// compare holds that a record says of an account's last window no less than the
// account has charged.
func (v *audits) compare(t *testing.T, m *movedRedis, key string) {
	entries, err := m.client.XRange(context.Background(), AuditStream("t:"+key), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var events []AuditEvent
	resets := 0
	for _, e := range entries {
		event, err := ReadAuditEvent(key, e.Values)
		if err != nil {
			t.Fatal(err)
		}
		v.kinds[event.Kind]++
		// The account was moved to another time: nobody has spent or claimed anything with that.
		if event.Kind == "clock" && (event.Spent != 0 || event.Returned != 0 || event.Waiting != 0 || event.Over != 0) {
			t.Errorf("that the clock went back is recorded as %+v", event)
		}
		events = append(events, event)
	}
	account, _, err := m.Account(context.Background(), key, &perMinute100)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range ReplayAudit(events) {
		resets += w.Resets
		if w.Bucket || account == nil || window(w.Window) != account.window || resets > 0 || account.folded > 0 { // a holder that ended and is there again is charged twice
			continue
		}
		switch charged := int64(account.charged(account.window)); {
		// A holder that claims ahead under the name by which it holds this window has
		// forgotten the window; what it is charged is in base, and not on record again.
		case w.Admitted < charged-int64(max(0, account.base)): // below 0: a record was made again for what is folded
			t.Errorf("the record says that at most %d were admitted, and the account has charged %d", w.Admitted, charged)
		case w.Admitted == charged && charged > 0:
			v.exact++
		}
	}
}

func compareLedgers(t *testing.T, m *movedRedis, seed uint64, of func(*rand.Rand) ratelimit.Limit) (recalled, drawn, glanced int) {
	rnd := rand.New(rand.NewPCG(seed, 7))
	m.now = ledgertest.Epoch
	memory := NewMemory(10, func() ledgerTime { return m.now })
	limit := of(rnd)
	limits := []ratelimit.Limit{limit, limit}
	limits[1].Requests = max(1, limit.Requests/2)
	tally := rnd.IntN(2) == 0
	// Half of the histories that are not audited are calm: in the others, most claims have something
	// about them that the script's quick way leaves to the long one.
	calm := seed%4 == 0
	holders := make([]ratelimit.Claim, 4)
	granted := make([]ratelimit.Grant, 2)
	seqs, learns := make([]uint64, len(holders)), ledgerTime(0)
	for step := range 150 {
		before := m.now
		m.now = m.now.Add(time.Duration(rnd.Int64N(int64(limit.Period()) / 20)))
		if rnd.IntN(40) == 0 {
			m.now = m.now.Add(time.Duration(rnd.Int64N(3 * int64(limit.Period()))))
		}
		if rnd.IntN(50) == 0 && !calm { // the ledger's clock is set back, a little or by days
			back := time.Duration(rnd.Int64N(int64(limit.Period()) * int64(1+rnd.IntN(2)*20)))
			m.now = max(ledgertest.Epoch/2, m.now.Add(-back))
		}
		ages := seed%3 == 0
		if ages {
			m.ages("t:seed"+fmt.Sprint(seed), m.now.Sub(before))
		}
		h := rnd.IntN(len(holders))
		c := &holders[h]
		if calm && rnd.IntN(20) > 0 {
			spendSome(rnd, c)
		} else {
			mutate(rnd, c)
		}
		c.Key, c.Holder, c.Reclaim, c.Tally = fmt.Sprint("seed", seed), ratelimit.Holder(h+1), ratelimit.Reclaim(rnd.IntN(2)), tally
		c.Limit = limits[min(1, rnd.IntN(10)/9)]
		c.Before = tokens(rnd.Int64N(1 + int64(limit.Requests)))
		if c.Learning = 0; rnd.IntN(20) == 0 && !calm { // it hears that data was lost
			c.Learning = m.now.Add(time.Duration(rnd.Int64N(int64(limit.Period()))))
		}
		if c.Audit = ""; seed%2 == 1 {
			c.Audit = "d.r"
		}
		if c.Draw = 0; seed%2 == 0 && rnd.IntN(6) > 0 {
			c.Stretch = c.Stretch || rnd.IntN(3) > 0
			c.Draw = limit.WindowAt(m.now) + []window{0, 0, 0, 0, 1, -1}[rnd.IntN(6)]
			if c.Ahead && rnd.IntN(3) > 0 {
				c.Draw = c.Window
			}
		}
		// One that has spent all that it had, and asks again.
		if c.Glance = c.Draw != 0 && rnd.IntN(4) == 0; c.Glance {
			c.Spent, c.Draw = max(0, c.Granted-c.Returned), limit.WindowAt(m.now)
			if rnd.IntN(2) == 0 {
				c.Ahead, c.Final, c.Last, c.Reset, c.Direct, c.Window = false, false, false, false, false, c.Draw
			}
		}
		c.TTL = time.Duration(1+rnd.Int64N(int64(limit.Period())/2)) / 1000 * 1000
		memory.Settle(context.Background(), []ratelimit.Claim{*c}, granted[:1])
		m.Settle(context.Background(), []ratelimit.Claim{*c}, granted[1:])
		for i := range granted { // to what Lua's numbers hold
			granted[i].ResetAfter = min(granted[i].ResetAfter, 1<<52)
			granted[i].RetryAfter = min(granted[i].RetryAfter, 1<<52)
		}
		learns = max(learns, c.Learning)
		told := *c
		told.Learning = learns                                                       // of whichever claim
		if err := CheckGrant(&told, &granted[1], 0); err != nil && c.Seq > seqs[h] { // a node asks with a number once
			t.Fatalf("step %d: limit %v, claim %+v\nan honest answer is rejected: %v", step, c.Limit, *c, err)
		}
		seqs[h] = max(seqs[h], c.Seq)
		same := fmt.Sprint(granted[0].Err) == fmt.Sprint(granted[1].Err)
		want, got := granted[0], granted[1]
		want.Err, got.Err = nil, nil
		if want != got && granted[0].Err == nil || !same {
			t.Fatalf("step %d: limit %v, claim %+v\nerrors %v, %v (-memory +redis):\n%s", step, c.Limit, *c, granted[0].Err, granted[1].Err, cmp.Diff(want, got))
		}
		if granted[0].Err == nil && rnd.IntN(4) > 0 { // the answer arrived
			if !want.Carried {
				c.Spent, c.Returned = 0, 0
			}
			c.Granted, c.Fence, c.Window = want.Granted, want.Fence, want.Window
		}
		if want.Recalled > 0 {
			recalled++
		}
		// A claim ahead of what has no windows is refused before anybody looks at the account.
		if ages && !want.Drawn && (limit.Algorithm == ratelimit.FixedWindow || !c.Ahead && !c.Final) {
			m.outlives(t, memory, m.now, c)
		}
		switch {
		case want.Drawn && c.Glance:
			glanced++
		case want.Drawn:
			drawn++
		}
	}
	return recalled, drawn, glanced
}

// ages has an account's expiry come nearer, as it would if Redis' time went by as the test's does.
func (m *movedRedis) ages(account string, by time.Duration) {
	left := m.client.PTTL(context.Background(), account).Val()
	if left > 0 { // there is one
		m.client.PExpire(context.Background(), account, max(time.Minute, left-by))
	}
}

// outlives holds that Redis keeps an account for as long as the memory does: what counts is not forgotten. Of a test's
// own time Redis keeps it for an hour more.
func (m *movedRedis) outlives(t *testing.T, memory *Memory, now ledgerTime, c *ratelimit.Claim) {
	s, cell := memory.locked([]byte(c.Key))
	dead := cell.val.deadline(c)
	s.mu.Unlock()
	left := m.client.PTTL(context.Background(), "t:"+c.Key).Val() - time.Hour
	if counts := min(dead.Sub(now), 365*24*time.Hour); counts > 0 && left+5*time.Millisecond < counts {
		t.Errorf("Redis keeps the account for %v, and it counts for %v, after %+v", left, counts, c)
	}
}

// drawnLimit is one that is drawn of: of fixed windows, and a unit of it is a token or two.
func drawnLimit(rnd *rand.Rand) ratelimit.Limit {
	return ratelimit.Limit{Unit: ratelimit.Unit(1 + rnd.IntN(5)), Requests: []tokens{7, 40, 100, 12345}[rnd.IntN(4)]}
}

func anyLimit(rnd *rand.Rand) ratelimit.Limit {
	l := ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(rnd.IntN(3)), Unit: ratelimit.Unit(1 + rnd.IntN(7)),
		Requests: []tokens{1, 7, 100, 12345, 1 << 20, 1<<32 - 1, 30_000_000_000, ratelimit.MaxLimit}[rnd.IntN(8)],
	}
	if rnd.IntN(2) == 0 {
		l = l.Cut()
	}
	if l.Algorithm == ratelimit.FixedWindow && rnd.IntN(4) == 0 {
		l = l.Billed(randomCalendar(rnd))
	}
	if l.Algorithm == ratelimit.TokenBucket {
		l.Burst = []tokens{1, 5, l.Requests, 1<<32 - 1, ratelimit.MaxLimit}[rnd.IntN(5)]
	}
	return l
}

// randomCalendar has zones far ahead of UTC and behind it, and such whose clocks are set
// at midnight.
func randomCalendar(rnd *rand.Rand) ratelimit.Calendar {
	zones := []string{"UTC", "America/New_York", "Pacific/Kiritimati", "Etc/GMT+12", "America/Asuncion", "Africa/Cairo", "Asia/Kathmandu"}
	c, err := zone.Calendar(1+rnd.IntN(31), zones[rnd.IntN(len(zones))])
	if err != nil {
		panic(err)
	}
	return c
}

// mutate moves a holder on: it spends, drifts, returns, forgets, repeats.
func mutate(rnd *rand.Rand, c *ratelimit.Claim) {
	switch rnd.IntN(12) {
	case 0: // the same claim again
		if c.Seq > 0 {
			return
		}
	case 1: // one that comes late
		if c.Seq > 1 {
			c.Seq--
			return
		}
	case 2: // a holder that has forgotten everything
		*c = ratelimit.Claim{Seq: c.Seq}
	case 3: // back from another life
		c.Window--
	case 5: // the last word on a window
		c.Final, c.Ahead = true, false
	case 4: // for the window to come, or one that was to come
		*c = ratelimit.Claim{Seq: c.Seq, Window: c.Window + window(rnd.IntN(3)), Ahead: true}
	}
	ahead, final := c.Ahead, c.Final
	spendSome(rnd, c)
	c.Reset, c.Last = rnd.IntN(50) == 0, rnd.IntN(6) == 0
	c.Ahead, c.Final = ahead, final
	if rnd.IntN(3) == 0 {
		c.Ahead, c.Final = false, false
	}
	c.Direct = rnd.IntN(5) == 0
	c.Refilled = rnd.IntN(8) == 0
}

// spendSome is what most holders do from claim to claim.
func spendSome(rnd *rand.Rand, c *ratelimit.Claim) {
	c.Reset, c.Last, c.Ahead, c.Final, c.Direct, c.Refilled = false, false, false, false, false, false
	c.Seq += uint64(1 + rnd.IntN(2))
	left := c.Granted - c.Spent - c.Returned
	if left > 0 {
		spend := rnd.Int64N(int64(left) + 1)
		c.Spent += tokens(spend)
		if rnd.IntN(3) == 0 {
			c.Returned += tokens(rnd.Int64N(int64(left) - spend + 1))
		}
	}
	if rnd.IntN(10) == 0 {
		c.Spent += tokens(rnd.IntN(5)) // drift
	}
	if rnd.IntN(15) == 0 && c.Spent > 0 { // a refund
		c.Spent -= tokens(rnd.Int64N(int64(c.Spent)))
	}
	c.Waiting = tokens(rnd.IntN(4))
	c.Want = c.Waiting + tokens(rnd.IntN(100))
	c.Stretch, c.Recall = rnd.IntN(2) == 0, rnd.IntN(2) == 0
}

// Months of the calendar begin and end in Redis when they do here.
func TestRedisCalendarMonths(t *testing.T) {
	m := newMovedRedis(t, redistest.Shared(t))
	memory := NewMemory(10_000, func() ledgerTime { return m.now })
	l := ratelimit.Limit{Unit: ratelimit.Month, Requests: 5}.Cut()
	c := ratelimit.Claim{Limit: l, Holder: 1, Waiting: 1, Want: 1, TTL: time.Second}
	for w := window(1); w < 12*250; w += 1 + w%3 {
		for _, at := range []ledgerTime{l.WindowEnd(w) - 1, l.WindowEnd(w)} {
			m.now = at
			c.Key, c.Seq = fmt.Sprint("month", at), 1
			got := make([]ratelimit.Grant, 2)
			memory.Settle(context.Background(), []ratelimit.Claim{c}, got[:1])
			m.Settle(context.Background(), []ratelimit.Claim{c}, got[1:])
			if d := cmp.Diff(got[0], got[1]); d != "" || got[1].Window != l.WindowAt(at) {
				t.Fatalf("at %v (-memory +redis):\n%s", time.UnixMicro(int64(at)).UTC(), d)
			}
		}
	}
}

func TestRedisReloadsItsScript(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "")
	claims := []ratelimit.Claim{
		{Key: "a", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 5}, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second},
		{Key: "b", Limit: ratelimit.Limit{Unit: ratelimit.Day, Requests: 5}, Holder: 1, Seq: 1, Waiting: 1, Want: 1, TTL: time.Second},
	}
	for range 3 {
		grants := make([]ratelimit.Grant, 2)
		l.Settle(context.Background(), claims, grants)
		for _, g := range grants {
			if g.Err != nil || g.Granted != 1 {
				t.Fatalf("%+v", g)
			}
		}
		s.Do("SCRIPT", "FLUSH")
	}
}

// Three holders' account takes at most 560 bytes besides its name, and goes
// away by itself.
func TestRedisAccountIsSmall(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	l := NewRedis(client, "")
	for algorithm := range ratelimit.Algorithms {
		key := fmt.Sprint("k", algorithm)
		limit := ratelimit.Limit{Algorithm: ratelimit.Algorithm(algorithm), Unit: ratelimit.Second, Requests: 1_000_000, Burst: 1_000_000}
		for h := range 3 {
			var g [1]ratelimit.Grant
			c := ratelimit.Claim{Key: key, Limit: limit, Holder: ratelimit.Holder(rand.Uint64()), Seq: 1_000_000, Waiting: 1, Want: 50_000, TTL: 10 * time.Second}
			for range 2 {
				l.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
				if g[0].Err != nil {
					t.Fatal(g[0].Err)
				}
				c.Seq++
				c.Granted, c.Fence, c.Window, c.Spent = g[0].Granted, g[0].Fence, g[0].Window, g[0].Granted-1
			}
			_ = h
		}
		size := s.Do("MEMORY", "USAGE", key).(int64)
		t.Logf("%v: %d bytes", limit, size)
		if size > 560+int64(len(key)) {
			t.Errorf("%v: an account of three holders takes %d bytes", limit, size)
		}
		if ms := s.Do("PTTL", key).(int64); ms <= 0 || ms > 13_000 {
			t.Errorf("%v: it expires in %d ms", limit, ms)
		}
	}
}
