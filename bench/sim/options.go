package sim

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options are all that a run depends on.
type Options struct {
	Seed  uint64
	Nodes int
	Rule  *ratelimit.Rule
	// Second is the rule of another descriptor that each request has as well; all
	// requests share its one key. nil: there is none. Not with mode routing.
	Second  *ratelimit.Rule
	Changes []Change // of Rule, in the order of their times
	// Overrides of keys of Rule, whose limit has a ceiling.
	Overrides []Override
	Mix       Mix
	Parts     int // of the ledger, each with its own data and clock; 0: one. Not with mode routing
	Table     int // keys that a node may track; 0: as many as there are
	// Ledger, if set, is used instead of a ledger in memory: a real one. It gets the
	// ledger's clock. Not with mode routing.
	Ledger    func(clock func() ratelimit.LedgerTime) (Ledger, error)
	CAS       bool // the ledger is on a store that compares and sets, in memory
	Load      load.Load
	Source    func() load.Source // instead of Load's stream; Load still says Keys and Length
	Start     time.Duration      // into a window, at the beginning
	Net       Net
	Faults    []Fault   // in the order of their times
	Storeless bool      // mode routing with budgets in its owners' memory; the store is not used
	HotRate   float64   // requests a second from which on a key of mode routing is hot; 0: ten times the mean
	Refuses   bool      // a store that is down refuses connections, instead of not answering
	Check     bool      // the ledger's and the leases' invariants, at every step
	Trace     io.Writer // of events that are not decisions; nil: none
	Decisions bool      // of decisions, too
	Points    int       // of the Result's Timeline; 0: none
	CountOps  bool      // have the Result say what claims there were, against what the rule declares
	Progress  func(share float64)
}

// Change is a new version of the rule, which each node reads at a time of its own.
type Change struct {
	At     time.Duration
	Rule   *ratelimit.Rule
	Spread time.Duration // from the first node to the last
	What   string        // changed, for the summary
}

// Override is set by an operator at the ledger, if that answers.
type Override struct {
	At  time.Duration
	Key int
	To  *ratelimit.Override // nil: it is removed
	For time.Duration       // after which it is over; 0: never
}

// Mix is what requests want, beside spending what they cost; each a share of all.
type Mix struct {
	Peeks, Refunds float64
	Honest         bool    // nothing is refunded that was not spent
	Large          float64 // cost as much as a tenth of the limit to three times it
	// Settles give back a part of what another request has taken, at any node and some time later: that request has
	// held more than it has cost.
	Settles float64
}

// Ledger is what a run may be played against.
type Ledger interface {
	account.Ledger
	Forget()                                   // loses everything
	Evict(key string, window ratelimit.Window) // loses one account, and tells nobody
}

// Net is what lies between a node and the store, and between two nodes.
type Net struct {
	Trip Delay   // to the store and back
	Hop  Delay   // to another node and back
	Loss float64 // of messages, 0 to 1
	Dup  float64 // of claims that arrive twice, the second late
	Skew float64 // clocks run at rates that differ by at most so much, 0.0001 is 100 parts per million
}

// Delay is how long a round trip takes: at least Least, and Tail more in the
// mean, exponentially.
type Delay struct{ Least, Tail time.Duration }

// FaultKind is what goes wrong.
type FaultKind uint8

// What may go wrong.
const (
	Crash    FaultKind = iota // a node ends without a word
	Restart                   // a node that ended is there again, and knows nothing
	Pause                     // a node stops, with all it knows, for For
	Cut                       // a node and the store do not hear each other, for For
	Part                      // a node and the other nodes do not hear each other, for For
	Leave                     // a node ends, and gives back what it holds
	Slow                      // the store's answers take For more, until the next Slow
	Hang                      // the store does nothing, for For
	Down                      // the store is away, for For
	Amnesia                   // the store forgets everything
	Join                      // one more node
	Suspend                   // a node stops, and its clocks with it, for For
	Deaf                      // a node's claims arrive and it hears no answers, for For
	Late                      // a node's answers take For more, for as long
	Ahead                     // the ledger's clock goes ahead by For
	Back                      // the ledger's clock goes back by For
	FailOver                  // the store goes on with a copy that is For old
	Evict                     // the store loses one account
	Reset                     // an operator resets a key
)

