package sim

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluice-gate/sluice/bench/envoy"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/zone"
)

// History makes a run from a seed: a rule, a fleet, demand and faults. Every setting of the product varies, and each
// kind of fault happens in some of the runs. All draws come from one stream of random numbers, in this order. A new
// draw in the middle would change every later part of every history, and the seeds of known bugs would lose their
// meaning. New parts therefore come last, or draw from a stream of their own (parts, replicas, regions, wake).
func History(seed uint64) Options {
	h := &historian{rand.New(rand.NewPCG(seed, 0x415)), Options{Seed: seed, Check: true}}
	h.rule()
	h.demand()
	h.net()
	h.faults()
	h.changes()
	h.mix()
	if h.chance(0.1) {
		h.lengthen()
	}
	h.ring()
	if h.o.strainsTills() {
		h.drawn()
	}
	h.parts()
	h.replicas()
	h.regions()
	h.wake()
	h.roll()
	h.ban()
	slices.SortStableFunc(h.o.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return h.o
}

// wake makes requests run late after an answer, as on a busy machine. It draws from numbers of its own, so that it
// changes nothing else.
func (h *historian) wake() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0x3a7e))}
	if of.chance(0.25) {
		h.o.Net.Wake = pick(of, time.Millisecond, 10*time.Millisecond, 10*time.Millisecond, 300*time.Millisecond)
	}
}

// roll restarts all nodes in turn, or at once, as an upgrade does. Each leaves or is killed, and starts again in its
// place. It draws its own random numbers.
func (h *historian) roll() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0x2077))}
	if !of.chance(0.1) {
		return
	}
	kind, away := pick(of, Leave, Leave, Crash), pick(of, 50*time.Millisecond, time.Second, 4*time.Second)
	pause := pick(of, 0, 300*time.Millisecond, away+time.Second)
	at := time.Duration(of.Int64N(int64(h.o.Load.Length)))
	for slot := range h.o.Nodes {
		h.o.Faults = append(h.o.Faults, Fault{At: at, Kind: kind, Node: slot}, Fault{At: at + away, Kind: Restart, Node: slot})
		at += pause
	}
}

// ban has nodes refuse all for a while, one after the other, as an override of 0 does (package overrides). It draws its
// own random numbers.
func (h *historian) ban() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0xba2)), o: h.o}
	if len(h.o.Changes) > 0 || h.o.Storeless || !of.chance(0.1) {
		return
	}
	none := *h.o.Rule
	none.Limit.Requests, none.Limit.Burst = 0, 0
	none.Coordination.OnStoreFailure = ratelimit.FailClosed
	at := time.Duration(0)
	for _, r := range []*ratelimit.Rule{&none, h.o.Rule} {
		at += time.Duration(of.Int64N(int64(h.o.Load.Length / 2)))
		h.o.Changes = append(h.o.Changes, Change{At: at, Rule: r, What: "ban", Spread: 600 * time.Millisecond})
	}
}

// ring makes the parts that only mode routing has: hot keys, and rings without a store, in which nodes join and leave
// more often. Without a store there are no changes of rules and no full tables, which are about accounts in a store.
// Nodes join and leave more often instead, because that is how budgets move.
func (h *historian) ring() {
	if !h.o.Rule.Coordination.Mode.Spec().Owned {
		return
	}
	h.o.HotRate = pick(h, 0, 1e9, 5, 50)
	if h.chance(0.4) {
		return
	}
	h.o.Storeless, h.o.Changes, h.o.Table = true, nil, 0
	h.o.Net.Loss = pick(h, 0, 0, 0.03)
	h.o.Faults = slices.DeleteFunc(h.o.Faults, func(f Fault) bool { return !slices.Contains(ringFaults, f.Kind) })
	for range h.IntN(6) {
		h.o.Faults = append(h.o.Faults, Fault{
			At: time.Duration(h.Int64N(int64(h.o.Load.Length))), Kind: pick(h, Join, Join, Leave, Leave, Restart), Node: h.IntN(h.o.Nodes + 2),
		})
	}
}

// ringFaults are the faults that matter without a store.
var ringFaults = []FaultKind{Crash, Restart, Pause, Part, Leave, Join, Suspend}

