package debugport

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
)

// Watch looks at nodes each time that the interval has passed, and shows what they did since the look before. It returns
// when ctx is done, when show fails, or at once if no node answers the first look. With all, it includes the nodes that
// share the store of those that answer. One goroutine calls show, so show needs no lock. A slow show delays the next
// look.
//
// A look asks all nodes for /console/state. Two looks give rates (since): counts of nodes only grow, so a difference is
// the work in between. top and the demo print the result.
func Watch(ctx context.Context, debug []string, all bool, interval time.Duration, show func(*Summary) error) error {
	// The first look shows nothing, because rates need two. It tells a mistyped address at once.
	before := lookAt(debug, all, nil)
	if err := before.failed(); err != nil {
		return err
	}
	ticks := time.NewTicker(interval)
	defer ticks.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticks.C:
		}
		now := lookAt(debug, all, before)
		if err := show(now.since(before)); err != nil {
			return err
		}
		before = now
	}
}

// look is all nodes at one time.
type look struct {
	at    time.Time
	nodes []Node
}

// lookAt asks all nodes at once. What one said last stays where it does not answer. The nodes of the fleet are found
// anew with each look, so a node that joins appears in the next table. It blocks for at most twice patience.
func lookAt(debug []string, all bool, before *look) *look {
	v := &look{at: time.Now()}
	v.ask(debug)
	// Nodes of the fleet are asked after the named ones, whose answers have their addresses.
	if all {
		v.ask(v.others(before))
	}
	if before != nil {
		v.remember(before)
	}
	return v
}

// failed is why no node answered, nil if one did.
func (v *look) failed() error {
	var errs []error
	for i := range v.nodes {
		if v.nodes[i].Err == nil {
			return nil
		}
		errs = append(errs, v.nodes[i].Err)
	}
	return errors.Join(errs...)
}

// ask adds nodes, in the order of their addresses as given. Each goroutine writes to its own element. The slice has its
// full length before, so no element moves.
func (v *look) ask(addresses []string) {
	first := len(v.nodes)
	for _, address := range addresses {
		v.nodes = append(v.nodes, Node{Debug: address})
	}
	var all sync.WaitGroup
	for i := range v.nodes[first:] {
		n := &v.nodes[first+i]
		all.Go(func() {
			n.Err = (port{address: n.Debug}).call(http.MethodGet, "/console/state", nil, &n.State)
			if n.Err == nil {
				n.LastAnswer = v.at
			}
		})
	}
	all.Wait()
}

