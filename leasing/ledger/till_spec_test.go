package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/leasing/redistest"
	"github.com/sluice-gate/sluice/ratelimit"
)

// drawer is a holder of the twins' key that may draw, and takes in what it is answered.
type drawer struct {
	*twins
	c ratelimit.Claim
}

func (w *twins) drawer(h ratelimit.Holder) *drawer {
	return &drawer{w, ratelimit.Claim{Limit: perMinute100, Holder: h, Seq: 1, Stretch: true, Recall: true, TTL: 10 * time.Second}}
}

// asks sends a claim, which may be a draw, for so many tokens.
func (d *drawer) asks(n tokens, change func(*ratelimit.Claim)) ratelimit.Grant {
	d.Helper()
	d.c.Seq++
	c := d.c
	c.Waiting, c.Want, c.Draw = n, n, c.Limit.WindowAt(d.now)
	if change != nil {
		change(&c)
	}
	g := d.claim(c)
	if !g.Carried {
		d.c.Spent, d.c.Returned = 0, 0
	}
	d.c.Granted, d.c.Fence, d.c.Window = g.Granted, g.Fence, g.Window
	return g
}

// claims sends one that is no draw.
func (d *drawer) claims(n tokens) ratelimit.Grant {
	d.Helper()
	return d.asks(n, func(c *ratelimit.Claim) { c.Draw, c.Stretch = 0, false })
}

// What holders draw, and what the ledger grants them, is together at most the limit, in
// whatever order; and who has drawn says so with the next claim, as of any lease.
func TestDrawsAndClaimsShareALimit(t *testing.T) {
	w := newTwins(t)
	a, b, c := w.drawer(1), w.drawer(2), w.drawer(3)
	g := a.asks(1, nil)
	w.expect("true 5 95 0 true", g.Drawn, g.Granted, g.Available, g.Outstanding, g.Plenty)
	g = b.asks(7, nil) // in whole units
	w.expect("true 10 85 5", g.Drawn, g.Granted, g.Available, g.Outstanding)
	a.c.Spent = 5
	g = a.asks(1, nil)
	w.expect("true 10 80 10", g.Drawn, g.Granted, g.Available, g.Outstanding)
	// A claim that is none knows of all of them.
	g = c.claims(30)
	w.expect("false 30 50 20", g.Drawn, g.Granted, g.Available, g.Outstanding)
	g = b.asks(1, nil)
	w.expect("true 15 45", g.Drawn, g.Granted, g.Available)
	a.c.Spent = 10
	g = a.claims(0)
	w.expect("false 10 45 45", g.Drawn, g.Granted, g.Available, g.Outstanding)
	// More than there is cannot be drawn, and no more is granted than is left.
	g = c.asks(50, nil)
	w.expect("false 75 0", g.Drawn, g.Granted, g.Available)
	g = a.asks(1, nil)
	w.expect("false 10 0", g.Drawn, g.Granted, g.Available)
}

// With an eighth of the limit left, or less, a window's till is shut: the ledger judges who
// gets the rest, and looks at no till any more. The next window has its own.
func TestTillIsShut(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(1), w.drawer(2)
	a.claims(87)
	g := b.asks(1, nil)
	w.expect("true 5 8", g.Drawn, g.Granted, g.Available)
	b.claims(0)
	g = b.asks(1, nil)
	w.expect("false 6 7", g.Drawn, g.Granted, g.Available)
	w.passes(45 * time.Second)
	g = b.asks(1, nil)
	w.expect("true 5 95", g.Drawn, g.Granted, g.Available)
}

// Four holders draw a twentieth of the limit each. Of more, the ledger judges who gets how much, and shuts the
// till; so it does with the next window's. Where a unit is one token, nobody has anything idle, and all draw.
func TestManyHoldersDoNotDraw(t *testing.T) {
	ahead := func(c *ratelimit.Claim) { c.Ahead, c.Draw, c.Window = true, c.Draw+1, c.Draw+1 }
	for what, change := range map[string]func(*ratelimit.Claim){"this window": nil, "the next": ahead} {
		w := newTwins(t)
		if change != nil { // an account is there
			w.drawer(99).claims(0)
		}
		first := w.drawer(1)
		for h := range ratelimit.Holder(6) {
			d := w.drawer(h + 1)
			if h == 0 {
				d = first
			}
			if g := d.asks(1, change); g.Drawn != (h < 4) || g.Granted < 1 {
				t.Errorf("%s: holder %d of %d: %+v", what, h+1, 6, g)
			}
		}
		if first.c.Spent = 5; change != nil {
			continue
		}
		if g := first.asks(1, nil); g.Drawn || !g.Plenty {
			t.Errorf("the first holder's second draw, with six: %+v", g)
		}
	}
	w := newTwins(t)
	for h := range ratelimit.Holder(10) {
		g := w.drawer(h+1).asks(1, func(c *ratelimit.Claim) { c.Limit.Requests = 20 })
		w.expect("true 1", g.Drawn, g.Granted)
	}
	// A holder that draws again is none more: alone, it draws the whole limit.
	w = newTwins(t)
	one := w.drawer(1)
	for one.c.Spent < 85 {
		g := one.asks(1, nil)
		w.expect("true", g.Drawn)
		one.c.Spent = g.Granted
	}
}