// parts makes one history in five use a ledger of several parts, like a Redis Cluster. Each part has its own accounts,
// epoch and clock, and fails, loses data and fails over alone. Nodes may reach some parts and not others. It draws its
// own random numbers, so that other histories stay the same. With a clock that is set, no keys move: a moved account
// would have times of another clock.
func (h *historian) parts() {
	if own := rand.New(rand.NewPCG(h.o.Seed, 0x9a27)); own.IntN(5) == 0 && !h.o.Rule.Coordination.Mode.Spec().Owned {
		h.o.Parts = 2 + own.IntN(3)
		clockSet := slices.ContainsFunc(h.o.Faults, func(f Fault) bool { return f.Kind == Ahead || f.Kind == Back })
		for range own.IntN(12) {
			at := time.Duration(own.Int64N(int64(h.o.Load.Length)))
			if f := (Fault{At: at, Kind: Move, Node: own.IntN(1000)}); !clockSet {
				h.o.Faults = append(h.o.Faults, f)
			}
		}
		for range own.IntN(4) {
			at, lasts := own.Int64N(int64(h.o.Load.Length)), own.Int64N(int64(15*time.Second))
			h.o.Faults = append(h.o.Faults, Fault{At: time.Duration(at), Kind: Sever, Node: own.IntN(1000), For: time.Duration(lasts)})
		}
	}
}

// replicas lets a master come back that was replaced by an older replica, with its own data of then. It draws its own
// random numbers. The copy is as old as the time since the failover, and a millisecond: the data of just before it.
func (h *historian) replicas() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0xc0b4))}
	for _, f := range h.o.Faults {
		if f.Kind == FailOver && of.chance(0.5) {
			as := 60*time.Millisecond + time.Duration(of.Int64N(int64(pick(of, time.Second, 12*time.Second))))
			if back := (Fault{At: f.At + as, Kind: FailOver, Node: f.Node, For: as + time.Millisecond}); back.At < h.o.Load.Length {
				h.o.Faults = append(h.o.Faults, back)
			}
		}
	}
}

// lengthen makes windows longer than the seat of a crashed node, with demand beyond the limit. A seat ends 10 s after
// its last renewal (approx.SeatTTL), so a window of 40 s outlasts a crashed node's, and the joined node can take it.
func (h *historian) lengthen() {
	l, limit := &h.o.Load, &h.o.Rule.Limit
	limit.Unit, limit.Multiplier, limit.Calendar = ratelimit.Second, 40, 0
	h.o.Start = 0
	l.Length = 60 * time.Second
	l.Keys = 1
	l.Rate = max(5, min(3*float64(limit.Requests)/40, mostRequests/l.Length.Seconds()))
	h.o.Faults = append(h.o.Faults, Fault{At: 20 * time.Second, Kind: Join})
}

// historian makes one history. Its methods fill in the options, each one part of them.
type historian struct {
	*rand.Rand
	o Options
}

// pick draws one of some values, each with the same probability.
func pick[T any](h *historian, of ...T) T { return of[h.IntN(len(of))] }

func (h *historian) chance(p float64) bool { return h.Float64() < p }