// FaultKinds are their names, by value.
var FaultKinds = [...]string{
	Crash: "crash", Restart: "restart", Pause: "pause", Cut: "cut", Part: "part", Leave: "leave",
	Slow: "slow", Hang: "hang", Down: "down", Amnesia: "amnesia", Join: "join",
	Suspend: "suspend", Deaf: "deaf", Late: "late", Ahead: "clock ahead", Back: "clock back", FailOver: "failover", Evict: "evict", Reset: "reset",
}

// String is its name in files.
func (k FaultKind) String() string { return FaultKinds[k] }

// Fault is something that goes wrong at a time.
type Fault struct {
	At   time.Duration
	Kind FaultKind
	Node int // from 0
	For  time.Duration
}

// String is for people.
func (f Fault) String() string {
	return fmt.Sprintf("%v %v node %d for %v", f.At, f.Kind, f.Node, f.For)
}

// Bounds of a run.
const (
	MaxNodes  = 1000
	maxPoints = 10_000
	maxParts  = 64
)

// Validate reports every problem, each with its value and its bound.
func (o *Options) Validate() error {
	errs := o.Load.Validate()
	if o.Nodes < 1 || o.Nodes > MaxNodes {
		errs = append(errs, fmt.Errorf("the number of nodes is %d, must be 1 to %d", o.Nodes, MaxNodes))
	}
	if o.Rule == nil || o.Rule.Limit.Period() <= 0 || o.Rule.Unlimited {
		errs = append(errs, errors.New("there is no rule with a limit"))
	}
	for name, p := range map[string]float64{"loss": o.Net.Loss, "duplication": o.Net.Dup} {
		if !(p >= 0 && p < 1) {
			errs = append(errs, fmt.Errorf("the %s is %v, must be at least 0 and below 1", name, p))
		}
	}
	if !(o.Net.Skew >= 0 && o.Net.Skew <= 0.01) {
		errs = append(errs, fmt.Errorf("the clocks' skew is %v, must be 0 to 0.01", o.Net.Skew))
	}
	for _, d := range []time.Duration{o.Net.Trip.Least, o.Net.Trip.Tail, o.Net.Hop.Least, o.Net.Hop.Tail} {
		if d < 0 || d > time.Minute {
			errs = append(errs, fmt.Errorf("a trip takes %v, must be 0 to 1m", d))
		}
	}
	if o.Parts < 0 || o.Parts > maxParts {
		errs = append(errs, fmt.Errorf("the ledger has %d parts, must be 0 to %d", o.Parts, maxParts))
	}
	if o.Rule != nil && o.Rule.Coordination.Mode.Spec().Owned && (o.Parts > 1 || o.Ledger != nil) {
		errs = append(errs, errors.New("mode routing is played with a ledger of one part in memory"))
	}
	if o.Points < 0 || o.Points > maxPoints {
		errs = append(errs, fmt.Errorf("the timeline has %d points, must be 0 to %d", o.Points, maxPoints))
	}
	for i, c := range o.Changes {
		if c.Rule == nil || c.Rule.Limit.Period() <= 0 || c.Spread < 0 || i > 0 && c.At < o.Changes[i-1].At {
			errs = append(errs, fmt.Errorf("change %d (%s) has no rule with a limit, or is out of order", i, c.What))
		}
	}
	for i, f := range o.Faults {
		if int(f.Kind) >= len(FaultKinds) || f.Node < 0 || f.Node >= MaxNodes || f.For < 0 || i > 0 && f.At < o.Faults[i-1].At {
			errs = append(errs, fmt.Errorf("fault %d (%v) has no such kind or node, or is out of order", i, f))
		}
	}
	return errors.Join(errs...)
}
