package ledger

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/ratelimit"
)

// recorded is the newest event on the record of the twins' account, which Redis alone keeps.
func (w *twins) recorded() AuditEvent {
	w.Helper()
	entries, err := w.redis.client.XRevRangeN(w.Context(), AuditStream("t:k"), "+", "-", 1).Result()
	if err != nil || len(entries) != 1 {
		w.Fatal(entries, err)
	}
	event, err := ReadAuditEvent("k", entries[0].Values)
	if err != nil {
		w.Fatal(err)
	}
	return event
}

// Each claim is on record as what it did, with the totals that its holder then had.
func TestRecordOfEachClaim(t *testing.T) {
	w := newTwins(t) // 15 s into a minute
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.c.Audit, b.c.Audit = "d.r", "d.r"
	at := perMinute100.WindowAt(w.now)
	says := func(of *tenant, kind string, claimed ratelimit.Window, granted, spent, returned, waiting tokens) {
		t.Helper()
		e := w.recorded()
		w.expect(fmt.Sprintln(kind, HolderName(of.c.Holder), at, claimed, granted, spent, returned, waiting)+"100",
			fmt.Sprintln(e.Kind, e.Holder, e.Window, e.Claimed, e.Granted, e.Spent, e.Returned, e.Waiting)+fmt.Sprint(e.Limit))
	}
	b.gets(2, 2, 2)
	b.gets(0, 0, 0)
	says(b, "report", at, 2, 0, 0, 0)
	b.c.Fence, b.c.Granted = 0, 0 // it had to make room, and has forgotten what it had
	b.gets(1, 1, 1)
	says(b, "grant", 0, 1, 0, 0, 1)
	a.gets(20, 20, 20)
	says(a, "grant", 0, 20, 0, 0, 20) // it claims of no window yet
	a.c.Spent, a.c.Returned = 5, 3
	a.gets(0, 0, 0)
	says(a, "return", at, 20, 5, 3, 0)
	a.c.Spent = 8
	a.gets(0, 0, 0)
	says(a, "report", at, 20, 8, 3, 0) // what was returned before is not returned now
	a.asks(90, 90)
	says(a, "refused", at, 100, 8, 3, 90) // 80 of them were left
	a.says(func(c *ratelimit.Claim) { c.Reset = true })
	says(a, "reset", at, 100, 8, 3, 0)
	// The last word of a holder is about the window before.
	at = perMinute100.WindowAt(w.now)
	w.passes(time.Minute)
	a.c.Spent = 90
	a.says(func(c *ratelimit.Claim) { c.Final, c.Waiting = true, 0 })
	says(a, "final", at, 100, 90, 3, 0)
}

// A claim under the name of a lease that a silent holder had is on record as fenced, and the silence as the expiry of
// what had been granted.
func TestRecordOfAnExpiry(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	for _, h := range []*tenant{a, b} {
		h.c.Audit, h.c.Reclaim = "d.r", ratelimit.ReclaimEager
	}
	at := perMinute100.WindowAt(w.now)
	a.gets(20, 20, 20)
	a.c.Spent, a.c.Returned = 5, 3
	a.gets(0, 0, 0)
	w.passes(10 * time.Second)
	b.gets(1, 1, 1)
	entries, err := w.redis.client.XRevRangeN(t.Context(), AuditStream("t:k"), "+", "-", 2).Result()
	if err != nil || len(entries) != 2 {
		t.Fatal(entries, err)
	}
	e, err := ReadAuditEvent("k", entries[1].Values) // that before the grant
	if err != nil {
		t.Fatal(err)
	}
	w.expect(fmt.Sprintf("expiry h1 %d %d 8 5 3 0", at, at), e.Kind, e.Holder, e.Window, e.Claimed, e.Granted, e.Spent, e.Returned, e.Waiting)
	a.gets(0, 0, -12)
	e = w.recorded()
	w.expect("fenced h1 5", e.Kind, e.Holder, e.Spent)
}

