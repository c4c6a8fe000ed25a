package check

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-gate/sluice/leasing/lane"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/declare"
)

// regionFlags have check say what rules promise where regions share one store far away.
type regionFlags struct {
	Regions int           `default:"1" help:"Number of regions that share the store. With --rtt, also print the cost of the distance for each rule, and fail if a rule cannot wait for the store."`
	RTT     time.Duration `name:"rtt" placeholder:"TIME" help:"Round trip from a region to the store, such as 80ms, for --regions."`
}

const (
	// tripsAhead is the number of round trips for which a request near its limit may wait: a claim in flight, its own,
	// and one after a recall. An owner has half of the time of the node that asks it.
	tripsAhead = 4
	// shortWindow is a window whose turn, which takes a round trip, counts.
	shortWindow = 10 * time.Second
)

var errTooFar = errors.New("the store is too far away for some rules: raise their store_deadline")

// validate refuses wrong command lines. The longest round trip is that at which tripsAhead of them take the longest
// store_deadline that a rule may have.
func (f *regionFlags) validate(nodes int) error {
	switch {
	case f.Regions < 1 || f.Regions > nodes:
		return fmt.Errorf("--regions is %d, must be between 1 and --nodes, %d", f.Regions, nodes)
	case f.RTT < 0 || f.RTT > ratelimit.MaxStoreDeadline/tripsAhead:
		return fmt.Errorf("--rtt is %v, must be between 0 and %v", f.RTT, ratelimit.MaxStoreDeadline/tripsAhead)
	case f.Regions > 1 != (f.RTT > 0):
		return errors.New("--regions and --rtt need each other: the costs follow from both")
	}
	return nil
}

// declare prints the cost of the distance for each rule. It fails if a rule's requests cannot wait for one round trip:
// then each claim is late, and on_store_failure decides all.
func (f *regionFlags) declare(out io.Writer, rules *config.Rules, nodes int) error {
	rows := [][]string{{"RULE", "MODE", "FIRST REQUEST", "UNUSED AT THE LIMIT", "MESSAGES", "NODE IN A CUT"}}
	var notes []string
	far := false
	for _, r := range rules.All() {
		if r.Unlimited || r.RefusesAll() { // without the store
			continue
		}
		name, c := r.FullName(), &r.Coordination
		b := declare.Of(r, nodes, declare.SharedStore)
		// A message also waits for others to share its round trip, at most lane.Gather.
		far = far || f.patience(r) < f.RTT+lane.Gather
		// A slot is taken at the store for each request, so nothing is leased or left over.
		if r.Limit.Algorithm == ratelimit.Concurrency {
			rows = append(rows, []string{name, "concurrency", f.first(r) + ", each request", "0", "2 for a request", f.inCut(r, &b)})
			continue
		}
		rows = append(rows, []string{
			name, c.Mode.String(), f.first(r), fmt.Sprintf("demand of %v", 2*f.RTT), f.messages(r), f.inCut(r, &b),
		})
		// A shorter deadline works, but requests near the limit are decided by on_store_failure before recalled tokens
		// arrive.
		if c.Deadline() < f.RTT*tripsAhead {
			notes = append(notes, fmt.Sprintf("%s: store_deadline is %v; at %v use %v, so that requests near the limit wait "+
				"for recalled tokens.", name, c.Deadline(), f.RTT, f.RTT*tripsAhead))
		}
		if r.Limit.Period() < shortWindow {
			notes = append(notes, fmt.Sprintf("%s: for %v around each turn of its window, requests wait. Use windows of %v "+
				"or more.", name, f.RTT, shortWindow))
		}
		if !c.Mode.Spec().Owned {
			notes = append(notes, name+": each node waits and leases by itself. With mode routing, a region does so once.")
		}
	}
	fmt.Fprintf(out, "\nIn %d regions, %v from the store:\n\n%s\n", f.Regions, f.RTT, aligned(rows))
	writeWrapped(out, "", "First request: the wait for a key that is new in the window; around a turn of the window, up to "+
		"store_deadline, when on_store_failure decides. Unused: tokens that are in transit when a window ends; with sliding windows and large costs, up to 5 "+
		"percent of the limit. Messages: the maximum of a node (mode routing: of the owner, and of nodes where the key is hot) "+
		"for a key and a window: one is under way. Node in a cut: the maximum that a node admits beyond its leases in a window "+
		"in which the store does not answer; the division is by the nodes of all regions.")
	section(out, "the distance", notes)
	// The table is printed first, so that the error has its figures above it.
	if far {
		return errTooFar
	}
	return nil
}

// patience is the time that the store has for a request: an owner has half of that of the node that asks it.
func (f *regionFlags) patience(r *ratelimit.Rule) time.Duration {
	if r.Coordination.Mode.Spec().Owned {
		return r.Coordination.Deadline() / 2
	}
	return r.Coordination.Deadline()
}

// first is the wait of a key's first request.
func (f *regionFlags) first(r *ratelimit.Rule) string {
	if r.Drifts() {
		return fmt.Sprint(min(r.Coordination.CheckTimeout, r.Coordination.Deadline()), ", then drifts")
	}
	return fmt.Sprint(min(f.RTT+5*time.Millisecond, r.Coordination.Deadline()))
}

// messages is the maximum to the store for a key in a window: a node has one in flight. The next message leaves when
// the answer is there, so a period has one for each round trip, and one more.
func (f *regionFlags) messages(r *ratelimit.Rule) string {
	return grouped(int64(r.Limit.Period()/f.RTT) + 1)
}

// inCut is the maximum that a node of a region admits in a window while the region is cut off.
func (f *regionFlags) inCut(r *ratelimit.Rule, b *declare.Bounds) string {
	if !b.OnOutage.Node.Bounded() {
		return "all requests"
	}
	text := grouped(int64(b.OnOutage.Node.Tokens))
	if r.Drifts() {
		text += " and its drift"
	}
	return text
}
