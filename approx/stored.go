package approx

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
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

// Sit implements [Seats]. Each try reads the record, computes the next one, and replaces it if it is unchanged.
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
		t := all.claim(now, &a)
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

// record is the seats as they are at a store, in JSON, and the last fence that was issued. For example:
// {"v":1,"last":1764500000000001,"seats":{"0":{"holder":9,"fence":1764500000000001,"expires":1764500010000000}}}.
type record struct {
	Version int             `json:"v"`
	Last    ratelimit.Fence `json:"last"`
	Seats   map[int]*seat   `json:"seats"`
}

const recordVersion = 1

// encode writes a record. JSON sorts the keys of maps, so equal records are equal bytes.
func (r *record) encode() []byte {
	data, err := json.Marshal(r)
	if err != nil {
		panic(err) // numbers are never refused
	}
	return data
}

// decode reads a record, which may hold anything; without bytes, no seat was ever taken.
func (r *record) decode(data []byte) error {
	if len(data) == 0 {
		*r = record{Version: recordVersion, Seats: map[int]*seat{}}
		return nil
	}
	err := json.Unmarshal(data, r)
	if err != nil || r.Version != recordVersion || r.Seats == nil || len(r.Seats) > MaxSeats ||
		slices.Contains(slices.Collect(maps.Values(r.Seats)), nil) {
		return fmt.Errorf("the seats in the store belong to another release: %.60q; "+
			"to begin anew, delete the record sluice:seat-record, whose name begins with CACHE_KEY_PREFIX", data)
	}
	return nil
}
