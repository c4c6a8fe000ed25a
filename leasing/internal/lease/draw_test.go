package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A claim may be a draw where nothing but its tokens is of interest to the ledger, and what it draws from is certain.
func TestWhichClaimsMayBeDraws(t *testing.T) {
	// 15 s into a minute, on both clocks: one of which nothing is known would show some window, too.
	const now, at = instant(time.Hour + 15*time.Second), ledgerTime(1_800_000_015_000_000)
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	w := limit.WindowAt(at)
	for name, c := range map[string]struct {
		but  func(h *Held, fl *Flight, c *ratelimit.Claim)
		want window
	}{
		"a renewal":                   {func(*Held, *Flight, *ratelimit.Claim) {}, w},
		"many holders":                {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.crowded = true }, 0},
		"a lease that is to be small": {func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Stretch = false }, 0},
		"a sliding window":            {func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Limit.Algorithm = ratelimit.SlidingWindow }, 0},
		"an audited rule":             {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Rule.Coordination.Audit = true }, 0},
		"an operator's reset":         {func(_ *Held, fl *Flight, _ *ratelimit.Claim) { fl.Reset = true }, 0},
		"the node's last claim":       {func(_ *Held, fl *Flight, _ *ratelimit.Claim) { fl.Last = true }, 0},
		"what the ledger has lost":    {func(_ *Held, fl *Flight, _ *ratelimit.Claim) { fl.Tells = true }, 0},
		"admitted by a policy":        {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Unasked = 1 }, 0},
		"admitted before a lease":     {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Unplaced = 1 }, 0},
		"a draw without an answer":    {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.vain = true }, 0},
		"something given back":        {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Lease.Returned = 1 }, 0},
		"given back and told":         {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Lease.Returned, h.returned = 1, 1 }, w},
		"no plenty":                   {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Stretched = false }, w},
		"no plenty, mode approx":      {func(h *Held, _ *Flight, c *ratelimit.Claim) { h.Stretched, c.Tally = false, true }, w},
		"mode approx":                 {func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Tally = true }, w},
		"may be reclaimed":            {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.eager = true }, 0},
		"nothing can be drawn":        {func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.shut = true }, 0},
		"the first of the window": {func(h *Held, _ *Flight, c *ratelimit.Claim) {
			h.Stretched, h.shut, c.Tally, h.Lease.Fence = false, true, true, 0
		}, w},
		"the next window":               {func(_ *Held, fl *Flight, c *ratelimit.Claim) { fl.Ahead, c.Ahead, c.Window = true, true, w+1 }, w + 1},
		"after the turn":                {func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Window = w - 1 }, w},
		"after the turn, by name":       {func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Window, c.Ahead = w-1, true }, 0},
		"after the turn, spent unasked": {func(h *Held, _ *Flight, c *ratelimit.Claim) { c.Window, h.Lease.Spent = w-1, 9 }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var there LedgerClock
			there.Heard(now, now, at)
			h := &Held{Rule: testRule(limit)}
			h.Stretched, h.Lease = true, Lease{Granted: 5, Spent: 5, Fence: 7, Window: w}
			fl := &Flight{Claim: ratelimit.Claim{Limit: limit, Stretch: true, Window: w}}
			c.but(h, fl, &fl.Claim)
			if got := h.drawsFrom(now, there, fl); got != c.want {
				t.Errorf("draws from %d, want %d of %d", got, c.want, w)
			}
			if got := h.drawsFrom(now, LedgerClock{}, fl); got != 0 {
				t.Errorf("nothing is known of the ledger's clock, and it draws from %d", got)
			}
			end := now.Add(45 * time.Second)
			if got := h.drawsFrom(end.Add(-4*time.Millisecond), there, fl); got != 0 {
				t.Errorf("the window ends in a moment, and it draws from %d", got)
			}
		})
	}
}

