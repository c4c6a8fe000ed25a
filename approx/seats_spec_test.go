package approx

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// hall is seats in memory and in a record, on one clock: both must say the same.
type hall struct {
	testing.TB
	now    ratelimit.LedgerTime
	seats  int
	memory *Memory
	cell   *memoryCell
	stored *Stored
}

func newHall(t testing.TB, seats int) *hall {
	h := &hall{TB: t, now: epoch, seats: seats}
	clock := func() ratelimit.LedgerTime { return h.now }
	h.memory, h.cell = NewMemory(clock), &memoryCell{clock: clock}
	h.stored = NewStored(h.cell)
	return h
}

// memoryCell is a cell in memory.
type memoryCell struct {
	clock   func() ratelimit.LedgerTime
	data    []byte
	version uint64
	before  func() // called before each Save
}

func (c *memoryCell) Load(context.Context) ([]byte, uint64, ratelimit.LedgerTime, error) {
	return c.data, c.version, c.clock(), nil
}

func (c *memoryCell) Save(_ context.Context, version uint64, data []byte) (bool, error) {
	if c.before != nil {
		c.before()
	}
	if version != c.version {
		return false, nil
	}
	c.data, c.version = data, c.version+1
	return true, nil
}

const hallTTL = 10 * time.Second

// sits applies for a holder that has the tenancy now.
func (h *hall) sits(who ratelimit.Holder, now Tenancy, change func(*Application)) Tenancy {
	h.Helper()
	a := Application{Holder: who, Seats: h.seats, TTL: hallTTL, Now: now, Plan: 1}
	if change != nil {
		change(&a)
	}
	m, err := h.memory.Sit(context.Background(), a)
	r, err2 := h.stored.Sit(context.Background(), a)
	if err != nil || err2 != nil || m != r {
		h.Fatalf("%+v: memory %+v %v, the record %+v %v", a, m, err, r, err2)
	}
	return m
}

func (h *hall) leaves(who ratelimit.Holder, now Tenancy, clean bool) {
	h.Helper()
	h.sits(who, now, func(a *Application) { a.Leave, a.Clean = true, clean })
}

func (h *hall) passes(d time.Duration) { h.now = h.now.Add(d) }

func (h *hall) forgets() {
	h.memory.Forget()
	h.cell.data, h.cell.version = nil, 0
}

func (h *hall) expect(what string, got Tenancy, seat int, taint ratelimit.LedgerTime) {
	h.Helper()
	if got.Seat != seat || got.Taint != taint {
		h.Errorf("%s: seat %d with taint %d, and it should be seat %d with taint %d", what, got.Seat, got.Taint, seat, taint)
	}
}

// A seat is its tenant's until its time is over, to the microsecond. From then
// on it is another's, tainted by that instant: until then its tenant may have
// spent. Who comes back with the old fence gets no seat that is taken.
func TestSeatOfACrashedTenant(t *testing.T) {
	h := newHall(t, 1)
	first := h.sits(1, none, nil)
	h.expect("nobody has sat here", first, 0, 0)
	end := h.now.Add(hallTTL)
	h.passes(hallTTL - time.Microsecond)
	h.expect("its time is not over", h.sits(2, none, nil), -1, 0)
	h.passes(time.Microsecond)
	second := h.sits(2, none, nil)
	h.expect("its time is over", second, 0, end)
	if second.Fence <= first.Fence {
		t.Errorf("fence %d after %d", second.Fence, first.Fence)
	}
	h.expect("it is another's", h.sits(1, first, nil), -1, 0)
	h.leaves(1, first, false) // which it has no more
	h.expect("it is the second's still", h.sits(2, second, nil), 0, end)
	if again := h.sits(2, Tenancy{Seat: 0, Fence: second.Fence - 1}, nil); again.Seat != -1 {
		t.Errorf("with a fence that is not its own, %+v", again)
	}
}

// A tenant that renews late, but before anybody else has come, goes on.
func TestSeatRenewedLate(t *testing.T) {
	h := newHall(t, 1)
	first := h.sits(1, none, nil)
	h.passes(2 * hallTTL)
	if again := h.sits(1, first, nil); again != first {
		t.Errorf("%+v, was %+v", again, first)
	}
	h.passes(hallTTL - time.Microsecond)
	h.expect("it is renewed", h.sits(2, none, nil), -1, 0)
}

