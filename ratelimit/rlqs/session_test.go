package rlqs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"
	"weak"

	"github.com/cockroachdb/datadriven"
	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/overrides"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
	"github.com/sluice-gate/sluice/ratelimit/table"
)

// Sessions lease, renew, credit, deny and abandon as testdata/sessions.txt has it.
func TestSession(t *testing.T) {
	text := ""
	datadriven.RunTest(t, "testdata/sessions.txt", func(t *testing.T, in *datadriven.TestData) string {
		if in.Cmd == "rules" {
			text = in.Input
			return ""
		}
		acks, wakes := in.HasArg("acks"), in.HasArg("wakes")
		rules, left := rulesOf(t, text), 600
		s, n, p := newSession(&rules)
		n.source.ShadowMode = in.HasArg("shadow")
		in.MaybeScanArgs(t, "left", &left)
		in.MaybeScanArgs(t, "buckets", &n.options.Buckets)
		p.left = tokens(left)
		var out strings.Builder
		figures := func() string {
			f, of := fmt.Sprintf("left %d", p.left), n.Stats()
			for i, is := range []uint64{
				of.Credited.Load(), of.Carried.Load(), of.Excess.Load(), of.Forgone.Load(), of.Uncovered.Load(),
				of.Refused.Load(), of.Unserved.Load(), uint64(of.Buckets.Load()),
			} {
				if is > 0 {
					name := strings.Fields("credited carried excess forgone uncovered refused unserved buckets")[i]
					f += fmt.Sprintf(", %s %d", name, is)
				}
			}
			return f
		}
		then := figures()
		duration := func(text string) time.Duration {
			d, err := time.ParseDuration(text)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		does := func(cmd, args string, now instant) {
			switch cmd {
			case "report": // of buckets, ID=VALUE and how many were allowed and denied
				m := &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
				for words := strings.Fields(args); len(words) > 1; words = words[2:] {
					var allowed, denied uint64
					if _, err := fmt.Sscanf(words[1], "%d/%d", &allowed, &denied); err != nil {
						t.Fatalf("%q: %v", args, err)
					}
					var id []string
					if key, value, ok := strings.Cut(words[0], "="); ok {
						id = []string{key, value}
					}
					of := usageOf(allowed, denied, id...).BucketQuotaUsages
					m.BucketQuotaUsages = append(m.BucketQuotaUsages, of...)
				}
				if err := s.Reports(t.Context(), now, wired(m)); err != nil {
					fmt.Fprintln(&out, err)
				}
			case "acked":
				s.Acked(t.Context(), now, s.sent)
			case "wake":
				s.Wake(t.Context(), now)
			case "budget": // from now on: what is left, when its window ends, and the window's number
				var ends string
				if _, err := fmt.Sscan(args, &p.left, &ends, &p.window); err != nil {
					t.Fatal(err)
				}
				p.ends = start.Add(duration(ends))
				then = figures()
			case "waited":
				s.Waited = duration(args)
			case "rules": // others, with this key
				rules = rulesOf(t, strings.Replace(oneRule, "key: k", "key: "+args, 1))
			case "shadow":
				n.source.ShadowMode = true
			case "next":
				fmt.Fprintf(&out, "it wakes up at %v; stuck: %t\n", max(0, s.Next().Sub(start)), s.Stuck(now))
			case "look":
				holders, all := n.Look([]byte(s.buckets[0].pool.key))
				counters := rules.All()[0].Counters
				fmt.Fprintf(&out, "%d holders, the first with %v a second; over limit %d, locally %d\n", all,
					holders[0].PerSecond, counters.OverLimit.Load(), counters.OverLocally.Load())
			case "close": // its debts are settled
				for _, d := range s.Close(now) {
					fmt.Fprintf(&out, "a debt of %d is due at %v\n", d.ask.Cost, d.At.Sub(start))
					n.Settle(t.Context(), d.At, []*Debt{&d})
				}
				if left := len(n.pools) + len(n.subjects); left > 0 {
					t.Errorf("%d keys and BucketIds are left", left)
				}
			default:
				t.Fatalf("what is %q?", cmd)
			}
		}
		for line := range strings.SplitSeq(in.Input, "\n") {
			when, what, _ := strings.Cut(line, " ")
			cmd, args, _ := strings.Cut(what, " ")
			from, every, many := strings.Cut(when, "..") // as 5s..60s/5s
			first, step := duration(from), time.Second
			last := first
			if many {
				until, each, _ := strings.Cut(every, "/")
				last, step = duration(until), duration(each)
			}
			for at := first; at <= last; at += step {
				now := start.Add(at)
				if next := s.Next(); wakes && next > 0 && next <= now {
					does("wake", "", next)
					s.Answer(next)
					s.Acked(t.Context(), next, s.sent)
				}
				if cmd == "wake" { // at its own time
					now = s.Next()
				}
				does(cmd, args, now)
				answer := s.Answer(now)
				if is := figures(); answer != nil || is != then || cmd == "wake" {
					said, _ := say(answer)
					fmt.Fprintf(&out, "%v: %s; %s\n", now.Sub(start), cmp.Or(said, "-"), is)
					then = is
				}
				if acks && answer != nil {
					s.Acked(t.Context(), now.Add(time.Millisecond), s.sent)
				}
			}
		}
		return out.String()
	})
}

// What is no report ends the stream, and says what is wrong; what is too much is denied.
func TestSessionIsBounded(t *testing.T) {
	rules := rulesOf(t, oneRule)
	var many []string
	for i := range maxEntries + 1 {
		many = append(many, fmt.Sprint(i), "v")
	}
	for _, c := range []struct {
		m    []byte
		want string
	}{
		{nil, "must name its domain"},
		{wired(usageOf(0, 1)), "has 0 entries"},
		{wired(usageOf(0, 1, many...)), "has more than 16 entries"},
		{wired(usageOf(0, 1, "k", strings.Repeat("x", 64))), "has 65 bytes, and the maximum is 64"},
		{bytes.ReplaceAll(wired(usageOf(0, 1, "k", "~")), []byte("~"), []byte("\xff")), "not UTF-8"},
		{[]byte("\x0a\x01\xff"), "the domain is not UTF-8"},
		{[]byte("\x0a\x01d\x12\x02\x0a\x05"), "malformed report: unexpected EOF"},
	} {
		s, _, _ := newSession(&rules)
		err := s.Reports(t.Context(), start, c.m)
		if _, ok := errors.AsType[*BadReportError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("it says %v, want %q", err, c.want)
		}
	}
	s, _, _ := newSession(&rules)
	reports(t, s, start, usageOf(0, 1, "k", "1"))
	other := usageOf(0, 1, "k", "1")
	other.Domain = "e"
	if err := s.Reports(t.Context(), start, wired(other)); err == nil || !strings.Contains(err.Error(),
		`of domain "d" reports for domain "e"`) {
		t.Errorf("another domain: %v", err)
	}
	rules = nil
	if err := s.Reports(t.Context(), start, wired(usageOf(0, 1, "k", "1"))); !errors.Is(err, errNoRules) {
		t.Errorf("without rules: %v", err)
	}
}

// A lease that is refused takes nothing.
func TestRefusedLeaseTakesNothing(t *testing.T) {
	rules := rulesOf(t, "domain: d\ndescriptors:\n"+
		"- {key: k, rate_limit: {unit: minute, requests_per_unit: 600}}\n")
	_, n, _ := newSession(&rules)
	of := n.offerOf(rules, rules.All()[0])
	for _, r := range []*ratelimit.Rule{of.asking, of.exact} {
		if r.Coordination.OnDeny != ratelimit.DenyRefunds {
			t.Errorf("a refusal of %v charges", r.Limit)
		}
	}
	// Of a burst is held back what refills while leases last.
	rules = rulesOf(t, oneRule+"  algorithm: token_bucket\n")
	burst := n.offerOf(rules, rules.All()[0]).asking.Limit.Burst
	if burst != 444 || sublease.BucketWindow != 15600*time.Millisecond {
		t.Errorf("of a bucket of 600, %d are asked for, want 444: without what refills in 15.6 s", burst)
	}
}

// Ten thousand streams check their windows one after the other, within the time until all have reported. Tokens
// that may be spent in the next window are charged to it at once.
func TestTurnsAreSpread(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, n, _ := newSession(&rules)
	n.stats.Streams.Store(20_000)
	reports(t, s, start, usageOf(0, 1, "k", "v"))
	turn := start.Add(time.Minute + turnLag)
	if b := s.buckets[0]; s.turnOf(b) != turn {
		t.Errorf("a lease that may arrive late is charged at %v, want %v", s.turnOf(b), turn)
	}
	s.Acked(t.Context(), start.Add(time.Millisecond), s.sent)
	places := map[int]int{}
	for range 10_000 {
		s.phase = n.NewSession().phase
		late := s.Next().Sub(turn)
		if late < 0 || late >= longestTurn {
			t.Fatalf("it looks %v after the window's end, want at most %v", late, longestTurn)
		}
		places[int(late/(longestTurn/10))]++
	}
	for k, n := range places {
		if len(places) != 10 || n < 990 || n > 1010 {
			t.Errorf("%d of 10000 are in tenth %d of %d", n, k, len(places))
		}
	}
	if atOnce := 10_000 / longestTurn.Seconds(); atOnce > 2000 {
		t.Errorf("when a window turns, %.0f of 10000 streams ask a second, and only 2000 report", atOnce)
	}
	n.stats.Streams.Store(1)
	if late := s.Next().Sub(turn); late > turnEach {
		t.Errorf("the only stream waits %v", late)
	}
}

// A bucket that is not reported again does not keep the rules by which it was served.
func TestBucketsKeepNoOldRules(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, _, _ := newSession(&rules)
	var old []weak.Pointer[config.Rules]
	for i := range 3 {
		rules = rulesOf(t, oneRule)
		old = append(old, weak.Make(rules))
		reports(t, s, start, usageOf(0, 1, "k", fmt.Sprint(i)))
		s.Acked(t.Context(), start, s.sent)
	}
	runtime.GC()
	runtime.GC()
	kept := 0
	for _, p := range old[:2] {
		if p.Value() != nil {
			kept++
		}
	}
	if kept != 0 {
		t.Errorf("%d rules that are not in force are kept", kept)
	}
	runtime.KeepAlive(s)
}

// A bucket that is smaller than a minute's tokens is not served, and the reason is said.
func TestSmallBucketIsDenied(t *testing.T) {
	rule := rulesOf(t, oneRule+"  algorithm: token_bucket\n  burst: 599\n").All()[0]
	want := "a burst of 599 fills up in 59.9s, must be at least 1m0s: the refill of 15.6s is held back, because " +
		"tokens may be at Envoys for that long; use a burst of 600, or RLS"
	if err := sublease.Servable(rule); err == nil || err.Error() != want {
		t.Errorf("it says %v", err)
	}
	// One that takes millennia to fill is served.
	rule.Limit.Unit, rule.Limit.Requests, rule.Limit.Burst = ratelimit.Year, 1, 5000
	if err := sublease.Servable(rule); err != nil {
		t.Errorf("of a bucket of 5000 with one token a year it says %v", err)
	}
}

// A key with an override gets leases of that limit's size over RLQS. Under a rule of 0 with max_override, others are
// denied, and so are buckets.
func TestInvitedKeysPassOverRLQS(t *testing.T) {
	for _, c := range []struct {
		algorithm   string
		limit, gets tokens // of the rule, and at least in 20 s, with an override
	}{
		{"fixed_window", 0, 1000},
		{"fixed_window", 6, 1000},
		{"sliding_window", 0, 1000},
		{"token_bucket", 0, 0},
		{"token_bucket", 6, 700},
	} {
		rules := rulesOf(t, fmt.Sprintf("domain: d\ndescriptors:\n- key: k\n  max_override: 10000\n  algorithm: %s"+
			"\n  rate_limit: {unit: minute, requests_per_unit: %d}\n", c.algorithm, c.limit))
		records, wall := overrides.NewTable(), func() time.Time { return time.Unix(1_800_000_000, 0) }
		at := func(ratelimit.Instant) ratelimit.LedgerTime { return ratelimit.LedgerTime(wall().UnixMicro()) }
		keeper := &table.Alone{Table: records, Wall: wall, Clock: ratelimit.MonotonicClock()}
		book := overrides.Book{Table: records, Keeper: keeper}
		own := overrides.NewLimiter(local.New(100, start, wall()), records, at)
		n := newNode(own, &rules)
		rule, key := rules.Domain("d").Match([]config.Entry{{Key: "k", Value: "invited"}}, nil)
		o := &overrides.Override{Override: ratelimit.Override{Requests: 6000}, Per: rule.Limit.Per()}
		if _, err := book.Set(t.Context(), key, o, table.Any); err != nil {
			t.Fatal(err)
		}
		s := n.NewSession()
		got := map[string]tokens{}
		for at := instant(0); at < instant(20*time.Second); at += instant(5 * time.Second) {
			for _, who := range []string{"invited", "other"} {
				_, granted := say(reports(t, s, start+at, usageOf(0, 500, "k", who)))
				got[who] += granted
				s.Acked(t.Context(), start+at, s.sent)
			}
		}
		if of := got["invited"]; of < c.gets || of > 1000*c.gets || got["other"] > c.limit {
			t.Errorf("%d under %s: with an override of 6000, a key gets %d in 20 s, and another %d", c.limit,
				c.algorithm, of, got["other"])
		}
	}
}

// purse is a limiter with one budget, which it never fills again. Its window ends at ends, and has a number.
type purse struct {
	left   tokens
	ends   instant
	window ratelimit.Window
	asks   int
	most   int // in a call
}

func (p *purse) Decide(_ context.Context, now instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	p.asks, p.most = p.asks+len(asks), max(p.most, len(asks))
	for i, a := range asks {
		verdicts[i] = ratelimit.Verdict{Remaining: max(0, p.left), ResetAfter: p.ends.Sub(now), Window: p.window}
		switch {
		case p.left < 0: // it is in debt, for an hour
			verdicts[i].OverLimit, verdicts[i].ResetAfter = true, time.Hour
		case a.Kind != ratelimit.Spend:
		case a.Cost > p.left:
			verdicts[i].OverLimit = true
		default:
			p.left -= a.Cost
			verdicts[i].Charged, verdicts[i].Remaining = a.Cost, p.left
		}
	}
}

func (p *purse) Undo(_ instant, _ []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for _, v := range verdicts {
		p.left += v.Charged
	}
}

const (
	start   = instant(time.Hour)
	oneRule = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 600}\n"
)

