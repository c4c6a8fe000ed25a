package approx

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

// After random applications, no seat has two tenants, and a seat whose share may have been spent has a NotBefore.
func TestSeats(t *testing.T) {
	for seed := range uint64(100) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(seed, 3))
			now := epoch
			memory := NewMemory(func() ratelimit.LedgerTime { return now })
			type tenant struct {
				Tenancy
				till ratelimit.LedgerTime
				plan uint64
			}
			tenants := make([]tenant, 6)
			for i := range tenants {
				tenants[i].Tenancy = none
			}
			seats, last, plan := 1+rnd.IntN(4), ratelimit.Fence(0), uint64(1)
			dirtyTill := make([]ratelimit.LedgerTime, 10) // when an unclean tenancy of the seat ended
			for step := range 200 {
				now = now.Add(time.Duration(rnd.Int64N(int64(3 * time.Second))))
				if rnd.IntN(30) == 0 {
					seats = 1 + rnd.IntN(4)
				}
				i := rnd.IntN(len(tenants))
				x := &tenants[i]
				if rnd.IntN(20) == 0 {
					plan = uint64(1 + rnd.IntN(3))
				}
				if rnd.IntN(3) == 0 {
					x.plan = plan
				}
				if rnd.IntN(40) == 0 { // the ledger's clock is set back: who holds what is not to be said by this clock
					now = now.Add(-time.Duration(rnd.Int64N(int64(2 * time.Hour))))
					clear(dirtyTill)
					for j := range tenants {
						tenants[j].till = 0
					}
				}
				a := Application{
					Holder: ratelimit.Holder(i + 1), Seats: seats, Now: x.Tenancy, Plan: x.plan,
					Leave: rnd.IntN(8) == 0, Clean: rnd.IntN(2) == 0,
				}
				got, err := memory.Sit(t.Context(), a)
				if err != nil {
					t.Fatal(err)
				}
				lost := rnd.IntN(5) == 0
				if x.Seat >= 0 && got.Fence != x.Fence && (a.Leave && !a.Clean || !a.Leave && !lost) {
					dirtyTill[x.Seat] = max(dirtyTill[x.Seat], min(x.till, max(now, dirtyTill[x.Seat])))
				}
				if lost && !a.Leave { // it goes on as it was
					if got.Fence != x.Fence && got.Seat >= 0 { // and it has no tenant
						last = max(last, got.Fence)
					}
					continue
				}
				if got.Seat >= 0 && got.Fence != x.Fence {
					if got.Fence <= last || got.NotBefore < dirtyTill[got.Seat] {
						t.Fatalf("step %d: fence %d after %d, not before %d, and an earlier tenant spent until %d",
							step, got.Fence, last, got.NotBefore, dirtyTill[got.Seat])
					}
					last = got.Fence
				}
				x.Tenancy, x.till = got, now.Add(SeatTTL)
				for j, o := range tenants {
					if j != i && got.Seat >= 0 && o.Seat == got.Seat && now < o.till {
						t.Fatalf("step %d: seat %d has two tenants", step, got.Seat)
					}
				}
			}
		})
	}
}

// There are at most ten thousand seats. An application for more, for none, or without a holder is invalid.
func TestApplicationsAreChecked(t *testing.T) {
	m := NewMemory(func() ratelimit.LedgerTime { return epoch })
	for a, ok := range map[[2]int]bool{
		{0, 0}: false, {1, 10_000}: true, {1, 10_001}: false, {1, 1}: true, {1, 0}: false, {0, 1}: false,
	} {
		if _, err := m.Sit(t.Context(), Application{Holder: ratelimit.Holder(a[0]), Seats: a[1]}); (err == nil) != ok {
			t.Errorf("holder %d, %d seats: %v", a[0], a[1], err)
		}
	}
}

// interrupted is a cell of which before is called before each Save.
type interrupted struct {
	*Memory
	before func()
}

func (c *interrupted) Save(ctx context.Context, version uint64, data []byte) (bool, error) {
	c.before()
	return c.Memory.Save(ctx, version, data)
}

// since is a time as scripts say it.
func since(at ratelimit.LedgerTime) time.Duration { return time.Duration(at-epoch) * time.Microsecond }

