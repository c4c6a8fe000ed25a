package routing

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/wire"
)

// arrears are tokens that owners have not booked, without a store: what this node admitted in their place, and what it
// takes back. An ask of this node has the owner book them.
//
// A charge whose booking is not answered is booked again: it may count twice. A credit is sent once: it may be lost.
// Neither admits more. The arrears of a window end with it. later and undoAlone note arrears (owe). tick finds those
// that are due (book), an ask has the owner book them (bookOne), and its answer ends them (done).
type arrears struct {
	mu   sync.Mutex
	keys map[account]*owed // guarded by mu
	next instant           // guarded by mu: of the next look at all of them, at the earliest
}

// account is a key in a window; 0: a bucket.
type account struct {
	key    string
	window ratelimit.Window
}

// owed is what the owner of an account is to book: first the credit, which is older. A credit is sent before a charge:
// it belongs to an older one, and with it the charge may fit.
type owed struct {
	rule           *ratelimit.Rule
	credit, charge ratelimit.Tokens
	// since is of the oldest credit: a bucket has refilled in its place since then.
	since instant
	// asked is the instant of the ask under way, which also names it; 0: none. One ask at a time is under way for an
	// account.
	asked instant
	next  instant // of the next ask, at the earliest
}

const (
	// mostOwed bounds the accounts with arrears. Those of further ones are dropped. mostAsked bounds the bookings that
	// begin at a time: requests use the same way.
	mostOwed  = 8192
	mostAsked = 512
	// oweEvery is the interval of looks, oweAgain the pause after an ask that booked nothing, and askedFor the time
	// after which an ask counts as lost.
	oweEvery = 10 * time.Millisecond
	oweAgain = 500 * time.Millisecond
	askedFor = 5 * time.Second
	// mostBooked bounds the arrears of a key, like the usage of an account.
	mostBooked = 1 << 43
)

// add adds tokens of an account, and returns its charge: n is a charge above 0, and a credit below. ok is false if
// there is no room.
func (o *arrears) add(now instant, a *ask, w ratelimit.Window, n ratelimit.Tokens) (charge ratelimit.Tokens, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := account{string(a.Key), w}
	x := o.keys[at]
	switch {
	case x == nil && len(o.keys) >= mostOwed:
		return 0, false
	case x == nil:
		if o.keys == nil { // most nodes have none at most times
			o.keys = map[account]*owed{}
		}
		x = &owed{}
		o.keys[at] = x
	}
	x.rule = a.Rule
	x.add(now, max(-mostBooked, min(n, mostBooked)))
	return x.charge, true
}

// add adds a charge or a credit. A credit is of the charges before it, as far as the owner has not booked them. While
// an ask is under way, its part of the charge may be booked already, so a credit stays apart.
func (x *owed) add(now instant, n ratelimit.Tokens) {
	if n > 0 {
		x.charge = min(x.charge+n, mostBooked)
		return
	}
	if x.asked == 0 {
		unbooked := min(-n, x.charge)
		x.charge, n = x.charge-unbooked, n+unbooked
	}
	if n == 0 {
		return
	}
	if x.credit == 0 {
		x.since = now
	}
	x.credit = min(x.credit-n, mostBooked)
}

// booking is an ask that books arrears.
type booking struct {
	ask    ask
	of     *owed
	credit ratelimit.Tokens // of which the ask is the rest
	asked  instant
}

// due begins the bookings that are due. It returns when others are; 0: there are none. over reports whether the tokens
// of a window count nowhere any more. The keys are in a map without an order, and all of them are looked at: at most
// once in oweEvery.
func (o *arrears) due(now instant, over func(*ratelimit.Limit, ratelimit.Window) bool) (all []booking, next instant) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.keys) == 0 || now < o.next {
		return nil, o.nextLook()
	}
	o.next = now.Add(oweEvery)
	var due []account
	for at, x := range o.keys {
		x.expire(now)
		switch {
		case over(&x.rule.Limit, at.window), x.asked == 0 && x.credit+x.charge == 0:
			delete(o.keys, at)
		case x.asked == 0 && now >= x.next:
			due = append(due, at)
		}
	}
	// The same order in each run of a simulation.
	slices.SortFunc(due, func(a, b account) int {
		return cmp.Or(strings.Compare(a.key, b.key), cmp.Compare(a.window, b.window))
	})
	for _, at := range due[:min(len(due), mostAsked)] {
		all = append(all, o.keys[at].booking(now, at))
	}
	return all, o.nextLook()
}

func (o *arrears) nextLook() instant {
	if len(o.keys) == 0 {
		return 0
	}
	return o.next
}

// expire gives up an ask that is not answered, and a credit that the bucket has refilled. A charge stays, and is sent
// again: it may count twice.
func (x *owed) expire(now instant) {
	if x.asked != 0 && now.Sub(x.asked) >= askedFor {
		x.asked, x.credit = 0, 0 // the credit may have arrived
	}
	if x.asked == 0 && x.credit <= x.refilled(now) {
		x.credit = 0
	}
}