func rulesOf(t testing.TB, text string) *config.Rules {
	t.Helper()
	rules, _, problems := config.Parse([]config.Text{{Name: "rules", Data: []byte(text)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

// newNode is a node whose rules may be replaced.
func newNode(limiter ratelimit.Limiter, rules **config.Rules) *Node {
	return NewNode(Source{
		Rules: func() *config.Rules { return *rules }, Limiter: limiter,
		Wall: func() time.Time { return time.Unix(0, 0) },
	}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Bytes: 10_000, Messages: 100})
}

// newSession is a session whose budget has 600 tokens, in a window that ends after a minute.
func newSession(rules **config.Rules) (*Session, *Node, *purse) {
	p := &purse{left: 600, ends: start.Add(time.Minute), window: 1}
	n := newNode(p, rules)
	return n.NewSession(), n, p
}

// crowd is a node with a limiter that serves, and what each of its streams reports.
func crowd(tb testing.TB, buckets int) (*Node, []byte) {
	tb.Helper()
	rules := rulesOf(tb, strings.Replace(oneRule, "600", "999999", 1))
	n := newNode(local.New(1000, start, time.Unix(1_800_000_000, 0)), &rules)
	n.options = DefaultOptions()
	message := &rlqs.RateLimitQuotaUsageReports{Domain: "d"}
	for k := range buckets {
		of := usageOf(20, 0, "k", fmt.Sprint(k)).BucketQuotaUsages
		message.BucketQuotaUsages = append(message.BucketQuotaUsages, of...)
	}
	return n, wired(message)
}

// usageOf is a message with one report. The first one of a bucket is sent at once: it denied one request.
func usageOf(allowed, denied uint64, id ...string) *rlqs.RateLimitQuotaUsageReports {
	of := map[string]string{}
	for i := 0; i < len(id); i += 2 {
		of[id[i]] = id[i+1]
	}
	elapsed := 5 * time.Second
	if allowed == 0 && denied == 1 {
		elapsed = 0
	}
	return &rlqs.RateLimitQuotaUsageReports{
		Domain: "d", BucketQuotaUsages: []*rlqs.RateLimitQuotaUsageReports_BucketQuotaUsage{{
			BucketId: &rlqs.BucketId{Bucket: of}, NumRequestsAllowed: allowed, NumRequestsDenied: denied,
			TimeElapsed: durationpb.New(elapsed),
		}},
	}
}

// reports has a session handle a message, and returns its answer.
func reports(t *testing.T, s *Session, at instant, m *rlqs.RateLimitQuotaUsageReports) (answer []byte) {
	t.Helper()
	if err := s.Reports(t.Context(), at, wired(m)); err != nil {
		t.Fatal(err)
	}
	return s.Answer(at)
}

// wired is a message as it comes.
func wired(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic(err)
	}
	return b
}

// say writes an answer, as the protobuf library reads it, and how many tokens it grants.
func say(answer []byte) (said string, granted tokens) {
	var m rlqs.RateLimitQuotaResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		panic(err)
	}
	var parts []string
	for _, a := range m.GetBucketAction() {
		x := a.GetQuotaAssignmentAction()
		ttl := x.GetAssignmentTimeToLive().AsDuration()
		switch s := x.GetRateLimitStrategy().GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_:
			parts = append(parts, fmt.Sprint(s.BlanketRule, " ", ttl))
		case *typev3.RateLimitStrategy_TokenBucket:
			parts = append(parts, fmt.Sprint("bucket ", ttl, " of ", s.TokenBucket.GetMaxTokens()))
			granted += tokens(s.TokenBucket.GetMaxTokens())
		default:
			parts = append(parts, "abandon")
		}
	}
	return strings.Join(parts, ", "), granted
}
