package console

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Problem is a fault of a node, or a warning for its operator. A page shows problems first.
//
// A problem says what happens in What, and in Detail its cause or where to look. Each has a runbook with that name.
type Problem struct {
	Severity string `json:"severity"` // Bad or Warn
	What     string `json:"what"`
	Detail   string `json:"detail,omitempty"`
	Runbook  string `json:"runbook,omitempty"` // the section of docs/reference/runbooks.md
}

// Severities of a problem.
const (
	Bad  = "bad"  // a promise is broken, or decisions differ from the rules
	Warn = "warn" // another problem that an operator should check
)

// Thresholds of slow and full.
const (
	slowP99     = 10 * time.Millisecond // half of Envoy's default timeout
	slowStore   = 2                     // part of a store_deadline that a reply may take
	namedAtMost = 3
	// much is the part of all calls from which calls without a rule, and decisions without the store, are a problem.
	much = 100
)

// problems are sorted by severity, and causes come before what follows from them. recent is over ten seconds, and rules
// over the quarter of an hour of the history. A problem goes when its cause does.
func problems(s *State, recent Rates, rules recentRules) (all []Problem) {
	say := func(severity, runbook, detail, format string, args ...any) {
		all = append(all, Problem{severity, fmt.Sprintf(format, args...), detail, runbook})
	}
	// Causes come first: bad rules and a store without an answer explain most of what follows.
	if s.Config.Error != "" {
		effect := "the previous rules stay in force"
		if s.Config.Fingerprint == "" {
			effect = "there are no others, and all calls end with an error"
		}
		say(Bad, "config-rejected", s.Config.Error, "The current rules are bad or missing since %s: %s",
			s.Config.Failed.UTC().Format("15:04:05 MST"), effect)
	}
	if s.Store.BreakerOpen {
		say(Bad, "store-breaker-open",
			storeNamed(&s.Store)+". Nodes spend their leases, then on_store_failure of each rule decides.",
			"The store has not answered for %.0f s", s.Store.SyncAge)
	}
	// While the breaker is open, replies are not slow but missing, which is another problem.
	if least := s.Store.Deadline; recent.Trip > least/slowStore && least > 0 && !s.Store.BreakerOpen {
		say(Warn, "store-slow",
			fmt.Sprintf("The shortest store_deadline of the rules is %.0f ms. After it, on_store_failure decides. "+
				"A mean of the last ten seconds, at this node. %s.", least*1e3, steadiness(&recent)),
			"A reply of the store takes %.1f ms", recent.Trip*1e3)
	}
	brokenBounds(s, rules, say)
	if recent.Alone > (recent.Passed+recent.Refused)/much {
		say(Warn, "fallback-active",
			alone(s, rules), "%s decisions a second are made without the store", figure(recent.Alone))
	}
	// Losses count since the first look in the history, so the warning stays for a quarter of an hour.
	if recent.Lost > 0 {
		say(Warn, "store-data-lost",
			"Nodes restored the usage that they had. Until then, at most 5 % of each limit was granted.",
			"The store lost its data, in the last quarter of an hour")
	}
	if recent.Full > 0 {
		say(Warn, "table-full",
			fmt.Sprintf("%d keys are tracked, of MAX_KEYS %d. Keys without a place share budgets, or "+
				"are limited by this node alone.", s.Leases, s.MaxKeys),
			"The table of keys is full: %s decisions a second have no place in it", figure(recent.Full))
	}
	failedCalls(s, &recent, say)
	if names := silent(s, rules); len(names) > 0 {
		say(Warn, "silent-limit", "In the last 15 minutes: "+few(names)+".",
			"%s may limit nothing", counted(len(names), "limit"))
	}
	if names := costless(s, rules); len(names) > 0 {
		say(Warn, "holds-without-cost", "Of the last 15 minutes: "+few(names)+".",
			"Most requests of %s end without a cost", counted(len(names), "rule"))
	}
	if s.Config.FromCopy {
		say(Warn, "rules-from-copy", "The rules were bad or missing when this node started.",
			"The rules in force are the last good copy")
	}
	fleetProblems(s, say)
	if recent.P99 > slowP99.Seconds() {
		say(Warn, "slow",
			"In the last ten seconds, at this node. Envoy waits 20 ms by default, then continues without "+
				"an answer.", "One decision in a hundred takes longer than %.0f ms", recent.P99*1e3)
	}
	// In an outage no seat can be renewed, and the outage is named already.
	if s.SeatWanted && s.Seat != nil && *s.Seat < 0 && !s.Store.BreakerOpen {
		say(Warn, "seat-shortage", "There are more nodes than max_nodes, or seats of ended nodes have not expired.",
			"No drift seat: rules of mode approx use leases only")
	}
	if s.Panics > 0 {
		say(Warn, "panics", "The log has the stack of each.", "%d requests since the start hit a bug", s.Panics)
	}
	// "bad" is before "warn" in the alphabet, and the sort is stable, so causes stay before effects.
	slices.SortStableFunc(all, func(a, b Problem) int { return cmp.Compare(a.Severity, b.Severity) })
	return all
}

