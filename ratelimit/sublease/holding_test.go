package sublease

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
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

// What a holding says of grants, reports, acknowledgements and turns is as testdata/holdings.txt has it.
func TestHoldings(t *testing.T) {
	datadriven.RunTest(t, "testdata/holdings.txt", func(t *testing.T, in *datadriven.TestData) string {
		h, out, number := NewHolding(), strings.Builder{}, uint64(0)
		duration := func(text string) time.Duration {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		scan := func(args, format string, into ...any) {
			if n, err := fmt.Sscanf(args, format, into...); n != len(into) {
				t.Fatalf("%q: %v", args, err)
			}
		}
		for line := range strings.SplitSeq(in.Input, "\n") {
			when, what, _ := strings.Cut(line, " ")
			cmd, args, _ := strings.Cut(what, " ")
			at := func(text string) instant { return instant(time.Hour).Add(duration(text)) }
			now, says := at(when), ""
			switch cmd {
			case "report": // how many were allowed and denied, in how long
				var u Usage
				var elapsed string
				scan(args, "%d/%d in %s", &u.Allowed, &u.Denied, &elapsed)
				u.Elapsed = duration(elapsed)
				o := h.Report(now, u)
				says = fmt.Sprintf("lost %t, credit %d, excess %d; ", o.Lost, o.Credit, o.Excess)
			case "grant": // of a window until then, for so long
				var n tokens
				var ends, ttl string
				scan(args, "%d until %s for %s", &n, &ends, &ttl)
				number++
				h.Grant(now, at(ends), n, duration(ttl), number)
			case "acked":
				h.Acked(now, number)
			case "charge":
				var n tokens
				scan(args, "%d", &n)
				h.Charge(n)
			case "want":
				b := Budget{Limit: 6000}
				var ends string
				scan(args, "until %s of %d, at most %d, %d holders, %f a second", &ends, &b.Left, &b.Largest,
					&b.Holders, &b.PerSecond)
				n, wanted := h.Want(now, at(ends), b)
				says = fmt.Sprintf("%d, %t; ", n, wanted)
			case "turn": // to a window until then
				says = fmt.Sprintf("%d are carried; ", h.Turn(now, at(strings.TrimPrefix(args, "until "))))
			case "leave":
				crossing, unspent, expires := h.Leave(now)
				says = fmt.Sprintf("%d cross, %d are unspent, until %v; ", crossing, unspent, expires.Sub(at("0s")))
			default:
				t.Fatalf("what is %q?", cmd)
			}
			fmt.Fprintf(&out, "%s: %scharged %d, in use %d, likely %d\n", when, says, h.Charged(), h.InUse(),
				h.Likely())
		}
		return out.String()
	})
}