// others are the nodes that answers name, without those that were asked. The user may have named a node by another
// address than it has in the list, such as localhost. Its entry has Here set, so it is not asked twice. While no answer
// names any, those of the look before are asked: the named node may be the one that restarts.
func (v *look) others(before *look) (addresses []string) {
	var asked []string // also the entry of a node before its last restart
	listed := before == nil
	for i := range v.nodes {
		listed = listed || len(v.nodes[i].State.Nodes) > 0
		asked = append(asked, v.nodes[i].Debug)
		for _, n := range v.nodes[i].State.Nodes {
			if n.Here {
				asked = append(asked, n.Debug)
			}
		}
	}
	for i := range v.nodes {
		for _, n := range v.nodes[i].State.Nodes {
			if !slices.Contains(asked, n.Debug) && !slices.Contains(addresses, n.Debug) {
				addresses = append(addresses, n.Debug)
			}
		}
	}
	if listed {
		return addresses
	}
	for i := range before.nodes {
		if address := before.nodes[i].Debug; !slices.Contains(asked, address) {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// leftFor is how long a table keeps the row of a node that has left the registry.
const leftFor = time.Minute

// remember takes from the look before what nodes said that do not answer, and those nodes that are no longer named. So
// a table keeps the row of a node that ended, with its last figures and the reason, for leftFor after its last answer.
func (v *look) remember(before *look) {
	for _, old := range before.nodes {
		i := slices.IndexFunc(v.nodes, func(n Node) bool { return n.Debug == old.Debug })
		switch {
		case i < 0 && v.at.Sub(old.LastAnswer) >= leftFor: // its row goes
		case i < 0:
			old.Err = errors.New("it left the registry of nodes")
			v.nodes = append(v.nodes, old)
		case v.nodes[i].Err != nil:
			v.nodes[i].State, v.nodes[i].LastAnswer = old.State, old.LastAnswer
		}
	}
}

// add adds the rule at another node. The maps that a node said stay as they are. add is for counts that are sums over
// nodes. Worst is a sum, too: each node's worst key may be another one, so it is the most that one key can have.
// Highest is no sum: each node's has the usage at all nodes.
func (all *Rule) add(r *metrics.RuleState) {
	all.Decisions += r.Decisions
	all.Denied += r.Denied
	all.Hits += r.Hits
	all.Ended += r.Ended
	all.Costless += r.Costless
	all.Highest = max(all.Highest, r.Highest)
	all.Admitted += r.Admitted
	all.Near += r.Near
	all.Beyond += r.Beyond
	all.Worst += r.Worst
	all.Over += r.Over
	all.Under += r.Under
	all.Drifting += r.Drifting
	all.Leased += r.Leased
	all.OverByPolicy, all.BeyondByPolicy = all.OverByPolicy+r.OverByPolicy, all.BeyondByPolicy+r.BeyondByPolicy
	all.Sources, all.Fallbacks = added(all.Sources, r.Sources), added(all.Fallbacks, r.Fallbacks)
}

// added is the sum of both, which stay as they are.
func added(a, b map[string]uint64) map[string]uint64 {
	sum := map[string]uint64{}
	maps.Copy(sum, a)
	for name, n := range b {
		sum[name] += n
	}
	return sum
}

// Summary is what nodes did between two looks.
type Summary struct {
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"` // since the look before; rates are over them
	Nodes   []Node    `json:"nodes"`
	Calls   float64   `json:"calls_per_second"`
	Refused float64   `json:"refused_per_second"`
	Failed  float64   `json:"errors_per_second"` // and shed calls
	Trips   float64   `json:"store_operations_per_second"`
	Alone   float64   `json:"decided_without_store_per_second"`
	Rules   []Rule    `json:"rules"`     // those with most decisions first
	Sets    []RuleSet `json:"rule_sets"` // of nodes that answer; more than one: they differ
}

// Node is one that was asked. It has the last answer.
type Node struct {
	Debug       string    `json:"debug"`
	Answers     bool      `json:"answers"`
	Error       string    `json:"error,omitempty"`
	LastAnswer  time.Time `json:"last_heard,omitzero"`
	Version     string    `json:"version"`
	Rules       string    `json:"rules"` // fingerprint
	RulesGood   bool      `json:"rules_good"`
	StoreFailed bool      `json:"store_does_not_answer"`
	// Problems are those of its last answer, the most severe first.
	Problems []console.Problem `json:"problems"`

	State console.State `json:"-"`
	Err   error         `json:"-"` // why it does not answer now; nil: it does
}

// Rule is the sum of a rule at all nodes.
type Rule struct {
	metrics.RuleState
	AdmittedRate float64 `json:"admitted_per_second"`
	DeniedRate   float64 `json:"denied_per_second"`
}

// RuleSet is a set of rules, and the nodes that have it.
type RuleSet struct {
	Fingerprint string   `json:"fingerprint"`
	Nodes       []string `json:"nodes"`
}

// fill sets what JSON shows of the last answer.
func (n *Node) fill() {
	n.Answers = n.Err == nil
	n.Version = n.State.Version
	n.StoreFailed = n.State.Store.BreakerOpen
	n.Problems = n.State.Problems
	n.Rules = n.State.Config.Fingerprint
	n.RulesGood = n.State.Config.Good
	n.Error = ""
	if n.Err != nil {
		n.Error = n.Err.Error()
	}
}

// of is what a node of a later look said here. If it did not answer then, or has started since, that is what it says
// now, so that counts of before are in no rate. A node that has started since counts from 0 again. Its own state as the
// look before gives a difference of 0.
func (v *look) of(n *Node) *console.State {
	for i := range v.nodes {
		old := &v.nodes[i]
		if old.Debug == n.Debug && !old.LastAnswer.IsZero() && old.State.Started.Equal(n.State.Started) {
			return &old.State
		}
	}
	return &n.State
}

// since is what happened between two looks. Its steps: for each node, add the growth of its counts and of its rules,
// then divide by the seconds, and sort.
func (v *look) since(before *look) *Summary {
	s := &Summary{At: v.at.UTC(), Seconds: v.at.Sub(before.at).Seconds(), Sets: v.sets(), Nodes: v.nodes}
	// A count may also fall, as when rules are replaced. Then the growth is 0, and not a huge number.
	grown := func(now, before uint64) float64 { return float64(now - min(before, now)) }
	rules := map[[3]string]*Rule{} // by domain, rule and mode
	for i := range s.Nodes {
		n := &s.Nodes[i]
		n.fill()
		now, old := &n.State, before.of(n)
		s.Calls += grown(now.Calls, old.Calls)
		s.Refused += grown(now.OverLimit, old.OverLimit)
		s.Failed += grown(now.Errors+now.Shed, old.Errors+old.Shed)
		s.Trips += grown(now.Store.RoundTrips, old.Store.RoundTrips)
		for reason, count := range now.Fallbacks {
			s.Alone += grown(count, old.Fallbacks[reason])
		}
		for j := range now.Rules {
			r := &now.Rules[j]
			// During a change of the mode, nodes count one rule under both modes. They are two rows, because their
			// bounds differ.
			name := [3]string{r.Domain, r.Rule, r.Mode}
			// A rule's first node is copied, and the others are added to the copy.
			all := rules[name]
			if all == nil {
				all = &Rule{RuleState: *r}
				rules[name] = all
			} else {
				all.add(r)
			}
			// A node names its busiest rules. What it did not name then counts as it does now.
			was := r
			for k := range old.Rules {
				if o := &old.Rules[k]; name == [3]string{o.Domain, o.Rule, o.Mode} {
					was = o
				}
			}
			all.AdmittedRate += grown(r.Admitted, was.Admitted)
			all.DeniedRate += grown(r.Denied, was.Denied)
		}
	}
	// The differences are sums until here.
	for _, rate := range []*float64{&s.Calls, &s.Refused, &s.Failed, &s.Trips, &s.Alone} {
		*rate /= s.Seconds
	}
	for _, r := range rules {
		r.AdmittedRate /= s.Seconds
		r.DeniedRate /= s.Seconds
		s.Rules = append(s.Rules, *r)
	}
	slices.SortFunc(s.Rules, func(a, b Rule) int {
		return cmp.Or(cmp.Compare(b.Decisions, a.Decisions), cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Mode, b.Mode))
	})
	return s
}

// sets are the sets of rules that nodes which answer have in force. Two sets for longer than a rollout mean that a node
// has not read the new rules.
func (v *look) sets() (sets []RuleSet) {
	for i := range v.nodes {
		n := &v.nodes[i]
		if n.Err != nil {
			continue
		}
		print := n.State.Config.Fingerprint
		at := slices.IndexFunc(sets, func(s RuleSet) bool { return s.Fingerprint == print })
		if at < 0 {
			at, sets = len(sets), append(sets, RuleSet{Fingerprint: print})
		}
		sets[at].Nodes = append(sets[at].Nodes, n.Debug)
	}
	return sets
}