// What may not be drawn is claimed: of another window than the ledger's clock shows, of a rule that
// fixes the size of leases or keeps an audit, and while the ledger learns.
func TestDrawThatIsNone(t *testing.T) {
	for what, change := range map[string]func(*ratelimit.Claim){
		"the window before":      func(c *ratelimit.Claim) { c.Draw-- },
		"the next, not ahead":    func(c *ratelimit.Claim) { c.Draw++ },
		"leases of a fixed size": func(c *ratelimit.Claim) { c.Stretch = false },
		"the first number":       func(c *ratelimit.Claim) { c.Seq = 1 },
		"an operator's reset":    func(c *ratelimit.Claim) { c.Reset = true },
		"a last claim":           func(c *ratelimit.Claim) { c.Last = true },
		"more than the limit":    func(c *ratelimit.Claim) { c.Waiting, c.Want = 101, 101 },
		"nothing":                func(c *ratelimit.Claim) { c.Waiting, c.Want = 0, 0 },
		"all or nothing":         func(c *ratelimit.Claim) { c.Direct = true },
		"a sliding window":       func(c *ratelimit.Claim) { c.Limit.Algorithm = ratelimit.SlidingWindow },
	} {
		w := newTwins(t)
		a := w.drawer(1)
		if g := a.asks(1, change); g.Drawn {
			t.Errorf("%s was drawn: %+v", what, g)
		}
	}
}

// While an account is told what was lost, nobody draws, also not in the window after.
func TestNobodyDrawsOfALedgerThatLearns(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(1), w.drawer(2)
	w.passes(44 * time.Second)
	b.asks(0, func(c *ratelimit.Claim) { c.Learning = w.now.Add(2 * time.Second) })
	w.passes(time.Second)
	g := a.asks(1, nil)
	w.expect("false true", g.Drawn, g.Relearning)
	w.passes(time.Second)
	g = b.asks(1, nil)
	w.expect("true", g.Drawn)
}

// A claim that was sent before a draw and comes after it books nothing: it would say that its
// holder has not got what was drawn.
func TestClaimThatADrawHasOvertaken(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(1), w.drawer(2)
	late := a.c
	late.Seq, late.Waiting, late.Want = 2, 1, 1
	a.c.Seq = 2
	g := a.asks(1, nil) // the third
	w.expect("true 5", g.Drawn, g.Granted)
	w.claim(late)
	g = b.claims(0)
	w.expect("95 5", g.Available, g.Outstanding)
}

// A holder that has forgotten what it had, and draws as if it were new, is charged for both.
func TestHolderThatForgotDraws(t *testing.T) {
	w := newTwins(t)
	a, b := w.drawer(1), w.drawer(2)
	a.claims(10)
	a.c.Spent = 10
	a.claims(0)
	forgot := w.drawer(1)
	forgot.c.Seq = a.c.Seq
	g := forgot.asks(1, nil)
	w.expect("true 5", g.Drawn, g.Granted)
	forgot.c.Spent = 5
	forgot.claims(0)
	g = b.claims(0)
	w.expect("85 0", g.Available, g.Outstanding)
}

// What was drawn and is not booked is shown to people as what its holders have.
func TestWhatIsDrawnIsSeen(t *testing.T) {
	w := newTwins(t)
	w.drawer(1).asks(1, nil)
	w.drawer(2).asks(6, nil)
	a, there, err := w.redis.Account(context.Background(), "k", &perMinute100)
	if err != nil || a == nil {
		t.Fatal(a, err)
	}
	look := a.Look(there, &perMinute100, func(h ratelimit.Holder) bool { return h == 2 })
	w.expect("15 85 2", look.Charged, look.Free, len(look.Holders))
	w.expect("1 false 5 2 true 10", look.Holders[0].Holder, look.Holders[0].Here, look.Holders[0].Granted, look.Holders[1].Holder,
		look.Holders[1].Here, look.Holders[1].Granted)
	w.expect("5 10", look.Holders[0].Outstanding, look.Holders[1].Outstanding)
}