// rule makes a limit, mostly in windows of one to ten seconds, so that a history of half a minute has several turns. A
// few have long windows: they begin at most twenty seconds before a turn.
func (h *historian) rule() {
	r := &ratelimit.Rule{Domain: "history", Path: "key", Coordination: ratelimit.DefaultCoordination(), Counters: &ratelimit.RuleCounters{}}
	requests := pick(h, ratelimit.Tokens(1), 5, 20, 100, 400, 2000, 5000)
	r.Limit = ratelimit.Limit{
		Algorithm: ratelimit.Algorithm(h.IntN(len(ratelimit.RateAlgorithms()))), Unit: ratelimit.Second, Multiplier: uint32(1 + h.IntN(10)), Requests: requests,
	}
	if r.Limit.Algorithm == ratelimit.TokenBucket {
		r.Limit.Burst = max(1, requests/ratelimit.Tokens(1+h.IntN(3)))
	}
	h.coordination(&r.Coordination)
	if h.o.Seed%10 == 9 { // as in most rules: nodes may draw tokens of such windows
		c := &r.Coordination
		r.Limit.Algorithm, r.Limit.Burst, c.Reclaim, c.Audit = ratelimit.FixedWindow, 0, ratelimit.ReclaimSafe, false
		c.Lease.Fixed = 0
	}
	h.o.Rule = r
	h.o.Start = time.Duration(h.Int64N(int64(r.Limit.Period())))
	if h.chance(0.15) { // long windows, with one turn in the run
		r.Limit.Unit, r.Limit.Multiplier = pick(h, ratelimit.Minute, ratelimit.Hour, ratelimit.Day, ratelimit.Month, ratelimit.Year), 1
		if r.Limit.Unit == ratelimit.Month && h.chance(0.5) {
			r.Limit = r.Limit.Cut()
			if r.Limit.Unit == ratelimit.CalendarMonth && h.chance(0.5) {
				r.Limit = r.Limit.Billed(h.calendar())
			}
		}
		first := r.Limit.WindowAt(epoch - 1)
		length := r.Limit.WindowEnd(first + 1).Sub(r.Limit.WindowEnd(first))
		h.o.Start = length - time.Duration(h.Int64N(int64(20*time.Second)))
	}
}

// calendar is a billing month in a zone with clock changes at midnight, or far from UTC.
func (h *historian) calendar() ratelimit.Calendar {
	c, err := zone.Calendar(1+h.IntN(31), pick(h, "America/New_York", "Africa/Cairo", "Pacific/Kiritimati", "Etc/GMT+12"))
	if err != nil {
		panic(err) // the machine and the binary have no time zones
	}
	return c
}

// coordination varies all settings except the limit. Values that the list repeats are drawn more often.
func (h *historian) coordination(c *ratelimit.Coordination) {
	c.Mode = pick(h, ratelimit.Leasing, ratelimit.Leasing, ratelimit.Approx, ratelimit.Approx, ratelimit.Routing)
	c.OnStoreFailure = pick(h, ratelimit.FailClosed, ratelimit.FailClosed, ratelimit.FailClosed, ratelimit.FailLocal, ratelimit.FailLocal, ratelimit.FailOpen)
	c.OnDeny = ratelimit.OnDeny(h.IntN(len(ratelimit.OnDenies)))
	if h.chance(0.25) {
		c.Reclaim = ratelimit.ReclaimEager
	}
	if h.IntN(4) < 2 {
		c.Lease.Fixed = pick(h, ratelimit.Tokens(1), 1, 10, 100)
	}
	c.MaxNodes = 1 + h.IntN(8)
	c.DriftBudget = pick(h, ratelimit.Share{PPM: 5000}, ratelimit.Share{PPM: 10_000}, ratelimit.Share{PPM: 50_000}, ratelimit.Share{Tokens: 20})
	c.CheckTimeout = pick(h, 0, 2*time.Millisecond, 10*time.Millisecond)
	c.Audit = h.chance(0.1)
}

// changes changes the rule node by node: one part of it, or all. Each change starts from the version before, so parts
// of it add up.
func (h *historian) changes() {
	if !h.chance(0.3) {
		return
	}
	rule := h.o.Rule
	for at := time.Duration(0); len(h.o.Changes) < 3; {
		at += time.Duration(h.Int64N(int64(h.o.Load.Length)))
		if at >= h.o.Load.Length {
			return
		}
		next := *rule
		what := h.changed(&next)
		rule = &next
		h.o.Changes = append(h.o.Changes, Change{At: at, Rule: rule, What: what, Spread: time.Duration(h.Int64N(int64(pick(h, time.Millisecond, time.Second, 8*time.Second))))})
	}
}

// changeable names the parts of a rule that can change, as changed reports them.
var changeable = [...]string{"limit", "unit", "algorithm", "mode", "reclaim", "max_nodes", "audit", "others", "ban"}

