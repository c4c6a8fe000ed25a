package leasing

import (
	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Rules with a reserve are another rule's at the ledger, of a smaller limit and with a share that drifts
// (ratelimit.Rule.AtLedger). What a fleet does, it does by that one; who asks and is answered sees the whole.

// atLedger gives asks the rules that the ledger knows; whole undoes it. It reports whether there are any.
func (f *Fleet) atLedger(asks []ask) (any bool) {
	if f.Undivided {
		return false
	}
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
			switch v := &verdicts[i]; v.Source {
			case ratelimit.FromLease, ratelimit.FromClaim, ratelimit.FromDrift:
				v.Remaining = asks[i].Rule.Remaining(v.Remaining)
			case ratelimit.FromFallback, ratelimit.FromOverflow, ratelimit.FromOwner:
			}
		}
		asks[i].Rule = of
	}
}

// ruleAtLedger is the rule that the ledger knows of one.
func (f *Fleet) ruleAtLedger(r *ratelimit.Rule) *ratelimit.Rule {
	if f.Undivided {
		return r
	}
	return r.AtLedger()
}

// spare admits what was refused, if the node has it in reserve: what the ledger grants is used up then,
// and the limit is not.
func (f *Fleet) spare(now instant, a *ask, v *verdict) {
	// A refusal that has drained what was left is as good as what it took.
	if !v.OverLimit || v.Charged > 0 || a.Rule.Whole() == nil {
		return
	}
	drifted, ok := f.drift(now, a, lease.InVain)
	if !ok {
		return
	}
	s, _, h := f.locked(a.Key)
	if h != nil {
		h.Undo(a, v) // what the denial has charged beyond the limit
	}
	s.mu.Unlock()
	*v = drifted
}
