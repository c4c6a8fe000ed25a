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

// Window is the summary of one account's events.
type Window struct {
	Rule, Key    string
	Window       ratelimit.Window // 0: of a bucket
	Begins, Ends time.Time        // Begins is the time of the first event; a bucket has no end
	Limit, Bound tokens           // the highest ones
	Counts
	Totals
	holders map[string]*holder
}

// Counts count events, except Holders.
type Counts struct {
	Holders    int
	Events     int
	Refused    int // less was granted than needed
	Expired    int // leases of silent holders, credited
	Recoveries int // restatements of lost totals
	Unsettled  int // messages that changed nothing: overtaken, failed, or late
}

// Totals are tokens.
type Totals struct {
	Granted  tokens // sum of all grants, including tokens given back
	Taken    tokens // final totals of all holders: an upper bound of admissions and charges
	Spent    tokens // as reported by holders: a lower bound
	Charged  tokens // late charges, and usage without a grant: beyond the holder's total
	Refunded tokens
	Returned tokens // given back, or credited
	Sum      tokens // last sum of the ledger
	// Beyond is the final excess over the limit, and Debt the part of it that was charged late.
	Beyond, Debt tokens
	// Over is other over-admission, at any time.
	Over tokens
}

// holder is the state of one.
type holder struct {
	total, spent tokens
	closed       bool // its lease was credited
}

// Held tells whether the over-admission is within the rule's bound. Late charges are not admissions, and are reported
// separately.
func (w *Window) Held() bool { return w.Over <= w.Bound }

// Replay sums up events by window, in the order of accounts and windows. Changes of overrides belong to no window.
func Replay(events []account.Event) []*Window {
	isChange := func(e account.Event) bool { return e.Kind == account.WasOverride }
	events = slices.DeleteFunc(slices.Clone(events), isChange)
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

// inOrder sorts events in the order of their settlement: fences always rise, while the ledger's clock may be set
// back. The credit of a lease follows the event with the account's last fence.
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
		// A limit may change within the window, and usage under the highest was right.
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
	// The ledger had at least the holder's total, unless it has lost it or credited it.
	known, stated := h.total, tokens(0)
	if e.Kind == account.WasRecovery || h.closed {
		stated = max(0, e.Taken-known)
	}
	charged := max(0, e.Spent-max(e.Taken, known))
	h.closed = false
	w.take(h, e.Total-e.Granted, min(e.Spent+e.Cut, e.Total-e.Granted))
	w.take(h, e.Total, h.spent)
	w.Granted += e.Granted
	w.Charged += charged
	w.judge(e, charged, stated)
}

// take changes a holder's totals.
func (w *Window) take(h *holder, total, spent tokens) {
	refunded := max(0, h.spent-spent)
	w.Refunded += refunded
	w.Returned += max(0, h.total-total-refunded)
	w.Taken += total - h.total
	w.Spent += spent - h.spent
	h.total, h.spent = total, spent
}

// judge assigns the excess after an event to the latest cause: first to grants, then to charges, then to restated
// totals.
func (w *Window) judge(e *account.Event, charged, stated tokens) {
	level, limit := e.Sum, w.Limit
	if w.Window != 0 {
		level = max(level, w.Taken) // after a loss of data the sum is lower
	} else {
		limit, stated = e.Limit, 0 // a lost bucket counts as empty
	}
	w.Beyond = max(0, level-limit)
	granted := min(e.Granted, w.Beyond)
	charged = min(charged, w.Beyond-granted)
	w.Over += granted + min(stated, w.Beyond-granted-charged)
	w.Debt = min(w.Debt+charged, w.Beyond)
}
