package audit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

type tokens = ratelimit.Tokens

// Window is what the events of one account come to.
type Window struct {
	Rule, Key    string
	Window       ratelimit.Window // 0: of a bucket
	Begins, Ends time.Time        // Begins is the first event's; a bucket has no end
	Limit, Bound tokens           // the highest there were
	Counts
	Totals
	holders map[string]*holder
}

// Counts are of events, but for Holders.
type Counts struct {
	Holders    int
	Events     int
	Refused    int // less was granted than was needed
	Expired    int // leases of silent holders, credited
	Recoveries int // the ledger was told what it had lost
	Unsettled  int // messages that changed nothing: they were overtaken, failed, or came too late
}

// Totals are tokens.
type Totals struct {
	Granted  tokens // in all, also what was given back
	Taken    tokens // by all holders, at the end: at most so much was admitted and charged
	Spent    tokens // as holders have said: at least so much
	Charged  tokens // after the fact, or without asking: beyond what its holder had taken
	Refunded tokens
	Returned tokens // given back, or credited
	Sum      tokens // as the ledger had it last
	// Beyond is how much there is beyond the limit at the end, and Debt what of it was charged after the fact.
	Beyond, Debt tokens
	// Over was admitted beyond the limit otherwise, at any time.
	Over tokens
}

// holder is what is known of one.
type holder struct {
	total, spent tokens
	closed       bool // its lease was credited
}

// Held tells whether no more was admitted beyond the limit than the rule declares. What was charged after the fact was
// not admitted by the limit, and is told apart.
func (w *Window) Held() bool { return w.Over <= w.Bound }

// Replay sums up events, window by window, in the order of accounts and windows. Changes of overrides are of no window.
func Replay(events []account.Event) []*Window {
	events = slices.DeleteFunc(slices.Clone(events), func(e account.Event) bool {
		return e.Kind == account.WasOverride
	})
	slices.SortStableFunc(events, inOrder)
	seen := make(map[account.Event]bool, len(events))
	var all []*Window
	var w *Window
	for i := range events {
		e := &events[i]
		if seen[*e] {
			continue
		}
		seen[*e] = true
		if w == nil || w.Key != e.Key || w.Window != e.Window {
			w = begin(events[i:])
			all = append(all, w)
		}
		w.add(e)
	}
	return slices.DeleteFunc(all, func(w *Window) bool { return w.Events == 0 })
}

// inOrder compares events as the ledger settled them: its fences rise for ever, and its clock may be set back. A lease
// that is credited comes after whatever had the account's last fence.
func inOrder(a, b account.Event) int {
	last := func(e *account.Event) int {
		if e.Kind == account.WasExpired {
			return 1
		}
		return 0
	}
	return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Window, b.Window), cmp.Compare(a.Fence, b.Fence),
		last(&a)-last(&b), strings.Compare(a.Holder, b.Holder))
}

// begin is the window of the first of some events.
func begin(events []account.Event) *Window {
	first := &events[0]
	w := &Window{Key: first.Key, Window: first.Window, holders: map[string]*holder{}}
	for i := range events {
		e := &events[i]
		if e.Key != w.Key || e.Window != w.Window {
			break
		}
		// A limit may change within the window, and what was taken under the highest was right.
		w.Limit, w.Bound = max(w.Limit, e.Limit), max(w.Bound, e.Bound)
		if e.Ends != 0 {
			w.Ends = time.UnixMicro(int64(e.Ends)).UTC()
		}
	}
	return w
}

func (w *Window) add(e *account.Event) {
	w.Rule = e.Rule
	if e.Fence == 0 {
		w.Unsettled++
		return
	}
	if w.Events++; w.Events == 1 {
		w.Begins = time.UnixMicro(int64(e.At)).UTC()
	}
	h := w.holders[e.Holder]
	if h == nil {
		h = &holder{}
		w.holders[e.Holder] = h
		w.Holders++
	}
	w.Sum = e.Sum
	if e.Kind == account.WasExpired {
		w.Expired++
		w.take(h, e.Total, h.spent)
		h.closed = true
		w.judge(e, 0, 0)
		return
	}
	if e.Granted < e.Need {
		w.Refused++
	}
	if e.Kind == account.WasRecovery {
		w.Recoveries++
	}
	// The ledger has known at least what its holder said it had, unless it has lost it or credited it.
	known, told := h.total, tokens(0)
	if e.Kind == account.WasRecovery || h.closed {
		told = max(0, e.Taken-known)
	}
	charged := max(0, e.Spent-max(e.Taken, known))
	h.closed = false
	w.take(h, e.Total-e.Granted, min(e.Spent+e.Cut, e.Total-e.Granted))
	w.take(h, e.Total, h.spent)
	w.Granted += e.Granted
	w.Charged += charged
	w.judge(e, charged, told)
}

// take has a holder's totals be others.
func (w *Window) take(h *holder, total, spent tokens) {
	refunded := max(0, h.spent-spent)
	w.Refunded += refunded
	w.Returned += max(0, h.total-total-refunded)
	w.Taken += total - h.total
	w.Spent += spent - h.spent
	h.total, h.spent = total, spent
}

// judge has what lies beyond the limit after an event be by whatever came last: what was granted, before that what was
// charged, and before that what the ledger was told again.
func (w *Window) judge(e *account.Event, charged, told tokens) {
	level, limit := e.Sum, w.Limit
	if w.Window != 0 {
		level = max(level, w.Taken) // a ledger that has lost its data has a lower sum
	} else {
		limit, told = e.Limit, 0 // one that has lost a bucket takes it to be empty
	}
	w.Beyond = max(0, level-limit)
	granted := min(e.Granted, w.Beyond)
	charged = min(charged, w.Beyond-granted)
	w.Over += granted + min(told, w.Beyond-granted-charged)
	w.Debt = min(w.Debt+charged, w.Beyond)
}