// ofItsOwnTime is a Redis whose clock shows a window of the limit that is not about to end.
func ofItsOwnTime(t *testing.T, limit *ratelimit.Limit) (*redistest.Server, *redis.Client) {
	s := redistest.Start(t)
	client := s.Client()
	t.Cleanup(func() { client.Close() })
	for {
		at := ledgerTime(client.Time(context.Background()).Val().UnixMicro())
		if limit.WindowAt(at) == limit.WindowAt(at.Add(10*time.Second)) {
			return s, client
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// A till goes away by itself, ten seconds after its window. A Redis that does not let this user draw is
// asked once, and then the script.
func TestTillsOnARedisOfItsOwnTime(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}
	s, client := ofItsOwnTime(t, &limit)
	l := NewRedis(client, "t:")
	claim := func(seq uint64) ratelimit.Grant {
		at := client.Time(context.Background()).Val()
		var g [1]ratelimit.Grant
		l.Settle(context.Background(), []ratelimit.Claim{{
			Key: "k", Limit: limit, Holder: 7, Seq: seq, Waiting: 1, Want: 1, TTL: time.Second, Stretch: true,
			Draw: limit.WindowAt(ledgerTime(at.UnixMicro())),
		}}, g[:])
		return g[0]
	}
	g := claim(2)
	if g.Err != nil || !g.Drawn || g.Granted != 5 {
		t.Fatalf("%+v", g)
	}
	left := client.PTTL(context.Background(), TillName("t:k", g.Window)).Val()
	if want := g.ResetAfter + tillKept; left > want+time.Second || left < want-5*time.Second {
		t.Errorf("it expires in %v, and its window ends in %v", left, g.ResetAfter)
	}
	for i, command := range []string{"append", "pexpireat"} {
		s.Do("ACL", "SETUSER", "default", "-"+command)
		if g = claim(uint64(4 + 8*i)); g.Err != nil || g.Drawn || g.Granted == 0 {
			t.Errorf("without %s: %+v", command, g)
		}
		s.Do("ACL", "SETUSER", "default", "+"+command)
		if g = claim(uint64(6 + 8*i)); g.Err != nil || g.Drawn {
			t.Errorf("after %s was forbidden: %+v", command, g)
		}
		l = NewRedis(client, "t:")
		if g = claim(uint64(8 + 8*i)); g.Err != nil || !g.Drawn {
			t.Errorf("of a node that starts when %s is allowed again: %+v", command, g)
		}
	}
	// Where the server does not say which run of it has the data, nobody draws; where it does, all do again.
	for i, run := range []string{"-", "0123456789abcdef", "-"} {
		s.Do("SET", "t:"+epochName, "1 1 1 "+run)
		if e, _, err := l.SettleEpoch(context.Background(), ratelimit.EpochQuery{}, nil, nil); err != nil || e.ID != 1 {
			t.Fatalf("epoch %+v, %v", e, err)
		}
		if g = claim(uint64(30 + 2*i)); g.Err != nil || g.Drawn != (run != "-") {
			t.Errorf("with run %s: %+v", run, g)
		}
	}
}

// A server that is busy or loading says no more than that: its nodes draw again afterwards.
func TestWhatForbidsDraws(t *testing.T) {
	for text, want := range map[string]bool{
		"NOPERM User default has no permissions to run the 'append' command": true,
		"ERR unknown command 'TIME', with args beginning with: ":             true,
		"ERR unsupported command 'TIME'":                                     true,
		"BUSY Redis is busy running a script":                                false,
		"LOADING Redis is loading the dataset in memory":                     false,
		"READONLY You can't write against a read only replica.":              false,
		"OOM command not allowed when used memory > 'maxmemory'.":            false,
		"ERR string exceeds maximum allowed size (proto-max-bulk-len)":       false,
		"WRONGTYPE Operation against a key holding the wrong kind of value":  false,
	} {
		if got := forbids(nil, redisSays(text)); got != want {
			t.Errorf("%q forbids draws for good: %v", text, got)
		}
	}
}

// redisSays is an error of Redis' own.
type redisSays string

func (s redisSays) Error() string { return string(s) }
func (redisSays) RedisError()     {}

// What Redis packs is read: every whole number that the script may write.
func TestNumbersAreReadAsTheyWerePacked(t *testing.T) {
	s := redistest.Start(t)
	client := s.Client()
	defer client.Close()
	packed := client.Eval(context.Background(), `return cmsgpack.pack({0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296,
		9007199254740991, -1, -32, -33, -128, -129, -32768, -32769, -2147483648, -2147483649, -9007199254740991})`, nil).Val().(string)
	want := []int64{
		0, 127, 128, 255, 256, 65535, 65536, 4294967295, 4294967296, 9007199254740991, -1, -32, -33, -128, -129, -32768, -32769,
		-2147483648, -2147483649, -9007199254740991,
	}
	var got [accountFields]int64
	if n, ok := packedNumbers(packed, &got); !ok || n != len(want) {
		t.Fatalf("%d numbers, %v", n, ok)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%d was read as %d", want[i], got[i])
		}
	}
	for end := range len(packed) {
		if end == 0 {
			continue // Redis has said that there is nothing
		}
		if _, ok := packedNumbers(packed[:end], &got); ok {
			t.Errorf("the first %d bytes of %d are no account", end, len(packed))
		}
	}
}

// What a holder has spent beyond what it was granted is drawn besides what it asks for.
func TestSpentUnaskedIsDrawnBesides(t *testing.T) {
	w := newTwins(t)
	a := w.drawer(1)
	w.expect("true 5", w.drawn(a.asks(1, nil))...)
	a.c.Spent = 8
	w.expect("true 15", w.drawn(a.asks(5, nil))...)
	a.c.Spent = 12 // 3 are left, and count for what it asks for
	w.expect("true 20", w.drawn(a.asks(5, nil))...)
}

func (w *twins) drawn(g ratelimit.Grant) []any { return []any{g.Drawn, g.Granted} }
