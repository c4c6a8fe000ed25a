package declare

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Over is what all nodes together may admit beyond the limit, in tokens. The zero Over
// is nothing.
type Over struct {
	// Tokens is all of it, where each node goes silent once, and nothing happens that
	// EachOwner is about.
	Tokens ratelimit.Tokens `json:"tokens"`
	// Drift is the part of it that needs no failure: the drift budget of mode approx.
	Drift ratelimit.Tokens `json:"drift_tokens,omitempty"`
	// EachSilent is the part for each node that goes silent, where others reclaim its tokens (ratelimit.Rule.Reclaims).
	EachSilent ratelimit.Tokens `json:"each_silent_node_tokens,omitempty"`
	// EachNode is the part for each node after the first, where nodes count apart.
	EachNode ratelimit.Tokens `json:"each_further_node_tokens,omitempty"`
	// EachOwner is not in Tokens: it is for each crash of a key's owner, and for each
	// split of a ring without a store.
	EachOwner ratelimit.Tokens `json:"each_lost_owner_tokens,omitempty"`
	// EachMove is not in Tokens either: it is for each change of a key's owner, where slots do not move with the key.
	EachMove ratelimit.Tokens `json:"each_moved_owner_tokens,omitempty"`
}

// Percent is Tokens as a share of a limit, 0 for a limit of 0.
func (o Over) Percent(limit ratelimit.Tokens) float64 {
	if limit == 0 {
		return 0
	}
	return 100 * float64(o.Tokens) / float64(limit)
}

// Note is the remark that a reader of Tokens needs, or "".
func (o Over) Note() string {
	switch {
	case o.EachMove > 0:
		return "with PEERS; after each change of the ring at most the limit once more, until earlier requests end"
	case o.EachOwner > 0:
		return "with PEERS; after an owner's crash at most the limit once more, and partitions " +
			"count separately"
	case o.EachNode > 0 && o.Tokens > 0:
		return "each node counts alone"
	case o.EachSilent > 0:
		return fmt.Sprintf("%d for each silent node", o.EachSilent)
	}
	return ""
}

// Under is the demanded part of a window that may stay unused, because it is at nodes that do not answer. The
// zero Under is none.
type Under struct {
	// Crashed is for each node that crashes, or is cut off from the store. Its demand is
	// as the node measured it between two claims: of a key with few requests in that time,
	// up to twice the mean.
	Crashed Amount `json:"each_crashed_node"`
	// Lasts is for how long it is missed at most.
	Lasts time.Duration `json:"lasts_ns,omitempty"`
	// Slots is of a concurrency limit what requests keep whose end is never told: by an Envoy that died.
	Slots ratelimit.Tokens `json:"slots,omitempty"`
}

// String is for people.
func (u Under) String() string {
	if u == (Under{}) {
		return "0"
	}
	if u.Slots > 0 {
		return fmt.Sprintf("a request without a call at its end, as of a crashed Envoy, keeps its slot for %s",
			ratelimit.DurationText(u.Lasts))
	}
	crashed := u.Crashed.String()
	if u.Crashed.Demand == 0 {
		crashed += " tokens"
	}
	return fmt.Sprintf("after a crash of a node, up to %s stay unused for up to %v", crashed, u.Lasts)
}

// WaitFor is the reason of a wait.
type WaitFor uint8

// The reasons of a wait.
const (
	NoAnswer WaitFor = iota
	StoresAnswer
	OwnersAnswer
)

// WaitsFor are their names, by value.
var WaitsFor = [...]string{NoAnswer: "nothing", StoresAnswer: "store", OwnersAnswer: "owner"}

// MarshalText writes the name.
func (w WaitFor) MarshalText() ([]byte, error) { return []byte(WaitsFor[w]), nil }

// UnmarshalText reads what MarshalText writes.
func (w *WaitFor) UnmarshalText(text []byte) error {
	return ratelimit.SetName(w, WaitsFor[:], string(text))
}