// refilled is what a bucket has refilled in the place of the credit.
func (x *owed) refilled(now instant) ratelimit.Tokens {
	l := &x.rule.Limit
	if l.Algorithm != ratelimit.TokenBucket {
		return 0
	}
	refilled := float64(now.Sub(x.since)) / float64(l.Period()) * float64(l.Requests)
	return ratelimit.Tokens(min(refilled, mostBooked))
}

// booking begins an ask: for the credit if there is one, and else for the charge.
func (x *owed) booking(now instant, at account) booking {
	x.asked = now
	a := ask{Rule: x.rule, Key: []byte(at.key), Kind: ratelimit.Charge, Cost: x.charge, Window: at.window}
	if x.credit > 0 {
		a.Kind, a.Cost = ratelimit.Release, x.credit-x.refilled(now)
	}
	return booking{a, x, x.credit, now}
}

// done ends a booking, unless it was given up. Arrears that are not booked are due again. The instant of its ask tells
// a booking that was given up from the one after it.
func (o *arrears) done(now instant, b *booking, booked bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	x := b.of
	if x.asked != b.asked {
		return
	}
	x.asked = 0
	switch {
	case !booked:
		x.next = now.Add(oweAgain)
	case b.ask.Kind == ratelimit.Charge:
		// Charges that were added meanwhile stay.
		x.charge -= b.ask.Cost
	default: // with what was refilled
		x.credit = max(0, x.credit-b.credit)
	}
}

// len is the number of accounts with arrears.
func (o *arrears) len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.keys)
}

// owe has the owner of a key book tokens of a window by and by. Without room, they are dropped: the owner then decides
// as if they were never spent.
func (c *core) owe(a *ask, w ratelimit.Window, n ratelimit.Tokens) {
	if a.Rule.Limit.Algorithm == ratelimit.TokenBucket {
		w = 0
	}
	charge, ok := c.arrears.add(c.clock(), a, w, n)
	if !ok {
		return
	}
	if of := a.Rule.Counters; of != nil && n > 0 && !a.Rule.Overridden {
		of.Alone.See(charge)
	}
	c.driver.wake()
}

// book sends the due bookings to their owners. It returns when others are due; 0: there are none. It is a part of each
// tick, without a lock of the core.
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

// bookOne sends one booking. This node may own the key by now, and then books it itself.
func (c *core) bookOne(now instant, b *booking) {
	owner := c.ownerOf(b.ask.Key)
	if owner == c.options.Addr {
		var v [1]verdict
		// This node may own the key and not have the account yet: then it tries again after oweAgain.
		decided := c.own(context.Background(), now, []ask{b.ask}, v[:], nil) == ownDecided
		c.arrears.done(now, b, decided && b.isBooked(&v[0]))
		c.driver.wake()
		return
	}
	call := c.callFor(&b.ask, &wire.Ask{Arrears: true})
	call.after(func() {
		// A credit that may have arrived is not sent again, and neither is an ask that the owner cannot read.
		booked := call.status() == malformed || b.ask.Kind == ratelimit.Release && call.sent && call.reply == nil
		if v, ok := c.read(now, &b.ask, call); ok {
			booked = b.isBooked(&v)
		}
		c.arrears.done(c.clock(), b, booked)
		c.driver.wake()
	})
	c.view.Load().peers[owner].post(call)
}

// isBooked reports whether the owner's answer settles a booking. By a clock that is behind, the window of a charge has
// not begun there, and it books nothing.
func (b *booking) isBooked(v *verdict) bool {
	return b.ask.Kind != ratelimit.Charge || v.Charged+v.Debt > 0 || v.Window > b.ask.Window
}

// later has the owner book what this node answered in its place, if the owner has not booked that itself. It waits for
// the end of the call to the owner. By its kind: a spend and a charge are owed unless the owner has booked them. A
// release and a refund are owed only if the owner cannot have them, because a credit must not count twice.
func (c *core) later(a *ask, v *verdict, call *call) {
	if a.Kind == ratelimit.Peek || v.OverLimit || a.OfSlot() {
		return
	}
	// The caller's key is a view of its request, which may end before the call.
	report, w := *a, c.windowHere(c.clock(), a)
	report.Key = slices.Clone(a.Key)
	call.after(func() {
		if call.status() == answered {
			at, ok := verdictOf(&report, call.reply)
			if ok && (report.Kind != ratelimit.Spend || at.Charged+at.Debt > 0) {
				return // the owner has booked it
			}
		}
		switch report.Kind {
		case ratelimit.Spend:
			c.owe(&report, w, report.Cost)
		case ratelimit.Charge:
			if report.Books(w) || report.Window > w {
				c.owe(&report, max(w, report.Window), report.Cost)
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
