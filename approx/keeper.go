package approx

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// SeatTTL is how long a seat is held without renewal. It is renewed at half.
const SeatTTL = 10 * time.Second

// margin is what the clocks of node and ledger may differ by over a TTL: the
// tenant stops that much earlier.
const margin = SeatTTL / 20

// sitTimeout bounds one application.
const sitTimeout = time.Second

// Keeper holds this node's seat. It is safe for concurrent use.
type Keeper struct {
	seats  Seats
	holder ratelimit.Holder
	clock  ratelimit.Clock
	now    atomic.Pointer[held]
	// OnChange, if set before Run, is told when the node gets or loses a seat
	// (Seat -1), or when the seats cannot be asked. It must not block.
	OnChange func(Tenancy, error)
}

// held is a tenancy and until when it may be used.
type held struct {
	Tenancy
	until  ratelimit.Instant
	wanted int // how many seats there are; 0: no rule needs one
}

// NewKeeper makes a keeper for one process; holder must be new with each.
func NewKeeper(seats Seats, holder ratelimit.Holder, clock ratelimit.Clock) *Keeper {
	k := &Keeper{seats: seats, holder: holder, clock: clock}
	k.now.Store(&held{Tenancy: none})
	return k
}

// Share returns how many tokens of each key this node may spend under the rule
// before the ledger has answered: its part of the drift budget, while it holds
// a seat that counts for the rule and whose earlier tenants cannot have spent
// in windows that began at begins. For buckets, which do not begin anew, heir
// is the tenancy that takes over what they may have spent; 0 if there is
// nothing. It neither blocks nor allocates.
func (k *Keeper) Share(now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime) (share ratelimit.Tokens, heir ratelimit.Fence) {
	t := k.now.Load()
	if t.Seat < 0 || now >= t.until || t.Seat >= rule.Coordination.MaxNodes || begins < t.Taint {
		return 0, 0
	}
	if t.Taint > 0 {
		heir = t.Fence
	}
	return rule.DriftShare(), heir
}

// Seat is this node's: -1 if it has none now, and whether one is wanted.
func (k *Keeper) Seat() (seat int, wanted bool) {
	t := k.now.Load()
	if k.clock() >= t.until {
		return -1, t.wanted > 0
	}
	return t.Seat, t.wanted > 0
}

// Run keeps a seat while wanted returns how many there are (the highest
// max_nodes of all approx rules; 0: none is needed), until ctx is done. It
// blocks.
func (k *Keeper) Run(ctx context.Context, wanted func() int) {
	tick := time.NewTicker(SeatTTL / 20)
	defer tick.Stop()
	for ctx.Err() == nil {
		k.keep(ctx, wanted())
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// keep applies if it is time to.
func (k *Keeper) keep(ctx context.Context, seats int) {
	if seats == 0 {
		if k.now.Load().wanted > 0 {
			k.Leave(ctx, false)
		}
		return
	}
	sent := k.clock()
	a, due := k.Due(sent, seats)
	if !due {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sitTimeout)
	defer cancel()
	answer, err := k.seats.Sit(ctx, a)
	if first := k.now.Load().wanted == 0; err != nil && (ctx.Err() == nil || first) {
		k.tell(none, err)
	}
	k.Answer(sent, a, answer, err)
}

// Due returns what this node has to apply for at now, where there are seats
// seats, if it is time to. Run calls it, and Answer; so does who drives a node
// in another time.
func (k *Keeper) Due(now ratelimit.Instant, seats int) (Application, bool) {
	t := k.now.Load()
	if t.Seat >= 0 && t.Seat < seats && now < t.until.Add(margin-SeatTTL/2) {
		return Application{}, false
	}
	return Application{Holder: k.holder, Seats: min(seats, MaxSeats), TTL: SeatTTL, Now: t.Tenancy}, true
}

// Answer takes in how an application went that was sent at an instant.
func (k *Keeper) Answer(sent ratelimit.Instant, a Application, t Tenancy, err error) {
	before := k.now.Load()
	if err != nil {
		k.now.Store(&held{Tenancy: before.Tenancy, until: before.until, wanted: a.Seats})
		return
	}
	k.now.Store(&held{Tenancy: t, until: sent.Add(SeatTTL - margin), wanted: a.Seats})
	if t.Fence != before.Fence || before.wanted == 0 {
		k.tell(t, nil)
	}
}

func (k *Keeper) tell(t Tenancy, err error) {
	if k.OnChange != nil {
		k.OnChange(t, err)
	}
}

// Leave gives the seat up. clean says that the ledger has confirmed all that
// was spent, in windows that go on: then the next tenant may use the seat at
// once. Run must have ended. It blocks for at most a second, or until ctx is
// done.
func (k *Keeper) Leave(ctx context.Context, clean bool) {
	a, ok := k.Leaving(clean)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sitTimeout)
	defer cancel()
	_, err := k.seats.Sit(ctx, a)
	k.tell(none, err)
}

// Leaving gives up using the seat, if there is one, and returns the application
// that says so to others.
func (k *Keeper) Leaving(clean bool) (Application, bool) {
	t := k.now.Swap(&held{Tenancy: none})
	if t.Fence == 0 || t.Seat < 0 {
		return Application{}, false
	}
	return Application{Holder: k.holder, Seats: max(1, t.wanted), TTL: SeatTTL, Now: t.Tenancy, Leave: true, Clean: clean}, true
}
