package approx

import (
	"context"
	"errors"
	"time"

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
	TTL   time.Duration
	// Now is the tenancy that the holder has; its Fence is 0 for none.
	Now Tenancy
	// Plan is of the rules that the holder has (Plan's id).
	Plan uint64
	// Leave gives the seat up. Clean says that nothing was spent from it that
	// the ledger has not confirmed, in any window that goes on.
	Leave, Clean bool

	epoch uint64 // the ledger's, by the holder's last reading (Keeper.Epoch)
}

// Tenancy is a seat held for a time.
type Tenancy struct {
	Seat  int             // -1: all are taken
	Fence ratelimit.Fence // issued when the seat was taken; each is greater than all before
	// Taint is when an earlier tenancy ended that may have left unconfirmed
	// spending behind: windows that began before it are not to be spent in.
	Taint ratelimit.LedgerTime
	TTL   time.Duration // counted by the holder from when it applied
	// Agreed says that all tenants have the same plan, and Since from when on none has spent under another.
	Agreed bool
	Since  ratelimit.LedgerTime
}

// none is the answer where all seats are taken.
var none = Tenancy{Seat: -1}

// MaxSeats is how many seats there may be.
const MaxSeats = ratelimit.MaxMaxNodes

var errSeats = errors.New("the number of seats must be 1 to 10000, with a TTL")

// seat is the record of one. The zero seat was never taken.
type seat struct {
	holder  ratelimit.Holder // 0: no tenant
	fence   ratelimit.Fence
	expires ratelimit.LedgerTime
	taint   ratelimit.LedgerTime
	plan    uint64               // 0: of a release that does not tell
	since   ratelimit.LedgerTime // until when a tenant may have spent from it under another plan
}

// free tells whether the seat may be taken, and with which taint.
func (s *seat) free(now ratelimit.LedgerTime) (ratelimit.LedgerTime, bool) {
	switch {
	case s.holder == 0:
		return s.taint, true
	case now >= s.expires: // the spending of its tenant is unknown
		return s.expires, true
	}
	return 0, false
}

// ended is until when the seat's last tenant may have spent, if it has none now.
func (s *seat) ended() ratelimit.LedgerTime {
	if s.holder == 0 {
		return s.taint
	}
	return s.expires
}

// clamp is for a ledger whose clock went back: nothing that has happened is to
// come, and no tenancy lasts longer than it may.
func (s *seat) clamp(now ratelimit.LedgerTime, ttl time.Duration) {
	s.expires, s.taint, s.since = min(s.expires, now.Add(ttl)), min(s.taint, now), min(s.since, now)
}

// sit is the protocol of seats.
func sit(now ratelimit.LedgerTime, seats map[int]*seat, last *ratelimit.Fence, a *Application) Tenancy {
	for _, s := range seats {
		s.clamp(now, a.TTL)
	}
	if own := a.Now.Seat; a.Now.Fence != 0 && own >= 0 {
		s := seats[own]
		switch {
		case s == nil && !a.Leave && own < a.Seats: // the ledger has lost it
			s = &seat{
				holder: a.Holder, fence: a.Now.Fence, taint: min(a.Now.Taint, now), plan: a.Plan,
				since: min(a.Now.Since, now),
			}
			seats[own] = s
			*last = max(*last, s.fence)
			fallthrough
		case s != nil && s.holder == a.Holder && s.fence == a.Now.Fence && !a.Leave && own < a.Seats:
			if s.plan != a.Plan {
				s.plan, s.since = a.Plan, now
			}
			s.expires = now.Add(a.TTL)
			return tenancy(now, seats, own, a)
		case s != nil && s.holder == a.Holder && s.fence == a.Now.Fence && a.Leave:
			if !a.Clean {
				s.taint = now
			}
			s.holder, s.expires = 0, 0
		}
	}
	if a.Leave {
		return none
	}
	// A seat beyond the present number is left to expire: its holder may not get this message.
	best, taint, was := -1, ratelimit.LedgerTime(0), (*seat)(nil)
	for i := range a.Seats {
		s := seats[i]
		if s == nil {
			s = &seat{}
		}
		if t, ok := s.free(now); ok && (best < 0 || t < taint) {
			best, taint, was = i, t, s
		}
	}
	if best < 0 {
		return none
	}
	since := was.since
	if was.plan != a.Plan {
		since = was.ended()
	}
	*last = max(*last+1, ratelimit.Fence(now))
	seats[best] = &seat{
		holder: a.Holder, fence: *last, expires: now.Add(a.TTL), taint: taint, plan: a.Plan,
		since: since,
	}
	return tenancy(now, seats, best, a)
}

// tenancy is the answer to the tenant of a seat.
func tenancy(now ratelimit.LedgerTime, seats map[int]*seat, own int, a *Application) Tenancy {
	t := Tenancy{Seat: own, Fence: seats[own].fence, Taint: seats[own].taint, TTL: a.TTL, Agreed: true}
	for _, s := range seats {
		switch lives := s.holder != 0 && now < s.expires; {
		case s.plan == a.Plan:
			t.Since = max(t.Since, s.since)
		case lives:
			t.Agreed = false
		default:
			t.Since = max(t.Since, s.ended())
		}
	}
	return t
}

func (a *Application) valid() error {
	if a.Seats < 1 || a.Seats > MaxSeats || a.TTL <= 0 || a.Holder == 0 {
		return errSeats
	}
	return nil
}
