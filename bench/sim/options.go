package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/report"
	"github.com/sluice-gate/sluice/leasing/account"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options determine a run. A zero field is the plain case: no fault, no skew, one part, all requests to nodes.
type Options struct {
	Seed  uint64
	Nodes int `in:"1..1000"`
	Rule  *ratelimit.Rule
	// Second is the rule of a second descriptor in each request. All requests share its one key. nil: there is
	// none. Not with mode routing.
	Second  *ratelimit.Rule
	Changes []Change // of Rule, in the order of their times
	Mix     Mix
	Parts   int `in:"0..64"` // of the ledger, each with its own data and clock; 0: one. Not with mode routing
	Regions int `in:"0..16"` // rings, over one store; 0: one. With mode routing and a store
	Table   int // maximum of keys that a node tracks; 0: no maximum
	// Ledger, if set, is a real ledger, which replaces the one in memory. It uses the ledger's clock. Not with
	// mode routing.
	Ledger    func(clock func() ratelimit.LedgerTime) (Ledger, error)
	Load      load.Load
	Recorded  *load.Recorded // instead of Load's stream; Load still says Keys and Length
	Start     time.Duration  // offset into a window, at the beginning
	Net       Net
	Faults    []Fault   // in the order of their times
	Envoys    *Envoys   // that lease parts of Rule's limit; nil: requests come to nodes
	Storeless bool      // mode routing with budgets in owners' memory, without the store; also one node of Envoys
	HotRate   float64   // requests a second above which a key of mode routing is hot; 0: ten times the mean
	Refuses   bool      // a store that is down refuses connections, instead of timing out
	Check     bool      // the ledger's and the leases' invariants, at every step
	Trace     io.Writer // of events other than decisions; nil: none
	Decisions bool      // trace decisions, too
	Points    int       `in:"0..10000"` // of the Result's Timeline; 0: none
	watch     watcher   // nil: none
}

// watcher sees what nodes do, for a test. It is called at the instant of each event and must not change the run.
type watcher interface {
	open(w *world)
	claimed(node ratelimit.Holder, k *key) // a claim has reached the store
	asked(n *node, k *key, a *ratelimit.Ask, v *ratelimit.Verdict)
}

// Change is a new version of the rule, which each node reads at its own time. Between the first node and the last,
// nodes have different versions, as in a rollout of a ConfigMap.
type Change struct {
	At     time.Duration
	Rule   *ratelimit.Rule
	Spread time.Duration // from the first node to the last
	What   string        // changed parts, for the summary
}

// String is for readers.
func (c Change) String() string {
	return fmt.Sprintf("%v %s to %v %v within %v", c.At, c.What, c.Rule.Limit, c.Rule.Coordination.Mode, c.Spread)
}

// Mix has the special requests, each as a share of all. The others spend their cost. A share is a probability for each
// request, drawn in the order of the fields; see wanted.
type Mix struct {
	Peeks, Refunds float64
	Honest         bool    // refunds return only spent tokens
	Large          float64 // cost as much as a tenth of the limit to three times it
	// Settles give back a part of another request's charge, at any node and later, as after a hold above the
	// cost.
	Settles float64
}

// Ledger is a ledger that a run can use. It is the node's interface, and what faults and checks need in addition.
type Ledger interface {
	account.Ledger
	account.Registrations
	Look(ctx context.Context, key string, w ratelimit.Window, limit *ratelimit.Limit) (*ratelimit.AccountLook, error)
	Prolong(ctx context.Context) (ratelimit.Epoch, error)
	Forget()                                   // loses everything
	Evict(key string, window ratelimit.Window) // loses one account, without a sign
}

// Net is the network between a node and the store, and between two nodes. Losses and repetitions are independent of
// each other and of time. Faults play longer ones.
type Net struct {
	Trip Delay         // to the store and back
	Hop  Delay         // to another node and back
	Loss float64       `in:"0..0.999"` // of messages
	Dup  float64       `in:"0..0.999"` // of claims that arrive twice, the second late
	Skew float64       `in:"0..0.01"`  // maximum difference of clock rates: 0.0001 is 100 parts per million
	Wake time.Duration // maximum time from an answer until a request that waits for it runs
}

// Delay is the time of a round trip: at least Least, plus an exponential tail with the mean Tail. The exponential tail
// is unbounded: a few messages take much longer than the mean, as on real networks.
type Delay struct{ Least, Tail time.Duration }