// A draw is for no more than what was left when last heard of, in whole units; who waits for more claims.
func TestDrawsWhatIsLeft(t *testing.T) {
	const now, at = instant(time.Hour), ledgerTime(1_800_000_015_000_000) // 15 s into a minute
	for _, c := range []struct {
		limit, left, waiting, drift, want tokens
		draws                             tokens // 0: it is no draw
	}{
		{limit: 60, left: 30, want: 20, draws: 20},
		{limit: 60, left: 9, want: 20, draws: 9},
		{limit: 60, left: 8, want: 20, draws: 6}, // in units of 3
		{limit: 60, left: 2, want: 20},
		{limit: 60, left: 6, waiting: 6, want: 20, draws: 6},
		{limit: 60, left: 6, waiting: 7, want: 20},
		{limit: 60, left: 6, waiting: 6, drift: 1, want: 20},
		{limit: 60, left: 6, waiting: 5, drift: 1, want: 20, draws: 5},
		{limit: 60, left: 6, drift: 6, want: 20}, // something besides would be more than there is
		{limit: 60, left: 6, drift: 5, want: 20, draws: 1},
		{limit: 60, left: 6, drift: 4, want: 20, draws: 2},
		{limit: 60, left: 6, drift: 3, want: 20, draws: 3},
		{limit: 60, left: 0, want: 20},
		{limit: 119, left: 29, want: 50, draws: 10}, // 19 are beyond 20 units of 5
		{limit: 119, left: 19, want: 50},
		{limit: 7, left: 3, want: 5, draws: 3}, // seven units
		{limit: 7, left: 0, want: 5},
	} {
		limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: c.limit}
		w := limit.WindowAt(at)
		var there LedgerClock
		there.Heard(now, now, at)
		h := &Held{Rule: testRule(limit)}
		h.Lease = Lease{Granted: 5, Spent: 5 + c.drift, Fence: 7, Window: w, Available: c.left}
		fl := &Flight{Claim: ratelimit.Claim{Limit: limit, Stretch: true, Window: w, Waiting: c.waiting, Want: c.want}}
		h.plain(now, there, fl)
		switch {
		case c.draws == 0 && (fl.Claim.Draw != 0 || fl.Claim.Want != c.want):
			t.Errorf("%+v: draws of %d, and wants %d", c, fl.Claim.Draw, fl.Claim.Want)
		case c.draws > 0 && (fl.Claim.Draw != w || fl.Claim.Want != c.draws):
			t.Errorf("%+v: draws of %d, and wants %d", c, fl.Claim.Draw, fl.Claim.Want)
		}
		// Of a window of which nothing is known it draws as it likes, whatever was left of another.
		h.Lease.Fence, h.Lease.Spent, fl.Claim.Want = 0, 5, c.want
		if h.plain(now, there, fl); fl.Claim.Draw != w || fl.Claim.Want != c.want {
			t.Errorf("%+v: with no fence draws of %d, and wants %d", c, fl.Claim.Draw, fl.Claim.Want)
		}
		h.Lease.Fence = 7
		h.Lease.Window, fl.Claim.Window, h.Lease.Spent, fl.Claim.Want = w-1, w-1, 5, c.want
		if h.plain(now, there, fl); fl.Claim.Draw != w || fl.Claim.Want != c.want {
			t.Errorf("%+v: in a new window draws of %d, and wants %d", c, fl.Claim.Draw, fl.Claim.Want)
		}
	}
}

// Who asks again for what was refused may glance, where it has nothing and has nothing to tell.
func TestWhichClaimsGlance(t *testing.T) {
	const now, at = instant(time.Hour), ledgerTime(1_800_000_015_000_000) // 15 s into a minute
	limit := ratelimit.Limit{Unit: ratelimit.Minute, Requests: 100}
	w := limit.WindowAt(at)
	for name, but := range map[string]func(h *Held, fl *Flight, c *ratelimit.Claim){
		"":                        func(*Held, *Flight, *ratelimit.Claim) {},
		"something unspent":       func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Lease.Granted++ },
		"spent unasked":           func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Lease.Granted-- },
		"something untold":        func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Reported-- },
		"something given back":    func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.returned-- },
		"a sliding window":        func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Limit.Algorithm = ratelimit.SlidingWindow },
		"an audited rule":         func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Rule.Coordination.Audit = true },
		"a draw without answer":   func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.vain = true },
		"may be reclaimed":        func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.eager = true },
		"admitted by a policy":    func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Unasked = 1 },
		"admitted before a lease": func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Unplaced = 1 },
		"not refused any more":    func(h *Held, _ *Flight, _ *ratelimit.Claim) { h.Lease.Retry = now },
		"of another window":       func(_ *Held, _ *Flight, c *ratelimit.Claim) { c.Window-- },
	} {
		var there LedgerClock
		there.Heard(now, now, at)
		h := &Held{Rule: testRule(limit)}
		h.Lease = Lease{Granted: 9, Spent: 7, Returned: 2, Fence: 7, Window: w}
		h.Lease.Retry = now + 1
		h.Reported, h.returned, h.shut = 7, 2, true
		fl := &Flight{Errand: Errand{again: true}, Claim: ratelimit.Claim{Limit: limit, Stretch: true, Window: w, Waiting: 1, Want: 1}}
		but(h, fl, &fl.Claim)
		h.plain(now, there, fl)
		if want := name == ""; fl.Claim.Glance != want || want && fl.Claim.Draw != w || !want && fl.Claim.Draw != 0 {
			t.Errorf("%q: glances: %v, of %d", name, fl.Claim.Glance, fl.Claim.Draw)
		}
		if h.plain(now, LedgerClock{}, fl); fl.Claim.Glance {
			t.Errorf("%q: nothing is known of the ledger's clock, and it glances", name)
		}
	}
}
