package ledger

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// An audited account has a Redis stream beside it, to which the script that
// settles claims appends each event in the same step: what was granted is on
// record, whatever becomes of the node. It keeps about AuditEvents events, for
// AuditKept after the last.
const (
	AuditEvents = 10_000
	AuditKept   = 90 * 24 * time.Hour
)

// AuditStream names the stream of an account, in the same slot of a cluster:
// Redis hashes what is between the first braces.
func AuditStream(account string) string {
	// A script may only touch keys of one slot of a Cluster, and the stream is written by the
	// script that settles.
	if open := strings.IndexByte(account, '{'); open >= 0 && strings.IndexByte(account[open+1:], '}') > 0 {
		return account + auditSuffix // its prefix says what is hashed
	}
	return "{" + account + "}" + auditSuffix
}

// AuditedAccount is the account of a stream.
func AuditedAccount(stream string) string {
	account := strings.TrimSuffix(stream, auditSuffix)
	if strings.HasPrefix(account, "{") && strings.HasSuffix(account, "}") {
		account = account[1 : len(account)-1]
	}
	return account
}

const auditSuffix = ":audit"

// AuditEvent is one thing that happened to an account. Totals are the holder's,
// cumulative for the window.
type AuditEvent struct {
	// Kind is grant, refused (requests waited for more than there was), return,
	// report, final (the last word on a window), expiry (a silent holder's lease,
	// reclaimed), fenced (a claim under a fence that expiry had closed), recovery
	// (the ledger is told what it had forgotten), reset (by an operator) or stale
	// (a claim that came late, and changed nothing).
	Kind     string `json:"kind"`
	Rule     string `json:"rule"`
	Key      string `json:"key"`
	Holder   string `json:"holder"`
	At       int64  `json:"at_us"`
	Window   int64  `json:"window"`
	Claimed  int64  `json:"claimed"` // the window that the claim was about
	Ends     int64  `json:"ends_us"` // of the window; 0: a bucket's has no end
	Fence    int64  `json:"fence"`
	Granted  int64  `json:"granted"`
	Spent    int64  `json:"spent"`
	Returned int64  `json:"returned"`
	Waiting  int64  `json:"waiting"`
	Limit    int64  `json:"limit"`
	Bound    int64  `json:"bound"` // what the rule declares to over-admit
	// Free is what the ledger had left afterwards; negative: so much was spent
	// beyond. A node's own record does not know it of the others.
	Free int64 `json:"free"`
	Over int64 `json:"over"`
}

// ReadAuditEvent reads an entry of an account's stream.
func ReadAuditEvent(key string, fields map[string]any) (AuditEvent, error) {
	e := AuditEvent{Key: key}
	var errs []error
	text := func(name string) string {
		s, ok := fields[name].(string)
		if !ok {
			errs = append(errs, fmt.Errorf("the event has no %s", name))
		}
		return s
	}
	e.Kind, e.Rule, e.Holder = text("kind"), text("rule"), text("holder")
	for name, into := range map[string]*int64{
		"at": &e.At, "window": &e.Window, "claimed": &e.Claimed, "ends": &e.Ends, "fence": &e.Fence,
		"granted": &e.Granted, "spent": &e.Spent, "returned": &e.Returned,
		"waiting": &e.Waiting, "limit": &e.Limit, "bound": &e.Bound, "free": &e.Free, "over": &e.Over,
	} {
		n, err := strconv.ParseFloat(text(name), 64) // Lua writes large numbers so
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		*into = int64(n)
	}
	return e, errors.Join(errs...)
}

// NewAuditEvent is what a node knows of a claim and its answer.
func NewAuditEvent(c *ratelimit.Claim, g *ratelimit.Grant) AuditEvent {
	e := AuditEvent{
		Kind: "report", Rule: c.Audit, Key: c.Key, Holder: HolderName(c.Holder), At: int64(g.At),
		Window: int64(g.Window), Claimed: int64(c.Window), Fence: int64(g.Fence),
		Granted: int64(g.Granted), Spent: int64(c.Spent), Returned: int64(c.Returned), Waiting: int64(c.Waiting),
		Limit: int64(c.Limit.Capacity()), Bound: int64(c.AuditBound), Free: int64(g.Available),
		Over: int64(g.OverAdmitted),
	}
	if c.Limit.Algorithm != ratelimit.TokenBucket {
		e.Ends = int64(c.Limit.WindowEnd(g.Window))
	}
	switch got := g.Granted - c.Granted; {
	// The ledger has booked nothing. The event says what the claim knew, so that it can be found
	// beside those that were booked.
	case g.Err != nil:
		e.Kind, e.Window, e.Ends, e.Granted = "stale", int64(c.Window), 0, int64(c.Granted)
		if !errors.Is(g.Err, ratelimit.ErrStaleClaim) {
			e.Kind = "failed"
		}
		return e
	// The order is that of what an auditor must see first: a reset or a recovery explains numbers
	// that would look wrong for a plain grant.
	case c.Final:
		e.Kind = "final"
	case c.Reset:
		e.Kind = "reset"
	case g.Relearning:
		e.Kind = "recovery"
	case g.Void:
		e.Kind = "fenced"
	// Even where something was granted: requests waited for more.
	case got < c.Waiting:
		e.Kind = "refused"
	case got > 0:
		e.Kind = "grant"
	case c.Returned > 0:
		e.Kind = "return"
	}
	// The claim's totals were another window's, and do not count in the one that the grant is
	// about.
	if c.Window != g.Window {
		e.Spent, e.Returned = 0, 0
	}
	return e
}

