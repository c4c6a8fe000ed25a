package sim

import (
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

// A checker that cannot fail proves nothing. Each of these bugs is put into the product's own source, and must be found.
// Histories of fleets or of Envoys find most of them, each with the seed of one that finds it, to save time. The tests
// of package sublease find those in the account of one Envoy. Histories come too seldom to where two others show, and
// the tests of package rlqs find these. Without a bug, none of these fails.
func TestHistoriesFindBugs(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	type bug struct {
		seed                     int
		name, file, right, wrong string
	}
	finders := []struct {
		name, pkg string
		args      []string
		bugs      []bug
	}{
		{"fleets", "bench/sim", []string{"-test.run", "^TestHistories$/^fleets$"}, []bug{
			{
				93, "a claim that arrives twice is settled twice", "leasing/account/account.go",
				"r != nil && c.Seq <= r.seq", "r != nil && c.Seq < r.seq",
			},
			{
				1, "the ledger grants more than there is", "leasing/account/account.go",
				"max(0, min(free, want,", "max(0, min(free+1, want,",
			},
			{
				2, "a draw is in the record only", "leasing/account/account.go",
				"a.sum += c.Want", "a.sum += 0*c.Want",
			},
			{
				1, "what was charged is not booked", "leasing/account/account.go",
				"total := max(clamped(c.Taken), clamped(c.Spent))", "total := clamped(c.Taken)",
			},
			{
				237, "a registration counts as over before it is", "leasing/account/registrations.go",
				"if err == nil && instant(end) <= s.Now {",
				"if err == nil && instant(end) <= s.Now.Add(ratelimit.RegisteredFor/2) {",
			},
			{
				1, "a refund below nothing is credited", "leasing/account/account.go",
				"cut := max(0, had-total-a.sum+hand)", "cut := min(0, max(0, had-total-a.sum+hand))",
			},
			{
				4, "the window before is not counted", "leasing/account/span.go",
				"if l.Algorithm != ratelimit.SlidingWindow || now >= s.ends {",
				"if l.Algorithm != ratelimit.SlidingWindow || now >= s.begins {",
			},
			{
				3, "a bucket fills beside what is leased", "leasing/account/bucket.go",
				"return int64(burst-b.hand-b.old) * Micro }", "return int64(burst) * Micro }",
			},
			{
				4, "a draw keeps what lies beyond the limit", "leasing/internal/lease/part.go",
				"p.Taken += g.Owned(n, &m.Claim.Limit)", "p.Taken += n",
			},
			{
				28, "restating of drift confirms it", "leasing/internal/lease/part.go",
				"p.Taken += max(0, m.Drift()-over)", "p.Taken += m.Drift() + 0*over",
			},
			{
				28, "a claim does not say what was spent", "leasing/internal/lease/part.go",
				"p.unclaimed = 0\n\tc.Window = p.Window\n\tc.Taken = p.Taken\n\tc.Spent = p.Spent",
				"p.unclaimed = 0\n\tc.Window = p.Window\n\tc.Taken = p.Taken\n\tc.Spent = min(p.Taken, p.Spent)",
			},
			{
				632, "a window is entered that may not have begun", "leasing/internal/lease/key.go",
				"return w, there.At != 0 && w == limit.WindowAt(late)",
				"return limit.WindowAt(late), there.At != 0",
			},
			{
				439, "a window is spent of when it may be over", "leasing/internal/lease/key.go",
				"e.Till = there.NotBefore(now,",
				"e.Till = (&LedgerClock{Lo: there.Lo, Hi: there.Lo, At: there.At}).NotBefore(now,",
			},
			{
				1698, "what drifted in the window before does not count", "leasing/internal/lease/key.go",
				"carried = e.Drift()", "carried = 0 * e.Drift()",
			},
			{
				4, "a refusal charges only what is left", "leasing/internal/lease/take.go",
				"e.charge(a.Cost, &e.Charged)\n\tif known", "e.charge(v.Charged, &e.Charged)\n\tif known",
			},
			{
				79, "a node spends what it has where there is debt", "leasing/internal/lease/take.go",
				"e.Sum <= a.Rule.Limit.Capacity() && e.spendInHand", "e.spendInHand",
			},
			{
				14, "a share is spent again and again", "leasing/internal/lease/drift.go",
				"if a.Cost > share-e.carried-e.Drift() {", "if a.Cost > share {",
			},
			{
				219, "a key that was forgotten comes back under its old name", "leasing/late.go",
				"return f.name + ratelimit.Holder(k.cell.Val.alias)", "return f.name",
			},
			{
				2641, "a ledger that lost its data is not told", "leasing/sweep.go",
				"case c.Val.reportedLife != life && is.epoch.ID != 0:",
				"case c.Val.reportedLife != life && is.epoch.ID == 1<<63:",
			},
			{
				35, "a node that ends keeps what it has", "leasing/sweep.go",
				"k.Resign(lease.Never)", "",
			},
			{
				89, "all messages go to one part of the ledger", "leasing/fleet.go",
				"return &f.lanes[f.ledger.(account.Partitioned).Partition(name)]",
				"return &f.lanes[0*f.ledger.(account.Partitioned).Partition(name)]",
			},
			{
				49, "a node alone takes the whole limit", "leasing/local/limiter.go",
				"own.Rule = a.Rule.LocalShare(nodes)\n\tl.Decide", "own.Rule = a.Rule\n\tl.Decide",
			},
			{
				54, "what a node admitted alone is not told", "leasing/failure.go",
				"k.Admitted(now, v.Charged)", "k.Admitted(now, 0)",
			},
			{
				28, "a drift share is doubled", "approx/keeper.go",
				"return share\n", "return 2 * share\n",
			},
			{
				48, "a seat is given twice", "approx/seats.go",
				"t := s.ended(); now >= s.Expires && (best", "t := s.NotBefore; (best",
			},
			{
				67, "an account moves without its sum", "leasing/local/handover.go",
				"	c := counter{sum: x.Sum,", "	c := counter{sum: 0 * x.Sum,",
			},
		}},
		{"Envoys", "bench/sim", []string{"-test.run", "^TestHistories$/^Envoys$"}, []bug{
			{
				3, "a window never turns", "ratelimit/rlqs/assign.go",
				"ends != 0 && budgets", "ends < 0 && budgets",
			},
			{
				2, "one more is granted than was charged", "ratelimit/rlqs/assign.go",
				"oneShot(b.subject.id, got, ttl)", "oneShot(b.subject.id, got+1, ttl)",
			},
			{
				2, "a bucket refills", "ratelimit/rlqs/answer.go",
				"appendDuration(b, never)", "appendDuration(b, time.Second)",
			},
			{
				42, "silence credits", "ratelimit/rlqs/session.go",
				"\t\tb.quit(s.node)\n\t\ts.node.release",
				"\t\ts.credit(now, b, b.holding.Live())\n\t\tb.quit(s.node)\n\t\ts.node.release",
			},
			{
				2, "Envoys may let all pass where nothing is left", "ratelimit/rlqs/assign.go",
				"allOrNothing(b.subject.id, nothing, denial(now, ends))",
				"allOrNothing(b.subject.id, everything, denial(now, ends))",
			},
			{
				24, "of a bucket all is granted on", "ratelimit/sublease/bucket.go",
				"l.Burst-refills(&l, BucketWindow)", "l.Burst",
			},
			{
				3038, "of a bucket leases last for a minute", "ratelimit/rlqs/assign.go",
				"now.Add(sublease.BucketWindow)", "now.Add(4 * sublease.BucketWindow)",
			},
			{
				3038, "of a bucket more is granted than was charged", "ratelimit/rlqs/assign.go",
				"x.got[i] = v.Charged",
				"x.got[i] = v.Charged\n\t\t\t\tif of[i].refills() {\n\t\t\t\t\tx.got[i] += 2\n\t\t\t\t}",
			},
		}},
		{"books", "ratelimit/sublease", []string{"-rapid.checks", "5000", "-rapid.nofailfile"}, []bug{
			{
				0, "what is replaced is credited before that is acknowledged", "ratelimit/sublease/holding.go",
				"!l.settled && l.acked != 0 && now >= l.acked.Add(applies+u.Waited)", "!l.settled",
			},
			{
				0, "an answer counts as acknowledged when it is sent", "ratelimit/sublease/holding.go",
				"sent: now, ttl: ttl", "acked: now, sent: now, ttl: ttl",
			},
			{
				0, "any acknowledgement is of the last answer", "ratelimit/sublease/holding.go",
				"l.message <= message && l.acked == 0", "l.acked == 0",
			},
			{
				0, "what was spent is not counted", "ratelimit/sublease/holding.go",
				"h.spend(u.Allowed)", "h.spend(0)",
			},
			{
				0, "a lease that is replaced counts as dead at once", "ratelimit/sublease/holding.go",
				"h.before+h.last.live", "h.before+0",
			},
			{
				0, "a denial by another assignment proves a lease used up", "ratelimit/sublease/holding.go",
				"l.settled && u.Denied > 0", "u.Denied > 0",
			},
			{
				0, "a lease outlives its window", "ratelimit/sublease/holding.go",
				"min(ends.Sub(now)-Slack, LongestTTL)", "LongestTTL",
			},
			{
				0, "what may arrive late is not carried", "ratelimit/sublease/holding.go",
				"case l.acked == 0 ||", "case l.acked == 0:\n\t\treturn 0\n\tcase",
			},
			{
				0, "a lease that arrived late is not carried", "ratelimit/sublease/holding.go",
				"l.ends() > h.ends", "false",
			},
			{
				0, "what is carried is credited at the next report", "ratelimit/sublease/holding.go",
				"h.before = carry\n", "h.before = 0 * carry\n",
			},
		}},
		{"sessions", "ratelimit/rlqs", nil, []bug{
			{
				0, "of a bucket is credited what was not spent", "ratelimit/rlqs/session.go",
				"if b.refills() {\n\t\tn.stats.Forgone", "if b == nil {\n\t\tn.stats.Forgone",
			},
			{
				0, "of a bucket what arrives late is not charged again", "ratelimit/rlqs/assign.go",
				"carried = append(carried, demand{b, carry})",
				"if !b.refills() {\n\t\t\t\tcarried = append(carried, demand{b, carry})\n\t\t\t}",
			},
		}},
	}
	var planted []plant.Bug
	for _, by := range finders {
		for _, b := range by.bugs {
			planted = append(planted, plant.Bug{Name: b.name, File: b.file, Right: b.right, Wrong: b.wrong})
		}
	}
	builds := map[string]func() (*plant.Binary, error){}
	for _, by := range finders {
		if builds[by.pkg] == nil {
			into := t.TempDir()
			builds[by.pkg] = sync.OnceValues(func() (*plant.Binary, error) { return plant.Tests(t.Context(), "../..", by.pkg, into, planted) })
		}
		for _, b := range by.bugs {
			t.Run(by.name+"/"+b.name, func(t *testing.T) {
				t.Parallel()
				tests, err := builds[by.pkg]()
				if err != nil {
					t.Fatal(err)
				}
				play := func(name string, args ...string) (text string, failed bool) {
					out, err := tests.Command(t.Context(), name, append(append(args, by.args...), "-test.timeout", "30m")...).CombinedOutput()
					return string(out), err != nil && strings.Contains(string(out), "--- FAIL")
				}
				var seed []string
				if b.seed > 0 {
					seed = []string{"-seed", strconv.Itoa(b.seed), "-histories", "1"}
				}
				if b.seed > int(*histories) { // TestHistories plays the others without a bug
					if text, failed := play("", seed...); failed {
						t.Fatalf("it fails without the bug: %s", text)
					}
				}
				text, failed := play(b.name, seed...)
				if !failed && b.seed > 0 { // histories are made up otherwise now
					text, failed = play(b.name, "-histories", "6000")
					t.Logf("write the seed that finds it into this table, and the test is fast again: %s", text)
				}
				if !failed {
					t.Fatalf("nothing finds it: %s", text)
				}
			})
		}
	}
}