// A claim of a billing month that is long over, and arrives a second time, is answered as before, and with no time to
// that month's end.
func TestRepeatedClaimMonthsLater(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, billedLimit(t, 19, "UTC"))
	a.c.Tally = true
	a.gets(10, 10, 10)
	w.passes(100 * 24 * time.Hour)
	a.c.Seq-- // the same again
	g := a.says(func(c *ratelimit.Claim) { c.Fence, c.Window, c.Granted, c.Waiting, c.Want = 0, 0, 0, 10, 10 })
	w.expect("<nil> 0s", g.Err, g.ResetAfter)
}

// The ledger's clock has gone back, and a node that does not know it draws in vain of a till that was shut: nothing of
// that is booked, so that nobody needs fences from beyond the window.
func TestShutTillBeforeTheClockWentBack(t *testing.T) {
	w := newTwins(t)
	at := perMinute100.WindowAt(w.now)
	w.expect("95", w.drawer(2).claims(95).Granted)
	w.passes(-time.Hour)
	g := w.drawer(1).asks(1, func(c *ratelimit.Claim) { c.Draw = at })
	w.expect("false 1 4 true", g.Drawn, g.Granted, g.Available, g.Fence < ratelimit.Fence(perMinute100.WindowEnd(at)))
}

// A holder of a bucket that says it received more than it was granted at once gives back what it says, and is paid
// nothing besides.
func TestBucketGrantOfWhichMoreWasReceived(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, bucket100), w.tenant(2, bucket100)
	b.gets(60, 60, 60)
	b.c.Spent = 60
	b.gets(0, 0, 0)
	a.hears(a.says(func(c *ratelimit.Claim) { c.Direct, c.Waiting = true, 5 }))
	a.c.Granted, a.c.Spent, a.c.Returned = 9, 1, 8
	a.asks(0, 0)
	w.passes(2 * time.Second)
	g := w.tenant(3, bucket100).gets(0, 0, 0)
	w.expect("41", g.Available) // 100 less 60, and less 1 of the 5: two seconds bring two
}

// A rule of mode leasing that becomes one of mode approx, with a higher limit: what is told of the window before is
// held against that.
func TestRuleThatBecomesApproxIsTallied(t *testing.T) {
	w := newTwins(t)
	a, b := w.tenant(1, perMinute100), w.tenant(2, perMinute100)
	a.gets(10, 10, 10)
	a.c.Spent = 4
	a.gets(0, 0, 0)
	w.passes(time.Minute)
	a.c.Limit.Requests, b.c.Limit.Requests = 200, 200
	b.gets(1, 1, 1)
	a.c.Spent = 150
	g := a.says(func(c *ratelimit.Claim) { c.Tally = true })
	w.expect("0", g.OverAdmitted)
}

// A reset ends that the ledger learns: it is as if nothing had been granted.
func TestResetEndsLearning(t *testing.T) {
	w := newTwins(t)
	a := w.tenant(1, perMinute100)
	g := a.says(func(c *ratelimit.Claim) { c.Learning, c.Waiting = w.now.Add(2*time.Second), 9 })
	w.expect("5 true", g.Granted, g.Relearning)
	a.c.Seq++
	g = a.says(func(c *ratelimit.Claim) {
		c.Reset, c.Granted, c.Spent, c.Fence, c.Window = true, 5, 5, g.Fence, g.Window
	})
	w.expect("false", g.Relearning)
	w.expect("100", w.tenant(2, perMinute100).asks(100, 100).Granted)
}

// The script's answer begins with what form it has. What begins with another number is none.
func TestAnswerOfAnotherForm(t *testing.T) {
	for _, length := range []int{2, answerFields} {
		c := ratelimit.Claim{Seq: 7}
		numbers := make([]int64, length)
		numbers[length-1] = 7
		for form := range int64(4) {
			numbers[0] = form
			answer := redis.NewCmdResult(string(appendNumbers(nil, numbers...)), nil)
			g := readGrant(&c, answer)
			switch want := form == 0 && length > 2 || form == 1 && length == 2; {
			case want && length > 2 && g.Err != nil, want && length == 2 && !errors.Is(g.Err, ratelimit.ErrStaleClaim):
				t.Errorf("%d numbers, of which the first is %d: %v", length, form, g.Err)
			case !want && !errors.Is(g.Err, ErrLedgerAnswer):
				t.Errorf("%d numbers, of which the first is %d, are taken for an answer: %+v", length, form, g)
			}
		}
	}
}
