package approx

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-gate/sluice/ratelimit"
)

// hall is seats in memory.
type hall struct {
	testing.TB
	*Memory
	now   ratelimit.LedgerTime
	seats int
}

func newHall(t testing.TB, seats int) *hall {
	h := &hall{TB: t, now: epoch, seats: seats}
	h.Memory = NewMemory(func() ratelimit.LedgerTime { return h.now })
	return h
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

// sits applies.
func (h *hall) sits(a Application) Tenancy {
	h.Helper()
	a.Seats = h.seats
	t, err := h.Sit(h.Context(), a)
	if err != nil {
		h.Fatalf("%+v: %v", a, err)
	}
	return t
}

// do plays a line of a script, and returns what a holder is answered.
func (h *hall) do(line string, had map[string]Tenancy) string {
	h.Helper()
	words := strings.Fields(line)
	switch words[0] {
	case "pass":
		h.now = h.now.Add(duration(words[1]))
		return ""
	case "seats":
		h.seats = int(words[1][0] - '0')
		return ""
	case "forget":
		h.Forget()
		return ""
	}
	who := words[0]
	a := Application{Holder: ratelimit.Holder(who[0] - '0'), Leave: words[1] == "leaves", Plan: 1, Now: none}
	if words[1] != "sits" {
		a.Now = had[who]
	}
	for _, word := range words[2:] {
		switch name, value, _ := strings.Cut(word, "="); name {
		case "clean":
			a.Clean = true
		case "as":
			a.Now = had[value]
		case "plan":
			a.Plan = uint64(value[0] - '0')
		case "seat":
			a.Now.Seat = int(value[0] - '0')
		case "since":
			a.Now.Since = epoch.Add(duration(value))
		case "fence": // a negative one is relative, and 0s is none
			switch d := duration(value); {
			case d < 0:
				a.Now.Fence -= ratelimit.Fence(-d / time.Microsecond)
			case d > 0:
				a.Now.Fence = ratelimit.Fence(epoch.Add(d))
			default:
				a.Now.Fence = 0
			}
		default:
			h.Fatalf("%s: %s?", line, word)
		}
	}
	got := h.sits(a)
	if got.Seat < 0 {
		return who + ": no seat\n"
	}
	had[who] = got
	text := fmt.Sprintf("%s: seat %d, fence %v", who, got.Seat, since(ratelimit.LedgerTime(got.Fence)))
	if got.NotBefore != 0 {
		text += fmt.Sprintf(", not before %v", since(got.NotBefore))
	}
	switch {
	case !got.Agreed:
		text += ", not agreed"
	case got.Since != 0:
		text += fmt.Sprintf(", agreed since %v", since(got.Since))
	}
	return text + "\n"
}

// since is a time as scripts say it.
func since(at ratelimit.LedgerTime) time.Duration { return time.Duration(at-epoch) * time.Microsecond }

// The scripts of testdata/seats say who gets which seat.
func TestSeatScripts(t *testing.T) {
	datadriven.RunTest(t, "testdata/seats", func(t *testing.T, d *datadriven.TestData) (said string) {
		h, had := newHall(t, 0), map[string]Tenancy{}
		d.ScanArgs(t, "seats", &h.seats)
		for line := range strings.Lines(d.Input) {
			said += h.do(line, had)
		}
		return said
	})
}

// A record that is not this release's is left as it is, and the error says what to do.
func TestSeatsOfAnotherRelease(t *testing.T) {
	h := newHall(t, 2)
	for _, data := range []string{"garbage", `{"v":2,"seats":{}}`, "{}"} {
		h.data, h.version = []byte(data), 1
		_, err := h.Sit(t.Context(), Application{Holder: 1, Seats: 2, Now: none, Plan: 1})
		if err == nil || string(h.data) != data || !strings.Contains(err.Error(), "sluice:seat-record") {
			t.Errorf("%s: %v, and it is %s now", data, err, h.data)
		}
	}
}

// Another node takes a seat between reading and writing: it is not taken twice, and a node that always loses
// gets an error.
func TestSeatsAreNotTakenTwice(t *testing.T) {
	h := newHall(t, 2)
	others, tries := 0, 0
	cell := &interrupted{h.Memory, func() {
		if others++; others == 1 {
			h.sits(Application{Holder: 2, Now: none, Plan: 1})
		}
	}}
	stored := NewStored(cell)
	got, err := stored.Sit(t.Context(), Application{Holder: 1, Seats: 2, Now: none, Plan: 1})
	if err != nil || got.Seat != 1 || others != 2 {
		t.Errorf("%+v %v after %d tries: seat 0 is taken", got, err, others)
	}
	cell.before = func() {
		tries++
		h.version++
	}
	got.Fence, got.Seat = 0, -1
	got, err = stored.Sit(t.Context(), Application{Holder: 3, Seats: 2, Now: got, Plan: 1})
	if !errors.Is(err, errBusy) || got.Seat >= 0 || tries != savesMost {
		t.Errorf("%+v %v after %d tries", got, err, tries)
	}
}
