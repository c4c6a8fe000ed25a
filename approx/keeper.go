package approx

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// SeatTTL is how long a seat is held without renewal. It is renewed at half.
const SeatTTL = 10 * time.Second

// margin is what the clocks of node and ledger may differ by over a TTL: the tenant stops that much earlier. The clocks
// of a Cluster's servers may differ by as much: one of them has the seats, and the others have windows of keys.
const margin = SeatTTL / 20

// seatless is how long a node that found all seats taken waits until it applies again.
const seatless = SeatTTL / 4

// sitTimeout bounds one application.
const sitTimeout = time.Second

// Keeper holds this node's seat. It is safe for concurrent use.
type Keeper struct {
	seats  Seats
	holder ratelimit.Holder
	clock  ratelimit.Clock
	now    atomic.Pointer[held]
	// OnChange is called when the node gets or loses a seat (Seat -1), or when the store of seats does not answer.
	// Set it before Run. It must not block.
	OnChange func(Tenancy, error)
	// Epoch, if set before Run, returns the state of the ledger's epochs (leasing.Fleet.Epoch). While the
	// ledger learns, a held seat is claimed again, because the ledger may have lost it. No new seat is taken:
	// it may be another node's.
	Epoch func() ratelimit.EpochKnown
}

// held is a tenancy and until when it may be used. It is replaced as a whole, and never changed: Share reads it by one
// pointer, without a lock. Without a seat, it has the tenancy none: the zero held would have seat 0.
type held struct {
	Tenancy
	until      ratelimit.Instant
	asked      ratelimit.Instant // when it was applied for
	wanted     Plan              // no seats: no rule needs one
	agreements []agreement       // Invariant: in the order of since, except for never
	probation  probation
}

// probation is the first time of a tenancy, in which the tenant spends nothing from it. A ledger that lost its
// data has no tenants, and gives away taken seats. The applicant may not have noticed the loss. Only an
// unchanged epoch that was read after the seat was given proves that there was none. The zero probation is over.
type probation struct {
	epoch uint64            // EpochKnown.ID, when it applied
	given ratelimit.Instant // when the answer came
	on    bool
}

// NewKeeper makes a keeper for one process; holder must be new with each.
func NewKeeper(seats Seats, holder ratelimit.Holder, clock ratelimit.Clock) *Keeper {
	k := &Keeper{seats: seats, holder: holder, clock: clock, OnChange: func(Tenancy, error) {}}
	k.now.Store(&held{Tenancy: none})
	return k
}

// Share returns the tokens of each key that this node may spend under the rule before the ledger answers: its part of
// the drift budget. It is 0 unless the node holds a seat that counts for the rule, and whose earlier tenants cannot
// have spent in windows that began at begins. It neither blocks nor allocates. Its checks: a seat that counts, no
// probation, the tenancy is not over, and the window began after all earlier tenants had stopped. Then the agreements
// give the smallest share.
func (k *Keeper) Share(
	now ratelimit.Instant, rule *ratelimit.Rule, begins ratelimit.LedgerTime,
) ratelimit.Tokens {
	t := k.now.Load()
	if t.Seat < 0 || t.probation.on || now >= t.until || begins < t.NotBefore {
		return 0
	}
	share, seats := shareUnder(t.agreements, now, rule, begins)
	if t.Seat >= seats {
		return 0
	}
	return share
}

// Seat is this node's: -1 if it has none now, and whether one is wanted.
func (k *Keeper) Seat() (seat int, wanted bool) {
	t := k.now.Load()
	if k.clock() >= t.until {
		return -1, t.wanted.Seats > 0
	}
	return t.Seat, t.wanted.Seats > 0
}

// Run keeps a seat until ctx is done, while the plan that wanted returns has rules that drift. It blocks. Due decides
// which of its looks apply, so they cost nothing in between.
func (k *Keeper) Run(ctx context.Context, wanted func() Plan) {
	k.keep(ctx, wanted())
	upkeep.Every(ctx, SeatTTL/20, func() { k.keep(ctx, wanted()) })
}

// keep applies if it is time to. Without a rule that drifts, it gives the seat up. It does not report it as clean,
// because its drift may not be confirmed yet.
func (k *Keeper) keep(ctx context.Context, wanted Plan) {
	if wanted.Seats == 0 {
		const clean = false
		k.Leave(ctx, clean)
		return
	}
	sent := k.clock()
	a, due := k.Due(sent, wanted)
	if !due {
		return
	}
	bounded, cancel := context.WithTimeout(ctx, sitTimeout)
	defer cancel()
	answer, err := k.seats.Sit(bounded, a)
	if err != nil && ctx.Err() == nil {
		k.OnChange(none, err)
	}
	k.Answer(sent, a, wanted, answer, err)
}

