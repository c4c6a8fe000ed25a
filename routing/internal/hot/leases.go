package hot

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Leases has the keys of other owners that this node leases because they are hot, and those with a message
// for the owner, because this node answered in its place. It sends nothing and does not wait: it returns
// messages, and takes in their answers. It is safe for concurrent use. The zero Leases has no keys.
type Leases struct {
	n    atomic.Int64 // keys
	mu   sync.Mutex
	keys map[string]*leased // guarded by mu
	hot  int                // guarded by mu: how many of them are leased
	seq  uint64             // guarded by mu: of the last message
	// ended means that the node ends in good order: nothing is leased any more. Guarded by mu.
	ended bool
}

// leased is one key.
type leased struct {
	rule *ratelimit.Rule // nil before its first request
	held leasing.Held
	hot  bool // it is leased; else there is something to report
	// since is the instant of the last check whether it still is hot, and uses the number of requests then.
	since     ratelimit.Instant
	uses      int
	used      ratelimit.Tokens  // demand since the last message
	usual     ratelimit.Tokens  // cost of the larger requests, of late
	next      ratelimit.Instant // the latest instant of a due message
	notBefore ratelimit.Instant // the earliest instant of a message: the key is short
	// under is the largest limit under which there are tokens in hand. Requests of one key can have different limits:
	// they bring their own, or the rules change.
	under ratelimit.Tokens
	answer
}

// answer is the owner's last answer.
type answer struct {
	left  ratelimit.Tokens  // of the limit, in no hand
	reset ratelimit.Instant // when the limit is whole again
	shut  ratelimit.Instant // until then it counts as used up, for requests with at most this limit
	most  ratelimit.Tokens
}

// Most is the number of keys that may be leased here. The owner decides about any other. MostReported includes
// keys with a message for their owner. The messages of further keys are dropped.
const (
	Most         = 1024
	MostReported = 8 * Most
)

const (
	// lookedAt is for how long a key is leased here before it is looked at again.
	lookedAt = 2 * time.Second
	// cool is the rate of uses here, in a second, below which the key goes back to its owner.
	cool = least / 4
	// ReportEvery is the longest interval of messages of a key with tokens in hand, or with usage to report. After a
	// message without an answer, the next leaves after retry.
	ReportEvery = 100 * time.Millisecond
	retry       = 5 * ReportEvery
	// believed is the time for which the owner's answer that a key is used up counts. A flood of refusals does
	// not reach the owner, and a refund elsewhere shows soon.
	believed = 20 * time.Millisecond
	// ahead is how long a lease must last at the present rate.
	ahead = 250 * time.Millisecond
)

// Message is for the owner of a key.
type Message struct {
	Rule   *ratelimit.Rule
	Key    string
	Totals leasing.Totals
}

// findOrAdd makes room for a key; nil if there is none. The caller holds mu.
func (h *Leases) findOrAdd(key []byte) *leased {
	l := h.keys[string(key)]
	if l == nil && len(h.keys) < MostReported {
		// Most nodes never lease one: the map is made when the first key is hot.
		if h.keys == nil {
			h.keys = map[string]*leased{}
		}
		l = &leased{}
		h.keys[string(key)] = l
		h.n.Store(int64(len(h.keys)))
	}
	return l
}

// Start leases a key here, if there is room for one more.
func (h *Leases) Start(now ratelimit.Instant, key []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ended || h.hot >= Most {
		return
	}
	if l := h.findOrAdd(key); l != nil && !l.hot {
		l.hot, l.since, l.uses = true, now, 0
		h.hot++
	}
}

// stop ends the lease of a key here: the tokens in hand go back. The caller holds mu.
func (h *Leases) stop(l *leased) {
	if l.hot {
		l.hot = false
		h.hot--
	}
	l.held.GiveBack()
}

// End has all that is in hand be given back with the next messages, and nothing leased any more.
func (h *Leases) End() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	for _, l := range h.keys {
		h.stop(l)
		l.next = 0
	}
}

// Names are the keys that are leased here.
func (h *Leases) Names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []string
	for name, l := range h.keys {
		if l.hot {
			all = append(all, name)
		}
	}
	return all
}

// Open is the number of keys with a message that their owner has not answered.
func (h *Leases) Open() (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.keys {
		if l.held.Open() || l.held.Reporting() {
			n++
		}
	}
	return n
}