// changed changes a part of a rule, and names it. Rules stay in mode routing, or outside of it. A subtraction from the
// sum of two values of an enumeration gives the other one.
func (h *historian) changed(r *ratelimit.Rule) string {
	c, l := &r.Coordination, &r.Limit
	other := ratelimit.DefaultCoordination()
	h.coordination(&other)
	switch h.IntN(8) {
	case 0:
		l.Requests = max(1, pick(h, l.Requests/2, l.Requests*2, l.Requests+1))
		if l.Algorithm == ratelimit.TokenBucket {
			l.Burst = max(1, l.Requests/ratelimit.Tokens(1+h.IntN(3)))
		}
		return "limit"
	case 1:
		l.Unit, l.Multiplier, l.Calendar = ratelimit.Second, uint32(1+h.IntN(10)), 0
		return "unit"
	case 2:
		l.Algorithm, l.Burst = ratelimit.Algorithm(h.IntN(len(ratelimit.RateAlgorithms()))), max(1, l.Requests/2)
		if l.Unit.OfCalendar() {
			l.Unit, l.Calendar = ratelimit.Month, 0
		}
		return "algorithm"
	case 3:
		if !c.Mode.Spec().Owned {
			c.Mode = ratelimit.Leasing + ratelimit.Approx - c.Mode
		}
		return "mode"
	case 4:
		c.Reclaim = ratelimit.ReclaimEager - c.Reclaim
		return "reclaim"
	case 5:
		c.MaxNodes, c.DriftBudget = other.MaxNodes, other.DriftBudget
		return "max_nodes"
	case 6:
		c.Audit = !c.Audit
		return "audit"
	default:
		c.Lease, c.OnStoreFailure, c.OnDeny, c.CheckTimeout = other.Lease, other.OnStoreFailure, other.OnDeny, other.CheckTimeout
		return "others"
	}
}

// mix varies requests, the number of descriptors, and the size of a node's table. In two of three seeds, refunds are
// honest: only then do the books compare exactly.
func (h *historian) mix() {
	if h.chance(0.3) {
		h.o.Mix = Mix{Peeks: 0.1 * h.Float64(), Refunds: 0.1 * h.Float64(), Large: 0.05 * h.Float64(), Honest: h.o.Seed%3 != 0}
	}
	if !h.o.Rule.Coordination.Mode.Spec().Owned && h.chance(0.2) {
		second := *h.o.Rule
		second.Path, second.Counters = "second", &ratelimit.RuleCounters{}
		second.Limit.Requests *= ratelimit.Tokens(1 + h.IntN(4))
		h.coordination(&second.Coordination)
		if second.Coordination.Mode.Spec().Owned {
			second.Coordination.Mode = ratelimit.Approx
		}
		h.o.Second = &second
	}
	if h.chance(0.05) {
		h.o.Table = 1 + h.IntN(8)
	}
}

// mostRequests keeps a history short. Both the rate and the length follow from the limit, and their product could be
// millions.
const mostRequests = 12_000

// demand varies the number of nodes and keys, and the load. Demand is 0.3 to 4.3 times the limit, so that some
// histories never reach it and others are always over it.
func (h *historian) demand() {
	h.o.Nodes = 1 + h.IntN(6)
	limit := h.o.Rule.Limit
	keys := pick(h, 1, 1, 2, 5, 50)
	period := min(limit.Period(), 20*time.Second) // of a longer one, an end and a beginning are played
	length := 2*period + time.Duration(h.Int64N(int64(15*time.Second)))
	rate := float64(limit.Requests) / period.Seconds() * float64(keys) * (0.3 + 4*h.Float64())
	rate = max(5, min(rate, mostRequests/length.Seconds()))
	h.o.Load = load.Load{Rate: rate, Shape: load.Shape(h.IntN(len(load.Shapes))), Keys: keys, Skew: pick(h, 0, 1.1), Length: length, Cost: pick(h, 1, 1, 1, 3, 10)}
}

// net varies the times of trips, losses, repetitions and the rates of clocks. Half of the stores refuse connections
// while they are down, and the others let them time out.
func (h *historian) net() {
	n := &h.o.Net
	n.Trip.Least = pick(h, 0, 200*time.Microsecond, time.Millisecond, 8*time.Millisecond, 50*time.Millisecond)
	n.Trip.Tail = pick(h, 0, 0, time.Millisecond, 20*time.Millisecond)
	n.Hop = pick(h, Delay{Least: 200 * time.Microsecond}, Delay{Least: time.Millisecond, Tail: time.Millisecond})
	n.Loss = pick(h, 0, 0, 0.02, 0.2)
	n.Dup = pick(h, 0, 0, 0.1)
	n.Skew = pick(h, 0, 20e-6, 90e-6)
	h.o.Refuses = h.chance(0.5)
}

