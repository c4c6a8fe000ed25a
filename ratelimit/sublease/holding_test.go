package sublease

import (
	"testing"
	"time"

	"pgregory.net/rapid"
)

// holder is the other side of a Holding: it follows each message on its arrival. Messages keep their order, and
// may take any time.
type holder struct {
	left     tokens  // of the lease in use
	ends     instant // when it is over
	ignored  tokens  // allowed, of leases from before this stream or this window
	spent    tokens  // in this window
	allowed  tokens  // since its last report
	denied   tokens
	since    instant
	there    []Usage // on their way to the node
	acks     []uint64
	order    []byte    // of what is on its way to the node: 'u' or 'a'
	messages []message // on their way to it
}

type message struct {
	n      tokens
	ttl    time.Duration
	number uint64
}

// spend has it decide on n requests.
func (x *holder) spend(now instant, n tokens) {
	if now >= x.ends {
		x.left = 0
	}
	pass := min(n, x.left)
	x.left -= pass
	x.spent += pass
	x.allowed += pass
	x.denied += n - pass
}

func (x *holder) report(now instant) {
	elapsed := now.Sub(x.since).Truncate(time.Second)
	x.there = append(x.there, Usage{Allowed: x.allowed + x.ignored, Denied: x.denied, Elapsed: elapsed})
	x.order = append(x.order, 'u')
	x.allowed, x.denied, x.ignored, x.since = 0, 0, 0, now
}

func (x *holder) hear(now instant) {
	m := x.messages[0]
	x.messages = x.messages[1:]
	x.left, x.ends = m.n, now.Add(m.ttl)
	x.acks = append(x.acks, m.number)
	x.order = append(x.order, 'a')
}

// may is what it may still spend, of what it has and of what is on its way to it.
func (x *holder) may(now instant) (n tokens) {
	if now < x.ends {
		n = x.left
	}
	for _, m := range x.messages {
		n += m.n
	}
	return n
}

// For any order of grants, reports, acknowledgements and turns, a holder's usage in a window and its lease are
// at most its charge, and credited tokens are never charged again.
func TestHoldingCoversItsHolder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h, x := NewHolding(), &holder{}
		now := instant(time.Hour)
		ends := now.Add(time.Duration(rapid.IntRange(2, 120).Draw(t, "window")) * time.Second)
		x.since = now
		charged, number := tokens(0), uint64(0)
		if rapid.Bool().Draw(t, "reconnected") {
			x.ignored = 50 // of the stream before
		}
		check := func(what string) {
			if h.Charged() != charged {
				t.Fatalf("after %s: it says that %d are charged, and that is %d", what, h.Charged(), charged)
			}
			if sum := x.spent + x.may(now); sum > charged {
				t.Fatalf("after %s: the holder has spent %d and may spend %d more, and %d are charged", what, x.spent,
					x.may(now), charged)
			}
			if h.Live() < 0 || h.Unproven() < 0 || h.Unproven() > h.Live() {
				t.Fatalf("after %s: %d live, %d unproven", what, h.Live(), h.Unproven())
			}
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{
				"grant", "hear", "arrive", "arrive", "spend", "spend", "report", "wait", "end", "turn",
			}).Draw(t, "step") {
			case "grant":
				if ttl := TTL(now, ends); ttl > 0 {
					n := tokens(rapid.IntRange(0, 30).Draw(t, "n"))
					number++
					h.Grant(now, ends, n, ttl, number)
					x.messages = append(x.messages, message{n, ttl, number})
					charged += n
				}
				check("a grant")
			case "hear":
				if len(x.messages) > 0 {
					x.hear(now)
				}
				check("a message was heard")
			case "spend":
				x.spend(now, tokens(rapid.IntRange(1, 20).Draw(t, "requests")))
				check("requests")
			case "report":
				x.report(now)
			case "arrive":
				if len(x.order) == 0 {
					break
				}
				if x.order[0] == 'a' {
					h.Acked(now, x.acks[0])
					x.acks = x.acks[1:]
				} else {
					o := h.Report(now, x.there[0])
					x.there = x.there[1:]
					charged -= o.Credit
					if o.Excess > 0 {
						t.Fatalf("a holder that has had no more than it was granted is said to have had %d more",
							o.Excess)
					}
				}
				x.order = x.order[1:]
				check("something arrived")
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 8000).Draw(t, "ms")) * time.Millisecond)
				check("a while")
			case "end":
				now = max(now, ends.Add(-time.Duration(rapid.IntRange(-100, 900).Draw(t,
					"before it"))*time.Millisecond))
				check("the window's end came near")
			case "turn":
				if now < ends {
					break
				}
				// A lease that is over is not carried; what was spent of it after the window's end would be.
				x.ignored, x.allowed, x.spent = x.ignored+x.allowed, 0, 0
				ends = now.Add(time.Minute)
				charged = h.Turn(now, ends)
				h.Charge(charged)
				check("a turn")
			}
		}
	})
}

