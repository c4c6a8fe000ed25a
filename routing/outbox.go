package routing

import (
	"slices"
	"sync/atomic"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/routing/internal/moved"
)

// parcelBytes is how much a parcel carries before it is sent: some 250 accounts.
// Asks that are sent behind one wait for a fraction of a millisecond.
const parcelBytes = 16 << 10

// outbox is what is on its way to one incarnation of a peer: parcels, each kept
// until there is a receipt for it, in order.
//
//	open --parcelBytes, or nothing more to add--> sealed --sent--> sent --receipt--> gone
//	                                                 ^--the stream broke--'
//
// Invariant: an account that was taken out of the tables is in exactly one
// parcel, until the receipt reports that the peer has it, or has it not.
type outbox struct {
	numbers *atomic.Uint64 // of parcels, for all outboxes of a node
	open    *parcel
	sealed  []*parcel // not received for
	// unsent is where in sealed those parcels begin that were not sent on this stream. After a stream has
	// broken it is 0: it is unknown which arrived.
	unsent int
	urgent bool // the open parcel is to be sent
}

type parcel struct {
	number uint64
	w      *moved.Writer
	hashes []uint64 // of the keys, whole
}

// room reports whether the walk may add another account: it fills no more than walkedAtOnce parcels at a time.
// Parcels for waiting requests are small, and do not delay them.
func (o *outbox) room() bool { return o.full() < walkedAtOnce && len(o.sealed) < parcelsAtOnce }

// roomForOne reports whether an account with waiting requests may be added. It may while the walk waits, and to
// an open parcel that is not full, until another may be sent.
func (o *outbox) roomForOne() bool { return len(o.sealed) <= parcelsAtOnce }

// full is how many of the sealed parcels are.
func (o *outbox) full() (n int) {
	for _, p := range o.sealed {
		if len(p.w.B) >= parcelBytes {
			n++
		}
	}
	return n
}

// add puts an account on its way.
func (o *outbox) add(now ratelimit.LedgerTime, hash uint64, m *moved.Entry) {
	if o.open == nil {
		o.open = &parcel{w: moved.NewWriter(now)}
	}
	p := o.open
	p.hashes = append(p.hashes, hash)
	p.w.Account(m.Key, &m.Account)
	if len(p.w.B) >= parcelBytes {
		o.seal()
	}
}

func (o *outbox) seal() {
	if o.open == nil {
		return
	}
	o.open.number = o.numbers.Add(1)
	o.sealed = append(o.sealed, o.open)
	o.open = nil
	o.urgent = false
}

// next is the parcel to be sent, if there is one.
func (o *outbox) next() *parcel {
	// The open parcel is sealed only when those before it are sent: until then more accounts fit in. Parcels
	// that are not full leave room for those of the walk. Otherwise single accounts for waiting requests
	// would stop it.
	if small := len(o.sealed) - o.full(); o.urgent && small < parcelsAtOnce-walkedAtOnce && o.unsent == len(o.sealed) {
		o.seal()
	}
	if o.unsent < len(o.sealed) {
		return o.sealed[o.unsent]
	}
	return nil
}

// again has all sent again, on a new stream.
func (o *outbox) again() { o.unsent = 0 }

// received takes out the parcel that a receipt is for; nil if there is none.
func (o *outbox) received(number uint64) *parcel {
	for i, p := range o.sealed {
		if p.number == number {
			o.sealed = slices.Delete(o.sealed, i, i+1)
			// Receipts may come in any order, and the rest moves up.
			if o.unsent > i {
				o.unsent--
			}
			return p
		}
	}
	return nil
}

// empties takes out all that is on its way.
func (o *outbox) empties() []*parcel {
	// The accounts of the open parcel were taken out of the tables as well.
	o.seal()
	all := o.sealed
	o.sealed = nil
	o.unsent = 0
	o.urgent = false
	return all
}
