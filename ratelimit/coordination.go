package ratelimit

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// FailurePolicy decides when the store cannot be asked in time.
type FailurePolicy uint8

const (
	// FailLocal admits from a per-node budget.
	FailLocal FailurePolicy = iota
	// FailOpen admits.
	FailOpen
	// FailClosed denies.
	FailClosed
)

// FailurePolicies are the names a config may use, by value.
var FailurePolicies = [...]string{FailLocal: "local", FailOpen: "open", FailClosed: "closed"}

// String is the name that a config may use.
func (p FailurePolicy) String() string { return FailurePolicies[p] }

// MarshalText writes the name.
func (p FailurePolicy) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// UnmarshalText reads the name.
func (p *FailurePolicy) UnmarshalText(text []byte) error {
	return SetName(p, FailurePolicies[:], string(text))
}

// OnDeny is the charge of a denied request; see [Algorithm.OnDeny] for the default.
type OnDeny uint8

const (
	// DenyCharges drains the rest, as envoyproxy/ratelimit does.
	DenyCharges OnDeny = iota
	// DenyRefunds takes nothing, from none of the request's descriptors.
	DenyRefunds
)

// OnDenies are the names a config may use, by value.
var OnDenies = [...]string{DenyCharges: "charge", DenyRefunds: "refund"}

// String is the name that a config may use.
func (d OnDeny) String() string { return OnDenies[d] }

// OnDeny is the default of on_deny for limits under an algorithm. If tokens return with time, charges of denied
// requests consume them: while more is requested than returns, nothing would pass.
func (a Algorithm) OnDeny() OnDeny {
	if a == FixedWindow {
		return DenyCharges
	}
	return DenyRefunds
}

// Reclaim says what becomes of a silent holder's tokens.
type Reclaim uint8

const (
	// ReclaimSafe keeps them charged until the window ends.
	ReclaimSafe Reclaim = iota
	// ReclaimEager credits those that were not reported as spent, when the node's registration is over.
	ReclaimEager
)

// Reclaims are the names a config may use, by value.
var Reclaims = [...]string{ReclaimSafe: "safe", ReclaimEager: "eager"}

const (
	// RegisteredFor is the time for which a node that may hold such tokens is registered, by the store's clock.
	RegisteredFor = 10 * time.Second
	// ReclaimedWithin is the time from a node's last registration until its tokens are free for a node that needs them.
	ReclaimedWithin = RegisteredFor + time.Second
)

// Reclaims reports whether tokens of a node that crashed are reclaimed before their window ends. They never are where a
// key has an owner, which is its one holder, and those of a bucket refill.
func (r *Rule) Reclaims() bool {
	c := &r.Coordination
	return c.Reclaim == ReclaimEager && !c.Mode.Spec().Owned && r.Limit.Algorithm != TokenBucket
}

// NamesOfANode is the number of names of a node, by which it counts its keys. They differ in their low bits.
const NamesOfANode = 1 << 27

// lapsing is the bit of a holder's name that says that its leases end with its node's registration.
const lapsing Holder = NamesOfANode

// Lapses reports whether a holder's leases end with its node's registration.
func (h Holder) Lapses() bool { return h&lapsing != 0 }

// Lapsing is the name under which a node holds leases that end with its registration. A name stays what it is, because
// nodes learn of a rule's change one after the other.
func (h Holder) Lapsing() Holder { return h | lapsing }

// Share is a part of a limit: a number of tokens, or parts per million of the
// limit. The zero Share is nothing.
type Share struct {
	Tokens Tokens
	PPM    uint32 // at most 1,000,000; used when Tokens is 0
}

// ParseShare reads "250" (tokens) or "0.5%" (of the limit; down to 0.0001%).
func ParseShare(s string) (Share, error) {
	percent, isPercent := strings.CutSuffix(s, "%")
	if !isPercent {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil || n > uint64(MaxLimit) {
			return Share{}, fmt.Errorf("%q must be a whole number of tokens (0 to %d) or a percentage "+
				"like 1%%", s, MaxLimit)
		}
		return Share{Tokens: Tokens(n)}, nil
	}
	// With four decimals, the digits of a percentage are those of parts per million: 0.5% is 0|5000.
	whole, fraction, _ := strings.Cut(percent, ".")
	digits := whole + (fraction + "0000")[:4]
	ppm, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || whole == "" || len(fraction) > 4 || ppm > 1e6 {
		return Share{}, fmt.Errorf("%q is not a percentage from 0%% to 100%%, with at most four decimals", s)
	}
	return Share{PPM: uint32(ppm)}, nil
}

// Of returns the share of limit in tokens, rounded down: a budget that is
// allowed is never rounded up.
func (s Share) Of(limit Tokens) Tokens {
	if s.Tokens > 0 {
		return min(s.Tokens, limit)
	}
	hi, lo := bits.Mul64(uint64(limit), uint64(s.PPM))
	quo, _ := bits.Div64(hi, lo, 1e6)
	return Tokens(quo)
}

