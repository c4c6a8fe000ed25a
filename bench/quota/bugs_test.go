package quota

import (
	"strings"
	"testing"

	"github.com/sluice-gate/sluice/bench/plant"
)

// books is where a holder's are kept.
const books = "ratelimit/sublease/holding.go"

// bookBugs are bugs in one holder's books.
var bookBugs = []plant.Bug{
	{
		Name: "what is replaced is credited before that is acknowledged", File: books,
		Right: "!l.settled && l.acked != 0 && now >= l.acked.Add(applies+u.Waited)",
		Wrong: "!l.settled",
	},
	{
		Name: "an answer counts as acknowledged when it is sent", File: books,
		Right: "sent: now, ttl: ttl",
		Wrong: "acked: now, sent: now, ttl: ttl",
	},
	{
		Name: "any acknowledgement is of the last answer", File: books,
		Right: "l.message <= message && l.acked == 0",
		Wrong: "l.acked == 0",
	},
	{
		Name: "what was spent is not counted", File: books,
		Right: "h.spend(u.Allowed)",
		Wrong: "h.spend(0)",
	},
	{
		Name: "a lease that is replaced counts as dead at once", File: books,
		Right: "h.before+h.last.live",
		Wrong: "h.before+0",
	},
	{
		Name: "a denial by another assignment proves a lease used up", File: books,
		Right: "l.settled && u.Denied > 0",
		Wrong: "u.Denied > 0",
	},
	{
		Name: "a lease outlives its window", File: books,
		Right: "min(ends.Sub(now)-Slack, LongestTTL)",
		Wrong: "LongestTTL",
	},
	{
		Name: "what may arrive late is not carried", File: books,
		Right: "case l.acked == 0 ||",
		Wrong: "case l.acked == 0:\n\t\treturn 0\n\tcase",
	},
	{
		Name: "a lease that arrived late is not carried", File: books,
		Right: "l.ends() > h.ends",
		Wrong: "false",
	},
	{
		Name: "what is carried is credited at the next report", File: books,
		Right: "h.before = carry\n",
		Wrong: "h.before = 0 * carry\n",
	},
}

// sessionBugs are bugs in what is said to Envoys, and when.
var sessionBugs = []plant.Bug{
	{
		Name: "a window never turns", File: "ratelimit/rlqs/assign.go",
		Right: "ends != 0 && budgets",
		Wrong: "ends < 0 && budgets",
	},
	{
		Name: "one more is granted than was charged", File: "ratelimit/rlqs/assign.go",
		Right: "oneShot(b.subject.id, got, ttl)",
		Wrong: "oneShot(b.subject.id, got+1, ttl)",
	},
	{
		Name: "a bucket refills", File: "ratelimit/rlqs/answer.go",
		Right: "appendDuration(b, never)",
		Wrong: "appendDuration(b, time.Second)",
	},
	{
		Name: "silence credits", File: "ratelimit/rlqs/session.go",
		Right: "\t\tb.quit(s.node)\n\t\ts.node.release",
		Wrong: "\t\ts.credit(now, b, b.holding.Live())\n\t\tb.quit(s.node)\n\t\ts.node.release",
	},
	{
		Name: "Envoys may let all pass where nothing is left", File: "ratelimit/rlqs/assign.go",
		Right: "allOrNothing(b.subject.id, nothing, denial(now, ends))",
		Wrong: "allOrNothing(b.subject.id, everything, denial(now, ends))",
	},
}

// refillBugs are bugs in how a token_bucket is divided that take an Envoy which does what
// sessions' own tests have it do: histories come too seldom to where they show.
var refillBugs = []plant.Bug{
	{
		Name: "of a bucket is credited what was not spent", File: "ratelimit/rlqs/session.go",
		Right: "if b.refills() {\n\t\tn.stats.Forgone",
		Wrong: "if b == nil {\n\t\tn.stats.Forgone",
	},
	{
		Name: "of a bucket what arrives late is not charged again", File: "ratelimit/rlqs/assign.go",
		Right: "carried = append(carried, demand{b, carry})",
		Wrong: "if !b.refills() {\n\t\t\t\tcarried = append(carried, demand{b, carry})\n\t\t\t}",
	},
}

// bucketBugs are bugs in how a token_bucket is divided.
var bucketBugs = []plant.Bug{
	{
		Name: "of a bucket all is granted on", File: "ratelimit/sublease/bucket.go",
		Right: "l.Burst-refills(&l, BucketWindow)",
		Wrong: "l.Burst",
	},
	{
		Name: "of a bucket leases last for a minute", File: "ratelimit/rlqs/assign.go",
		Right: "now.Add(sublease.BucketWindow)",
		Wrong: "now.Add(4 * sublease.BucketWindow)",
	},
	{
		Name: "of a bucket more is granted than was charged", File: "ratelimit/rlqs/assign.go",
		Right: "x.got[i] = v.Charged",
		Wrong: "x.got[i] = v.Charged\n\t\t\t\tif of[i].refills() {\n\t\t\t\t\tx.got[i] += 2\n\t\t\t\t}",
	},
}

// A checker that cannot fail proves nothing. Each of these bugs is put into the product's own source, and must
// be found. The tests of package sublease find those in the account of one Envoy, and histories find the
// others. These packages' own runs show that neither fails without a bug.
func TestBugsAreFound(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the product with bugs")
	}
	areFound(t, "ratelimit/sublease", bookBugs, "-rapid.checks", "5000", "-rapid.nofailfile")
	areFound(t, "ratelimit/rlqs", refillBugs)
	areFound(t, "bench/quota", append(sessionBugs, bucketBugs...), "-test.run", "^TestHistories$", "-histories", "1500")
}

// areFound runs a package's tests with each of the bugs.
func areFound(t *testing.T, pkg string, bugs []plant.Bug, args ...string) {
	tests, err := plant.Tests(t.Context(), "../..", pkg, t.TempDir(), bugs)
	if err != nil {
		t.Fatal(err)
	}
	for _, bug := range bugs {
		t.Run(bug.Name, func(t *testing.T) {
			t.Parallel()
			out, err := tests.Command(t.Context(), bug.Name, append(args, "-test.timeout", "5m")...).CombinedOutput()
			if err == nil || !strings.Contains(string(out), "--- FAIL") {
				t.Fatalf("nothing finds it: %s", out)
			}
		})
	}
}
