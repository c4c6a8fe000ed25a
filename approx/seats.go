package approx

import (
	"context"
	"errors"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Seats grants seats. Sit is atomic. It blocks at most until ctx is done.
type Seats interface {
	Sit(ctx context.Context, a Application) (Tenancy, error)
}

// Application requests, renews or returns a seat.
type Application struct {
	Holder ratelimit.Holder
	// Seats is how many there are: seats are numbered from 0.
	Seats int
	// Now is the tenancy that the holder has; its Fence is 0 for none.
	Now Tenancy
	// Plan is of the rules that the holder has (Plan's id).
	Plan uint64
	// Leave gives the seat up. Clean says that nothing was spent from it that
	// the ledger has not confirmed, in any window that goes on.
	Leave, Clean bool

	epoch uint64 // the ledger's, by the holder's last reading (Keeper.Epoch)
}

// Tenancy is a seat held for [SeatTTL], which the holder counts from when it applied.
type Tenancy struct {
	Seat  int             // -1: all are taken
	Fence ratelimit.Fence // issued when the seat was taken; each is greater than all before
	// NotBefore is when an earlier tenancy ended that may have left unconfirmed
	// spending behind: windows that began before it are not to be spent in.
	NotBefore ratelimit.LedgerTime
	// Agreed says that all tenants have the same plan, and Since from when on none has spent under another.
	Agreed bool
	Since  ratelimit.LedgerTime
}

// none is the answer where all seats are taken.
var none = Tenancy{Seat: -1}

// MaxSeats is how many seats there may be.
const MaxSeats = ratelimit.MaxMaxNodes

var errSeats = errors.New("the number of seats must be 1 to 10000, with a holder")

// seat is the record of one, as a store has it. The zero seat was never taken. A seat is free from Expires on.
type seat struct {
	Holder    ratelimit.Holder     `json:"holder,omitempty"` // 0: no tenant
	Fence     ratelimit.Fence      `json:"fence"`
	Expires   ratelimit.LedgerTime `json:"expires,omitempty"` // 0: no tenant
	NotBefore ratelimit.LedgerTime `json:"not_before,omitempty"`
	Plan      uint64               `json:"plan,omitempty"` // 0: of a release that does not tell
	// Since is until when a tenant may have spent from it under another plan.
	Since ratelimit.LedgerTime `json:"since,omitempty"`
}

// ended is until when the last tenant of a free seat may have spent: one that did not leave, until it expired.
func (s *seat) ended() ratelimit.LedgerTime { return max(s.NotBefore, s.Expires) }

// clamp is for a ledger whose clock went back. By less than a TTL, the clocks of two servers may differ, or of two
// nodes for etcd. What has happened by one of them may be to come by the other.
func (s *seat) clamp(now ratelimit.LedgerTime) {
	latest := now.Add(SeatTTL)
	s.Expires = min(s.Expires, latest)
	s.NotBefore = min(s.NotBefore, latest)
	s.Since = min(s.Since, latest)
}

// claim is the protocol of seats, in one step:
//
//  1. Bound times that the ledger's clock has not reached: it may have been set back.
//  2. A tenant that names its seat and its fence keeps the seat, or leaves it. A seat that the ledger has lost is its
//     own again, with its fence.
//  3. Otherwise give a free seat: the one whose last tenant stopped first. Windows that began before that are lost to
//     the new tenant.
func (r *record) claim(now ratelimit.LedgerTime, a *Application) Tenancy {
	seats := r.Seats
	for _, s := range seats {
		s.clamp(now)
	}
	if own := a.Now.Seat; a.Now.Fence != 0 && own >= 0 {
		s := seats[own]
		switch {
		case s == nil && !a.Leave && own < a.Seats: // the ledger has lost it
			s = &seat{
				Holder: a.Holder, Fence: a.Now.Fence, NotBefore: a.Now.NotBefore, Plan: a.Plan, Since: a.Now.Since,
			}
			s.clamp(now)
			seats[own] = s
			r.Last = max(r.Last, s.Fence)
			fallthrough
		case s != nil && s.Holder == a.Holder && s.Fence == a.Now.Fence && !a.Leave && own < a.Seats:
			// Until now, it may have spent under the other plan.
			if s.Plan != a.Plan {
				s.Plan, s.Since = a.Plan, now.Add(margin)
			}
			s.Expires = now.Add(SeatTTL)
			return r.tenancy(now, own, a)
		case s != nil && s.Holder == a.Holder && s.Fence == a.Now.Fence && a.Leave:
			// Unconfirmed spending counts as that of a tenant that goes silent now, and stops a margin before its end.
			s.Holder, s.Expires = 0, min(s.Expires, now.Add(margin))
			if a.Clean {
				s.Expires = 0
			}
		}
	}
	if a.Leave {
		return none
	}
	// A seat beyond the present number is left to expire: its holder may not get this message.
	best, notBefore, was := -1, ratelimit.LedgerTime(0), (*seat)(nil)
	for i := range a.Seats {
		s := seats[i]
		if s == nil {
			s = &seat{}
		}
		if t := s.ended(); now >= s.Expires && (best < 0 || t < notBefore) {
			best = i
			notBefore = t
			was = s
		}
	}
	if best < 0 {
		return none
	}
	since := was.Since
	if was.Plan != a.Plan {
		since = notBefore
	}
	r.Last = max(r.Last+1, ratelimit.Fence(now))
	seats[best] = &seat{
		Holder: a.Holder, Fence: r.Last, Expires: now.Add(SeatTTL), NotBefore: notBefore, Plan: a.Plan, Since: since,
	}
	return r.tenancy(now, best, a)
}

// tenancy is the answer to the tenant of a seat. Tenants with another plan may spend more than their part of this one,
// so the plan is agreed only without any.
func (r *record) tenancy(now ratelimit.LedgerTime, own int, a *Application) Tenancy {
	t := Tenancy{Seat: own, Fence: r.Seats[own].Fence, NotBefore: r.Seats[own].NotBefore, Agreed: true}
	for _, s := range r.Seats {
		switch {
		case s.Plan == a.Plan:
			t.Since = max(t.Since, s.Since)
		case now < s.Expires: // it has a tenant
			t.Agreed = false
		default:
			// Its last tenant had another plan.
			t.Since = max(t.Since, s.ended())
		}
	}
	return t
}

func (a *Application) valid() error {
	if a.Seats < 1 || a.Seats > MaxSeats || a.Holder == 0 {
		return errSeats
	}
	return nil
}
