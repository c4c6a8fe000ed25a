package check

import (
	"errors"
	"fmt"
	"io"
	"strings"

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

// declare prints what each rule promises. A rule lands in one of three lists: rows for those that Envoys can enforce,
// others for those over RLQS with a fixed answer, and refused. A refused rule fails the command, but after the whole
// table was printed.
func (f *quotaFlags) declare(out io.Writer, rules *config.Rules) error {
	rows := [][]string{{
		"RULE", "LIMIT", "OVER, ALL WELL", "OVER, EACH SILENT ENVOY", "OVER, EACH NEW ENVOY", "UNDER", "NEW KEY",
	}}
	var others, refused []string
	for _, r := range rules.All() {
		name := r.FullName()
		b, err := sublease.Declare(r, f.Envoys)
		switch reason := rlqs.Reason(r); {
		case err != nil:
			refused = append(refused, fmt.Sprintf("%s (%s): %v", name, r.Limit, err))
		case reason != "":
			others = append(others, fmt.Sprintf("%s: Envoys are told %s", name, reason))
		default:
			rows = append(rows, []string{
				name, r.Limit.String(), "0", fmt.Sprintf("%d (one lease)", b.SilentEach), "0, by DENY_ALL",
				fmt.Sprintf("%d for each broken stream; %v at a window's end", b.Stranded, b.Turn),
				fmt.Sprintf("one request refused, then a trip and at most %v", b.NewKey),
			})
			// An Envoy may spend its tokens after the bucket has refilled, so a part of the burst is held back.
			if b.Held > 0 {
				others = append(others, fmt.Sprintf("%s: leases come from a bucket of %d; the other %d are held back for the refill of %v: a token may be at an Envoy for that "+
					"long; callers over RLS may take them, beyond the burst", name,
					r.Limit.Burst-b.Held, b.Held, sublease.BucketWindow))
			}
		}
	}
	fmt.Fprintf(out, "\nOver RLQS, with %d Envoys that share a key, for each key and window, in addition to the above:\n\n%s",
		f.Envoys, aligned(rows))
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
