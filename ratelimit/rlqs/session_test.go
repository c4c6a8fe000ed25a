package rlqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"weak"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// purse is a limiter with one budget, which it never fills again. Its window ends at ends, and has a number.
type purse struct {
	left   tokens
	ends   instant
	window ratelimit.Window
	asks   int
	most   int // in a call
}

func (p *purse) Decide(_ context.Context, now ratelimit.Instant, asks []ratelimit.Ask, verdicts []ratelimit.Verdict) {
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

func (p *purse) Undo(_ ratelimit.Instant, _ []ratelimit.Ask, verdicts []ratelimit.Verdict) {
	for _, v := range verdicts {
		p.left += v.Charged
	}
}

const start = instant(time.Hour)

func rulesOf(t testing.TB, text string) *config.Rules {
	t.Helper()
	rules, _, problems := config.Parse([]config.Text{{Name: "rules", Data: []byte(text)}},
		config.Options{Coordination: ratelimit.DefaultCoordination()})
	if problems != nil {
		t.Fatal(problems)
	}
	return rules
}

const oneRule = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: minute, requests_per_unit: 600}\n"

// newSession makes a session whose rules may be replaced.
func newSession(t *testing.T, rules **config.Rules) (*Session, *Node, *purse) {
	p := &purse{left: 600, ends: start.Add(time.Minute), window: 1}
	n := NewNode(Source{
		Rules: func() *config.Rules { return *rules }, Limiter: p, Wall: func() time.Time { return time.Unix(0, 0) },
	}, Options{Streams: 1, Buckets: 3, BucketBytes: 64, Bytes: 10_000, Messages: 100})
	return n.NewSession(), n, p
}