// Use counts a request of a key, and reports whether the key is hot here.
func (h *Leases) Use(now ratelimit.Instant, key []byte) bool {
	// Most nodes lease no hot key at most times, and must not take a lock for each request.
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.keys[string(key)]
	return l != nil && h.use(now, l)
}

// use counts a request of a key; the caller holds mu.
func (h *Leases) use(now ratelimit.Instant, l *leased) bool {
	l.uses++
	h.look(now, l)
	return l.hot
}

// look looks whether a key still is hot, if it is time; the caller holds mu.
func (h *Leases) look(now ratelimit.Instant, l *leased) {
	if age := now.Sub(l.since); l.hot && age >= lookedAt {
		// The key is left to its owner well below the rate at which it becomes hot, so that one
		// near that rate does not go to and fro.
		if float64(l.uses) < cool*age.Seconds() {
			h.stop(l)
		}
		l.since, l.uses = now, 0
	}
}

// Take answers an ask from the tokens in hand, if they suffice. A peek passes where a request of the usual
// cost would.
func (h *Leases) Take(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	if h.n.Load() == 0 {
		return false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.keys[string(a.Key)]
	if l == nil || !h.use(now, l) || a.Rule.Limit.Capacity() < l.under {
		return false
	}
	l.rule = a.Rule
	cost := a.Cost
	switch a.Kind {
	case ratelimit.Refund, ratelimit.Charge, ratelimit.Release:
		return false // the account has it
	case ratelimit.Peek:
		cost = 0
		if l.held.InHand(now) < max(1, l.usual) {
			return false
		}
	default:
		l.usual = max(cost, l.usual-l.usual/8)
		l.used = ratelimit.AddTokens(l.used, cost)
	}
	w, ok := l.held.Take(now, cost)
	if !ok {
		return l.refuses(now, a, v)
	}
	*v = ratelimit.Verdict{
		Charged: cost, Window: w, Remaining: min(l.left+l.held.InHand(now), a.Rule.Limit.Capacity()),
		ResetAfter: max(0, l.reset.Sub(now)),
	}
	return true
}

// refuses refuses an ask, if nothing is left of the key; the caller holds mu.
func (l *leased) refuses(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict) bool {
	if now >= l.shut || a.Rule.Limit.Capacity() > l.most {
		return false
	}
	*v = ratelimit.Verdict{OverLimit: true, Window: l.held.Window(), ResetAfter: max(0, l.reset.Sub(now))}
	if a.Rule.Coordination.OnDeny == ratelimit.DenyCharges {
		v.Debt = a.Cost
		l.held.Admit(a.Cost)
	}
	return true
}

// Refused takes in that the owner has refused an ask: where nothing is left, others are refused here for a moment.
func (h *Leases) Refused(now ratelimit.Instant, a *ratelimit.Ask, v *ratelimit.Verdict) {
	if h.n.Load() == 0 || a.Kind != ratelimit.Spend || v.Charged+v.Remaining > 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.keys[string(a.Key)]; l != nil && l.hot && l.held.Window() == v.Window {
		l.shut, l.reset = now.Add(min(believed, v.ResetAfter)), now.Add(v.ResetAfter)
		l.most = a.Rule.Limit.Capacity()
	}
}

// Untake takes back what Take has booked. It reports false where the owner has to: of the key nothing is known here
// any more, or not of that window.
func (h *Leases) Untake(key []byte, v *ratelimit.Verdict) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.keys[string(key)]
	return l != nil && l.held.Untake(v.Window, v.Charged+v.Debt)
}

// Admit records an admission in place of the owner, for the next message.
func (h *Leases) Admit(a *ratelimit.Ask) {
	h.note(a, func(held *leasing.Held) bool { held.Admit(a.Cost); return true })
}

// Refund records a refund while the owner did not answer. w is its window by this node's clock; 0: a bucket.
func (h *Leases) Refund(a *ratelimit.Ask, w ratelimit.Window) {
	h.note(a, func(held *leasing.Held) bool { held.Refund(w, a.Cost); return true })
}

