package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

// Explanation is the next decision for a descriptor, with its reason.
type Explanation struct {
	Domain string        `json:"domain"`
	Steps  []config.Step `json:"steps"`
	Rule   string        `json:"rule,omitempty"`
	Limit  string        `json:"limit,omitempty"` // in force
	// LimitFrom is the origin of Limit: the rule, or an override of the key.
	LimitFrom string `json:"limit_from,omitempty"`
	RuleLimit string `json:"rule_limit,omitempty"` // of the file, if an override applies
	// OverrideSet and OverrideExpires are its times. Its author and reason need the token.
	OverrideSet     time.Time `json:"override_set,omitzero"`
	OverrideExpires time.Time `json:"override_expires,omitzero"`
	// Begins is the start of the next billing month, for a limit that has billing months.
	Begins    time.Time `json:"begins,omitzero"`
	Mode      string    `json:"mode,omitempty"`
	Reclaim   string    `json:"reclaim,omitempty"`
	OnFailure string    `json:"on_store_failure,omitempty"`
	Shadow    bool      `json:"shadow_mode,omitempty"`
	Quota     bool      `json:"quota_mode,omitempty"`
	Declared  string    `json:"declared,omitempty"` // over-admission
	// Hold describes the rule's hold. Holds has the next hold of this key (for hits_addend 1, if
	// the hold depends on it) and this node's counts for all keys of the rule.
	Hold  *declare.HoldBounds `json:"hold,omitempty"`
	Holds *held               `json:"held,omitempty"`
	// Bounds has the rule's declared bounds, on max_nodes nodes.
	Bounds *declare.Bounds `json:"bounds,omitempty"`
	Next   string          `json:"next"` // result of the next request
	// Trouble says that the store does not answer this node; "": it does.
	Trouble string `json:"trouble,omitempty"`
	// Sentence is for a customer: the usage, and when the next request passes.
	Sentence   string        `json:"sentence,omitempty"`
	WholeAgain time.Duration `json:"reset_ns,omitempty"`
	// Envoys hold leases of the key on streams to this node, the busiest first, at most a hundred.
	// EnvoysInAll is their number. RLQS is their assignment if the rule's budget is not divided.
	Envoys      []rlqs.Holder `json:"envoys,omitempty"`
	EnvoysInAll int           `json:"envoys_in_all,omitempty"`
	RLQS        string        `json:"rlqs,omitempty"`
	*ratelimit.Look
}

// held has the state of a rule's holds.
type held struct {
	Next     ratelimit.Tokens `json:"next"`
	Requests uint64           `json:"requests"` // since this node started
	Tokens   uint64           `json:"tokens"`   // held by these requests
	Settled  uint64           `json:"settled_tokens"`
	Cost     uint64           `json:"cost_tokens"` // of holds settled here
}

// heldOf reads counters of a rule with a hold; Hold must not be nil.
func heldOf(rule *ratelimit.Rule, key []byte) *held {
	c := rule.Counters.Holds()
	return &held{
		Next: rule.Hold.Estimate(1, key, &c.Costs), Requests: c.Taken.Load(), Tokens: c.TakenSum.Load(),
		Settled: c.SettledSum.Load(), Cost: c.CostSum.Load(),
	}
}

// mostNames bounds the domains that an unknown one is compared with.
const mostNames = 1000

// askLike answers an invalid request.
const askLike = "ask like /explain?domain=edge&entry=tier=gold&entry=user=bob"

// asked is the descriptor of a request: domain, and entries in their order. A refusal says what to write instead. The
// domain must have rules, or there is nothing to explain.
func (c *console) asked(r *http.Request) (*config.Domain, []config.Entry, error) {
	q := r.URL.Query()
	name := q.Get("domain")
	if name == "" || len(q["entry"]) == 0 {
		return nil, nil, refusing(http.StatusBadRequest, askLike)
	}
	var entries []config.Entry
	for _, text := range q["entry"] {
		key, value, found := strings.Cut(text, "=")
		if key == "" || !found {
			return nil, nil, refusing(http.StatusBadRequest, askLike+": %q is not key=value", text)
		}
		entries = append(entries, config.Entry{Key: key, Value: value})
	}
	d := c.Metrics.Store.Rules().Domain(name)
	if d == nil {
		// The name is cut to leave room for the rest of the text.
		return nil, nil, refusing(http.StatusBadRequest, "the domain %.60q has no rules: its requests are OK%s", name,
			ratelimit.DidYouMean(name, c.Metrics.Store.Rules().DomainNames(mostNames)))
	}
	return d, entries, nil
}