func usageOf(allowed, denied uint64, id ...string) *rlqs.RateLimitQuotaUsageReports {
	of := map[string]string{}
	for i := 0; i < len(id); i += 2 {
		of[id[i]] = id[i+1]
	}
	elapsed := 5 * time.Second
	if allowed == 0 && denied == 1 { // the first report of a bucket is sent at once
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

// actionsOf are what an answer says, as the protobuf library reads it.
func actionsOf(answer []byte) []*rlqs.RateLimitQuotaResponse_BucketAction {
	var m rlqs.RateLimitQuotaResponse
	if err := proto.Unmarshal(answer, &m); err != nil {
		panic(err)
	}
	return m.GetBucketAction()
}

// say writes an answer as people would.
func say(answer []byte) string {
	var parts []string
	for _, a := range actionsOf(answer) {
		x := a.GetQuotaAssignmentAction()
		switch s := x.GetRateLimitStrategy().GetStrategy().(type) {
		case *typev3.RateLimitStrategy_BlanketRule_:
			parts = append(parts, s.BlanketRule.String()+" "+x.GetAssignmentTimeToLive().AsDuration().String())
		case *typev3.RateLimitStrategy_TokenBucket:
			parts = append(parts, "bucket "+x.GetAssignmentTimeToLive().AsDuration().String())
		default:
			parts = append(parts, "abandon")
		}
	}
	return strings.Join(parts, ", ")
}

func TestSession(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, n, p := newSession(t, &rules)
	ctx := t.Context()
	report := func(at time.Duration, m *rlqs.RateLimitQuotaUsageReports, want string) {
		t.Helper()
		if got := say(reports(t, s, start.Add(at), m)); got != want {
			t.Fatalf("%v: it answers %q, want %q", at, got, want)
		}
	}
	acked := func(at time.Duration, want string) {
		t.Helper()
		s.Acked(ctx, start.Add(at), s.sent)
		if got := say(s.Answer(start.Add(at))); got != want {
			t.Fatalf("%v: it answers %q, want %q", at, got, want)
		}
	}
	report(0, usageOf(0, 1, "k", "v"), "DENY_ALL 1m1s, bucket 59s")
	if p.left != 570 {
		t.Errorf("%d are left of 600, after a first lease of a twentieth", p.left)
	}
	report(5*time.Second, usageOf(30, 30, "k", "v"), "") // the answer was not acknowledged yet
	acked(5500*time.Millisecond, "DENY_ALL 55s, bucket 54s")
	acked(6*time.Second, "")
	report(8*time.Second, usageOf(0, 1, "nothing", "v"), "ALLOW_ALL 1m0s")
	acked(8*time.Second, "")
	if h, all := n.Look([]byte(s.buckets[0].pool.key)); all != 1 || h[0].PerSecond != 12 {
		t.Errorf("it shows %+v", h)
	}
	report(10*time.Second, usageOf(30, 0, "k", "v"), "")
	before := p.left
	report(15*time.Second, usageOf(5, 1, "k", "v"), "DENY_ALL 46s, bucket 44s") // a denial proves it used up
	if c := rules.All()[0].Counters; p.left == before || c.OverLimit.Load() == 0 || c.OverLocally.Load() != 0 {
		t.Error("nothing was charged for another lease, or its refusals count as of a local cache")
	}
	acked(15*time.Second, "")
	rules = rulesOf(t, "domain: d\ndescriptors:\n- key: other\n  rate_limit: {unit: minute, requests_per_unit: 600}\n")
	report(20*time.Second, usageOf(5, 0, "k", "v"), "abandon") // its rule is gone
	acked(20*time.Second, "")
	if b := n.Stats().Buckets.Load(); b != 1 {
		t.Errorf("%d buckets are left, want that without a rule", b)
	}
	n.source.ShadowMode = true // SHADOW_MODE
	report(20*time.Second, usageOf(0, 1, "other", "v"), "ALLOW_ALL 1m0s")
	if debts := s.Close(start.Add(21 * time.Second)); len(debts) != 0 || n.Stats().Buckets.Load() != 0 ||
		len(n.pools) != 0 {
		t.Errorf("after its end: debts %v, %d buckets, %d keys", debts, n.Stats().Buckets.Load(), len(n.pools))
	}
}

// A bucket without requests is denied, settled and abandoned; what it held is credited. While others
// may miss its tokens, that is done sooner.
func TestIdleBucket(t *testing.T) {
	for _, c := range []struct {
		rule  string
		left  tokens
		after time.Duration
	}{
		{oneRule, 140, IdleAfter},
		{oneRule, 600, ForgottenAfter},
		{oneRule + "  shadow_mode: true\n", 600, ForgottenAfter},
		{bucketRule + "  burst: 599\n", 600, ForgottenAfter}, // it is denied
		{bucketRule + "  burst: 900\n", 600, ForgottenAfter},
	} {
		idleBucket(t, c.rule, c.left, c.after)
	}
}

func idleBucket(t *testing.T, text string, left tokens, after time.Duration) {
	rules := rulesOf(t, text)
	s, _, p := newSession(t, &rules)
	p.left, p.ends = left, start.Add(time.Hour)
	said := ""
	for at := time.Duration(0); at < after+20*time.Second && !strings.Contains(said, "abandon"); at += 5 * time.Second {
		denied := uint64(0)
		if at == 0 {
			denied = 1
		}
		if m := reports(t, s, start.Add(at), usageOf(0, denied, "k", "v")); m != nil {
			if said += say(m) + "; "; strings.Contains(said, "abandon") && at < after {
				t.Errorf("with %d left it is abandoned after %v, want %v", left, at, after)
			}
			s.Acked(t.Context(), start.Add(at+time.Millisecond), s.sent)
		}
	}
	lost := p.left != left && !strings.Contains(text, "900")
	if !strings.HasSuffix(said, "abandon; ") || lost || len(s.buckets) != 0 {
		t.Errorf("%q was said, %d are left of %d, and %d buckets", said, p.left, left, len(s.buckets))
	}
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
		s, _, _ := newSession(t, &rules)
		err := s.Reports(t.Context(), start, c.m)
		if _, ok := errors.AsType[*BadReportError](err); !ok || !strings.Contains(err.Error(), c.want) {
			t.Errorf("it says %v, want %q", err, c.want)
		}
	}
	s, n, _ := newSession(t, &rules)
	for _, v := range []string{"1", "2", "3", "4", "4"} {
		reports(t, s, start, usageOf(0, 1, "k", v))
		s.Acked(t.Context(), start, s.sent)
	}
	if len(s.buckets) != 3 || n.Stats().Refused.Load() != 2 {
		t.Errorf("%d buckets of 3 are kept, and %d reports of others were refused", len(s.buckets),
			n.Stats().Refused.Load())
	}
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

// A report that was at the node before an acknowledgement credits nothing of the previous lease: the Envoy may still
// have used it.
func TestReportThatWaitedProvesNothing(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, n, _ := newSession(t, &rules)
	report := func(at, waited time.Duration, allowed, denied uint64) (credited uint64) {
		t.Helper()
		s.Waited = waited
		if reports(t, s, start.Add(at), usageOf(allowed, denied, "k", "v")) != nil {
			s.Acked(t.Context(), start.Add(at+time.Millisecond), s.sent)
		}
		return n.Stats().Credited.Load()
	}
	report(0, 0, 0, 1)
	report(5*time.Second, 0, 20, 0)
	if n.Stats().Assignments.Load() != 2 {
		t.Fatal("it has no second lease: the test does not get to what it is about")
	}
	if credited := report(10*time.Second, 5*time.Second, 2, 0); credited != 0 {
		t.Errorf("of the lease before, %d were credited", credited)
	}
	if credited := report(15*time.Second, 0, 2, 0); credited == 0 {
		t.Error("nothing was credited in the end")
	}
}

// A bucket beyond the bound is dropped when it has no requests: an Envoy reports all buckets in one message, which
// has a bound too.
func TestRefusedBucketsAreDropped(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, n, _ := newSession(t, &rules)
	n.options.Buckets = 0
	for i, want := range []string{"DENY_ALL 1m0s", "ALLOW_ALL 1m0s", "abandon"} {
		n.source.ShadowMode = i == 1
		at := start.Add(time.Duration(5*i) * time.Second)
		if got := say(reports(t, s, at, usageOf(0, uint64(2-i), "k", "v"))); got != want {
			t.Errorf("after %d more requests: %q, want %q", 2-i, got, want)
		}
		s.Acked(t.Context(), at, s.sent)
	}
}

// What was admitted beyond a lease is charged, though the same message has a mistake further on.
func TestExcessBeforeAMistake(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, _, p := newSession(t, &rules)
	report := func(at time.Duration, m *rlqs.RateLimitQuotaUsageReports) error {
		err := s.Reports(t.Context(), start.Add(at), wired(m))
		s.Answer(start.Add(at))
		s.Acked(t.Context(), start.Add(at+time.Millisecond), s.sent)
		return err
	}
	first := report(0, usageOf(0, 1, "k", "v"))
	if err := errors.Join(first, report(5*time.Second, usageOf(0, 0, "k", "v"))); err != nil {
		t.Fatal(err)
	}
	left, m := p.left, usageOf(130, 0, "k", "v")
	m.BucketQuotaUsages = append(m.BucketQuotaUsages, usageOf(0, 1).BucketQuotaUsages...)
	if err := report(10*time.Second, m); err == nil || p.left != left-100 {
		t.Errorf("100 beyond a lease of 30: %v, and %d were charged", err, left-p.left)
	}
	m.BucketQuotaUsages = slices.Repeat(usageOf(1, 0, "k", "v").BucketQuotaUsages, 4*mostActions)
	if err := report(15*time.Second, m); err != nil || p.most > mostActions {
		t.Errorf("%v, and a message makes a call of %d asks", err, p.most)
	}
}

// An answer that is not acknowledged keeps others back, and then ends the stream.
func TestStuckStream(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, _, _ := newSession(t, &rules)
	if reports(t, s, start, usageOf(0, 1, "k", "v")) == nil || s.Stuck(start.Add(StuckAfter-1)) ||
		!s.Stuck(start.Add(StuckAfter)) || s.Next() != start.Add(StuckAfter) {
		t.Errorf("it is to wake up at %v, and is stuck then: %t", s.Next(), s.Stuck(start.Add(StuckAfter)))
	}
	// The window ends meanwhile: what may still arrive is charged to the next.
	if debts := s.Close(start.Add(59*time.Second + 800*time.Millisecond)); len(debts) != 1 || debts[0].ask.Cost != 30 {
		t.Errorf("debts %+v", debts)
	}
}

// Under reclaim: eager, a broken stream is credited the tokens that its Envoy may have spent since: one lease, once
// that has ended, within the window.
func TestEagerBrokenStream(t *testing.T) {
	rules := rulesOf(t, "domain: d\ncoordination: {reclaim: eager}\ndescriptors:\n"+
		"- {key: k, rate_limit: {unit: hour, requests_per_unit: 600}}\n")
	for window, want := range map[time.Duration]int{time.Hour: 1, 2 * time.Minute: 0} {
		s, n, p := newSession(t, &rules)
		p.ends = start.Add(window)
		reports(t, s, start, usageOf(0, 1, "k", "v"))
		s.Acked(t.Context(), start, s.sent)
		lease := 600 - p.left
		debts := s.Close(start.Add(time.Second))
		if len(debts) != want {
			t.Fatalf("with a lease of %d, in %v: %+v", lease, window, debts)
		}
		for _, d := range debts {
			n.Settle(t.Context(), d.At, []*Debt{&d})
			if p.left != 600 || d.ask.Cost != lease || d.At < start.Add(time.Minute+keepalive) {
				t.Errorf("%d are left of 600; %+v", p.left, d)
			}
		}
	}
}

// A lease that is refused takes nothing.
func TestRefusedLeaseTakesNothing(t *testing.T) {
	rules := rulesOf(t, "domain: d\ndescriptors:\n"+
		"- {key: k, rate_limit: {unit: minute, requests_per_unit: 600}}\n")
	_, n, _ := newSession(t, &rules)
	of := n.offerOf(rules, rules.All()[0])
	for _, r := range []*ratelimit.Rule{of.asking, of.exact} {
		if r.Coordination.OnDeny != ratelimit.DenyRefunds {
			t.Errorf("a refusal of %v charges", r.Limit)
		}
	}
}

// A clock that is set ahead ends a window early: the leases in use are charged to the next one.
func TestClockIsSetAhead(t *testing.T) {
	for _, later := range []time.Duration{5 * time.Second, 40 * time.Second} { // the window that goes on then ends
		rules := rulesOf(t, oneRule)
		s, n, p := newSession(t, &rules)
		for i := range 2 {
			at := start.Add(time.Duration(10*i) * time.Second)
			reports(t, s, at, usageOf(0, 1, "k", "v"))
			s.Acked(t.Context(), at, s.sent)
			p.left, p.ends, p.window = 600, start.Add(time.Minute+later), 2
		}
		if carried := n.Stats().Carried.Load(); carried != 30 {
			t.Errorf("of a lease of 30, %d are charged to the window that goes on", carried)
		}
	}
}

// While a sliding window is in debt, Envoys spend their leases, which stay charged to their window.
func TestDebtOfASlidingWindow(t *testing.T) {
	rules := rulesOf(t, oneRule+"  algorithm: sliding_window\n")
	s, n, p := newSession(t, &rules)
	reports(t, s, start, usageOf(0, 1, "k", "v"))
	s.Acked(t.Context(), start, s.sent)
	p.left = -100
	got := say(reports(t, s, start.Add(5*time.Second), usageOf(5, 0, "k", "v")))
	if carried := n.Stats().Carried.Load(); got != "" || carried != 0 {
		t.Errorf("with a lease of 30, of which 5 are spent, it answers %q, and charges %d again", got, carried)
	}
	got = say(reports(t, s, start.Add(10*time.Second), usageOf(25, 10, "k", "v")))
	if got != "DENY_ALL 1m1s" {
		t.Errorf("its lease is spent, and it answers %q", got)
	}
}

// Ten thousand streams check their windows one after the other, within the time until all have reported. Tokens
// that may be spent in the next window are charged to it at once.
func TestTurnsAreSpread(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, n, _ := newSession(t, &rules)
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

// At the end of a window with a used-up budget, a bucket waits for its next report. That is about the previous
// window, and would count in both if a lease had been granted in the meantime.
func TestUsedUpBucketWaits(t *testing.T) {
	for _, c := range []struct {
		left  tokens
		waits bool
	}{{60, true}, {70, false}} { // of which a quarter is leased first
		rules := rulesOf(t, oneRule)
		s, _, p := newSession(t, &rules)
		p.left = c.left
		reports(t, s, start, usageOf(0, 1, "k", "v"))
		s.Acked(t.Context(), start.Add(time.Millisecond), s.sent)
		reports(t, s, start.Add(58*time.Second), usageOf(1, 0, "k", "v"))
		p.left = 600
		turn := s.Next()
		p.ends = p.ends.Add(time.Minute)
		s.Wake(t.Context(), turn)
		if got := s.Answer(turn); (got == nil) != c.waits {
			t.Errorf("with %d left when the window ends it answers %q", c.left, say(got))
		}
		if !c.waits {
			continue
		}
		if next := s.Next(); next != 0 {
			t.Errorf("it is to wake up at %v, want at its report", next)
		}
		at := turn.Add(3 * time.Second)
		if got := say(reports(t, s, at, usageOf(20, 0, "k", "v"))); !strings.Contains(got, "bucket") {
			t.Errorf("its report is answered with %q", got)
		}
	}
}

// With a used-up budget, reports credit nothing that was never charged. That holds for numbers that no Envoy can have
// counted, and for carried tokens without room.
func TestOnlyChargedTokensAreCredited(t *testing.T) {
	rules := rulesOf(t, oneRule)
	of := func() (n *Node, p *purse, report func(at time.Duration, allowed uint64), ack func(time.Duration)) {
		s, n, p := newSession(t, &rules)
		report = func(at time.Duration, allowed uint64) {
			t.Helper()
			denied := uint64(0)
			if at == 0 {
				denied = 1
			}
			reports(t, s, start.Add(at), usageOf(allowed, denied, "k", "v"))
		}
		return n, p, report, func(at time.Duration) { s.Acked(t.Context(), start.Add(at), s.sent) }
	}
	n, p, report, ack := of()
	report(0, 0)
	ack(time.Millisecond)
	report(5*time.Second, 30)
	ack(5*time.Second + time.Millisecond)
	report(10*time.Second, 1<<63)
	report(15*time.Second, 1<<63)
	report(20*time.Second, 0)
	if credited := n.Stats().Credited.Load(); p.left != 0 || credited != 0 {
		t.Errorf("after reports of more than there is, %d are left, and %d were credited", p.left, credited)
	}
	n, p, report, ack = of()
	report(0, 0)
	ack(time.Millisecond)
	report(55*time.Second, 30) // its answer is not acknowledged before the window ends
	p.left, p.ends = 0, start.Add(2*time.Minute)
	report(time.Minute+turnLag, 0)
	carried, uncovered := n.Stats().Carried.Load(), n.Stats().Uncovered.Load()
	if carried == 0 || uncovered != carried {
		t.Fatalf("%d are carried and %d without room: the test does not get to what it is about", carried, uncovered)
	}
	p.left = 100
	ack(time.Minute + 10*time.Millisecond)
	report(65*time.Second, 0)
	ack(65*time.Second + time.Millisecond)
	left := p.left
	report(70*time.Second, 0)
	if credited := n.Stats().Credited.Load(); left == 100 || p.left > left || credited != 0 {
		t.Errorf("with a lease of %d in hand, %d were credited", 100-left, credited)
	}
}

// A bucket that is not reported again does not keep the rules by which it was served.
func TestBucketsKeepNoOldRules(t *testing.T) {
	rules := rulesOf(t, oneRule)
	s, _, _ := newSession(t, &rules)
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