// A lease ends with its window though it arrives late by Slack.
func TestTTL(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := instant(rapid.Int64Range(1, 1<<50).Draw(t, "now"))
		ends := now.Add(time.Duration(rapid.Int64Range(-int64(time.Minute), int64(3*time.Hour)).Draw(t, "left")))
		ttl := TTL(now, ends)
		switch {
		case ttl < 0 || ttl%time.Second != 0 || ttl > LongestTTL:
			t.Fatalf("a TTL of %v", ttl)
		case ttl > 0 && now.Add(ttl+Slack) > ends:
			t.Fatalf("%v before the window's end, a lease lasts %v", ends.Sub(now), ttl)
		case ttl < LongestTTL && now.Add(ttl+Slack+time.Second) <= ends:
			t.Fatalf("%v before the window's end, a lease lasts only %v", ends.Sub(now), ttl)
		}
	})
}

// Want is at most the free tokens, and at most its maximum.
func TestWantIsBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := NewHolding()
		now := instant(time.Hour)
		ends := now.Add(time.Minute)
		for range rapid.IntRange(1, 10).Draw(t, "reports") {
			count := func(what string) tokens { return tokens(rapid.Int64Range(0, 1<<45).Draw(t, what)) }
			h.Report(now, Usage{Allowed: count("allowed"), Denied: count("denied")})
			b := Budget{
				Limit: tokens(rapid.Int64Range(1, 1<<32-1).Draw(t, "limit")), Holders: rapid.IntRange(0, 100).Draw(t,
					"holders"),
				PerSecond: rapid.Float64Range(0, 1e9).Draw(t, "per second"),
			}
			b.Left = tokens(rapid.Int64Range(0, int64(b.Limit)).Draw(t, "left"))
			b.Largest = tokens(rapid.Int64Range(1, int64(b.Limit)).Draw(t, "largest"))
			n, wanted := h.Want(now, ends, b)
			if n < 0 || n > max(b.Left, 0) || wanted && n > max(b.Largest, h.InUse()) {
				t.Fatalf("it wants %d of %+v", n, b)
			}
			h.Grant(now, ends, n, TTL(now, ends), 1)
			now = now.Add(5 * time.Second)
		}
	})
}

// A report that did not arrive credits nothing of what may have been spent in it.
func TestLostReport(t *testing.T) {
	h := NewHolding()
	now := instant(time.Hour)
	at := func(s int) instant { return now.Add(time.Duration(s) * time.Second) }
	ends := at(60)
	h.Report(now, Usage{Denied: 1})
	h.Grant(now, ends, 100, TTL(now, ends), 1)
	h.Acked(now, 1)
	h.Report(at(5), Usage{Allowed: 10, Elapsed: 5 * time.Second})
	h.Grant(at(5), ends, 100, TTL(at(5), ends), 2)
	h.Acked(at(5), 2)
	if o := h.Report(at(15), Usage{Allowed: 20, Elapsed: 5 * time.Second}); !o.Lost || o.Credit != 0 {
		t.Errorf("10 s after the report before, one that speaks of 5: %+v", o)
	}
	if h.Charged() != 200 {
		t.Errorf("%d are charged of 200", h.Charged())
	}
}

// A holder on the earlier stream of another gets a grant by its own reports. A first request has no report.
func TestFirstReport(t *testing.T) {
	now := instant(time.Hour)
	ends := now.Add(time.Minute)
	b := Budget{Limit: 6000, Largest: 3000, Left: 6000, Holders: 10, PerSecond: 100}
	for _, c := range []struct {
		u    Usage
		want tokens
	}{
		{Usage{Denied: 1}, 150}, // a part of what is left
		{Usage{Allowed: 200, Denied: 50, Elapsed: 5 * time.Second}, 500},     // two reports' worth
		{Usage{Allowed: 200, Denied: 50, Elapsed: time.Second - 1}, 150},     // the rate of that is unknown
		{Usage{Elapsed: 5 * time.Second}, 75},                                // hardly any
		{Usage{Allowed: 1 << 40, Denied: 0, Elapsed: 5 * time.Second}, 3000}, // all that one may have
	} {
		h := NewHolding()
		h.Report(now, c.u)
		if n, wanted := h.Want(now, ends, b); n != c.want || !wanted {
			t.Errorf("after %+v it wants %d, not %d", c.u, n, c.want)
		}
	}
}

// Admissions without a grant are reported, and then charged.
func TestExcess(t *testing.T) {
	h := NewHolding()
	now := instant(time.Hour)
	ends := now.Add(time.Minute)
	h.Report(now, Usage{Denied: 1})
	h.Grant(now, ends, 10, TTL(now, ends), 1)
	h.Acked(now, 1)
	later := now.Add(5 * time.Second)
	if o := h.Report(later, Usage{Allowed: 30}); o.Excess != 0 {
		t.Errorf("the first report may be of what another stream was granted: %+v", o)
	}
	o := h.Report(later.Add(5*time.Second), Usage{Allowed: 30})
	if o.Excess != 20 {
		t.Errorf("30 of 10 passed: %+v", o)
	}
	if h.Charge(o.Excess); h.Charged() < 30 {
		t.Errorf("%d are charged", h.Charged())
	}
}