// faults draws up to nine faults. Losses of data and steps of the clock happen in few histories only: the bound is wide
// after them, and other bugs would hide in it.
func (h *historian) faults() {
	if h.chance(0.2) {
		return
	}
	length := int64(h.o.Load.Length)
	slots := h.o.Nodes
	forget, steps := h.chance(0.2), h.chance(0.15)
	for range h.IntN(10) {
		f := Fault{
			At: time.Duration(h.Int64N(length)), Kind: FaultKind(h.IntN(int(Move))), Node: h.IntN(slots + 2),
			For: time.Duration(h.Int64N(int64(pick(h, 100*time.Millisecond, time.Second, 12*time.Second)))),
		}
		switch f.Kind {
		case Slow:
			f.For = time.Duration(h.Int64N(int64(60 * time.Millisecond)))
		case Late:
			f.For = time.Duration(h.Int64N(int64(3 * time.Second)))
		case Suspend:
			f.For += time.Duration(h.Int64N(int64(20 * time.Second)))
		case FailOver:
			f.For = time.Duration(h.Int64N(int64(pick(h, 100*time.Millisecond, 3*time.Second))))
		case Amnesia, Evict:
			if !forget {
				continue
			}
		case Ahead, Back:
			if !steps {
				continue
			}
			f.For = time.Duration(h.Int64N(int64(pick(h, time.Second, time.Hour))))
		}
		if f.Kind == FailOver && !forget {
			continue
		}
		h.o.Faults = append(h.o.Faults, f)
	}
}

// strainsTills reports whether a history is one of drawn's, one in twenty. It looks at the seed and not at the history,
// so that it is the same for the summary and for History.
func (o *Options) strainsTills() bool { return o.Seed%20 == 19 }

// drawn makes a history that strains draws. Demand is close to the limit, and the limit is no multiple of a draw.
// Windows turn often. The limit changes node by node, several times in a window. Small tables drop keys with draws.
// Answers are lost, nodes leave and return, and in some the ledger's clock is set. It replaces the rule, the demand and
// the faults of a history. Draws need fixed windows, a safe reclaim and no audit, so these are set.
func (h *historian) drawn() {
	r := h.o.Rule
	c := &r.Coordination
	if c.Mode.Spec().Owned {
		c.Mode = pick(h, ratelimit.Leasing, ratelimit.Leasing, ratelimit.Approx)
	}
	c.OnStoreFailure = ratelimit.FailClosed
	c.Reclaim = ratelimit.ReclaimSafe
	c.Audit = false
	c.Lease.Fixed = 0
	r.Limit = ratelimit.Limit{
		Unit: ratelimit.Second, Multiplier: uint32(3 + h.IntN(10)), Requests: pick(h, ratelimit.Tokens(20), 40, 100, 1000) + ratelimit.Tokens(h.IntN(40)),
	}
	period := r.Limit.Period()
	h.o.Start = time.Duration(h.Int64N(int64(period)))
	h.o.Nodes = 2 + h.IntN(4)
	h.o.Second = nil
	h.o.Mix = Mix{}
	h.o.Storeless = false
	h.o.Table = pick(h, 0, 0, 0, 1, 2)

	l := &h.o.Load
	l.Keys = 1 + h.IntN(4)
	l.Cost = pick(h, 1, 1, 3)
	l.Length = 3*period + time.Duration(h.Int64N(int64(period)))
	rate := float64(r.Limit.Requests) / period.Seconds() * float64(l.Keys) / float64(l.Cost) * (0.5 + 2*h.Float64())
	l.Rate = max(2, min(rate, mostRequests/l.Length.Seconds()))

	h.o.Changes = nil
	if h.chance(0.5) {
		h.relimit()
	}
	h.o.Faults = nil
	kinds := []FaultKind{Deaf, Deaf, Late, Late, Cut, Leave, Leave, Join, Crash, Restart, Restart, Pause, Suspend}
	if h.chance(0.25) {
		kinds = append(kinds, Ahead, Back, Back)
	}
	for range h.IntN(8) {
		f := Fault{
			At: time.Duration(h.Int64N(int64(l.Length))), Kind: pick(h, kinds...), Node: h.IntN(h.o.Nodes + 1),
			For: time.Duration(h.Int64N(int64(pick(h, 100*time.Millisecond, time.Second, period)))),
		}
		if f.Kind == Back || f.Kind == Ahead {
			f.For = time.Duration(h.Int64N(int64(3 * period)))
		}
		h.o.Faults = append(h.o.Faults, f)
	}
}

