package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// glances asks again for a token that was refused.
func (d *drawer) glances() ratelimit.Grant {
	d.Helper()
	return d.asks(1, func(c *ratelimit.Claim) { c.Glance = true })
}

// usedUp is a holder that has spent the whole limit, and has told that.
func (w *twins) usedUp() *drawer {
	a := w.drawer(1)
	a.claims(100)
	a.c.Spent = 100
	a.claims(0)
	return a
}

// Who asks again for what was refused is told at a glance that it still is: the account hears nothing of it.
func TestGlance(t *testing.T) {
	w := newTwins(t) // 15 s into a minute
	a := w.usedUp()
	g := a.glances()
	w.expect("true 100 0 0 45s 45s true true", g.Drawn, g.Granted, g.Available, g.Outstanding, g.ResetAfter, g.RetryAfter, g.Shut, g.Carried)
	w.passes(30 * time.Second)
	g = a.glances()
	w.expect("true 15s", g.Drawn, g.RetryAfter)
	// A claim that was sent before them is not too late: they left no number behind.
	a.c.Seq -= 2
	g = a.claims(0)
	w.expect("false 100", g.Drawn, g.Granted)
}

// Where something may be had, or the ledger is to hear more, the claim is settled as any other.
func TestGlanceThatSeesSomething(t *testing.T) {
	for name, happens := range map[string]func(w *twins, a *drawer){
		"a token was given back": func(_ *twins, a *drawer) {
			a.c.Spent, a.c.Returned = 99, 1
			a.claims(0)
		},
		"a token is unspent": func(_ *twins, a *drawer) {
			a.c.Spent = 99
			a.claims(0)
			a.c.Spent = 100
		},
		"an operator has reset it": func(_ *twins, a *drawer) {
			a.asks(0, func(c *ratelimit.Claim) { c.Draw, c.Stretch, c.Reset = 0, false, true })
		},
		"the ledger learns": func(_ *twins, a *drawer) {
			a.asks(0, func(c *ratelimit.Claim) { c.Draw, c.Stretch, c.Learning = 0, false, a.now.Add(time.Second) })
		},
		"its clock went back a little": func(w *twins, _ *drawer) { w.passes(-time.Second) },
		"its clock went back far":      func(w *twins, _ *drawer) { w.passes(-time.Hour) },
		"the window is over":           func(w *twins, _ *drawer) { w.passes(time.Minute) },
		"it knows no account":          func(w *twins, _ *drawer) { w.forget() },
	} {
		t.Run(name, func(t *testing.T) {
			w := newTwins(t)
			a := w.usedUp()
			happens(w, a)
			if g := a.glances(); g.Drawn {
				t.Errorf("%+v", g)
			}
		})
	}
}

// An account of which little is left, and not nothing, is not seen as used up, nor one whose till is open.
func TestGlanceAtWhatIsLeft(t *testing.T) {
	for _, spent := range []tokens{50, 99} {
		w := newTwins(t)
		a := w.drawer(1)
		a.claims(spent)
		a.c.Spent = spent
		a.claims(0)
		g := a.glances()
		w.expect("false", g.Drawn)
	}
}

// A claim that says more than that it asks again is no glance.
func TestWhichClaimsMayGlance(t *testing.T) {
	w := perMinute100.WindowAt(1_800_000_015_000_000)
	for name, but := range map[string]func(c *ratelimit.Claim){
		"":                          func(*ratelimit.Claim) {},
		"in mode approx":            func(c *ratelimit.Claim) { c.Ahead, c.Tally = true, true },
		"no glance":                 func(c *ratelimit.Claim) { c.Glance = false },
		"the ledger learns":         func(c *ratelimit.Claim) { c.Draw = 0 },
		"of another window":         func(c *ratelimit.Claim) { c.Window-- },
		"a sliding window":          func(c *ratelimit.Claim) { c.Limit.Algorithm = ratelimit.SlidingWindow },
		"a month":                   func(c *ratelimit.Claim) { c.Limit.Unit = ratelimit.CalendarMonth },
		"has some":                  func(c *ratelimit.Claim) { c.Spent-- },
		"has spent more":            func(c *ratelimit.Claim) { c.Spent++ },
		"the last of its window":    func(c *ratelimit.Claim) { c.Final = true },
		"the last of its holder":    func(c *ratelimit.Claim) { c.Last = true },
		"an operator's reset":       func(c *ratelimit.Claim) { c.Reset = true },
		"for one request":           func(c *ratelimit.Claim) { c.Direct = true },
		"of a rule that is audited": func(c *ratelimit.Claim) { c.Audit = "d.r" },
	} {
		c := ratelimit.Claim{Limit: perMinute100, Window: w, Draw: w, Glance: true, Granted: 9, Spent: 7, Returned: 2, Waiting: 1, Want: 1, Seq: 2, Stretch: true}
		but(&c)
		if got := mayGlance(&c); got != (name == "" || name == "in mode approx") {
			t.Errorf("%q: may glance: %v", name, got)
		}
		if name != "no glance" && unitsOf(&c) != 0 {
			t.Errorf("%q: it draws %d units", name, unitsOf(&c))
		}
	}
}

// On a Redis that shows its own time a glance is two commands that read.
func TestGlanceOnARedisOfItsOwnTime(t *testing.T) {
	limit := ratelimit.Limit{Unit: ratelimit.Hour, Requests: 100}
	s, client := ofItsOwnTime(t, &limit)
	l := NewRedis(client, "t:")
	c := ratelimit.Claim{Key: "k", Limit: limit, Holder: 7, TTL: time.Second, Recall: true}
	settle := func() ratelimit.Grant {
		c.Seq++
		var g [1]ratelimit.Grant
		l.Settle(context.Background(), []ratelimit.Claim{c}, g[:])
		if g[0].Err != nil {
			t.Fatal(g[0].Err)
		}
		c.Granted, c.Fence, c.Window = g[0].Granted, g[0].Fence, g[0].Window
		return g[0]
	}
	c.Waiting, c.Want = 100, 100
	settle()
	c.Spent, c.Waiting, c.Want = 100, 0, 0
	settle()
	scripts, looks := s.Commands("evalsha"), s.Commands("hget")
	c.Waiting, c.Want, c.Draw, c.Glance = 1, 1, c.Window, true
	g := settle()
	if !g.Drawn || g.Granted != 100 || g.RetryAfter <= 0 || g.At == 0 {
		t.Errorf("%+v", g)
	}
	if s.Commands("evalsha") != scripts || s.Commands("hget") != looks+1 || s.Commands("append") != 0 {
		t.Error("the script was called, or something drawn")
	}
}
