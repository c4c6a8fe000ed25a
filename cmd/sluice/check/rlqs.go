package check

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// quotaFlags have check say what rules promise where Envoys enforce them by themselves.
type quotaFlags struct {
	RLQS   bool `name:"rlqs" help:"Also print the bounds of each rule over RLQS, and fail if a rule cannot be divided among Envoys."`
	Envoys int  `default:"10" help:"With --rlqs: number of Envoys that share a key."`
}

var errNotDivisible = errors.New("not every rule can be divided among Envoys")

// filterSettings are what the bounds hang on, and what UNDER leaves out.
const filterSettings = `
UNDER excludes tokens at Envoys that do not need them when a window ends. There are more as demand nears the limit
(docs/explain/rlqs.md, "Use of limits").

The bounds hold with these settings of Envoy's filter (deploy/envoy/rlqs.yaml), for every bucket:

  no_assignment_behavior: {fallback_rate_limit: {blanket_rule: DENY_ALL}}
  expired_assignment_behavior: {expired_assignment_behavior_timeout: 60s, fallback_rate_limit: {blanket_rule: DENY_ALL}}
`

// declare prints what each rule promises.
func (f *quotaFlags) declare(out io.Writer, rules *config.Rules) error {
	fmt.Fprintf(out, "\nOver RLQS, with %d Envoys that share a key, for each key and window, in addition to the above:\n\n", f.Envoys)
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "RULE\tLIMIT\tOVER, ALL WELL\tOVER, EACH SILENT ENVOY\tOVER, EACH NEW ENVOY\tUNDER\tNEW KEY")
	var others, refused []string
	for _, r := range rules.All() {
		name := r.Domain + "." + r.Path
		b, err := sublease.Declare(r, f.Envoys)
		switch reason := rlqs.Reason(r); {
		case err != nil:
			refused = append(refused, fmt.Sprintf("%s (%s): %v", name, r.Limit, err))
		case reason != "":
			others = append(others, fmt.Sprintf("%s: Envoys are told %s", name, reason))
		default:
			fmt.Fprintf(w, "%s\t%s\t0\t%d (one lease)\t0, by DENY_ALL\t%d for each broken stream; %v at a window's end\tone request refused, then a trip and at most %v\n",
				name, r.Limit, b.SilentEach, b.Stranded, b.Turn, b.NewKey)
			if b.Held > 0 {
				others = append(others, fmt.Sprintf("%s: leases come from a bucket of %d; the other %d are held back for the refill of %v: a token may be at an Envoy for that "+
					"long; callers over RLS may take them, beyond the burst", name,
					r.Limit.Burst-b.Held, b.Held, sublease.BucketWindow))
			}
		}
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for _, line := range others {
		fmt.Fprintln(out, line)
	}
	if _, err := io.WriteString(out, filterSettings); err != nil {
		return err
	}
	if len(refused) > 0 {
		return fmt.Errorf("%w:\n  %s", errNotDivisible, strings.Join(refused, "\n  "))
	}
	return nil
}
