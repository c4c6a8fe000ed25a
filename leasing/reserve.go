package leasing

import "github.com/sluice-gate/sluice/ratelimit"

// Rules with a reserve are another rule's at the ledger, of a smaller limit and with a share that drifts
// (ratelimit.Rule.AtLedger). What a fleet does, it does by that one; who asks and is answered sees the whole.

// atLedger gives asks the rules that the ledger knows; whole undoes it. It reports whether there are any.
func atLedger(asks []ask) (any bool) {
	for i := range asks {
		if at := asks[i].Rule.AtLedger(); at != asks[i].Rule {
			asks[i].Rule, any = at, true
		}
	}
	return any
}

// whole gives asks their own rules again, and has verdicts, if there are any, say what is left of their limits. What a
// node admits alone is said as it is.
func whole(asks []ask, verdicts []verdict) {
	for i := range asks {
		of := asks[i].Rule.Whole()
		if of == nil {
			continue
		}
		if verdicts != nil {
			switch v := &verdicts[i]; {
			case v.OverLimit: // who asks for what is left then is to get it
			case v.Source == ratelimit.FromLease, v.Source == ratelimit.FromClaim, v.Source == ratelimit.FromDrift:
				v.Remaining = asks[i].Rule.Remaining(v.Remaining)
			}
		}
		asks[i].Rule = of
	}
}