// Wait is the longest that a decision may wait. The zero Wait is none.
type Wait struct {
	For     WaitFor       `json:"for"`
	Longest time.Duration `json:"longest_ns"`
	// WithShare is the longest wait of a decision of mode approx at a node with a rest of its share of the
	// drift budget. Drifts reports whether the rule has such shares.
	WithShare time.Duration `json:"with_drift_share_ns,omitempty"`
	Drifts    bool          `json:"drifts,omitempty"`
}

// String is for people.
func (w Wait) String() string {
	switch {
	case w.For == NoAnswer:
		return "none"
	case w.Drifts:
		return fmt.Sprintf("%v, and none above the watermark; without a share, one round trip to the store, at most %v",
			w.WithShare, w.Longest)
	case w.For == OwnersAnswer:
		return fmt.Sprintf("one hop to the owner of the key, at most %v", w.Longest)
	}
	return fmt.Sprintf("one round trip to the store, at most %v", w.Longest)
}

// StoreOps is how many claims of one key reach the store, from each of Nodes nodes. The
// zero StoreOps is none.
type StoreOps struct {
	// Nodes is how many nodes claim the key: all, or its owner alone.
	Nodes int `json:"nodes"`
	// Steady is claims a second of one node, all the time.
	Steady float64 `json:"per_second"`
	// Short is the number of further claims a second of one node, while half of the limit or less is left. It
	// is for sliding windows and buckets, whose tokens return gradually.
	Short float64 `json:"per_second_while_short,omitempty"`
	// Refused is the number of further claims a second of one node, while requests are refused and others
	// hold tokens, or some return.
	Refused float64 `json:"per_second_while_refused"`
	// Window is the number of further claims of one node in each window. These are the first, those while its
	// demand grows, and those of ever smaller leases near the end of the budget.
	Window int `json:"per_window"`
	// Each is the number of tokens for each of which one more claim is made, if the rule fixes the size of a
	// lease; otherwise 0.
	Each ratelimit.Tokens `json:"tokens_per_operation,omitempty"`
	// EachSlot is, under a concurrency limit, the operations of each request that takes a slot.
	EachSlot int `json:"operations_per_request,omitempty"`
	// OwnerGoneEach is the same for each node while a key's owner does not answer, under
	// mode routing.
	OwnerGoneEach ratelimit.Tokens `json:"tokens_per_operation_without_owner,omitempty"`
}

// Demand is the demand for one key at one node, by which [StoreOps.Most] counts.
type Demand struct {
	Time    time.Duration    // in all
	Short   time.Duration    // of it, the time in which half of the limit or less was left
	Refused time.Duration    // of it, the time in which requests were refused
	Windows int              // in which it was
	Tokens  ratelimit.Tokens // that were admitted
	Unowned ratelimit.Tokens // and demanded while the key's owner did not answer
}

// Most is how many claims of one key one node makes at most for a demand.
func (s StoreOps) Most(d *Demand) float64 {
	n := s.Steady*d.Time.Seconds() + s.Short*d.Short.Seconds() + s.Refused*d.Refused.Seconds()
	n += float64(s.Window * d.Windows)
	for _, by := range []struct{ tokens, each ratelimit.Tokens }{{d.Tokens, s.Each}, {d.Unowned, s.OwnerGoneEach}} {
		if by.each > 0 {
			n += math.Ceil(float64(by.tokens) / float64(by.each))
		}
	}
	return n
}