// A seat that was given up with all its spending confirmed is as it was before;
// otherwise it is tainted by now.
func TestSeatGivenUp(t *testing.T) {
	h := newHall(t, 1)
	a := h.sits(1, none, nil)
	h.passes(time.Second)
	h.leaves(1, a, true)
	b := h.sits(2, none, nil)
	h.expect("given up cleanly", b, 0, 0)
	h.passes(time.Second)
	left := h.now
	h.leaves(2, b, false)
	h.passes(time.Second)
	c := h.sits(3, none, nil)
	h.expect("not cleanly", c, 0, left)
	h.leaves(3, c, true)
	h.expect("cleanly, of one that was tainted", h.sits(4, none, nil), 0, left)
}

// An applicant gets the seat with the lowest taint, the first of these.
func TestLeastTaintedSeatIsTaken(t *testing.T) {
	h := newHall(t, 3)
	a, b := h.sits(1, none, nil), h.sits(2, none, nil)
	h.passes(time.Second)
	h.leaves(2, b, false)
	h.passes(time.Second)
	h.leaves(1, a, false)
	c := h.sits(3, none, nil)
	h.expect("nobody has sat there", c, 2, 0)
	h.expect("the second's, who left first", h.sits(4, none, nil), 1, epoch.Add(time.Second))
}

// A ledger of seats that has lost its data accepts its tenants' statements. Each stays in its seat, with its
// fence, its taint, and the plans of others that it has read. Fences continue from there, at any time.
func TestSeatsAreRemembered(t *testing.T) {
	h := newHall(t, 2)
	a := h.sits(1, none, nil)
	h.leaves(1, a, false)
	h.sits(9, none, nil)
	a = h.sits(1, none, nil)
	h.expect("tainted", a, 0, epoch)
	h.forgets()
	h.passes(time.Second)
	if again := h.sits(1, a, nil); again != a {
		t.Errorf("it comes back as %+v, and was %+v", again, a)
	}
	h.forgets()
	ahead := a
	ahead.Fence += 1_000_000_000_000
	if again := h.sits(1, ahead, nil); again.Fence != ahead.Fence {
		t.Errorf("%+v, was %+v", again, ahead)
	}
	if b := h.sits(2, none, nil); b.Fence != ahead.Fence+1 {
		t.Errorf("fence %d after %d", b.Fence, ahead.Fence)
	}
}

// When there are fewer seats, a tenant beyond them loses its seat at the next application. The seat expires
// by time, because its tenant may not read that. A tenant that leaves gives it up.
func TestFewerSeats(t *testing.T) {
	h := newHall(t, 2)
	h.sits(1, none, nil)
	b := h.sits(2, none, nil)
	h.seats = 1
	h.expect("there is one seat, and it is taken", h.sits(2, b, nil), -1, 0)
	h.seats = 2
	h.expect("it has its seat still", h.sits(2, b, nil), 1, 0)
	h.seats = 1
	h.passes(time.Second)
	h.leaves(2, b, false)
	h.seats = 2
	h.expect("it has left", h.sits(3, none, nil), 1, epoch.Add(time.Second))
}

// All are agreed when every tenant has the same plan: since when the last of the
// others can have spent under another. A tenant whose time is over has no say,
// but until then it had.
func TestTenantsAgree(t *testing.T) {
	h := newHall(t, 3)
	plan := func(n uint64) func(*Application) { return func(a *Application) { a.Plan = n } }
	expect := func(got Tenancy, agreed bool, since ratelimit.LedgerTime) {
		t.Helper()
		if got.Agreed != agreed || got.Since != since {
			t.Errorf("agreed %v since %d, and it should be %v since %d", got.Agreed, got.Since, agreed, since)
		}
	}
	a := h.sits(1, none, plan(1))
	expect(a, true, 0)
	b := h.sits(2, none, plan(1))
	expect(b, true, 0)
	h.passes(time.Second)
	expect(h.sits(1, a, plan(2)), false, epoch.Add(time.Second))
	h.passes(time.Second)
	expect(h.sits(2, b, plan(2)), true, epoch.Add(2*time.Second))
	h.passes(time.Second)
	expect(h.sits(1, a, plan(2)), true, epoch.Add(2*time.Second)) // not since it renewed
	h.sits(3, none, plan(1))
	expect(h.sits(1, a, plan(2)), false, epoch.Add(2*time.Second))
	h.passes(hallTTL) // at 13 s, the third is silent
	expect(h.sits(1, a, plan(2)), true, epoch.Add(3*time.Second+hallTTL))
}

