package account

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Store is a transactional store of small records, as [CAS] needs it: Postgres, or [MemoryStore]. It is safe for
// concurrent use, and blocks until ctx is done at most.
type Store interface {
	// Read returns the records of these keys, in their order, as they all were at one instant.
	Read(ctx context.Context, keys []StoreKey) (Snapshot, error)
	// Write makes changes, each of a record that still has the version with which it was read, and only while the data
	// is in that life: in another it makes none, and may say so ([ErrLife]). It reports which it made. With an error,
	// any may have been made. What it reports to have made survives whatever the store promises to survive.
	Write(ctx context.Context, life string, changes []Change) (made []bool, err error)
	// Drop removes records whose time was over before then, and reports how many; more tells whether some are left.
	Drop(ctx context.Context, before ratelimit.LedgerTime) (n int, more bool, err error)
}

// StoreKey names a record.
type StoreKey struct {
	Name string
	// Over is from when on the record may be dropped: part of its name, so that a store can keep together what it drops
	// together. 0: it is another with each change ([Change]).
	Over ratelimit.LedgerTime
}

// Record is a value and its version. The zero Record is not there.
type Record struct {
	Version uint64 // another with each change; 0: there is none
	Data    []byte
}

// Snapshot is what a store was read to be.
type Snapshot struct {
	Records []Record
	Now     ratelimit.LedgerTime // by the store's clock
	// Life names the life of the data. It is another one where a write that was reported may be lost, as after a
	// failover to a standby that lags behind, or where an older copy was restored.
	Life string
}

// Change is what becomes of a record.
type Change struct {
	StoreKey
	Version uint64               // with which it was read; 0: it was not there
	Data    []byte               // nil: the record stays as it is, and nothing is looked at
	Until   ratelimit.LedgerTime // from when on it may be dropped: StoreKey.Over, if that is not 0
	// In the same step are written: who is asked to give back what he has of the account (a hint, which may be lost),
	// and what is on record of the claims.
	Recalled []ratelimit.Holder
	Events   []Event
}

// encode writes an account down.
func (k *kept) encode() []byte {
	w := writer{1}
	w.int(int64(k.over))
	if b := k.bucket; b != nil {
		w.int(1)
		w.int(b.level, b.carry, int64(b.at), int64(b.hand), int64(b.old), int64(b.turn), int64(b.ends), int64(b.slot),
			int64(b.fence), int64(b.learns))
		w.records(b.records)
		return w
	}
	a := &k.account
	w.int(0)
	w.int(int64(a.sum), int64(a.spent), int64(a.fence), int64(a.learns), int64(a.learned), int64(a.asked),
		int64(a.pause), int64(a.least), int64(a.eagerly))
	w.records(a.records)
	return w
}

// writer appends numbers of variable length.
type writer []byte

func (w *writer) int(all ...int64) {
	for _, n := range all {
		*w = binary.AppendVarint(*w, n)
	}
}

func (w *writer) records(all records) {
	w.int(int64(len(all)))
	for i := range all {
		r := &all[i]
		*w = binary.BigEndian.AppendUint64(*w, uint64(r.holder))
		w.int(int64(r.taken), int64(r.spent), int64(r.seq), int64(r.fence), int64(r.expires))
	}
}

// ErrRecord says that a record at the store is not what this ledger writes: another release's, or another program's.
var ErrRecord = errors.New("the record in the store belongs to another release of Sluice")

// decode is encode, backwards. Nothing is a new account.
func (k *kept) decode(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	r := reader{left: data[1:], failed: data[0] != 1}
	r.time(&k.over)
	if r.int() == 1 {
		b := &bucket{}
		b.level, b.carry = r.int(), r.int()
		r.time(&b.at)
		b.hand, b.old = tokens(r.int()), tokens(r.int())
		r.time(&b.turn, &b.ends)
		b.slot, b.fence = r.duration(), ratelimit.Fence(r.int())
		r.time(&b.learns)
		b.records = r.records()
		k.bucket = b
	} else {
		a := &k.account
		a.sum, a.spent, a.fence = tokens(r.int()), tokens(r.int()), ratelimit.Fence(r.int())
		r.time(&a.learns)
		a.learned = tokens(r.int())
		r.time(&a.asked)
		a.pause, a.least = r.duration(), r.duration()
		r.time(&a.eagerly)
		a.records = r.records()
	}
	if r.failed || len(r.left) > 0 {
		return fmt.Errorf("%w: %d bytes that begin with %.16x", ErrRecord, len(data), data)
	}
	return nil
}

// reader reads what a writer wrote. What is missing is 0, and it has failed.
type reader struct {
	left   []byte
	failed bool
}

func (r *reader) int() int64 {
	n, size := binary.Varint(r.left)
	if size <= 0 {
		r.failed = true
		return 0
	}
	r.left = r.left[size:]
	return n
}

func (r *reader) duration() time.Duration { return time.Duration(r.int()) }

func (r *reader) time(all ...*instant) {
	for _, t := range all {
		*t = instant(r.int())
	}
}

// recordBytes is how long a record is at least.
const recordBytes = 8 + 5

func (r *reader) records() records {
	n := r.int()
	if n < 0 || n > int64(len(r.left)/recordBytes) {
		r.failed = true
		return nil
	}
	all := make(records, n)
	for i := range all {
		x := &all[i]
		if len(r.left) < recordBytes {
			r.failed = true
			return nil
		}
		x.holder, r.left = ratelimit.Holder(binary.BigEndian.Uint64(r.left)), r.left[8:]
		x.taken, x.spent = tokens(r.int()), tokens(r.int())
		x.seq, x.fence = uint64(r.int()), ratelimit.Fence(r.int())
		r.time(&x.expires)
	}
	return all
}