// AuditedWindow is what the events of one window of one account come to.
type AuditedWindow struct {
	Rule, Key    string
	Window       int64
	Begins, Ends time.Time // Begins is the first event's
	Limit, Bound int64
	Holders      int
	Events       int
	Refused      int   // claims for which there was not enough
	Fenced       int   // claims under closed fences
	Resets       int   // by an operator
	Recoveries   int   // events in which the ledger was told what it had forgotten
	Admitted     int64 // at most: what holders were granted and did not return, or spent
	LeastFree    int64 // of what the ledger had left
	Bucket       bool
	totals       map[string]int64 // by holder
}

// Held tells whether the limit, and what the rule declares beyond it, was kept.
func (w *AuditedWindow) Held() bool {
	// A bucket refills, so that what it admitted in all says nothing: its level does.
	if w.Bucket {
		return w.LeastFree >= -w.Bound
	}
	// Two counts that do not depend on each other: the sum of what holders said, and the least that
	// the ledger had left.
	return w.Admitted <= w.Limit+w.Bound && w.LeastFree >= -w.Bound
}

// ReplayAudit sums up events, window by window, in the order of accounts and
// windows. Events may come in any order, and more than once.
func ReplayAudit(events []AuditEvent) []*AuditedWindow {
	events = slices.Clone(events)
	// In the ledger's order, whatever order they were read in: the totals of a holder are
	// cumulative, and the last one counts. That also makes events that come twice harmless.
	slices.SortStableFunc(events, inOrder)
	type id struct {
		rule, key string
		window    int64
	}
	all := map[id]*AuditedWindow{}
	var order []*AuditedWindow
	for i := range events {
		e := &events[i]
		if e.Kind == "stale" || e.Kind == "failed" || e.Window == 0 {
			continue // it changed nothing
		}
		w := all[id{e.Rule, e.Key, e.Window}]
		if w == nil {
			// Events do not say when a window began; its first event is the nearest that is known.
			w = &AuditedWindow{
				Rule: e.Rule, Key: e.Key, Window: e.Window, Begins: time.UnixMicro(e.At).UTC(),
				Limit: e.Limit, LeastFree: e.Free, totals: map[string]int64{}, Bucket: e.Ends == 0,
			}
			if !w.Bucket {
				w.Ends = time.UnixMicro(e.Ends).UTC()
			}
			all[id{e.Rule, e.Key, e.Window}] = w
			order = append(order, w)
		}
		w.add(e)
	}
	slices.SortFunc(order, func(a, b *AuditedWindow) int {
		if a.Rule != b.Rule {
			return compare(a.Rule, b.Rule)
		}
		if a.Key != b.Key {
			return compare(a.Key, b.Key)
		}
		return int(a.Window - b.Window)
	})
	return order
}

// inOrder compares events of one window by when the ledger booked them. Its fences rise for
// ever, and its clock may be set back; what expires has the fence under which it was granted.
// The last word on a window has none, and comes when others have ended.
func inOrder(a, b AuditEvent) int {
	final := func(e *AuditEvent) int {
		if e.Kind == "final" {
			return 1
		}
		return 0
	}
	return cmp.Or(final(&a)-final(&b), cmp.Compare(a.Fence, b.Fence), cmp.Compare(a.At, b.At))
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

func (w *AuditedWindow) add(e *AuditEvent) {
	w.Events++
	switch e.Kind {
	case "refused":
		w.Refused++
	case "fenced":
		w.Fenced++
	case "recovery":
		w.Recoveries++
	case "reset":
		w.Resets++
		w.Bound += w.Limit // the operator has allowed the limit once more
	}
	// The rule's limit may change within the window, and each event has the limit of its time. The
	// highest counts: what was admitted under it was right. What was free under a lower one is
	// therefore converted, so that all are compared with the same limit.
	if e.Limit > w.Limit && !w.Bucket {
		w.LeastFree += e.Limit - w.Limit
	}
	w.Limit, w.Bound = max(w.Limit, e.Limit), max(w.Bound, e.Bound)
	free := e.Free
	if !w.Bucket {
		free += w.Limit - e.Limit
	}
	w.LeastFree = min(w.LeastFree, free)
	// Totals are a holder's, and replace what it said before: only the difference was admitted.
	old, charged := w.totals[e.Holder], max(e.Granted-e.Returned, e.Spent)
	w.totals[e.Holder] = charged
	if e.Claimed != e.Window && !w.Bucket {
		// The holder had forgotten this window and counts from nothing again. What it had before stays
		// admitted, and the new totals come on top.
		old = 0
	}
	w.Admitted += charged - old
	w.Holders = len(w.totals)
}
