package console

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// A rule can limit nothing without an error: its route is gone, its charges are lost on the way, or their costs. These
// are its signs, in what a node counts.

const (
	// silentAfter is the age of a node from which rules without a request, and in shadow_mode, are named.
	silentAfter = 24 * time.Hour
	// fewRequests are too few to tell anything.
	fewRequests = 100
	// usualCost is the mean cost of a rule whose requests cost more than 1 each.
	usualCost = 5
	// manyRequests in windows of an hour or longer are for some of the same keys. Otherwise each has a key of its own,
	// such as a request ID.
	manyRequests = 10_000
)

// silent are the rules that seem to limit nothing, with the reason. The cases go from the surest sign to the vaguest,
// and only the first is named. before and cost are of the time before the last quarter of an hour.
func silent(s *State, recent recentRules) (names []string) {
	old := s.Now.Sub(s.Started) >= silentAfter
	for i := range s.Rules {
		r := &s.Rules[i]
		why := ""
		lately := recent[ruleID(r)]
		before, cost := r.Decisions-min(r.Decisions, lately.decisions), r.Hits-min(r.Hits, lately.hits)
		switch {
		case r.Limit == "unlimited":
		// A young node may not have met the traffic of the rule yet.
		case r.Decisions == 0 && old:
			why = "no request in a day"
		case r.Shadow && lately.refused >= fewRequests && old:
			why = fmt.Sprintf("in shadow_mode: would have refused %d", lately.refused)
		case oneRequestEach(r):
			why = fmt.Sprintf("each of %d requests had a key of its own", r.Decisions)
		case lately.decisions < fewRequests:
		case lately.hits == 0:
			why = fmt.Sprintf("%d checks and no charge", lately.decisions)
		case lately.hits == lately.decisions && before >= fewRequests && cost >= usualCost*before:
			why = fmt.Sprintf("all of %d requests cost 1, and earlier ones %d", lately.decisions, cost/before)
		}
		if why != "" {
			names = append(names, fmt.Sprintf("%s.%s (%s)", r.Domain, r.Rule, why))
		}
	}
	return names
}

// costless are the rules most of whose holds end without a cost, so that they count no tokens. A rule is named if more
// than half of its holds ended so. on_unknown decides what such a hold is charged.
func costless(s *State, recent recentRules) (names []string) {
	for i := range s.Rules {
		r := &s.Rules[i]
		lately := recent[ruleID(r)]
		if lately.costless < fewRequests || lately.costless*2 <= lately.ended {
			continue
		}
		then := "each charges its hold"
		if r.OnUnknown == ratelimit.UnknownReleases.String() {
			then = "each charges nothing"
		}
		names = append(names, fmt.Sprintf("%s.%s (%d of %d; with on_unknown: %s, %s)", r.Domain, r.Rule,
			lately.costless, lately.ended, r.OnUnknown, then))
	}
	return names
}

// oneRequestEach reports whether no key had a second request in its window, of many. Highest is the largest usage of a
// key in a window. If it is not above the mean cost of a request, no key had two.
func oneRequestEach(r *metrics.RuleState) bool {
	mean := float64(r.Hits) / float64(max(1, r.Decisions))
	return r.Decisions >= manyRequests && r.WindowSeconds >= time.Hour.Seconds() &&
		r.Highest > 0 && float64(r.Highest) <= mean && r.Highest < r.Tokens
}