// String is for people.
func (s StoreOps) String() string {
	if s.Nodes == 0 {
		return "0"
	}
	if s.EachSlot > 0 {
		return fmt.Sprintf("%d for each request", s.EachSlot)
	}
	var b strings.Builder
	whose := "for each key and node"
	if s.OwnerGoneEach > 0 {
		whose = "for each key, by its owner"
	}
	fmt.Fprintf(&b, "at most %s/s %s, %d a window", perSecond(s.Steady), whose, s.Window)
	if s.Each == 1 {
		b.WriteString(", one for each token")
	} else if s.Each > 1 {
		fmt.Fprintf(&b, ", one for each %d tokens", s.Each)
	}
	if s.Short > 0 {
		fmt.Fprintf(&b, ", plus %s/s at half of the limit or less", perSecond(s.Short))
	}
	fmt.Fprintf(&b, ", and %s/s while requests are refused and tokens can return", perSecond(s.Refused))
	if s.OwnerGoneEach > 0 {
		b.WriteString("; one for each request while the owner does not answer")
	}
	return b.String()
}

// perSecond has three digits.
func perSecond(rate float64) string { return strconv.FormatFloat(rate, 'g', 3, 64) }

// DebtLasts is the end of debt. Debt is at most the cost of the requests in flight, because all nodes refuse
// as soon as there is some.
type DebtLasts uint8

// Until when debt counts.
const (
	NoDebt DebtLasts = iota // what does not fit is not charged
	UntilWindowEnds
	UntilRefilled // tokens that come back pay it
)

// DebtsLast are their names, by value.
var DebtsLast = [...]string{
	NoDebt: "none", UntilWindowEnds: "window", UntilRefilled: "refill",
}

// MarshalText writes the name.
func (d DebtLasts) MarshalText() ([]byte, error) { return []byte(DebtsLast[d]), nil }

// UnmarshalText reads what MarshalText writes.
func (d *DebtLasts) UnmarshalText(text []byte) error {
	return ratelimit.SetName(d, DebtsLast[:], string(text))
}

// String is for people.
func (d DebtLasts) String() string {
	if d == NoDebt {
		return "0: a charge beyond the limit is not booked (on_deny: refund)"
	}
	s := "charges after the fact: at most the requests in flight times their cost, "
	if d == UntilRefilled {
		return s + "until refilled tokens have paid it"
	}
	return s + "until the window ends"
}

// OutageOf is what does not answer.
type OutageOf uint8

// What may not answer.
const (
	NoOutage OutageOf = iota // there is neither a store nor an owner
	StoreOutage
	OwnerOutage
)

// OutagesOf are their names, by value.
var OutagesOf = [...]string{NoOutage: "nothing", StoreOutage: "store", OwnerOutage: "owner"}

// MarshalText writes the name.
func (o OutageOf) MarshalText() ([]byte, error) { return []byte(OutagesOf[o]), nil }

// UnmarshalText reads what MarshalText writes.
func (o *OutageOf) UnmarshalText(text []byte) error {
	return ratelimit.SetName(o, OutagesOf[:], string(text))
}

// Outage is the number of tokens that are admitted in a window while the store, or a key's owner, does not answer.
// Nodes also spend the leases in hand, under any policy: the limit has paid for them.
type Outage struct {
	Of     OutageOf                `json:"of"`
	Policy ratelimit.FailurePolicy `json:"policy"`
	// Edges is what all nodes admit in a window in which the outage begins or ends, with what the store or the owner
	// grants before and after.
	Edges Amount `json:"first_and_last_window"`
	// Node is what one node admits by on_store_failure in each window. A node that starts again is another one.
	Node  Amount `json:"each_node"`
	Nodes int    `json:"nodes"`
}

// Fleet is what all nodes together admit in each window between.
func (o Outage) Fleet() Amount { return o.Node.Times(o.Nodes) }

// String is for people.
func (o Outage) String() string {
	switch {
	case o.Of == NoOutage:
		return "no store"
	case o.Nodes == 0:
		return "0"
	case o.Policy == ratelimit.FailClosed:
		return "leases in hand, then 0"
	case !o.Node.Bounded():
		return o.Node.String()
	}
	return fmt.Sprintf("%v in the windows in which it begins and ends, and %v (%v a node) between", o.Edges, o.Fleet(),
		o.Node)
}
