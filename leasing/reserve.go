package leasing

import "github.com/sluice-gate/sluice/ratelimit"

// At the ledger, a rule with a reserve is another rule, with a smaller limit and a share that drifts
// (ratelimit.Rule.AtLedger). The fleet uses that rule, and callers see the whole limit.

// atLedger gives asks the rules of the ledger. whole undoes it. It reports whether there are any.
func atLedger(asks []ask) (any bool) {
	for i := range asks {
		if at := asks[i].Rule.AtLedger(); at != asks[i].Rule {
			asks[i].Rule, any = at, true
		}
	}
	return any
}

// whole gives asks their own rules again, and converts the remaining tokens of verdicts, if there are any. Verdicts
// of a node alone stay as they are.
func whole(asks []ask, verdicts []verdict) {
	for i := range asks {
		of := asks[i].Rule.Whole()
		if of == nil {
			continue
		}
		if verdicts != nil {
			switch v := &verdicts[i]; {
			case v.OverLimit: // the caller can get the remaining tokens with a smaller ask
			case v.Source == ratelimit.FromLease, v.Source == ratelimit.FromClaim, v.Source == ratelimit.FromDrift:
				v.Remaining = asks[i].Rule.Remaining(v.Remaining)
			}
		}
		asks[i].Rule = of
	}
}