// failedCalls reports calls that get no decision, and requests that no rule limits. recent.Other leaves out requests
// without descriptors, which have a problem of their own.
func failedCalls(s *State, recent *Rates, say sayer) {
	calls := recent.Passed + recent.Refused + recent.Failed
	if recent.Other > 0 {
		detail := "Envoy admits or refuses such requests, by its failure_mode_deny."
		if s.LastBadRequest != "" {
			detail += " The last malformed request: " + s.LastBadRequest + "."
		}
		say(Bad, "errors", detail, "%s calls a second get no decision: errors or shed calls", figure(recent.Other))
	}
	bare, causes := unlimitedBy(s.Unlimited)
	if recent.Bare > calls/much {
		say(Bad, "unlimited",
			"They get an error, and Envoy admits them, unless failure_mode_deny is set. Since the start: "+
				few(bare)+".",
			"%s requests a second have no descriptors", figure(recent.Bare))
	}
	if unlimited := recent.Unlimited - recent.Bare; unlimited > calls/much {
		first := "of rare causes"
		if len(causes) > 0 {
			first = causes[0]
		}
		say(Warn, "unlimited", "Requests by cause, since the start: "+few(causes)+".",
			"No rule limits %s requests a second: %s", figure(unlimited), first)
	}
}

// storeNamed is the store's address, with its last error.
func storeNamed(s *metrics.StoreState) string {
	if s.LastError == "" {
		return "Its address is " + s.Address
	}
	return fmt.Sprintf("Its address is %s, and the last error: %s", s.Address, s.LastError)
}

// steadiness tells a constant delay, as of a network, from one that varies, as of a lack of CPU. A constant delay needs
// a nearer store. One that varies needs more CPU.
func steadiness(recent *Rates) string {
	const part = 4 // of the mean, in a constant delay; the fastest is known to a factor of two
	text := fmt.Sprintf("The fastest took at least %.1f ms", recent.Fastest*1e3)
	if recent.Fastest*part > recent.Trip && recent.Trips >= 1 {
		text += ": a constant delay, as of a slow network"
	}
	return text
}

// counted is a number of things, for a text.
func counted(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}

// sayer adds a problem: its severity, its runbook, its detail, and the text with its values.
type sayer func(severity, runbook, detail, format string, args ...any)

