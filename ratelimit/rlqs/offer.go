package rlqs

import (
	"fmt"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// service is how a bucket is served.
type service uint8

const (
	granted  service = iota // leases of its rule's budget
	allowAll                // no rule limits it
	denyAll                 // its rule has nothing, or cannot be served so
)

// offer is how the buckets of one rule are served. All of them have the same, and it is not
// changed: a copy of the rule for each would be the largest part of a bucket.
type offer struct {
	how  service
	rule *ratelimit.Rule // of the configuration; nil: none matches
	// asking is the rule for requests of tokens: with the limit of sublease.Rule, and a denial takes no tokens.
	asking *ratelimit.Rule
	// exact is the same for a node that leases for single requests only, and keeps nothing between
	// them. It is asked where tokens are short.
	exact *ratelimit.Rule
}

// unmatched are those of buckets that no rule matches.
var unmatched = &offer{how: allowAll, asking: new(ratelimit.Rule)}

// offerOf is a rule's, in the rules in force.
func (n *Node) offerOf(rules *config.Rules, rule *ratelimit.Rule) *offer {
	if rule == nil {
		return unmatched
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	// Rules that are not in force any more must not be kept for their offers.
	if n.rules != rules {
		n.rules, n.offers = rules, map[*ratelimit.Rule]*offer{}
	}
	t := n.offers[rule]
	if t == nil {
		t = &offer{how: n.serviceOf(rule), rule: rule, asking: sublease.Rule(rule)}
		t.exact = t.asking.PerRequest()
		n.offers[rule] = t
	}
	return t
}

// serviceOf is serviceOf of the rule, except that in SHADOW_MODE all pass.
func (n *Node) serviceOf(rule *ratelimit.Rule) service {
	if n.source.ShadowMode {
		return allowAll
	}
	how, _ := serviceOf(rule)
	return how
}

// serviceOf is how a rule is served, and why its budget is not divided; "": it is.
func serviceOf(r *ratelimit.Rule) (how service, why string) {
	switch err := sublease.Servable(r); {
	// What cannot be divided safely is denied, not let through: a limit must not be lost because a
	// setting does not fit.
	case err != nil:
		return denyAll, fmt.Sprintf("DENY_ALL: %v", err)
	case r.Unlimited:
		return allowAll, "ALLOW_ALL: it is unlimited"
	case r.Shadow:
		return allowAll, "ALLOW_ALL: it is in shadow_mode; hits are counted, and nothing is charged"
	case r.RefusesAll():
		return denyAll, "DENY_ALL: requests_per_unit is 0"
	}
	return granted, ""
}

// Reason tells why a rule is not served, or what of it Envoys need not ask about; "": its budget is divided.
func Reason(r *ratelimit.Rule) string {
	_, why := serviceOf(r)
	return why
}
