package ledger

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

var (
	exhaustLarge  = flag.Bool("exhaust", false, "search the large scopes, for about a quarter of an hour")
	exhaustStates = flag.Int("exhaust-states", 40_000_000, "give up a scope that has more states")
	exhaustOnly   = flag.String("exhaust-scope", "", "search the scopes whose name has this in it")
)

// A scope is how small the world is that is searched.
type scope struct {
	name    string
	rule    ratelimit.Rule
	holders int
	want    tokens // the size of a lease
	ticks   int    // to a window; of a bucket, in which Requests come back
	ttl     int    // ticks
	travel  int    // ticks that a message may be under way without a fault
	horizon int    // the tick at which it ends; 0: it does not, all that ever happens is searched
	steps   int    // the most that happens; 0: any number
	faults  [faults]bool
	ahead   bool   // nodes claim the next window before it begins
	keeps   bool   // and do not forget a key that they hold under their second name
	direct  bool   // nodes claim what a request costs, and keep nothing
	costTwo bool   // requests may cost 2
	recalls bool   // the ledger can reach holders: leases are stretched while there is plenty, and recalled
	draws   bool   // and claims may be draws
	broken  string // the bug that is put in

	epoch    ledgerTime
	lateness int    // ticks after which a late message is lost
	worst    tokens // the most that was over in a state
}

// keeping is what its holders do with tokens that nobody spends.
func (s *scope) keeping() lease.Keeping {
	if s.direct {
		return lease.Returns
	}
	return lease.Keeps
}

func newScope(name string, algorithm ratelimit.Algorithm, reclaim ratelimit.Reclaim, limit tokens, ticks, ttl int, faults ...int) *scope {
	s := &scope{name: name, holders: 2, want: 2, ticks: ticks, ttl: ttl, lateness: ticks + 1}
	s.rule.Limit = ratelimit.Limit{Algorithm: algorithm, Unit: ratelimit.Second, Multiplier: uint32(ticks), Requests: limit}
	if algorithm == ratelimit.TokenBucket {
		s.rule.Limit.Burst, s.rule.Limit.Requests = limit, tokens(ticks)
	}
	s.rule.Coordination = ratelimit.DefaultCoordination()
	s.rule.Coordination.Reclaim = reclaim
	s.rule.Coordination.Lease.TTL = time.Duration(ttl) * smallTick
	s.rule.Coordination.Lease.Max = s.want
	s.epoch = s.rule.Limit.WindowEnd(s.rule.Limit.WindowAt(1_800_000_000_000_000))
	for _, f := range faults {
		s.faults[f] = true
	}
	return s
}

func (s *scope) with(changes ...func(*scope)) *scope {
	for _, change := range changes {
		change(s)
	}
	return s
}

func (s *scope) String() string {
	var names []string
	for f, on := range s.faults {
		if on {
			names = append(names, faultNames[f])
		}
	}
	return fmt.Sprintf("%s: %d nodes, %v, leases of %d for %d s, %v, faults: %s", s.name, s.holders, s.rule.Limit, s.want, s.ttl, s.rule.Coordination.Reclaim, strings.Join(names, ", "))
}

// search visits every state of a scope, nearest first.
type search struct {
	scope    *scope
	limit    int
	progress func(depth, states, edge int)

	table  []uint32 // open addressing: 1 + the index of a state, 0 where there is none
	hashes [][2]uint64
	parent []uint32
	by     []move
}

// A violation is a broken invariant, with the shortest way to it.
type violation struct {
	err   error
	trace []string
}

func (v *violation) Error() string {
	return v.err.Error() + "\n  " + strings.Join(v.trace, "\n  ")
}

// outcome is how a search ended.
type outcome struct {
	states, depth int
	moves         int
	complete      bool
	found         *violation
	took          time.Duration
}

func (s *search) run() (o outcome) {
	began := time.Now()
	defer func() { o.took, o.states = time.Since(began), len(s.hashes) }()
	s.table = make([]uint32, 1<<16)
	var writer stateWriter
	first := newSmallWorld(s.scope)
	s.add(writer.hash(first), 0, move{})
	edge, ids := []*smallWorld{first}, []uint32{0}
	var moves []move
	for ; len(edge) > 0 && (s.scope.steps == 0 || o.depth < s.scope.steps); o.depth++ {
		if s.progress != nil {
			s.progress(o.depth, len(s.hashes), len(edge))
		}
		var next []*smallWorld
		var nextIDs []uint32
		for i, w := range edge {
			edge[i] = nil // the collector may have it
			moves = w.moves(moves[:0])
			for _, m := range moves {
				o.moves++
				c := w.clone()
				err := c.play(m)
				if err == nil {
					id, fresh := s.add(writer.hash(c), ids[i], m)
					if !fresh {
						continue
					}
					next, nextIDs = append(next, c), append(nextIDs, id)
					err = c.checkLive()
				}
				if err != nil {
					o.found = &violation{err, s.trace(ids[i], m)}
					return o
				}
			}
			if len(s.hashes) > s.limit {
				return o
			}
		}
		edge, ids = next, nextIDs
	}
	o.complete = true
	return o
}