// String is what ParseShare reads: tokens, or a percentage.
func (s Share) String() string {
	if s.Tokens > 0 || s.PPM == 0 {
		return strconv.FormatInt(int64(s.Tokens), 10)
	}
	return strconv.FormatFloat(float64(s.PPM)/1e4, 'f', -1, 64) + "%"
}

// LeaseSize is the size of a node's claims ahead of its demand.
type LeaseSize struct {
	Fixed Tokens // 0 means auto: sized by measured demand
}

// Stretched reports whether leases of a rule may be larger than measured demand, while there is plenty of the limit
// left.
func (r *Rule) Stretched() bool {
	return r.Coordination.Lease.Fixed == 0 && !r.Reclaims() && r.Limit.Algorithm != TokenBucket
}

// Coordination is how a rule's budget is shared by the fleet, and what happens
// when it cannot be. It is a value: a rule inherits its parent's and changes
// single fields.
type Coordination struct {
	Mode     Mode
	Lease    LeaseSize
	Reclaim  Reclaim
	MaxNodes int
	// StoreDeadline is the longest that a decision waits for the store, and for a key's
	// owner; 0 means [StoreDeadline]. A request with several rules waits as long as the
	// longest of theirs.
	StoreDeadline  time.Duration
	OnStoreFailure FailurePolicy // decides when the store does not answer in time
	OnDeny         OnDeny
	Audit          bool // nodes record the answers of the ledger
	Drift
}

// Drift bounds the unconfirmed spending of mode approx.
type Drift struct {
	DriftBudget  Share         // what may be admitted beyond the limit, over the whole fleet
	CheckTimeout time.Duration // longest wait below the low watermark, before a request spends a share of the budget
}

// DefaultCoordination is the coordination of a fixed_window without settings. Other algorithms differ in
// OnDeny ([Algorithm.OnDeny]).
func DefaultCoordination() Coordination {
	return Coordination{
		Mode:           Leasing,
		MaxNodes:       10,
		StoreDeadline:  StoreDeadline,
		OnStoreFailure: FailLocal,
		OnDeny:         DenyCharges,
		Drift:          Drift{DriftBudget: Share{PPM: 10_000}, CheckTimeout: 2 * time.Millisecond},
	}
}

// The bounds of the durations a coordination may hold.
const (
	MaxCheckTimeout  = time.Second
	MinStoreDeadline = time.Millisecond
	MaxStoreDeadline = time.Second // for which a claim is waited for at most
	MaxMaxNodes      = 10_000
)

// Deadline is the longest that a decision waits for the store.
func (c *Coordination) Deadline() time.Duration {
	if c.StoreDeadline == 0 {
		return StoreDeadline
	}
	return c.StoreDeadline
}

// Validate returns every problem, each with the field's name, its value and
// its bound. No problems: nil.
func (c Coordination) Validate() []error {
	var errs []error
	bad := func(field string, value any, bound string) {
		errs = append(errs, &FieldError{Field: field, Value: fmt.Sprint(value), Bound: bound})
	}
	within := func(field string, d, lo, hi time.Duration) {
		if d < lo || d > hi {
			bad(field, d, fmt.Sprintf("between %v and %v", lo, hi))
		}
	}
	within("check_timeout", c.CheckTimeout, 0, MaxCheckTimeout)
	within("store_deadline", c.Deadline(), MinStoreDeadline, MaxStoreDeadline)
	if c.MaxNodes < 1 || c.MaxNodes > MaxMaxNodes {
		bad("max_nodes", c.MaxNodes, fmt.Sprintf("between 1 and %d", MaxMaxNodes))
	}
	return errs
}

// FieldError is a setting outside its bound.
type FieldError struct{ Field, Value, Bound string }

// Error names the field, and the fault of its value.
func (e *FieldError) Error() string {
	return fmt.Sprintf("%s is %s, must be %s", e.Field, e.Value, e.Bound)
}

// SetName sets a field by its name in names, which are by value.
func SetName[T ~uint8](field *T, names []string, text string) error {
	for i, name := range names {
		if name == text {
			*field = T(i)
			return nil
		}
	}
	return fmt.Errorf("%q is not one of %s%s", text, strings.Join(names, ", "), DidYouMean(text, names))
}

// setTokens reads a number from 1 to most.
func setTokens(field *Tokens, text string, most Tokens) error {
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil || n < 1 || n > uint64(most) {
		return fmt.Errorf("%q is not a whole number from 1 to %d", text, most)
	}
	*field = Tokens(n)
	return nil
}

// setDuration reads a duration that is not negative. A number without a unit is a mistake that people make: the error
// has both likely meanings.
func setDuration(field *time.Duration, text string) error {
	d, err := time.ParseDuration(text)
	if _, bare := strconv.ParseUint(text, 10, 32); bare == nil && text != "0" {
		return fmt.Errorf("%q is not a duration like 250ms or 10s; add a unit: %sms or %ss", text, text, text)
	}
	if err != nil || d < 0 {
		return fmt.Errorf("%q is not a duration like 250ms or 10s", text)
	}
	*field = d
	return nil
}
