package lease

import (
	"fmt"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
)

// What a script prints, in words.

// instant is when something is, from the script's beginning.
func (s *script) instant(i instant) string {
	if i == Never {
		return "never"
	}
	return fmt.Sprintf("%.3fs", i.Sub(scriptBegins).Seconds())
}

// windowName counts from the window in which scripts begin: that is window 1, as far as there
// are numbers. A bucket's only window has no number that says something.
func windowName(w window) string {
	first := ratelimit.Limit{Unit: ratelimit.Minute}.WindowAt(ledgerBegins)
	switch {
	case w == 0:
		return "no window yet"
	case w < first || w > first+9:
		return "the bucket"
	}
	return fmt.Sprint("window ", w-first+1)
}

// holderName is which of the node's two names it is (docs/protocol.md, section 4.10).
func holderName(h ratelimit.Holder) string {
	if h == scriptName {
		return "A"
	}
	return "A'"
}

func (r *scriptRequest) String() string {
	return fmt.Sprintf("%s %d", [...]string{
		ratelimit.Spend: "the request for", ratelimit.Peek: "the look at", ratelimit.Refund: "the refund of",
	}[r.Kind], r.Cost)
}

// decided prints a decision.
func (s *script) decided(r *scriptRequest, how string) {
	v := &r.v
	s.charged[v.Window] += v.Charged
	if r.Kind == ratelimit.Refund {
		s.charged[v.Window] = max(0, s.charged[v.Window]-r.Cost)
	}
	s.last = *r
	does := "is admitted"
	if v.OverLimit {
		does = "is refused"
	} else if r.Kind != ratelimit.Spend {
		does = "is answered"
	}
	text := fmt.Sprintf("%s %s, by its %s%s; remaining %d", r, does, ratelimit.Sources[v.Source], how, v.Remaining)
	if v.OverLimit {
		text += fmt.Sprintf(", again in %.3fs", v.ResetAfter.Seconds())
	}
	s.says("%s", text)
}

// errandName says what a claim is for, before it is written.
func errandName(fl *Flight) string {
	switch {
	case fl.GiveUp:
		return "to give everything back"
	case fl.recall:
		return fmt.Sprintf("to give back what is not needed but %d", fl.keep)
	case fl.Ahead:
		return "for the next window"
	case fl.Waiting > 0:
		return fmt.Sprintf("as if a request for %d waited", fl.Waiting)
	}
	return "for which nobody waits"
}

// claim is what leaves.
func (s *script) claim(fl *Flight, c *ratelimit.Claim) string {
	text := fmt.Sprintf("%d leaves as %s (%s): of %s granted %d, spent %d, returned %d; waiting %d, want %d",
		c.Seq, holderName(c.Holder), ratelimit.ClaimReasons[fl.Reason()], windowName(c.Window), c.Granted, c.Spent, c.Returned, c.Waiting, c.Want)
	if c.Before != 0 {
		text += fmt.Sprintf(", before %d", c.Before)
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{
		{c.Reclaim == ratelimit.ReclaimEager, "eager"},
		{c.Ahead, "ahead"},
		{c.Tally, "tally"},
		{c.Stretch, "stretch"},
		{c.Recall, "recall"},
		{c.Refilled, "refilled"},
		{c.Reset, "reset"},
		{c.Last, "last"},
		{c.Window != 0 && c.Fence == 0, "no fence"},
		{c.Draw != 0 && !c.Glance, "may be a draw of " + windowName(c.Draw)},
		{c.Glance, "at a glance of " + windowName(c.Draw)},
	} {
		if flag.set {
			text += ", " + flag.name
		}
	}
	return text
}

// hears prints what an answer has made of the key.
func (s *script) hears(fl *Flight, g *ratelimit.Grant) {
	h := &s.key
	if g.Err != nil {
		s.says("claim %d: no grant (%v)", fl.Claim.Seq, g.Err)
	} else {
		s.says("claim %d is answered: of %s granted %d, available %d, outstanding %d", fl.Claim.Seq, windowName(g.Window), g.Granted,
			g.Available, g.Outstanding)
		s.says("  %s", s.leaseNow())
	}
	for _, line := range []struct {
		is   bool
		text string
	}{
		{g.Err == nil && (h.below > 0 || h.After != Never), s.renewsWhen()},
		{g.Err == nil && h.AheadAt != Never, "claims the next window from " + s.instant(h.AheadAt)},
		{h.Lease.Retry > s.now, fmt.Sprintf("refuses what needs %d more by itself until %s", h.Lease.RetryCost, s.instant(h.Lease.Retry))},
		{h.resume > s.now, "asks again at " + s.instant(h.resume) + ", for others were asked to give back"},
		{h.Pause > s.now, "rests until " + s.instant(h.Pause)},
		{h.Carried > 0, fmt.Sprintf("has %d unconfirmed of the window before", h.Carried)},
		{h.Settled, "is settled: the ledger knows all"},
	} {
		if line.is {
			s.says("  %s", line.text)
		}
	}
	if n := h.Next; n != nil {
		s.says("  has %d of %s: spends the old lease until %s, and the new one from %s", n.Lease.Unspent(), windowName(n.Lease.Window),
			s.instant(n.Over), s.instant(n.Start))
	}
}

// leaseNow is what may be spent, and until when.
func (s *script) leaseNow() string {
	l := &s.key.Lease
	text := fmt.Sprintf("has %d of %s until %s", l.Unspent(), windowName(l.Window), s.instant(l.Deadline))
	if l.Drifted() > 0 {
		text = fmt.Sprintf("has spent %d of %s that are not confirmed", l.Drifted(), windowName(l.Window))
	}
	return text
}

// renewsWhen is when the lease is renewed.
func (s *script) renewsWhen() string {
	var when []string
	if s.key.below > 0 {
		when = append(when, fmt.Sprintf("below %d", s.key.below))
	}
	if s.key.After != Never {
		when = append(when, "from "+s.instant(s.key.After))
	}
	return "renews " + strings.Join(when, ", or ")
}
