package routing

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// arrears are tokens that owners have not booked, without a store: what this node admitted in their place, and what
// it takes back. An ask of this node has the owner book them.
//
// A charge whose booking is not answered is booked again: it may count twice. A credit is sent once: it may be lost.
// Neither admits more. The arrears of a window end with it.
type arrears struct {
	mu   sync.Mutex
	keys map[string]*owed // guarded by mu
}

// owed is what the owner of one key is to book.
type owed struct {
	rule   *ratelimit.Rule
	window ratelimit.Window // of the tokens; 0: a bucket
	tokens ratelimit.Tokens // to charge; below 0: to credit
	asked  bool             // an ask is under way
	next   instant          // of the next ask, at the earliest
}

const (
	// mostOwed bounds the keys with arrears. Those of further keys are dropped.
	mostOwed = 8192
	// oweAgain is the pause after an ask that booked nothing.
	oweAgain = 500 * time.Millisecond
)

// add adds tokens of a key's window, and returns their sum. ok is false if there is no room, or a later window has
// arrears.
func (o *arrears) add(a *ask, w ratelimit.Window, n ratelimit.Tokens) (sum ratelimit.Tokens, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := o.keys[string(a.Key)]
	switch {
	case x == nil && len(o.keys) >= mostOwed, x != nil && x.window > w:
		return 0, false
	case x == nil || x.window < w:
		if o.keys == nil { // most nodes have none at most times
			o.keys = map[string]*owed{}
		}
		x = &owed{window: w}
		o.keys[string(a.Key)] = x
	}
	x.rule = a.Rule
	x.tokens = max(-mostBooked, min(x.tokens+n, mostBooked))
	return x.tokens, true
}

// mostBooked bounds the arrears of a key, like the usage of an account.
const mostBooked = 1 << 43

// booking is an ask that books arrears.
type booking struct {
	ask ask
	of  *owed
	n   ratelimit.Tokens
}

// due begins the bookings that are due. It returns when others are; 0: there are none. over reports whether the
// tokens of a window count nowhere any more.
func (o *arrears) due(now instant, over func(*ratelimit.Limit, ratelimit.Window) bool) (all []booking, next instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, x := range o.keys {
		switch {
		case x.asked:
		case x.tokens == 0, over(&x.rule.Limit, x.window):
			delete(o.keys, key)
		case now >= x.next:
			x.asked = true
			all = append(all, x.booking(key))
		case next == 0 || x.next < next:
			next = x.next
		}
	}
	// The same order in each run of a simulation.
	slices.SortFunc(all, func(a, b booking) int { return slices.Compare(a.ask.Key, b.ask.Key) })
	return all, next
}

func (x *owed) booking(key string) booking {
	a := ask{Rule: x.rule, Key: []byte(key), Kind: ratelimit.Charge, Cost: x.tokens, Window: x.window}
	if x.tokens < 0 {
		a.Kind, a.Cost = ratelimit.Release, -x.tokens
	}
	return booking{a, x, x.tokens}
}

// done ends a booking. Arrears that are not booked are due again.
func (o *arrears) done(now instant, b *booking, booked bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	b.of.asked = false
	if booked {
		b.of.tokens -= b.n
	} else {
		b.of.next = now.Add(oweAgain)
	}
}

// empty reports whether there are none.
func (o *arrears) empty() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys) == 0
}

// owe has the owner of a key book tokens of a window by and by.
func (c *core) owe(a *ask, w ratelimit.Window, n ratelimit.Tokens) {
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		w = 0
	}
	sum, ok := c.arrears.add(a, w, n)
	if !ok {
		return
	}
	if of := a.Rule.Counters; of != nil && a.Kind == ratelimit.Spend {
		of.Alone.See(sum)
	}
	c.hands.wake()
}

// book sends the due bookings to their owners. It returns when others are due; 0: there are none.
func (c *core) book(now instant) instant {
	at := c.fallback.LedgerNow(now)
	all, next := c.arrears.due(now, func(l *ratelimit.Limit, w ratelimit.Window) bool {
		kept := ratelimit.Window(0)
		if l.Algorithm == ratelimit.SlidingWindow { // the window before counts, too
			kept = 1
		}
		return w != 0 && w+kept < l.WindowAt(at)
	})
	for i := range all {
		c.bookOne(now, &all[i])
	}
	return next
}

func (c *core) bookOne(now instant, b *booking) {
	owner := c.ownerOf(b.ask.Key)
	if owner == c.options.Addr {
		var v [1]verdict
		booked := c.own(context.Background(), now, []ask{b.ask}, v[:], nil) == ownDecided
		c.arrears.done(now, b, booked)
		c.hands.wake()
		return
	}
	call := c.callFor(&b.ask, &wire.Ask{})
	call.after(func() {
		uncertain := call.sent && call.reply == nil
		lost := uncertain && b.ask.Kind == ratelimit.Release // it is not sent again
		c.arrears.done(c.clock(), b, lost || call.status() == answered || call.status() == malformed)
		c.hands.wake()
	})
	c.view.Load().peers[owner].post(call)
}

// later has the owner book what this node answered in its place, if the owner has not booked that itself. It waits
// for the end of the call to the owner.
func (c *core) later(a *ask, v *verdict, call *call) {
	if a.Kind == ratelimit.Peek || v.OverLimit || a.OfSlot() {
		return
	}
	report, w := *a, c.windowHere(c.clock(), a)
	report.Key = slices.Clone(a.Key)
	call.after(func() {
		at, isAnswer := verdictOf(&report, call)
		if isAnswer && (report.Kind != ratelimit.Spend || at.Charged+at.Debt > 0) {
			return // the owner has booked it
		}
		switch report.Kind {
		case ratelimit.Spend:
			c.owe(&report, w, report.Cost)
		case ratelimit.Charge:
			if report.Books(w) || report.Window > w {
				c.owe(&report, w, report.Cost)
			}
		case ratelimit.Release:
			if !call.sent || call.reply != nil { // else the owner may have it
				c.owe(&report, report.Window, -report.Cost)
			}
		default:
			if !call.sent || call.reply != nil {
				c.owe(&report, w, -report.Cost)
			}
		}
	})
}

// windowHere is the window of an ask by this node's clock; 0: a bucket.
func (c *core) windowHere(now instant, a *ask) ratelimit.Window {
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		return 0
	}
	return a.Rule.Limit.WindowAt(c.fallback.LedgerNow(now))
}