// An explanation may cost round trips to the store, so its number is bounded before anything is read.
func (c *console) explain(w http.ResponseWriter, r *http.Request) error {
	done, ok := c.throttle.question()
	if !ok {
		return tooMany("too many explanations a second")
	}
	defer done()
	d, entries, err := c.asked(r)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), askTimeout)
	defer cancel()
	answer(w, c.explained(ctx, d, entries))
	return nil
}

// The steps: match the rule, apply an override, ask the store and this node, and describe the next decision. Without a
// rule or a limit, it ends early.
func (c *console) explained(ctx context.Context, d *config.Domain, entries []config.Entry) Explanation {
	e := Explanation{Domain: d.Name, Steps: d.Explain(entries)}
	rule, key := d.Match(entries, nil)
	switch {
	case rule == nil:
		e.Next = "OK: no rule matches at the full depth of the descriptor"
		return e
	case rule.Unlimited:
		e.Rule, e.Next = rule.Path, "OK: the rule is unlimited"
		return e
	}
	a := ratelimit.Ask{Rule: rule, Key: key, Kind: ratelimit.Peek}
	rule = c.inForce(&a, &e)
	e.Rule = rule.Path
	e.Limit = rule.Limit.String()
	e.Mode = rule.Coordination.Mode.String()
	if calendar := rule.Limit.Calendar; calendar != 0 {
		e.Begins = calendar.Begins(time.Now(), 1)[0]
	}
	e.Reclaim, e.OnFailure = ratelimit.Reclaims[rule.Coordination.Reclaim],
		ratelimit.FailurePolicies[rule.Coordination.OnStoreFailure]
	e.Shadow, e.Quota = rule.Shadow, rule.Quota
	b := c.Metrics.Declare(rule)
	e.Bounds = &b
	e.Declared = strings.TrimSuffix(fmt.Sprintf("at most %d tokens beyond the limit, for each key and window; %s",
		b.Over.Tokens, b.Over.Note()), "; ")
	if hold, ok := declare.HoldOf(rule); ok {
		e.Hold, e.Holds = &hold, heldOf(rule, key)
	}
	// Rules that refuse everything have no account, so neither the store nor Envoys are asked.
	if a.Rule.RefusesAll() {
		e.Next = c.over(rule) + ": requests_per_unit is 0"
		return e
	}
	if rule.Limit.Requests == 0 && rule.Coordination.OnStoreFailure != ratelimit.FailOpen {
		e.Next = c.over(rule) + ": the limit of this key is 0"
		return e
	}
	e.Trouble = c.outage(e.OnFailure)
	look := c.Inspector.Look(ctx, c.Clock(), &a)
	if look.Ledger != nil {
		for i := range look.Ledger.Holders {
			h := &look.Ledger.Holders[i]
			// The store has only the numbers of holders. The list of nodes has the number of each.
			h.Node = c.hostOf(h.Holder)
		}
	}
	e.Look = &look
	e.RLQS = rlqs.Reason(a.Rule) // which an override does not change
	if c.ShadowMode {
		e.RLQS = "ALLOW_ALL: the node is in SHADOW_MODE"
	}
	e.Envoys, e.EnvoysInAll = c.Quotas.Look(key)
	// A request of a rule with a hold costs the estimate of the hold, not 1.
	cost := ratelimit.Tokens(1)
	if e.Holds != nil {
		cost = e.Holds.Next
	}
	// The description is of this moment: another request may come first.
	e.Next, e.WholeAgain = c.next(rule, &e, cost)
	e.Sentence = e.sentence(rule, entries, time.Now())
	return e
}