// relimit changes only the limit, node by node, a few times: at any time, or shortly before a window ends, when the
// next one is claimed early.
func (h *historian) relimit() {
	rule := h.o.Rule
	at := time.Duration(0)
	for range 1 + h.IntN(4) {
		at += time.Duration(h.Int64N(int64(h.o.Load.Length / 2)))
		if h.chance(0.5) {
			period := rule.Limit.Period()
			rest := period - (at+h.o.Start)%period
			at += rest - 1 - time.Duration(h.Int64N(int64(min(2*time.Second, rest))))
		}
		if at >= h.o.Load.Length {
			return
		}
		next := *rule
		n := next.Limit.Requests
		next.Limit.Requests = max(20, pick(h, n-1, n+1, n-n/10, n+n/10, n/2, n*2))
		rule = &next
		h.o.Changes = append(h.o.Changes, Change{At: at, Rule: rule, What: "limit", Spread: time.Duration(h.Int64N(int64(8 * time.Second)))})
	}
}

// Regions share a far store. A node is in a region by its slot, and rings do not span regions.

// region is the name of a node's region.
func (w *world) region(slot int) string { return fmt.Sprint("region-", slot%max(1, w.Regions)) }

// regions makes some histories of mode routing with a store play regions that are far from it. Some are cut off, also
// across a turn of the window, start anew, or drain into others. It draws its own random numbers.
func (h *historian) regions() {
	of := &historian{Rand: rand.New(rand.NewPCG(h.o.Seed, 0x4e91))}
	c := &h.o.Rule.Coordination
	if !c.Mode.Spec().Owned || h.o.Storeless || !of.chance(0.4) {
		return
	}
	h.o.Regions = 2 + of.IntN(2)
	h.o.Nodes = max(h.o.Nodes, h.o.Regions)
	trip := pick(of, 20*time.Millisecond, 80*time.Millisecond, 150*time.Millisecond)
	h.o.Net.Trip = Delay{Least: trip, Tail: pick(of, 0, 5*time.Millisecond)}
	c.StoreDeadline = pick(of, 3*trip, 6*trip)
	for i := range h.o.Changes {
		h.o.Changes[i].Rule.Coordination.StoreDeadline = c.StoreDeadline
	}
	for range of.IntN(4) {
		h.strikeRegion(of)
	}
}

// strikeRegion lets the same happen to all nodes of a region. A fault across a turn is centred on it: half of it comes
// before, and half after.
func (h *historian) strikeRegion(of *historian) {
	length, period := h.o.Load.Length, h.o.Rule.Limit.Period()
	at := time.Duration(of.Int64N(int64(length)))
	lasts := time.Duration(of.Int64N(int64(pick(of, time.Second, 12*time.Second))))
	if turn := period - (at+h.o.Start)%period; of.chance(0.3) && at+turn < length { // across a turn
		at += max(0, turn-lasts/2)
	}
	kind := pick(of, Cut, Cut, Crash, Leave)
	for slot := of.IntN(h.o.Regions); slot < h.o.Nodes; slot += h.o.Regions {
		h.o.Faults = append(h.o.Faults, Fault{At: at, Kind: kind, Node: slot, For: lasts})
		if kind != Cut && of.chance(0.7) {
			h.o.Faults = append(h.o.Faults, Fault{At: at + lasts, Kind: Restart, Node: slot})
		}
	}
}