// brokenBounds reports rules that exceeded their declared bounds, and separately the admissions by on_store_failure.
func brokenBounds(s *State, recent recentRules, say sayer) {
	var now, before, policy []string
	for i := range s.Rules {
		r := &s.Rules[i]
		name := r.Domain + "." + r.Rule
		lately := recent[ruleID(r)]
		switch {
		case lately.beyond > 0:
			now = append(now, fmt.Sprintf("%s (declared: %d, for each key and window)", name, r.Declared))
		// An excess from before the history stays as a warning until the node restarts.
		case r.Beyond > 0:
			before = append(before, name)
		}
		if lately.byPolicy > 0 {
			policy = append(policy, fmt.Sprintf("%s (%s): %d tokens in all", name, r.Policy, r.OverByPolicy))
		}
	}
	if len(now) > 0 {
		say(Bad, "drift-beyond-bound", few(now), "Rules exceeded their declared bound in the last 15 minutes")
	}
	if len(before) > 0 {
		say(Warn, "drift-beyond-bound", few(before), "Rules exceeded their declared bound before that, since the start")
	}
	if len(policy) > 0 {
		say(Warn, "fallback-active", few(policy)+". The bound for normal operation holds.",
			"on_store_failure admitted more than the limit in the last 15 minutes")
	}
}

// fleetProblems compares nodes by their registrations: silent ones, and different fingerprints of rules.
func fleetProblems(s *State, say sayer) {
	var silent []string
	sets := map[string][]string{} // nodes by their rules
	for _, n := range s.Nodes {
		if n.Silent {
			silent = append(silent, fmt.Sprintf("%s, %v ago", n.Debug, time.Duration(n.Seen)*time.Second))
		} else if n.Rules != "" {
			sets[n.Rules] = append(sets[n.Rules], n.Debug)
		}
	}
	if len(silent) > 0 {
		say(Warn, "node-down", "Last seen: "+few(silent)+". They crashed, hang, or cannot reach the store.",
			"%d of %d nodes are silent", len(silent), len(s.Nodes))
	}
	// Fingerprints differ during each rollout, too, so the problem is a warning.
	if len(sets) > 1 {
		say(Warn, "rules-differ",
			"A rollout takes about a minute. After that, a node does not get the rules or refuses them: "+
				few(minority(sets))+".",
			"Nodes run %d different sets of rules", len(sets))
	}
}

// minority are the nodes whose rules fewer nodes have than the most common ones, with their rules. They are named
// because the operator looks for the nodes that a rollout has missed.
func minority(sets map[string][]string) (names []string) {
	rules := slices.SortedFunc(maps.Keys(sets), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(sets[b]), len(sets[a])), strings.Compare(a, b))
	})
	for _, set := range rules[1:] {
		for _, node := range sets[set] {
			names = append(names, fmt.Sprintf("%s has %.8s", node, set))
		}
	}
	return names
}

// unlimitedBy names the domains of requests without descriptors, and the causes of others without a rule, the most
// frequent first.
func unlimitedBy(all []metrics.Unlimited) (bare, causes []string) {
	for _, u := range all {
		switch u.Cause {
		case metrics.NoRuleForDomain:
			causes = append(causes, fmt.Sprintf("no rules for the domain %s (%d)", u.Domain, u.Requests))
		case metrics.NoRuleForKey:
			causes = append(causes, fmt.Sprintf("no rule of %s has the key %s (%d)", u.Domain, u.Key, u.Requests))
		case metrics.NoDescriptors:
			bare = append(bare, fmt.Sprintf("domain %s (%d)", u.Domain, u.Requests))
		}
	}
	return bare, causes
}

// alone names the rules with the most decisions without the store, their policy, and the reasons.
func alone(s *State, rules recentRules) string {
	of := func(r *metrics.RuleState) float64 { return rules[ruleID(r)].alone }
	sorted := slices.Clone(s.Rules)
	slices.SortStableFunc(sorted, func(a, b metrics.RuleState) int { return cmp.Compare(of(&b), of(&a)) })
	var names []string
	for i := range sorted {
		r := &sorted[i]
		if of(r) > 0 {
			names = append(names, fmt.Sprintf("%s.%s (%s) %s", r.Domain, r.Rule, r.Policy, figure(of(r))))
		}
	}
	return "By rule, with its on_store_failure, a second: " + few(names)
}

// few joins the first names. A problem is one line of a page.
func few(names []string) string {
	if len(names) <= namedAtMost {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namedAtMost], ", "), len(names)-namedAtMost)
}

// figure is a rate with at most one decimal.
func figure(v float64) string {
	if v < 10 {
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.0f", v)
}