// outage says that the store does not answer, and which on_store_failure decides meanwhile; "": it answers. outage is
// empty while calls to the store succeed, also if single ones are late.
func (c *console) outage(policy string) string {
	s := c.Metrics.Limiter()
	if !s.BreakerOpen {
		return ""
	}
	return fmt.Sprintf(
		"The store has not answered this node for %v: leases are spent, then on_store_failure (%s) decides.",
		s.SyncAge.Round(time.Second), policy)
}

// over is the answer to a request that the limit refuses.
func (c *console) over(rule *ratelimit.Rule) string {
	switch {
	case rule.Shadow:
		return "OK: the rule is in shadow_mode (OVER_LIMIT otherwise)"
	case c.ShadowMode:
		return "OK: the node is in SHADOW_MODE (OVER_LIMIT otherwise)"
	}
	return "OVER_LIMIT"
}

// inForce is the rule with the limit in force for a key. The copy has the counters of the rule, but another limit. So
// what follows explains the limit that decides.
func (c *console) inForce(a *ratelimit.Ask, e *Explanation) *ratelimit.Rule {
	e.LimitFrom = "rule"
	o, _ := c.Overrides.Get(a.Key)
	rule, ok := o.Rule(a.Rule)
	if o.Set == 0 || !ok {
		return a.Rule
	}
	e.LimitFrom = "override"
	e.RuleLimit = a.Rule.Limit.String()
	e.OverrideSet = timeOf(o.Set)
	e.OverrideExpires = timeOf(o.Expires)
	return rule
}

// next is the result of a request with a cost, in the observed state. The order of the cases is that of a decision: the
// owner, tokens in hand, a refusal by this node alone, an outage, a claim, and drift.
func (c *console) next(
	rule *ratelimit.Rule, e *Explanation, cost ratelimit.Tokens,
) (verdict string, resets time.Duration) {
	over, here := c.over(rule), unspent(e.Look)
	left := rule.Limit.Capacity()
	if e.Ledger != nil {
		left = max(0, e.Ledger.Free)
	}
	l := cmp.Or(e.Lease, &ratelimit.LeaseLook{})
	short := ": the account has no tokens left"
	if left+here > 0 {
		short = fmt.Sprintf(": it holds %d, and %d are left", cost, left+here)
	}
	switch {
	case e.Owner != "":
		return "decided by its owner: ask the debug port of the node whose PEER_ADDR is " + e.Owner, 0
	case here >= cost:
		text := fmt.Sprintf("OK, from the lease of this node: %d unspent here", l.Unspent)
		if e.LedgerError == "" {
			text += fmt.Sprintf(", %d left in the account", left)
		}
		return text, l.Resets
	case l.Refuses > 0:
		return over + ": no tokens before the reset", l.Refuses
	// Either this question to the store failed, or the key's part of the store counts as dead.
	case e.LedgerError != "" || l.Failing:
		return fmt.Sprintf("%s on_store_failure: %s; the store has not answered for %v",
			withoutStore(rule, e.Alone, cost, over), e.OnFailure, c.Metrics.Limiter().SyncAge.Round(time.Second)), 0
	case left+here >= cost:
		return fmt.Sprintf("OK, after a claim: %d left in the account", left), 0
	case c.Metrics.Seat != nil && rule.Drifts():
		return "OK from a drift share, else " + over + short, 0
	default:
		return over + short, l.Resets
	}
}

// unspent are the tokens of a lease that has not expired. An expired lease can no longer be spent.
func unspent(v *ratelimit.Look) ratelimit.Tokens {
	if v.Lease == nil || v.Lease.Expires <= 0 {
		return 0
	}
	return v.Lease.Unspent
}

// withoutStore is the decision of a rule's on_store_failure. alone is the number of tokens that this node's own budget
// has left under on_store_failure: local.
func withoutStore(rule *ratelimit.Rule, alone, cost ratelimit.Tokens, over string) string {
	switch policy := rule.Coordination.OnStoreFailure; {
	case policy == ratelimit.FailOpen:
		return "OK: admitted by"
	case policy == ratelimit.FailClosed || alone < cost:
		return over + ": denied by"
	default:
		return fmt.Sprintf("OK for %d more tokens at this node, by", alone)
	}
}