// FaultKind is a kind of fault.
type FaultKind uint8

// The faults.
const (
	Crash    FaultKind = iota // a node ends without a goodbye
	Restart                   // an ended node starts again, without state
	Pause                     // a node stops for For, and keeps its state
	Cut                       // a node and the store cannot reach each other, for For
	Part                      // a node and the other nodes cannot reach each other, for For
	Leave                     // a node ends, and gives back what it holds
	Slow                      // the store's answers take For more, until the next Slow
	Hang                      // the store does nothing, for For
	Down                      // the store is away, for For
	Amnesia                   // the store loses all data
	Join                      // one more node
	Suspend                   // a node stops, and its clocks with it, for For
	Deaf                      // a node's claims arrive, and their answers are lost, for For
	Late                      // a node's answers take For more, for as long
	Ahead                     // the ledger's clock goes ahead by For
	Back                      // the ledger's clock goes back by For
	FailOver                  // the store goes on with a copy that is For old
	Evict                     // the store loses one account
	Reset                     // an operator resets a key
	Move                      // a key's accounts move to another part of the ledger, like a slot of a Cluster
	Sever                     // a node and one part of the ledger cannot reach each other, for For
	Break                     // an Envoy's stream breaks. Of these last, Node is an Envoy
	Freeze                    // an Envoy stands still, for For
	Stall                     // messages between an Envoy and its node are held up, for For
	Lag                       // answers to an Envoy are held up, for For
	Enter                     // one more Envoy
)

// moves reports whether keys move. Then all parts have one clock, and each lane's epoch is that of all parts. Differing
// clocks would give an account's times another meaning in its new part.
func (o *Options) moves() bool {
	return slices.ContainsFunc(o.Faults, func(f Fault) bool { return f.Kind == Move })
}

// FaultKinds are their names, by value.
var FaultKinds = [...]string{
	Crash: "crash", Restart: "restart", Pause: "pause", Cut: "cut", Part: "part", Leave: "leave",
	Slow: "slow", Hang: "hang", Down: "down", Amnesia: "amnesia", Join: "join",
	Suspend: "suspend", Deaf: "deaf", Late: "late", Ahead: "clock ahead", Back: "clock back", FailOver: "failover", Evict: "evict", Reset: "reset",
	Move: "move", Sever: "sever", Break: "stream break", Freeze: "freeze", Stall: "stall", Lag: "lag", Enter: "envoy joins",
}

// String is its name in files.
func (k FaultKind) String() string { return FaultKinds[k] }

// Fault is a fault at a time.
type Fault struct {
	At   time.Duration
	Kind FaultKind
	Node int // from 0
	For  time.Duration
}

// String is for readers.
func (f Fault) String() string {
	return fmt.Sprintf("%v %v node %d for %v", f.At, f.Kind, f.Node, f.For)
}

// setFields sets fields of a coordination as rule files do, in a fixed order.
func setFields(c *ratelimit.Coordination, fields map[string]string) error {
	for _, field := range ratelimit.CoordinationFields {
		if text, ok := fields[field]; ok {
			if err := c.Set(field, text); err != nil {
				return err
			}
		}
	}
	return nil
}

// MaxNodes bounds the nodes of a run.
const MaxNodes = 1000

// Validate reports every problem, each with its value and its bound. Fields with a tag `in` are checked by their tags.
// Rings are played only with one ledger in memory.
func (o *Options) Validate() error {
	var errs report.Bounds
	errs.Check(o)
	errs.Check(&o.Load)
	errs.Check(&o.Net)
	if o.Envoys != nil {
		errs.Check(o.Envoys)
	}
	if o.Rule == nil || o.Rule.Limit.Period() <= 0 || o.Rule.Unlimited {
		errs = append(errs, errors.New("there is no rule with a limit"))
	}
	for _, d := range []time.Duration{o.Net.Trip.Least, o.Net.Trip.Tail, o.Net.Hop.Least, o.Net.Hop.Tail} {
		if d < 0 || d > time.Minute {
			errs = append(errs, fmt.Errorf("a trip takes %v, must be 0 to 1m", d))
		}
	}
	if o.Rule != nil && o.Rule.Coordination.Mode.Spec().Owned && (o.Parts > 1 || o.Ledger != nil) {
		errs = append(errs, errors.New("mode routing is played with a ledger of one part in memory"))
	}
	return errs.Err()
}
