package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Rules with a reserve are another rule's at the ledger, of a smaller limit and with a share that drifts
// (ratelimit.Rule.AtLedger). What a fleet does, it does by that one; who asks and is answered sees the whole.

// atLedger gives asks the rules that the ledger knows; whole undoes it. It reports whether there are any.
func (f *Fleet) atLedger(asks []ask) (any bool) {
	for i := range asks {
		if at := asks[i].Rule.AtLedger(); at != asks[i].Rule {
			asks[i].Rule, any = at, true
		}
	}
	return any
}

// whole gives asks their own rules again, and has verdicts, if there are any, say what is left of their
// limits. What a node admits alone is said as it is.
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

// ruleAtLedger is the rule that the ledger knows of one.
func (f *Fleet) ruleAtLedger(r *ratelimit.Rule) *ratelimit.Rule {
	return r.AtLedger()
}

// spare admits what was refused, if the node has it in reserve: what the ledger grants is used up then,
// and the limit is not.
func (f *Fleet) spare(now instant, a *ask, v *verdict) {
	if !v.OverLimit || a.Rule.Whole() == nil {
		return
	}
	var drifted verdict
	spared := false
	// A refusal that has drained what was left is as good as what it took.
	if v.Charged == 0 {
		drifted, spared = f.drift(now, a, lease.InVain)
	}
	s, _, h := f.locked(a.Key)
	if h != nil && spared {
		h.Spared(a, v)
	} else if h != nil {
		h.CountRefused(a)
	}
	s.mu.Unlock()
	if spared {
		*v = drifted
	}
}