// Due returns what this node has to apply for at now, under a plan, if it is time
// to. Run calls it, and Answer; so does who drives a node in another time. The plan has seats.
func (k *Keeper) Due(now ratelimit.Instant, wanted Plan) (Application, bool) {
	known := k.epoch()
	t := k.judge(known)
	a := Application{
		Holder: k.holder, Seats: wanted.Seats, Now: t.Tenancy, Plan: wanted.id, epoch: known.ID,
	}
	if t.probation.on && known.ID != t.probation.epoch {
		a.Leave = true // it may be another's: the next tenant does not spend in its windows
		return a, true
	}
	// In a young epoch, the ledger may have lost the tenants: a held seat is stated again, and no other is taken.
	young := known.Young
	held := t.Seat >= 0 && t.Seat < wanted.Seats
	if young && !held && (t.Seat < 0 || now >= t.until) {
		return Application{}, false
	}
	// Where all seats are taken, one is free when its tenant has left: that is no news of a moment.
	if t.Seat < 0 && t.wanted.id == wanted.id && t.asked != 0 && now < t.asked.Add(seatless) {
		return Application{}, false
	}
	// While plans differ, or the epoch is young, there may be news.
	settled := held && !young && t.Agreed && t.wanted.id == wanted.id
	if settled && now < t.until.Add(margin-SeatTTL/2) {
		return Application{}, false
	}
	// From when it is sent, all others may agree on this plan, also if the answer is lost or comes before that.
	after := *t
	after.agreements = withAgreement(t.agreements, wanted, never, now)
	k.now.Store(&after)
	return a, true
}

// judge ends the probation of a tenancy that has proven itself: the epoch is that of the application, and was read
// after the seat was given. Only Due's goroutine changes a probation.
func (k *Keeper) judge(known ratelimit.EpochKnown) *held {
	t := k.now.Load()
	if t.probation.on && known.ID == t.probation.epoch && !known.Young && known.Asked >= t.probation.given {
		after := *t
		after.probation = probation{}
		k.now.Store(&after)
		return &after
	}
	return t
}

func (k *Keeper) epoch() ratelimit.EpochKnown {
	if k.Epoch == nil {
		return ratelimit.EpochKnown{}
	}
	return k.Epoch()
}

// Answer records how an application went that was sent at an instant, under a
// plan.
func (k *Keeper) Answer(sent ratelimit.Instant, a Application, wanted Plan, t Tenancy, err error) {
	before := k.now.Load()
	if err != nil {
		after := *before
		// The tenancy goes on until its end, and the next look applies again.
		after.wanted, after.asked = wanted, 0
		k.now.Store(&after)
		return
	}
	// The tenancy counts from before the application was sent, so it ends here before it does at the ledger.
	after := &held{
		Tenancy: t, until: sent.Add(SeatTTL - margin), asked: sent, wanted: wanted, agreements: before.agreements,
		probation: before.probation,
	}
	now, known := k.clock(), k.epoch()
	switch {
	case t.Seat < 0:
		after.probation = probation{}
		if a.Leave { // it was given up for a reason, and another may be taken
			after.asked = 0
		}
	case t.Fence != before.Fence:
		after.probation = probation{epoch: a.epoch, given: now, on: k.Epoch != nil}
	}
	if t.Seat < 0 || t.Fence != before.Fence || now >= before.until {
		after.agreements = nil // meanwhile the others may have agreed on something else
	}
	// A ledger that learns may lack other tenants, with another plan.
	if t.Seat >= 0 && t.Agreed && !known.Young {
		after.agreements = withAgreement(after.agreements, wanted, t.Since, now)
	}
	k.now.Store(after)
	// The answer to the first application is reported, too, though all seats may be taken.
	if t.Fence != before.Fence || before.wanted.Seats == 0 {
		k.OnChange(t, nil)
	}
}

// Leave gives the seat up. clean says that the ledger has confirmed all that was spent in windows that go on, so that
// the next tenant may use the seat at once. Run must have ended. It blocks for at most a second, or until ctx is done.
func (k *Keeper) Leave(ctx context.Context, clean bool) {
	a, ok := k.Resign(clean)
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, sitTimeout)
	defer cancel()
	_, err := k.seats.Sit(ctx, a)
	k.OnChange(none, err)
}

// Resign gives up using the seat, if there is one, and returns the application
// that announces it to others.
func (k *Keeper) Resign(clean bool) (Application, bool) {
	t := k.now.Swap(&held{Tenancy: none})
	if t.Seat < 0 {
		return Application{}, false
	}
	return Application{
		Holder: k.holder, Seats: t.wanted.Seats, Now: t.Tenancy, Plan: t.wanted.id, Leave: true, Clean: clean,
	}, true
}
