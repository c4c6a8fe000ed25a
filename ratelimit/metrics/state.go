package metrics

import (
	"cmp"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// State is the data of the console: the counters of the metrics, and the busiest rules. A tag of names a counter of
// another struct, which copyCounts copies.
type State struct {
	Version   string `json:"version"`
	Calls     uint64 `json:"calls" of:"Requests"`
	OK        uint64 `json:"ok" of:"OK"`
	OverLimit uint64 `json:"over_limit" of:"OverLimit"`
	Errors    uint64 `json:"errors" of:"ServiceErrors"`
	// OtherErrors are the errors, except those for requests without descriptors.
	OtherErrors uint64 `json:"-" of:"OtherErrors"`
	// LastBadRequest is the reason of the latest error of a malformed request. It may quote that.
	LastBadRequest string `json:"last_bad_request,omitempty"`
	Shed           uint64 `json:"shed"`
	Panics         uint64 `json:"panics" of:"Panics"`
	// UnlimitedRequests have no rule, and Unlimited says why: the most frequent causes first, at most shownUnlimited.
	// BareRequests are those of them that have no descriptors.
	UnlimitedRequests uint64                  `json:"unlimited_requests"`
	BareRequests      uint64                  `json:"requests_without_descriptors"`
	Unlimited         []Unlimited             `json:"unlimited"`
	Sources           map[string]uint64       `json:"sources"`
	Fallbacks         map[string]uint64       `json:"fallbacks"`
	Claims            map[string]uint64       `json:"claims"`
	Store             StoreState              `json:"store"`
	Leases            int                     `json:"leases"` // tracked keys, also of a node without a store
	MaxKeys           int                     `json:"max_keys"`
	Seat              *int                    `json:"seat,omitempty"` // -1: it has none
	SeatWanted        bool                    `json:"seat_wanted"`
	Ring              *ratelimit.RoutingStats `json:"ring,omitempty"`
	RuleCount         int                     `json:"rule_count"`
	Rules             []RuleState             `json:"rules"`
	LoadErrors        uint64                  `json:"config_load_errors"`
	Config            ConfigState             `json:"config"`
}

// ConfigState names the rules in force, and the errors of newer ones.
type ConfigState struct {
	Fingerprint string    `json:"fingerprint"` // "": there are no rules
	Source      string    `json:"source"`
	Loaded      time.Time `json:"loaded_at,omitzero"` // by the node's clock
	FromCopy    bool      `json:"from_copy"`          // the time of the last good rules
	Good        bool      `json:"good"`               // the latest rules of the source are in force
	Error       string    `json:"error,omitempty"`    // its errors, one a line
	Failed      time.Time `json:"failed_at,omitzero"` // since when
}

const shownUnlimited = 20

// Unlimited counts requests that no rule limits.
type Unlimited struct {
	Cause    string `json:"cause"`
	Domain   string `json:"domain"`
	Key      string `json:"key,omitempty"` // with NoRuleForKey
	Requests uint64 `json:"requests"`
}

// Causes of requests without a rule.
const (
	NoRuleForDomain = "domain"
	NoRuleForKey    = "key"
	NoDescriptors   = "descriptors" // they are answered with an error
)

// StoreState is how the store is, as this node sees it.
type StoreState struct {
	StoreNow
	Used        bool    `json:"used"` // it was asked
	BreakerOpen bool    `json:"breaker_open"`
	SyncAge     float64 `json:"sync_age_seconds"`
	RoundTrips  uint64  `json:"round_trips" of:"RoundTrips"`
	Failed      uint64  `json:"failed" of:"Failed"`
	Mean        float64 `json:"mean_seconds"`
	Waited      float64 `json:"waited_seconds"`         // for all round trips
	Deadline    float64 `json:"least_deadline_seconds"` // the shortest store_deadline of the rules; 0: no rule has one
	Claims      uint64  `json:"claims" of:"Claims"`
	Stale       uint64  `json:"stale" of:"Stale"`
	Recoveries  uint64  `json:"recoveries" of:"Recoveries"`
	Queued      int     `json:"queued" of:"Queued"`
	// Replies are the times of all round trips, in microseconds.
	Replies ratelimit.DistributionCounts `json:"-"`
}

// StoreNow names the store, and its last error.
type StoreNow struct {
	Address     string    `json:"address,omitempty"` // without passwords
	LastError   string    `json:"last_error,omitempty"`
	LastErrorAt time.Time `json:"last_error_at,omitzero"`
}

// RuleState is one rule. Rules beyond MaxRules are one of them.
type RuleState struct {
	Domain string           `json:"domain"`
	Rule   string           `json:"rule"`
	Mode   string           `json:"mode"`
	Limit  string           `json:"limit"`
	Tokens ratelimit.Tokens `json:"limit_tokens"`
	// WindowSeconds is the length of a fixed or sliding window; 0: the limit has none.
	WindowSeconds float64 `json:"window_seconds"`
	Decisions     uint64  `json:"decisions"`
	Denied        uint64  `json:"denied" of:"Denied"`
	Hits          uint64  `json:"hits" of:"TotalHits"` // cost of all requests
	Shadow        bool    `json:"shadow_mode,omitempty"`
	Admitted      uint64  `json:"admitted"`
	Over          uint64  `json:"over" of:"OverAdmitted"` // in all keys and windows since the start
	Near          uint64  `json:"windows_near_bound" of:"NearBound"`
	Beyond        uint64  `json:"windows_beyond_bound" of:"BeyondBound"`
	// Admissions by on_store_failure: tokens of Over, and keys and windows that exceed their declared bound
	// for no other reason.
	OverByPolicy   uint64            `json:"over_by_policy" of:"OverByPolicy"`
	BeyondByPolicy uint64            `json:"windows_beyond_by_policy" of:"BeyondByPolicy"`
	Policy         string            `json:"on_store_failure"`
	Fallbacks      map[string]uint64 `json:"fallbacks"` // decisions without the store, by reason
	Under          uint64            `json:"under" of:"UnderAdmitted"`
	Declared       ratelimit.Tokens  `json:"declared"` // for each key and window
	DriftBudget    ratelimit.Tokens  `json:"drift_budget"`
	// Worst is the over-admission of the worst key by this node's drift, in a window of the last 30 s, at most Share.
	Worst ratelimit.Tokens `json:"worst_key_over"`
	// Highest is the most that one key admitted in a window since the start, by this node's knowledge: of its limit,
	// and beyond by drift and on_store_failure here. Outage is the declared maximum of all nodes in a window with an
	// outage; 0: it is not a number of tokens.
	Highest  ratelimit.Tokens  `json:"highest_window"`
	Outage   ratelimit.Tokens  `json:"declared_in_outage"`
	Share    ratelimit.Tokens  `json:"drift_share"`
	Drifting int64             `json:"drifting" of:"Drifting"`
	Leased   int64             `json:"leased" of:"Leased"`
	Sources  map[string]uint64 `json:"sources"`
	// Ended are the holds whose end arrived here, and Costless those of them without a cost: OnUnknown decided.
	Ended     uint64 `json:"holds_ended,omitempty"`
	Costless  uint64 `json:"holds_without_cost,omitempty"`
	OnUnknown string `json:"on_unknown,omitempty"`
}

// Turn has the peaks of all rules lose what is older than [ratelimit.TurnEvery].
func (c Collector) Turn() {
	for _, r := range c.Store.Rules().All() {
		r.Counters.Turn()
		r.Counters.EachNamed(func(_ string, c *ratelimit.RuleCounters) { c.Turn() })
	}
}

// State reads all counters. Of the rules it gives n: those beyond a bound, and then those with most decisions. It reads
// each counter once, without a lock over all, so that sums may differ by the requests of that moment.
func (c Collector) State(n int) State {
	s, l := c.Stats, c.Limiter()
	waited := float64(l.StoreTime.Sum) / 1e6
	v := State{
		Version: c.Version, Leases: l.Leases + l.Accounts, MaxKeys: c.MaxKeys, RuleCount: len(c.Store.Rules().All()),
		Sources:   named(ratelimit.Sources[:], &s.Sources),
		Fallbacks: named(ratelimit.FallbackReasons[:], &l.Fallbacks),
		Claims:    named(ratelimit.ClaimReasons[:], &l.ClaimsBy),
		Store: StoreState{
			Used: l.RoundTrips > 0, BreakerOpen: l.BreakerOpen, SyncAge: l.SyncAge.Seconds(),
			Mean: waited / float64(max(1, l.StoreTime.Count)), Waited: waited,
			Deadline: c.leastDeadline().Seconds(), Replies: l.StoreTime,
		},
	}
	copyCounts(&v, s)
	copyCounts(&v.Store, &l)
	if c.StoreNow != nil {
		v.Store.StoreNow = c.StoreNow()
	}
	if last := s.LastBad.Load(); last != nil {
		v.LastBadRequest = *last
	}
	if c.Gate != nil {
		for _, n := range c.Gate.Stats().Shed {
			v.Shed += n
		}
	}
	v.Unlimited = c.unlimited()
	// The sums are over all causes, before the list is cut.
	for _, u := range v.Unlimited {
		v.UnlimitedRequests += u.Requests
		if u.Cause == NoDescriptors {
			v.BareRequests += u.Requests
		}
	}
	v.Unlimited = v.Unlimited[:min(shownUnlimited, len(v.Unlimited))]
	_, v.LoadErrors = c.Store.Loads()
	v.Config = ConfigState(c.Store.Status())
	if c.Seat != nil {
		seat, wanted := c.Seat()
		v.Seat, v.SeatWanted = &seat, wanted
	}
	if c.Ring != nil {
		r := c.Ring()
		v.Ring = &r
	}
	rules := c.rows()
	for i := range rules {
		v.Rules = append(v.Rules, rules[i].state())
	}
	// Rules beyond a bound are never cut before those that hold.
	slices.SortStableFunc(v.Rules, func(a, b RuleState) int {
		return cmp.Or(cmp.Compare(b.Beyond, a.Beyond), cmp.Compare(b.Decisions, a.Decisions))
	})
	v.Rules = v.Rules[:min(n, len(v.Rules))]
	return v
}

// Domains and keys come from requests. Their number is bounded where they are counted ([ratelimit.MaxNames]).
func (c Collector) unlimited() (all []Unlimited) {
	byDomain := func(cause string, of *ratelimit.RuleCounters) {
		of.EachNamed(func(domain string, n *ratelimit.RuleCounters) {
			all = append(all, Unlimited{Cause: cause, Domain: strings.ToValidUTF8(domain, "?"), Requests: n.Requests()})
		})
	}
	byDomain(NoRuleForDomain, &c.Stats.UnknownDomains)
	byDomain(NoDescriptors, &c.Stats.NoDescriptors)
	c.Stats.Unlimited.EachNamed(func(name string, n *ratelimit.RuleCounters) {
		domain, key, ok := strings.Cut(strings.ToValidUTF8(name, "?"), ratelimit.NameSeparator)
		if !ok { // of too many names
			key = domain
		}
		all = append(all, Unlimited{NoRuleForKey, domain, key, n.Requests()})
	})
	slices.SortStableFunc(all, func(a, b Unlimited) int { return cmp.Compare(b.Requests, a.Requests) })
	return all
}

// leastDeadline is the shortest store_deadline of the rules that need the store; 0: there are none.
func (c Collector) leastDeadline() (least time.Duration) {
	for _, r := range c.Store.Rules().All() {
		if d := r.Coordination.Deadline(); !r.Unlimited && !r.RefusesAll() && (least == 0 || d < least) {
			least = d
		}
	}
	return least
}

// named are the counters of an array by name.
func named(names []string, counters any) map[string]uint64 {
	m := make(map[string]uint64, len(names))
	for i, name := range names {
		m[name] = uint64(count(reflect.ValueOf(counters).Elem().Index(i)))
	}
	return m
}

// copyCounts sets the fields of a state with a tag of:"NAME" to the counters of these names. It is for JSON what the
// tags of counters are for Prometheus. A tag without such a counter panics at the first call.
func copyCounts(state, counters any) {
	to, from := reflect.ValueOf(state).Elem(), reflect.ValueOf(counters).Elem()
	for i := range to.NumField() {
		name := to.Type().Field(i).Tag.Get("of")
		if name == "" {
			continue
		}
		n := reflect.ValueOf(count(from.FieldByName(name)))
		to.Field(i).Set(n.Convert(to.Field(i).Type()))
	}
}

// state is the row for JSON. An unlimited rule has counts, but no limit and no bounds.
func (w *ruleRow) state() RuleState {
	v := RuleState{
		Domain: w.rule.Domain, Rule: w.rule.Path, Mode: w.rule.Coordination.Mode.String(), Limit: "unlimited",
		Decisions: w.sum.Requests(), Admitted: w.admitted(), Shadow: w.rule.Shadow,
		Fallbacks: named(ratelimit.FallbackReasons[:], &w.sum.Fallbacks),
		Sources:   named(ratelimit.Sources[:], &w.sum.Sources),
		Policy:    ratelimit.FailurePolicies[w.rule.Coordination.OnStoreFailure], Declared: w.declared,
		DriftBudget: w.driftLimit, Worst: w.sum.Worst.Lately(), Share: w.share,
	}
	copyCounts(&v, &w.sum)
	if !w.rule.Unlimited {
		v.Limit, v.Tokens = w.rule.Limit.String(), w.rule.Limit.Capacity()
		if l := &w.rule.Limit; l.Algorithm == ratelimit.FixedWindow || l.Algorithm == ratelimit.SlidingWindow {
			v.WindowSeconds = l.Period().Seconds()
		}
		v.Highest = min(v.Tokens, w.sum.Used.Ever()) + w.sum.Worst.Ever() + w.sum.Alone.Ever()
	}
	if boundedOutage(w) {
		v.Outage = w.outage.Tokens
	}
	if h := w.sum.Held(); h != nil && w.rule.Hold != nil {
		v.OnUnknown, v.Costless = w.rule.Hold.OnUnknown.String(), h.Results[ratelimit.SettledUnknown].Load()
		v.Ended = v.Costless + h.Results[ratelimit.SettledCost].Load() + h.Results[ratelimit.SettledFailed].Load() +
			h.Results[ratelimit.SettledLate].Load()
	}
	return v
}
