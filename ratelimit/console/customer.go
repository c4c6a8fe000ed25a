package console

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
)

// sentence is for a customer who asks why requests are refused: the usage, and when the next request passes. It is ""
// if that is not known here. now is the wall clock, which divides windows. The value of the last entry names the
// customer, such as an API key. Requests at this node can use the tokens in hand here and those free at the store, so
// the text has their sum.
func (e *Explanation) sentence(rule *ratelimit.Rule, entries []config.Entry, now time.Time) string {
	if e.Look == nil || e.Owner != "" || e.Ledger == nil {
		return ""
	}
	who, limit := entries[len(entries)-1].Value, e.Limit
	if who == "" {
		who = "This key"
	}
	if e.LimitFrom == "override" {
		limit += " (override)"
	}
	is := e.Ledger
	if left := max(0, is.Free) + unspent(e.Look); left > 0 {
		return fmt.Sprintf("%s has %d left of %s.", who, left, limit)
	}
	text := fmt.Sprintf("%s is over %s: %s.", who, limit, usage(rule, is))
	if in, known := e.passesIn(rule, now); known {
		text += fmt.Sprintf(" The next request passes in %v; %s.", in, retries(rule))
	}
	return text
}

// usage splits what was charged. Only in a fixed window, and without costs after the fact, refusals are all beyond the
// limit.
func usage(rule *ratelimit.Rule, is *ratelimit.AccountLook) string {
	beyond := max(0, -is.Free)
	switch {
	case rule.Limit.Algorithm == ratelimit.Concurrency:
		return fmt.Sprintf("%d in flight", is.Charged)
	case beyond == 0:
		return fmt.Sprintf("%d admitted", is.Charged)
	case rule.Limit.Algorithm == ratelimit.FixedWindow && rule.Hold == nil:
		return fmt.Sprintf("%d admitted, %d refused", is.Charged-beyond, beyond)
	}
	return fmt.Sprintf("all is used, and %d more were charged", beyond)
}

// passesIn is the time until a request can pass again. known is false without a reset: then there is no promise to
// make.
func (e *Explanation) passesIn(rule *ratelimit.Rule, now time.Time) (time.Duration, bool) {
	in := e.WholeAgain
	if in == 0 && rule.Limit.Algorithm == ratelimit.FixedWindow && e.Ledger.Window > 0 {
		ends := rule.Limit.WindowEnd(e.Ledger.Window)
		in = time.UnixMicro(int64(ends)).Sub(now)
	}
	return max(time.Second, in.Round(time.Second)), in > 0
}

// retries says whether refused requests keep the key refused for longer.
func retries(rule *ratelimit.Rule) string {
	if rule.Limit.Algorithm != ratelimit.FixedWindow && rule.Coordination.OnDeny == ratelimit.DenyCharges {
		return "each retry before is charged, and extends this"
	}
	return "retries do not extend this"
}
