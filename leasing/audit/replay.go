package audit

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

type tokens = ratelimit.Tokens

// Window is the summary of one account's events. Its totals follow the events in the order of their settlement, so they
// are those after the last one.
type Window struct {
	Rule   string           `json:"rule"`
	Key    string           `json:"key"`
	Window ratelimit.Window `json:"window"`        // 0: of a bucket
	Begins time.Time        `json:"begins"`        // the time of the first event
	Ends   time.Time        `json:"ends,omitzero"` // a bucket has no end
	Limit  tokens           `json:"limit"`         // the highest one, like Bound
	Bound  tokens           `json:"bound"`
	Decided
	Counts
	Totals
	holders map[string]*holder
	vain    tokens // of all holders
}

// Decided are the tokens of the requests that nodes have decided.
type Decided struct {
	Admitted tokens `json:"admitted"` // net of what was given back or charged later
	Refused  tokens `json:"refused"`
	// RefusedCharged is the part of Refused that was charged all the same.
	RefusedCharged tokens `json:"refused_charged"`
}

// Counts count messages, except Holders.
type Counts struct {
	Holders   int `json:"holders"`
	Events    int `json:"messages"`
	Short     int `json:"short"`     // less was granted than needed
	Unsettled int `json:"unsettled"` // messages that changed nothing: overtaken, failed, or late
}

// Totals are tokens.
type Totals struct {
	Granted  tokens `json:"granted"` // sum of all grants, including tokens given back
	Taken    tokens `json:"taken"`   // final totals of all holders: an upper bound of admissions and charges
	Spent    tokens `json:"spent"`   // as reported by holders: a lower bound
	Charged  tokens `json:"charged"` // late charges, and usage without a grant: beyond the holder's total
	Refunded tokens `json:"refunded"`
	Returned tokens `json:"returned"` // given back
	Sum      tokens `json:"sum"`      // last sum of the ledger
	// Beyond is the final excess over the limit, and Debt the part of it that was charged late.
	Beyond tokens `json:"beyond"`
	Debt   tokens `json:"debt"`
	// Over is other over-admission, at any time.
	Over tokens `json:"over_admitted"`
	// Unrecorded is the part of a fixed window's last sum that no holder on record took. A file is missing, or a node
	// crashed before it received a grant.
	Unrecorded tokens `json:"unrecorded"`
}

// holder is the state of one. Its numbers are those of the ledger's record, as far as events show it.
type holder struct {
	total, spent tokens
	vain         tokens // drawn beyond the limit: the holder does not spend it, and gives it back with its next claim
}

// Held reports whether the over-admission is within the rule's bound. Late charges are not admissions, and are reported
// separately.
func (w *Window) Held() bool { return w.Over <= w.Bound }

// Replay sums up events by window, in the order of accounts and windows. Two records may have the same event, so equal
// events count once.
func Replay(events []Event) []*Window {
	events = slices.Clone(events)
	slices.SortStableFunc(events, inOrder)
	seen := make(map[Event]bool, len(events))
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
	return slices.DeleteFunc(all, func(w *Window) bool { return w.Events == 0 && w.Decided == (Decided{}) })
}

// inOrder sorts events in the order of their settlement. Fences are times of the ledger that always rise, while its
// clock may be set back. A draw has no fence. Events of one instant have the order of their holders, so that a replay
// has one result.
func inOrder(a, b Event) int {
	at := func(e *Event) int64 { return max(int64(e.Fence), int64(e.At)) }
	return cmp.Or(strings.Compare(a.Key, b.Key), cmp.Compare(a.Window, b.Window), cmp.Compare(at(&a), at(&b)),
		strings.Compare(a.Holder, b.Holder))
}

// begin is the window of the first of some events. The limit of the whole window is needed before its first event is
// judged.
func begin(events []Event) *Window {
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

// add applies an event: it follows the holder's record and the sum at the ledger, and assigns an excess to its cause.
func (w *Window) add(e *Event) {
	w.Rule = e.Rule
	switch e.Kind {
	case WasFailed, WasOvertaken, WasOver:
		w.Unsettled++
		return
	}
	if w.Begins.IsZero() {
		w.Begins = time.UnixMicro(int64(e.At)).UTC()
	}
	if e.Kind == WasDecided {
		add(&w.Admitted, e.Admitted)
		add(&w.Refused, e.Refused)
		add(&w.RefusedCharged, e.RefusedCharged)
		return
	}
	w.Events++
	h := w.holders[e.Holder]
	if h == nil {
		h = &holder{}
		w.holders[e.Holder] = h
		w.Holders++
	}
	w.Sum = e.Sum
	w.Granted += e.Granted
	// A holder gives the part of a draw beyond the limit back with its next message.
	w.vain -= h.vain
	h.vain = 0
	switch {
	case e.Kind == WasDraw:
		h.vain = e.Need - e.Granted
		w.vain += h.vain
		w.take(h, e.Total-h.vain, h.spent)
		w.judge(e, 0, 0)
	case w.Window == 0:
		w.lease(e)
	default:
		w.claim(e, h)
	}
	// The sum of a sliding window includes usage of the previous one, and that of a bucket refills.
	if e.Algorithm == ratelimit.FixedWindow.String() {
		w.Unrecorded = max(0, w.Sum-w.vain-w.Taken)
	}
}

// claim adds a claim: the holder's totals, and then the grant. e.Total is after both, and Total less Granted is the
// total that the ledger booked before the grant.
func (w *Window) claim(e *Event, h *holder) {
	if e.Granted < e.Need {
		w.Short++
	}
	// The ledger had at least the holder's total, unless it has lost it.
	charged := max(0, e.Spent-max(e.Taken, h.total))
	w.take(h, e.Total-e.Granted, min(e.Spent+e.Cut, e.Total-e.Granted))
	w.take(h, e.Total, h.spent)
	w.Charged += charged
	w.judge(e, e.Granted, charged)
}

// lease adds a claim about a bucket: what was spent of a lease, or beyond it, and then the grant. A bucket has no
// totals, so all amounts are sums of events. Unspent tokens of leases stay in Taken.
func (w *Window) lease(e *Event) {
	if e.Granted < e.Need {
		w.Short++
	}
	charged, refunded := max(0, e.Spent-max(0, e.Taken)), max(0, -e.Spent)
	w.Taken += e.Granted + charged - refunded
	w.Spent += max(0, e.Spent)
	w.Charged += charged
	w.Refunded += refunded
	w.judge(e, e.Granted, charged)
}

// take changes a holder's totals. A holder's usage falls only by refunds. The rest of what its total falls by was in
// hand.
func (w *Window) take(h *holder, total, spent tokens) {
	refunded := max(0, h.spent-spent)
	w.Refunded += refunded
	w.Returned += max(0, h.total-total-refunded)
	w.Taken += total - h.total
	w.Spent += spent - h.spent
	h.total, h.spent = total, spent
}

// judge assigns the excess after an event to the latest cause: first to grants, then to charges. A bucket's excess is
// judged by the claim's own limit, because its level refers to that.
func (w *Window) judge(e *Event, granted, charged tokens) {
	level, limit := e.Sum, e.Limit
	if w.Window != 0 {
		level, limit = max(e.Sum-w.vain, w.Taken), w.Limit // after a loss of data the sum is lower
	}
	w.Beyond = max(0, level-limit)
	granted = min(granted, w.Beyond)
	charged = min(charged, w.Beyond-granted)
	w.Over += granted
	w.Debt = min(w.Debt+charged, w.Beyond)
}
