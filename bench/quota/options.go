package quota

import (
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Options are all that a run depends on.
type Options struct {
	Seed   uint64
	Envoys int
	Nodes  int // that share a ledger; 0: one, whose ledger is its own memory
	Keys   int // buckets of each Envoy; all have the same
	Rule   *ratelimit.Rule
	Rate   float64 // requests a second, of all Envoys and keys
	Direct float64 // requests a second that are asked over RLS, of all keys and nodes
	// Bursts has each Envoy have four times its requests for some seconds, and then hardly any.
	Bursts bool
	Skewed bool // the n-th Envoy has 1/n of the first one's requests
	Length time.Duration
	Start  time.Duration // into a window, at the beginning
	Trip   time.Duration // one way between an Envoy and its node, in the mean; a half of it at least
	Quirks envoy.Quirks
	Faults []Fault // in the order of their times
	Check  bool
}

// FaultKind is what goes wrong.
type FaultKind uint8

// What may go wrong.
const (
	Cut    FaultKind = iota // an Envoy's stream breaks
	Freeze                  // an Envoy stands still, for For
	Stall                   // messages between an Envoy and its node take For longer
	Late                    // answers to an Envoy take For longer, its reports do not
	Kill                    // a node ends without a word, and is there again after For, knowing nothing
	Hang                    // the ledger does not answer, for For
	Forget                  // the ledger loses all data
	Join                    // one more Envoy
)

// FaultKinds are their names, by value.
var FaultKinds = [...]string{
	Cut: "cut", Freeze: "freeze", Stall: "stall", Late: "late", Kill: "kill", Hang: "hang", Forget: "forget", Join: "join",
}

// Fault is something that goes wrong at a time.
type Fault struct {
	At   time.Duration
	Kind FaultKind
	Who  int // of the Envoys or nodes, from 0
	For  time.Duration
}

// String says it.
func (f Fault) String() string {
	return fmt.Sprintf("%v %s %d for %v", f.At, FaultKinds[f.Kind], f.Who, f.For)
}

// Result is the result of a run.
type Result struct {
	Requests, Admitted int64
	Over               ratelimit.Tokens // the most beyond the limit, of any key at any instant
	Declared           ratelimit.Tokens // the declared bound for the faults that occurred
	Under              float64          // the worst window's deficit against an exact limiter, without the first
	Streams            int64            // opened
	Reports, Answers   int64            // messages
	Violation          string           // "": there was none
}