// Credit records tokens to give back: a charge of the owner in vain. It reports false if there is no room, or the
// window is another one.
func (h *Leases) Credit(a *ratelimit.Ask, w ratelimit.Window) bool {
	return h.note(a, func(held *leasing.Held) bool { return held.Credit(w, a.Cost) })
}

func (h *Leases) note(a *ratelimit.Ask, book func(*leasing.Held) bool) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.findOrAdd(a.Key)
	if l == nil {
		return false
	}
	l.rule = a.Rule
	return book(&l.held)
}

// Report is what an ask that is forwarded to its owner reports of the key's lease, if there is anything to report.
func (h *Leases) Report(now ratelimit.Instant, a *ratelimit.Ask) (m leasing.Totals, ok bool) {
	if h.n.Load() == 0 {
		return m, false
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.keys[string(a.Key)]
	if l == nil || l.held.Reporting() || !l.held.Open() && (!l.hot || now < l.notBefore) {
		return m, false
	}
	l.rule = a.Rule
	return h.report(now, l), true
}

// report is the next message of a key; the caller holds mu.
func (h *Leases) report(now ratelimit.Instant, l *leased) leasing.Totals {
	limit := l.rule.Limit.Capacity()
	if limit < l.under {
		l.held.GiveBack()
	}
	l.under = limit
	want := ratelimit.Tokens(0)
	if l.hot && now >= l.notBefore {
		each := max(10*time.Millisecond, min(now.Sub(max(l.since, l.held.Sent())), time.Second))
		lasts := float64(max(l.used, l.usual, 1)) * ahead.Seconds() / each.Seconds()
		want = max(0, ratelimit.Tokens(min(lasts, float64(ratelimit.MaxLimit)))-l.held.InHand(now))
	}
	l.used, l.next = 0, now.Add(ReportEvery)
	h.seq++
	return l.held.Report(now, h.seq, want)
}

// Due returns the due messages, and when others are due; 0: there are none. Leases of keys that this node
// owns by now (mine) end. Keys without a message are dropped.
func (h *Leases) Due(now ratelimit.Instant, mine func(key string) bool) (all []Message, next ratelimit.Instant) {
	if h.n.Load() == 0 {
		return nil, 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var due []string
	for key, l := range h.keys {
		h.look(now, l)
		if mine(key) {
			h.stop(l)
		}
		switch {
		case !l.held.Open() && !l.held.Reporting():
			if !l.hot {
				delete(h.keys, key)
			}
		case l.rule != nil && now >= l.next && !l.held.Reporting():
			due = append(due, key)
		default: // of one that is under way it is looked at again whether there is an answer
			at := l.next
			if at <= now {
				at = now.Add(ReportEvery)
			}
			if next == 0 || at < next {
				next = at
			}
		}
	}
	h.n.Store(int64(len(h.keys)))
	if len(due) > 0 && (next == 0 || next > now.Add(ReportEvery)) {
		next = now.Add(ReportEvery)
	}
	slices.Sort(due) // the same in each run of a simulation
	for _, key := range due {
		all = append(all, Message{h.keys[key].rule, key, h.report(now, h.keys[key])})
	}
	return all, next
}

// Apply takes in the owner's answer to a message. v is its verdict on the ask that went with the message. It
// reports whether the next message is due before all others.
func (h *Leases) Apply(
	now ratelimit.Instant, key []byte, seq uint64, x leasing.Lease, v *ratelimit.Verdict,
) (soon bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.keys[string(key)]
	if l == nil {
		return false
	}
	l.held.Apply(seq, x)
	// What does not suffice for a request is of use to others only.
	if hand := l.held.InHand(now); !l.hot || hand < l.usual {
		x.Keep = false
		l.held.GiveBack()
	}
	l.left, l.reset = max(0, v.Remaining-x.Granted), now.Add(v.ResetAfter)
	l.next = l.held.Sent().Add(min(ReportEvery, x.For/2))
	if !x.Keep {
		l.notBefore, l.next = now.Add(retry), now
	}
	return l.next < l.held.Sent().Add(ReportEvery) && l.held.Open()
}

// Lost takes in that a message was not answered. uncertain means that the owner may have applied it.
func (h *Leases) Lost(now ratelimit.Instant, key []byte, seq uint64, uncertain bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if l := h.keys[string(key)]; l != nil {
		l.held.Lost(seq, uncertain)
		l.next = now.Add(retry)
	}
}