// A seat belongs to its holder, and not to a fence alone; nor does a seat without a fence count. Also after a
// loss, a tenant of a removed seat gets another.
func TestSeatIsItsHolders(t *testing.T) {
	h := newHall(t, 2)
	a := h.sits(1, none, nil)
	if b := h.sits(2, a, nil); b.Seat == a.Seat {
		t.Errorf("another came with the fence of seat 0 and sits there: %+v", b)
	}
	h.leaves(2, a, false)
	h.expect("another cannot give it up", h.sits(1, a, nil), 0, 0)
	h.forgets()
	if z := h.sits(3, Tenancy{}, nil); z.Fence == 0 || z.Seat != 0 {
		t.Errorf("%+v was given to who had none", z)
	}
	h.forgets()
	h.seats = 1
	if c := h.sits(4, Tenancy{Seat: 1, Fence: 9}, nil); c.Seat != 0 {
		t.Errorf("there is only seat 0, and it sits on %d", c.Seat)
	}
}

// A tenant that comes back after a loss does not take fences back: another may
// have brought a higher one before.
func TestLastFenceStays(t *testing.T) {
	h := newHall(t, 3)
	high := ratelimit.Fence(h.now) + 1_000_000_000_000
	h.sits(1, Tenancy{Seat: 0, Fence: high}, nil)
	h.sits(2, Tenancy{Seat: 1, Fence: high - 5}, nil)
	if c := h.sits(3, none, nil); c.Fence != high+1 {
		t.Errorf("fence %d after %d", c.Fence, high)
	}
}

// A lost tenant returns with its taint, unless that is in the future of the ledger's clock, which may have
// been set back as well.
func TestSeatComesBackByAnotherClock(t *testing.T) {
	h := newHall(t, 1)
	h.sits(1, none, nil)
	h.passes(time.Hour)
	second := h.sits(2, none, nil)
	second.Since = h.now
	h.forgets()
	h.passes(-10 * time.Minute)
	h.expect("its taint is half an hour old", h.sits(2, second, nil), 0, second.Taint)
	h.forgets()
	h.passes(-2 * time.Hour)
	back := h.sits(2, second, nil)
	h.expect("its taint is to come", back, 0, h.now)
	if back.Since != h.now {
		t.Errorf("since %d, and it is %d", back.Since, h.now)
	}
}

// A record that is not this release's is left as it is, and the error says what to do.
func TestSeatsOfAnotherRelease(t *testing.T) {
	h := newHall(t, 2)
	for _, data := range []string{"garbage", `{"v":2,"seats":{}}`, "{}"} {
		h.cell.data, h.cell.version = []byte(data), 1
		_, err := h.stored.Sit(t.Context(), Application{Holder: 1, Seats: 2, TTL: hallTTL, Now: none, Plan: 1})
		if err == nil || string(h.cell.data) != data || !strings.Contains(err.Error(), "sluice:seat-record") {
			t.Errorf("%s: %v, and it is %s now", data, err, h.cell.data)
		}
	}
}

// Another node takes a seat between reading and writing: it is not taken twice, and a node that always loses
// gets an error.
func TestSeatsAreNotTakenTwice(t *testing.T) {
	h := newHall(t, 2)
	others, tries := 0, 0
	other := func(who ratelimit.Holder) {
		again := NewStored(&memoryCell{clock: h.cell.clock, data: h.cell.data, version: h.cell.version})
		if x, err := again.Sit(t.Context(), Application{Holder: who, Seats: h.seats, TTL: hallTTL, Now: none, Plan: 1}); err != nil {
			t.Error(x, err)
		}
		c, _ := again.cell.(*memoryCell)
		h.cell.data, h.cell.version = c.data, c.version
	}
	h.cell.before = func() {
		if others++; others == 1 {
			other(2)
		}
	}
	got, err := h.stored.Sit(t.Context(), Application{Holder: 1, Seats: 2, TTL: hallTTL, Now: none, Plan: 1})
	if err != nil || got.Seat != 1 || others != 2 {
		t.Errorf("%+v %v after %d tries: seat 0 is taken", got, err, others)
	}
	h.cell.before = func() {
		tries++
		h.cell.version++
	}
	got.Fence, got.Seat = 0, -1
	if got, err = h.stored.Sit(t.Context(), Application{Holder: 3, Seats: 2, TTL: hallTTL, Now: got, Plan: 1}); !errors.Is(err, errBusy) ||
		got.Seat >= 0 || tries != savesMost {
		t.Errorf("%+v %v after %d tries", got, err, tries)
	}
}

// A tenant that gives up a lost seat has none afterwards, and another may take it.
func TestForgottenSeatGivenUp(t *testing.T) {
	h := newHall(t, 1)
	first := h.sits(1, none, nil)
	h.forgets()
	h.leaves(1, first, false)
	if next := h.sits(2, none, nil); next.Seat != 0 {
		t.Errorf("the one seat was given up, and another gets %+v", next)
	}
}
