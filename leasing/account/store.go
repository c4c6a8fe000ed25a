package account

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// Store is a transactional store of small records, for [CAS]: Postgres, etcd, or [MemoryStore]. It is safe for
// concurrent use, and blocks at most until ctx is done.
type Store interface {
	// Read returns the records of these keys, in their order, as of one instant. Without keys it reads only the time
	// and the life. A missing record has Version 0.
	Read(ctx context.Context, keys []StoreKey) (Snapshot, error)
	// Write makes changes. Each is made only if its record still has the version that was read. In another life of the
	// data none is made, and the error may be [ErrLife]. It reports which it made. With another error, it may have made
	// any. A reported change is as durable as the store promises.
	Write(ctx context.Context, life string, changes []Change) (made []bool, err error)
	// Drop removes records whose time ended before that time, and returns their number; more reports whether some are
	// left.
	Drop(ctx context.Context, before ratelimit.LedgerTime) (n int, more bool, err error)
}

// StoreKey names a record.
type StoreKey struct {
	Name string
	// Over is the time from which the record may be dropped. It is part of the name, so that a store can group
	// records that it drops together. 0: it changes with each change ([Change]).
	Over ratelimit.LedgerTime
}

// Record is a value and its version. The zero Record is missing.
type Record struct {
	Version uint64 // changes with each change; 0: missing
	Data    []byte
}

// Snapshot is the result of a read.
type Snapshot struct {
	Records []Record
	Now     ratelimit.LedgerTime // by the store's clock
	// Life names the life of the data. It changes when a reported write may be lost, as after a failover to a standby
	// that lags behind, or when an older copy is restored.
	Life string
}

// Change is a change of a record.
type Change struct {
	StoreKey
	Version uint64 // as read; 0: it was missing
	Data    []byte
	Until   ratelimit.LedgerTime // time from which it may be dropped: StoreKey.Over, if that is not 0
}

// Messenger is a store that carries messages to nodes. They are hints, which may be lost.
type Messenger interface {
	// Send sends names of records to nodes.
	Send(ctx context.Context, names map[ratelimit.Holder][]string) error
	// Listen calls see with the names that are sent to a node. It calls ready at its beginning, and after a gap. It
	// returns when ctx is done or its connection breaks.
	Listen(ctx context.Context, node ratelimit.Holder, ready func(), see func(name string)) error
}

// encode writes an account as bytes. The first byte is the form, 1. Then come varints: the time from which it may be
// dropped, and 1 for a bucket or 0, and its numbers. Then, of a window, come the records, each with 8 bytes for the
// holder's random name. Fields have no names: a change of them needs another first byte.
func (k *kept) encode() []byte {
	// A record of slots begins with 2 (slotRecord), so that neither is read as the other.
	w := writer{1}
	w.int(int64(k.over))
	if b := k.bucket; b != nil {
		w.int(1)
		w.int(b.level, b.carry, int64(b.at), int64(b.hand), int64(b.old), int64(b.fence))
		return w
	}
	a := &k.account
	w.int(0)
	w.int(int64(a.sum), int64(a.spent), int64(a.fence), int64(a.asked), int64(a.pause), int64(a.least))
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
		w.int(int64(r.taken), int64(r.spent), int64(r.seq), int64(r.fence))
	}
}

// ErrRecord means that a record at the store has another form: of another release, or another program.
var ErrRecord = errors.New("the record in the store belongs to another release of Sluice")

// decode is the reverse of encode. No bytes are a new account.
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
		b.hand = tokens(r.int())
		b.old = tokens(r.int())
		b.fence = ratelimit.Fence(r.int())
		k.bucket = b
	} else {
		a := &k.account
		a.sum = tokens(r.int())
		a.spent = tokens(r.int())
		a.fence = ratelimit.Fence(r.int())
		a.asked = instant(r.int())
		a.pause, a.least = r.duration(), r.duration()
		a.records = r.records()
	}
	if r.failed || len(r.left) > 0 {
		return fmt.Errorf("%w: %d bytes that begin with %.16x", ErrRecord, len(data), data)
	}
	return nil
}

// reader reads the bytes of a writer. A missing number is 0, and marks the reader as failed.
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

// recordBytes is the minimum length of a record.
const recordBytes = 8 + 4

func (r *reader) records() records {
	// The number is checked before the allocation: a damaged record must not take all memory.
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
	}
	return all
}