// add keeps a state, if it is new.
func (s *search) add(hash [2]uint64, parent uint32, by move) (id uint32, fresh bool) {
	if 4*len(s.hashes) >= 3*len(s.table) {
		s.grow()
	}
	mask := uint64(len(s.table) - 1)
	at := hash[0] & mask
	for ; s.table[at] != 0; at = (at + 1) & mask {
		if id := s.table[at] - 1; s.hashes[id] == hash {
			return id, false
		}
	}
	s.hashes, s.parent, s.by = append(s.hashes, hash), append(s.parent, parent), append(s.by, by)
	id = uint32(len(s.hashes) - 1)
	s.table[at] = id + 1
	return id, true
}

func (s *search) grow() {
	s.table = make([]uint32, 2*len(s.table))
	mask := uint64(len(s.table) - 1)
	for id, hash := range s.hashes {
		at := hash[0] & mask
		for s.table[at] != 0 {
			at = (at + 1) & mask
		}
		s.table[at] = uint32(id) + 1
	}
}

// trace plays the moves to a state again, and one more, and tells what happens.
func (s *search) trace(id uint32, last move) []string {
	moves := []move{last}
	for ; id != 0; id = s.parent[id] {
		moves = append(moves, s.by[id])
	}
	var lines []string
	w := newSmallWorld(s.scope)
	w.lines = &lines
	for i := len(moves) - 1; i >= 0; i-- {
		if w.play(moves[i]) != nil {
			break
		}
	}
	return lines
}

// Every state that a small world can get into keeps the invariants of the protocol
// (docs/protocol.md, sections 4.1 to 4.9): nothing is spent beyond the limit but what the faults so far explain,
// every fence is above all before it, each holder is charged what it has spent,
// what came late or twice changes nothing, and no token vanishes.
func TestExhaustively(t *testing.T) {
	for _, s := range scopes(*exhaustLarge) {
		if !strings.Contains(s.name, *exhaustOnly) {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			began := time.Now()
			q := search{scope: s, limit: *exhaustStates}
			if *exhaustLarge {
				q.progress = func(depth, states, edge int) {
					if depth%5 == 0 {
						t.Logf("%s: %d steps, %d states, %d of them at the edge, %.0f s", s.name, depth, states, edge, time.Since(began).Seconds())
					}
				}
			}
			o := q.run()
			switch {
			case o.found != nil:
				t.Fatalf("%v\nafter %d states: %v", s, o.states, o.found)
			case !o.complete:
				t.Fatalf("%v\nhas more than %d states, at %d steps", s, o.states, o.depth)
			}
			t.Logf("%9d states, %10d moves, %2d steps deep, %d over at most, %.1f s: %v", o.states, o.moves, o.depth, s.worst, o.took.Seconds(), s)
		})
	}
}

// A search that cannot fail proves nothing: each of these bugs must be found,
// and the shortest way to it is printed.
func TestExhaustiveSearchFindsBugs(t *testing.T) {
	for _, bug := range []struct {
		name  string
		scope *scope
	}{
		{"an old answer is taken for the latest", newScope("", fixed, safe, 4, 2, 1, faultDuplicate)},
		{"an overtaken claim is settled", newScope("", fixed, safe, 4, 2, 1, faultDelay)},
		{"a claim that arrives twice is settled twice", newScope("", fixed, safe, 4, 2, 1, faultDuplicate)},
		{"what was not received stays charged", newScope("", fixed, safe, 4, 2, 1, faultLoss)},
		{"a node spends what it gave back", newScope("", fixed, safe, 4, 2, 1)},
		{"a silent holder's tokens are credited under reclaim: safe", newScope("", fixed, safe, 4, 2, 1)},
		{"a restarted node keeps its name", newScope("", fixed, safe, 4, 2, 1, faultCrash)},
		{"the ledger's clock stands still while it forgets", newScope("", fixed, safe, 4, 2, 1, faultAmnesia)},
		{"the next window's lease is spent early", newScope("", fixed, safe, 4, 2, 1).with(func(s *scope) { s.ahead = true })},
		{"a node does not look at its lease's expiry", newScope("", fixed, eager, 4, 3, 2, faultPause)},
		{"a lease is counted from its answer", newScope("", fixed, eager, 4, 3, 2, faultDelay)},
		{"a node does not report in time", newScope("", fixed, eager, 4, 3, 2)},
		{"nobody is asked to give back", newScope("", fixed, safe, 4, 2, 1).with(recalls)},
		{"a node spends what it gave back to a recall", newScope("", fixed, safe, 4, 2, 1).with(recalls)},
		{"a recall takes what requests have waited for", newScope("", fixed, safe, 4, 2, 1).with(recalls)},
		{"what is asked for is taken for given back", newScope("", fixed, safe, 4, 2, 1).with(recalls)},
	} {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			bug.scope.broken = bug.name
			q := search{scope: bug.scope, limit: 500_000}
			o := q.run()
			if o.found == nil {
				t.Fatalf("not found in %d states", o.states)
			}
			t.Logf("found after %d states: %v", o.states, o.found)
		})
	}
}
