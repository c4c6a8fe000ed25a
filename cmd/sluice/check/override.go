package check

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/console"
)

// overridden are rules with the limits of keys that --override names: DESCRIPTOR=LIMIT, or DOMAIN?DESCRIPTOR=LIMIT.
// Such a rule is a copy of the rule in the file with another limit, and with the descriptor in its name. So the table
// declares both.
func overridden(rules *config.Rules, texts []string) (all []*ratelimit.Rule, err error) {
	for _, text := range texts {
		rule, err := overriddenBy(rules, text)
		if err != nil {
			return nil, fmt.Errorf("--override %q: %w", text, err)
		}
		all = append(all, rule)
	}
	return all, nil
}

// The limit stands behind the last =, because descriptor values may have some, too. Before a ? is a domain, unless it
// has a = itself: then the ? is part of a value.
func overriddenBy(rules *config.Rules, text string) (*ratelimit.Rule, error) {
	at := strings.LastIndexByte(text, '=')
	// There is no limit without a =.
	if at < 0 {
		return nil, fmt.Errorf("write DESCRIPTOR=LIMIT, such as api_key=alice=1000")
	}
	limit, err := console.ParseOverrideLimit(text[at+1:])
	if err != nil {
		return nil, err
	}
	domain, descriptor, named := strings.Cut(text[:at], "?")
	if strings.Contains(domain, "=") || !named {
		domain = ""
		descriptor = text[:at]
		named = false
	}
	entries, err := console.ParseDescriptor(descriptor)
	if err != nil {
		return nil, err
	}
	var found *ratelimit.Rule
	// Without a domain, the rule must be the only one that matches. A node looks in the domain of the request.
	for _, name := range rules.DomainNames(rules.Domains()) {
		rule, _ := rules.Domain(name).Match(entries, nil)
		if rule == nil || named && name != domain {
			continue
		}
		if found != nil {
			return nil, fmt.Errorf("the domains %q and %q have a rule for it: write %s?%s", found.Domain, name, name, text)
		}
		found = rule
	}
	switch {
	case found == nil:
		return nil, fmt.Errorf("no rule matches this descriptor at its full depth")
	case found.WhyNoOverrides() != "":
		return nil, fmt.Errorf("the limits of %s cannot be overridden: %s", found.FullName(), found.WhyNoOverrides())
	case limit.Requests > found.Limit.Ceiling:
		return nil, fmt.Errorf("the limit is %d, must be at most the rule's max_override %d", limit.Requests, found.Limit.Ceiling)
	}
	// The same checks as in a node, so that check and limit set refuse alike.
	o := ratelimit.Override{Requests: limit.Requests, Unlimited: limit.Unlimited}
	if why := found.WhyRefusesAll(&o); why != "" {
		return nil, errors.New(why)
	}
	rule := found.Under(&o)
	rule.Path += " [" + descriptor + "]"
	return rule, nil
}