// The scripts of testdata/seats say who gets which seat.
func TestSeatScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/seats", func(t *testing.T, d *datadriven.TestData) (said string) {
		now, seats, had := epoch, 0, map[string]Tenancy{}
		m := NewMemory(func() ratelimit.LedgerTime { return now })
		d.ScanArgs(t, "seats", &seats)
		for line := range strings.Lines(d.Input) {
			who, w := wordsOf(line)
			switch who {
			case "pass":
				now = now.Add(w.duration(""))
				continue
			case "seats":
				seats = int(strings.Fields(line)[1][0] - '0')
				continue
			case "forget":
				m.Forget()
				continue
			}
			a := Application{Holder: ratelimit.Holder(who[0] - '0'), Seats: seats, Plan: 1, Now: none}
			a.Leave, a.Clean = w.has("leaves"), w.has("clean")
			if !w.has("sits") {
				a.Now = had[who]
			}
			if w.has("as") {
				a.Now = had[w["as"]]
			}
			if w.has("plan") {
				a.Plan = uint64(w.number("plan"))
			}
			if w.has("seat") {
				a.Now.Seat = w.number("seat")
			}
			if w.has("since") {
				a.Now.Since = epoch.Add(w.duration("since"))
			}
			switch fence := w.duration("fence"); { // a negative one is relative, and 0s is none
			case fence < 0:
				a.Now.Fence -= ratelimit.Fence(-fence / time.Microsecond)
			case fence > 0:
				a.Now.Fence = ratelimit.Fence(epoch.Add(fence))
			case w.has("fence"):
				a.Now.Fence = 0
			}
			got, err := m.Sit(t.Context(), a)
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			said += who + ": " + tenancy(got) + "\n"
			if got.Seat >= 0 {
				had[who] = got
			}
		}
		return said
	})
}

// tenancy is an answer as scripts say it.
func tenancy(t Tenancy) string {
	if t.Seat < 0 {
		return "no seat"
	}
	text := fmt.Sprintf("seat %d, fence %v", t.Seat, since(ratelimit.LedgerTime(t.Fence)))
	if t.NotBefore != 0 {
		text += fmt.Sprintf(", not before %v", since(t.NotBefore))
	}
	switch {
	case !t.Agreed:
		text += ", not agreed"
	case t.Since != 0:
		text += fmt.Sprintf(", agreed since %v", since(t.Since))
	}
	return text
}

// A record that is not this release's is left as it is, and the error says what to do.
func TestSeatsOfAnotherRelease(t *testing.T) {
	m := NewMemory(func() ratelimit.LedgerTime { return epoch })
	for i, data := range []string{"garbage", `{"v":2,"seats":{}}`, "{}"} {
		_, _ = m.Save(t.Context(), uint64(i), []byte(data))
		_, err := m.Sit(t.Context(), Application{Holder: 1, Seats: 2, Now: none, Plan: 1})
		now, _, _, _ := m.Load(t.Context())
		if err == nil || string(now) != data || !strings.Contains(err.Error(), "sluice:seat-record") {
			t.Errorf("%s: %v, and it is %s now", data, err, now)
		}
	}
}

// Another node takes a seat between reading and writing: it is not taken twice, and a node that always loses gets an
// error.
func TestSeatsAreNotTakenTwice(t *testing.T) {
	m := NewMemory(func() ratelimit.LedgerTime { return epoch })
	others, tries, wins := 0, 0, true
	cell := &interrupted{m, func() {
		if others++; others == 1 {
			_, _ = m.Sit(t.Context(), Application{Holder: 2, Seats: 2, Now: none, Plan: 1})
		}
		if tries++; !wins {
			data, version, _, _ := m.Load(t.Context())
			_, _ = m.Save(t.Context(), version, data)
		}
	}}
	sits := func(holder ratelimit.Holder) (Tenancy, error) {
		return NewStored(cell).Sit(t.Context(), Application{Holder: holder, Seats: 2, Now: none, Plan: 1})
	}
	if got, err := sits(1); err != nil || got.Seat != 1 || tries != 2 {
		t.Errorf("%+v %v after %d tries: seat 0 is taken", got, err, tries)
	}
	tries, wins = 0, false
	if got, err := sits(3); !errors.Is(err, errBusy) || got.Seat >= 0 || tries != savesMost {
		t.Errorf("%+v %v after %d tries", got, err, tries)
	}
}
