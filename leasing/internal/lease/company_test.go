package lease

import (
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// calmKey is a key with ten tokens of a lease that was drawn, of a window that has long to go, whose claims
// nothing hurries.
func calmKey(now instant) *Held {
	h := &Held{Rule: testRule(perMinute100)}
	h.Begin(40)
	h.Lease = Lease{
		Granted: 20, Spent: 10, Window: 7, Deadline: now.Add(time.Minute), Reset: now.Add(time.Minute),
	}
	h.Stretched, h.After = true, Never
	return h
}

// How long a claim waits for others to travel with, by all that bears on it.
func TestPatienceOfClaims(t *testing.T) {
	const now = instant(time.Hour)
	for what, c := range map[string]struct {
		with     func(*Held, *Flight)
		patience time.Duration
	}{
		"a renewal":                        {func(*Held, *Flight) {}, Company},
		"a request waits":                  {func(_ *Held, fl *Flight) { fl.Waiting = 1 }, 0},
		"asked again":                      {func(_ *Held, fl *Flight) { fl.Waiting, fl.again = 1, true }, Company},
		"asked again, and time is over":    {func(h *Held, fl *Flight) { fl.again, h.Lease.Deadline = true, now }, Company},
		"recalled":                         {func(_ *Held, fl *Flight) { fl.recall = true }, 0},
		"told again":                       {func(_ *Held, fl *Flight) { fl.Tells = true }, 0},
		"an operator's reset":              {func(_ *Held, fl *Flight) { fl.Reset = true }, 0},
		"the node's last":                  {func(_ *Held, fl *Flight) { fl.Last = true }, 0},
		"reclaimed eagerly":                {func(h *Held, _ *Flight) { h.eager = true }, 0},
		"drift":                            {func(h *Held, _ *Flight) { h.Lease.Spent = 21 }, 0},
		"given up":                         {func(h *Held, fl *Flight) { fl.GiveUp, h.Lease.Reset = true, now }, Company},
		"goes on":                          {func(h *Held, fl *Flight) { fl.goesOn, h.Lease.Reset = true, now }, LongCompany},
		"a bucket":                         {func(h *Held, _ *Flight) { h.Lease.Algorithm = ratelimit.TokenBucket }, 0},
		"a window that slides":             {func(h *Held, _ *Flight) { h.Lease.Algorithm = ratelimit.SlidingWindow }, 0},
		"the window ends":                  {func(h *Held, _ *Flight) { h.Lease.Reset = now.Add(mustLast) }, 0},
		"the window ends a little later":   {func(h *Held, _ *Flight) { h.Lease.Reset = now.Add(mustLast) + 1 }, Company},
		"the lease ends":                   {func(h *Held, _ *Flight) { h.Lease.Deadline = now.Add(mustLast) }, 0},
		"the lease ends a little later":    {func(h *Held, _ *Flight) { h.Lease.Deadline = now.Add(mustLast) + 1 }, Company},
		"what is left lasts":               {func(h *Held, _ *Flight) { h.Demand.PerSec = 250 }, Company},
		"what is left does not last":       {func(h *Held, _ *Flight) { h.Demand.PerSec = 251 }, 0},
		"used up, and seldom":              {func(h *Held, _ *Flight) { h.Lease.Spent, h.Lease.Deadline = 20, now }, LongCompany},
		"used up, and asked for often":     {func(h *Held, _ *Flight) { h.Lease.Spent, h.Demand.PerSec = 20, often }, 0},
		"used up, and for the next one":    {func(h *Held, fl *Flight) { h.Lease.Spent, fl.Ahead = 20, true }, Company},
		"used up, and the window ends":     {func(h *Held, _ *Flight) { h.Lease.Spent, h.Lease.Reset = 20, now.Add(mustLast) }, 0},
		"used up, and not drawn":           {func(h *Held, _ *Flight) { h.Lease.Spent, h.Stretched = 20, false }, Company},
		"used up, to be asked for at once": {func(h *Held, fl *Flight) { h.Lease.Spent, fl.Waiting = 20, 1 }, 0},
	} {
		h, fl := calmKey(now), &Flight{}
		c.with(h, fl)
		if got := h.Patience(now, fl); got != c.patience {
			t.Errorf("%s: waits for %v, want %v", what, got, c.patience)
		}
	}
}

// Which leases may be drawn, as far as is known, and when the only reason to claim one is company.
func TestWhatIsDrawn(t *testing.T) {
	const now = instant(time.Hour)
	for what, c := range map[string]struct {
		with          func(*Held)
		drawn, seldom bool
		rides         bool
	}{
		"used up":                   {func(*Held) {}, true, true, true},
		"a token is left":           {func(h *Held) { h.Lease.Spent-- }, true, false, false},
		"no plenty":                 {func(h *Held) { h.Stretched = false }, false, false, false},
		"many holders":              {func(h *Held) { h.crowded = true }, false, false, false},
		"a draw was lost":           {func(h *Held) { h.vain = true }, false, false, false},
		"audited":                   {func(h *Held) { h.Rule.Coordination.Audit = true }, false, false, false},
		"a bucket":                  {func(h *Held) { h.Lease.Algorithm = ratelimit.TokenBucket }, false, false, false},
		"a month of the calendar":   {func(h *Held) { h.Rule.Limit.Unit = ratelimit.CalendarMonth }, false, false, false},
		"asked for often":           {func(h *Held) { h.Demand.PerSec = often }, true, false, false},
		"asked for nearly so often": {func(h *Held) { h.Demand.PerSec = often - 0.01 }, true, true, true},
		"due for its time":          {func(h *Held) { h.After = now }, true, true, false},
		"nearly due":                {func(h *Held) { h.After = now + 1 }, true, true, true},
		"the next one is due":       {func(h *Held) { h.AheadAt = now }, true, true, false},
		"the next one is nearly so": {func(h *Held) { h.AheadAt = now + 1 }, true, true, true},
	} {
		h := calmKey(now)
		h.Lease.Spent = h.Lease.Granted
		c.with(h)
		if h.drawn() != c.drawn || h.seldom() != c.seldom || h.rides(now) != c.rides {
			t.Errorf("%s: drawn %v, seldom %v, rides %v", what, h.drawn(), h.seldom(), h.rides(now))
		}
	}
}

// A claim lingers while it waits for others, and no longer than until it is written.
func TestWhatLingers(t *testing.T) {
	var h Held
	if h.Lingers() {
		t.Error("nothing is under way")
	}
	for _, fl := range []Flight{{}, {Lingers: true}, {written: true}, {Lingers: true, written: true}} {
		h.Flies(&fl)
		if want := fl.Lingers && !fl.written; h.Lingers() != want {
			t.Errorf("lingers %v, written %v: %v", fl.Lingers, fl.written, h.Lingers())
		}
	}
}