// A holder whose reports may be of leases before the last one gets the next before it has run out, though by
// its charge it may still have more.
func TestNextLeaseIsInTime(t *testing.T) {
	h := NewHolding()
	at := func(ms int) instant { return instant(time.Hour) + instant(ms)*instant(time.Millisecond) }
	b := Budget{Limit: 6000, Largest: 3000, Left: 5000, Holders: 2, PerSecond: 20}
	ends := at(60_000)
	h.Report(at(0), Usage{Denied: 1})
	h.Report(at(5000), Usage{Denied: 50, Elapsed: 5 * time.Second})
	h.Grant(at(5001), ends, 120, 50*time.Second, 1) // lasts for 12 s
	h.Acked(at(5002), 1)
	h.Report(at(10_000), Usage{Allowed: 50, Elapsed: 5 * time.Second})
	if h.InUse() != 120 || h.Likely() < 68 || h.Likely() > 72 {
		t.Fatalf("it may have %d, and likely has %d: the test does not get to what it is about", h.InUse(), h.Likely())
	}
	h.Report(at(15_000), Usage{Allowed: 50, Elapsed: 5 * time.Second})
	if n, wanted := h.Want(at(15_000), ends, b); !wanted || n < 100 {
		t.Errorf("with 2 s' tokens left by its reports it is to have %d more: %t", n, wanted)
	}
	b.Largest, ends = 30, at(200_000) // by another rule
	h.Grant(at(16_000), ends, 60, TTL(at(16_000), ends), 2)
	if n, wanted := h.Want(at(70_000), ends, b); !wanted || n != 30 {
		t.Errorf("a lease that ends is renewed with %d: %t", n, wanted)
	}
}

// A lease that arrived late may be used until the next one is applied, which can be in the next window.
func TestReplacedAtTheWindowsEnd(t *testing.T) {
	for _, c := range []struct {
		acked int // ms: of the second lease
		want  tokens
	}{{9900, 50}, {9950, 150}, {0, 150}} {
		h := NewHolding()
		at := func(ms int) instant { return instant(time.Hour) + instant(ms)*instant(time.Millisecond) }
		h.Grant(at(0), at(10_000), 100, TTL(at(0), at(10_000)), 1)
		h.Acked(at(1000), 1)
		h.Grant(at(8400), at(10_000), 50, TTL(at(8400), at(10_000)), 2)
		if c.acked > 0 {
			h.Acked(at(c.acked), 2)
		}
		if carry := h.Turn(at(10_005), at(70_000)); carry != c.want {
			t.Errorf("acknowledged at %d ms of 10,000: %d are carried, want %d", c.acked, carry, c.want)
		}
	}
}

// A stream breaks before its last answer has arrived. The lease before that arrived late, and may be used in the next
// window.
func TestLateLeaseOfABrokenStream(t *testing.T) {
	for _, c := range []struct {
		acked int // s: of the first lease
		want  tokens
	}{{0, 0}, {9, 100}} {
		h := NewHolding()
		at := func(s int) instant { return instant(time.Hour) + instant(s)*instant(time.Second) }
		h.Grant(at(0), at(30), 100, TTL(at(0), at(30)), 1)
		h.Acked(at(c.acked), 1)
		h.Grant(at(10), at(30), 50, TTL(at(10), at(30)), 2)
		if crossing, _, expires := h.Leave(at(10)); crossing != c.want || expires < at(c.acked+29) {
			t.Errorf("acknowledged after %d s: %d may be used in the next window, want %d; nothing after %v", c.acked,
				crossing, c.want, expires.Sub(at(0)))
		}
	}
}

// What is reported before anything was granted in a window is of the window before, and is not
// charged to this one as well.
func TestReportOfTheWindowBefore(t *testing.T) {
	h := NewHolding()
	at := func(s int) instant { return instant(time.Hour) + instant(s)*instant(time.Second) }
	h.Report(at(0), Usage{Denied: 1})
	h.Grant(at(0), at(10), 100, 9*time.Second, 1)
	h.Acked(at(0), 1)
	h.Report(at(5), Usage{Allowed: 10, Elapsed: 5 * time.Second})
	if carry := h.Turn(at(10), at(70)); carry != 0 {
		t.Fatalf("%d are carried", carry)
	}
	h.Report(at(11), Usage{Allowed: 50, Elapsed: 5 * time.Second})
	h.Grant(at(11), at(70), 100, 50*time.Second, 2)
	h.Acked(at(11), 2)
	h.Report(at(16), Usage{Elapsed: 5 * time.Second})
	h.Grant(at(16), at(70), 10, 50*time.Second, 3)
	h.Acked(at(16), 3)
	o := h.Report(at(21), Usage{Elapsed: 5 * time.Second})
	if h.Charged() != 10 || o.Credit != 100 {
		t.Errorf("it is charged %d after %d were credited, want 10 and 100: nothing was spent in this window",
			h.Charged(), o.Credit)
	}
}