// HistoryOfEnvoys makes a run from a seed: a few Envoys of any kind, nodes with a ledger or alone, and faults of each.
// Windows are minutes: shorter ones cannot be divided (sublease.ShortestWindow).
func HistoryOfEnvoys(seed uint64) Options {
	h := &historian{rand.New(rand.NewPCG(seed, 0x72)), Options{Seed: seed, Check: true}}
	limit := ratelimit.Tokens(20 + h.IntN(400))
	e := &Envoys{Count: 1 + h.IntN(6), Skewed: h.chance(0.5), Bursts: h.chance(0.4), Quirks: h.quirks()}
	h.o.Envoys, h.o.Nodes = e, h.IntN(4)
	if h.o.Nodes == 0 {
		h.o.Nodes, h.o.Storeless = 1, true
	}
	h.o.Rule = &ratelimit.Rule{
		Limit: ratelimit.Limit{Unit: ratelimit.Minute, Requests: limit}, Coordination: ratelimit.DefaultCoordination(),
	}
	switch l := &h.o.Rule.Limit; h.IntN(3) {
	case 0:
		l.Algorithm = ratelimit.SlidingWindow
	case 1: // of a minute's tokens at least, and of four minutes' at most
		l.Algorithm, l.Burst = ratelimit.TokenBucket, limit+ratelimit.Tokens(h.IntN(int(3*limit)))
	}
	if h.chance(0.2) {
		h.o.Rule.Coordination.Lease.Fixed = 1 + ratelimit.Tokens(h.IntN(int(limit)))
	}
	if h.chance(0.3) {
		e.Direct = 0.5 * h.Float64()
	}
	h.o.Start = time.Duration(h.Int64N(int64(time.Minute)))
	h.o.Load = load.Load{
		Rate: float64(limit) / 60 * (0.3 + 3*h.Float64()), Keys: 1 + h.IntN(3),
		Shape:  pick(h, load.Steady, load.Steady, load.Burst, load.Ramp),
		Length: time.Minute + time.Duration(h.Int64N(int64(2*time.Minute))),
	}
	if e.Bursts {
		h.o.Load.Rate *= 4
	}
	trip := time.Duration(h.Int64N(int64(40 * time.Millisecond)))
	h.o.Net.Hop = Delay{Least: trip, Tail: trip}
	if h.chance(0.85) {
		h.strikeEnvoys()
	}
	slices.SortStableFunc(h.o.Faults, func(a, b Fault) int { return cmp.Compare(a.At, b.At) })
	return h.o
}

// quirks are stock Envoy's, or those of one that has mended some.
func (h *historian) quirks() envoy.Quirks {
	q := envoy.Stock()
	if h.chance(0.5) {
		return q
	}
	q.ScalesChanged = h.chance(0.5)
	q.ComparesLittle = h.chance(0.5)
	q.LosesReports = h.chance(0.5)
	q.WholeSecondElapsed, q.WholeSecondTTL = h.chance(0.5), h.chance(0.5)
	return q
}

// envoyFaults are the faults of histories of Envoys.
var envoyFaults = []FaultKind{Break, Freeze, Stall, Lag, Crash, Hang, Amnesia, Enter}

// strikeEnvoys draws one to six faults of Envoys and their nodes. A crashed node always starts again, after the time of
// its fault. The longest faults outlast a window of a minute.
func (h *historian) strikeEnvoys() {
	for range 1 + h.IntN(6) {
		f := Fault{
			At: time.Duration(h.Int64N(int64(h.o.Load.Length))), Kind: pick(h, envoyFaults...), Node: h.IntN(8),
			For: time.Duration(h.Int64N(int64(pick(h, time.Second, 8*time.Second, 70*time.Second)))),
		}
		if h.chance(0.5) { // around the turn of a window
			turn := time.Minute*time.Duration(1+h.IntN(2)) - h.o.Start
			f.At = min(max(0, turn-time.Duration(h.Int64N(int64(8*time.Second)))), h.o.Load.Length)
		}
		if f.Kind == Crash {
			f.Node %= h.o.Nodes
			h.o.Faults = append(h.o.Faults, Fault{At: f.At + f.For, Kind: Restart, Node: f.Node})
		}
		h.o.Faults = append(h.o.Faults, f)
	}
}
