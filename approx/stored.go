package approx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Cell is one record at a store, which all nodes of a fleet change. It is safe for concurrent use, and blocks until ctx
// is done, at most.
type Cell interface {
	// Load returns the record, its version (0: there is none), and the store's time, no later than that.
	Load(ctx context.Context) (data []byte, version uint64, now ratelimit.LedgerTime, err error)
	// Save replaces the record if it still has that version, and reports whether it has.
	Save(ctx context.Context, version uint64, data []byte) (saved bool, err error)
}

// Stored grants seats in one record of a store. It is safe for concurrent use.
type Stored struct{ cell Cell }

// NewStored makes seats for the fleet that shares a cell.
func NewStored(cell Cell) *Stored { return &Stored{cell} }

// savesMost is how often an application tries to change the record: nodes renew every few seconds, and rarely meet.
const savesMost = 20

var errBusy = errors.New("other nodes changed the seats at each try")

// Sit implements [Seats].
func (s *Stored) Sit(ctx context.Context, a Application) (Tenancy, error) {
	if err := a.valid(); err != nil {
		return none, err
	}
	for range savesMost {
		data, version, now, err := s.cell.Load(ctx)
		if err != nil {
			return none, err
		}
		var all record
		if err := all.decode(data); err != nil {
			return none, err
		}
		t := sit(now, all.seats, &all.last, &a)
		saved, err := s.cell.Save(ctx, version, all.encode())
		if err != nil {
			return none, err
		}
		if saved {
			return t, nil
		}
		pause := time.NewTimer(rand.N(10 * time.Millisecond))
		select {
		case <-ctx.Done():
			pause.Stop()
			return none, ctx.Err()
		case <-pause.C:
		}
	}
	return none, errBusy
}

// record is the seats, and the last fence that was issued.
type record struct {
	seats map[int]*seat
	last  ratelimit.Fence
}

// written is a record as it is at a store, in JSON.
type written struct {
	Version int             `json:"v"`
	Last    ratelimit.Fence `json:"last"`
	Seats   map[int]place   `json:"seats"`
}

type place struct {
	Holder  ratelimit.Holder     `json:"holder,omitempty"`
	Fence   ratelimit.Fence      `json:"fence"`
	Expires ratelimit.LedgerTime `json:"expires,omitempty"`
	Taint   ratelimit.LedgerTime `json:"taint,omitempty"`
	Plan    uint64               `json:"plan,omitempty"`
	Since   ratelimit.LedgerTime `json:"since,omitempty"`
}

const recordVersion = 1

func (r *record) encode() []byte {
	w := written{Version: recordVersion, Last: r.last, Seats: make(map[int]place, len(r.seats))}
	for i, s := range r.seats {
		w.Seats[i] = place{s.holder, s.fence, s.expires, s.taint, s.plan, s.since}
	}
	data, err := json.Marshal(w)
	if err != nil {
		panic(err) // numbers are never refused
	}
	return data
}

func (r *record) decode(data []byte) error {
	r.seats = map[int]*seat{}
	if len(data) == 0 {
		return nil
	}
	var w written
	if err := json.Unmarshal(data, &w); err != nil || w.Version != recordVersion || len(w.Seats) > MaxSeats {
		return fmt.Errorf("the seats in the store belong to another release: %.60q; "+
			"delete the record sluice:seat-record to begin anew", data)
	}
	r.last = w.Last
	for i, p := range w.Seats {
		r.seats[i] = &seat{p.Holder, p.Fence, p.Expires, p.Taint, p.Plan, p.Since}
	}
	return nil
}
