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

// sits applies at both.
func (h *hall) sits(a Application) Tenancy {
	h.Helper()
	a.Seats, a.TTL = h.seats, hallTTL
	m, err := h.memory.Sit(context.Background(), a)
	r, err2 := h.stored.Sit(context.Background(), a)
	if err != nil || err2 != nil || m != r {
		h.Fatalf("%+v: memory %+v %v, the record %+v %v", a, m, err, r, err2)
	}
	return m
}

func (h *hall) forgets() {
	h.memory.Forget()
	h.cell.data, h.cell.version = nil, 0
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
		h.forgets()
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
	if got.Taint != 0 {
		text += fmt.Sprintf(", tainted at %v", since(got.Taint))
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

// The scripts of testdata/seats say who gets which seat, of seats in memory and in a record.
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
