package routing

import (
	"encoding/binary"
	"errors"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// What a parcel carries: the sender's time when it was begun, and then accounts,
// each its key and its fields one after the other, as varints. Times are written
// as differences from that time, so that most of them take two or three bytes:
// a message of its own for each account would cost a hand-over of a million
// keys seconds of processor time.

// parcelBytes is how much a parcel carries before it is sent: some 250 accounts.
// Asks that are sent behind one wait for a fraction of a millisecond.
const parcelBytes = 16 << 10

// Bounds of what one account may say.
const (
	// mostHolders is of one account. leasing keeps at most 256 records, and those whose leases go
	// on.
	mostHolders = 1 << 10
	// mostTokens bounds each field that counts tokens, so that sums of a few do not overflow.
	mostTokens = 1 << 53
	mostTime   = 1 << 53 // microseconds since 1970: the year 2255
	// never is how far ahead a time in a parcel may lie, in microseconds. A bucket that does not
	// refill is never full, and its time is cut to that.
	never = 1 << 60
)

var errAccount = errors.New("an account in a parcel makes no sense")

// moved is an account on its way, with the key that it is of. Both are the reader's: who
// keeps them copies them.
type moved struct {
	key     []byte
	account ledger.Statement
}

// plausible tells whether a node can have such an account whose clock showed sent
// just now, when this one's shows here. What is refused here would make an account
// wait for ever, or its fences and levels overflow.
func (m *moved) plausible(here, sent ratelimit.LedgerTime) bool {
	a := &m.account
	if !possible(here, int64(a.Now)) || !possible(here, int64(a.Relearn)) || !possibleFence(a.Fence) || !possibleFence(a.Born) || !possibleFence(a.Folded) {
		return false
	}
	// An account goes by its former owner's clock, which may be behind the sender's by Lag: that
	// clock must be possible, too.
	if a.Dead < 0 || a.Dead > 2*never || a.Lag < 0 || here.Sub(sent-a.Lag) > mostApart || a.Level < 0 || a.Level > mostTokens || a.Carry < 0 || a.Carry > mostTokens ||
		!possibleWindow(here, a.Window) || a.Charged > mostTokens || a.Previous < 0 || a.Previous > mostTokens {
		return false
	}
	for i := range a.Holders {
		h := &a.Holders[i]
		if !possible(here, int64(h.Expires)) || !possibleFence(h.Fence) || !possibleWindow(here, h.Window) {
			return false
		}
	}
	return true
}

// possibleFence tells whether an account can have a fence. They grow by the clock
// and by claims, and leasing believes a holder's up to the year 2112.
func possibleFence(f ratelimit.Fence) bool { return f >= 0 && f <= mostTime }

// possibleWindow tells whether a window can have begun: a bucket's is the time at
// which it did, and a window of at least a second has a lower number than seconds
// have passed.
func possibleWindow(here ratelimit.LedgerTime, w ratelimit.Window) bool {
	// A bucket's window is in microseconds since 1970, and passed 2^40 in that year's January. The
	// number of a window of a second will reach it in 34,000 years.
	if w > 1<<40 {
		return possible(here, int64(w))
	}
	return w >= 0 && possible(here, max(0, int64(w)-1)*1_000_000)
}

// writer appends accounts to a parcel.
type writer struct {
	b    []byte
	base int64
}

func newWriter(base ratelimit.LedgerTime) *writer {
	return &writer{binary.AppendVarint(nil, int64(base)), int64(base)}
}

func (w *writer) number(n int64) { w.b = binary.AppendVarint(w.b, n) }
func (w *writer) time(t int64)   { w.number(t - w.base) }

// mark is a number that is 0 for most keys, or one that grows with the clock.
func (w *writer) mark(t int64) {
	if t == 0 {
		// A difference from the parcel's time would make a 0 eight bytes long.
		w.b = append(w.b, 0)
		return
	}
	w.b = append(w.b, 1)
	w.time(t)
}

// account is written in two parts. What follows the number of holders is there only if one
// of its fields is not 0, which most keys never see: over-admission, and what a loss of
// data left. The lowest bit of the number says so.
func (w *writer) account(key []byte, a *ledger.Statement) {
	w.b = binary.AppendUvarint(w.b, uint64(len(key)))
	w.b = append(w.b, key...)
	w.time(int64(a.Now))
	w.mark(int64(a.Fence))
	w.mark(int64(a.Born))
	w.mark(int64(a.Folded))
	w.window(a.Window)
	// A bucket that does not refill is never full, and its time lies beyond what a difference may
	// be.
	w.mark(min(int64(a.Dead), w.base+never))
	for _, n := range [...]int64{int64(a.Charged), int64(a.Previous), a.Level, a.Carry, int64(a.Lag)} {
		w.number(n)
	}
	rare := a.Most != 0 || a.Over != 0 || a.Left != 0 || a.Late != 0 || a.Relearn != 0 || a.Relearned != 0
	w.b = binary.AppendUvarint(w.b, uint64(len(a.Holders))<<1|uint64(flag(rare, 0)))
	if rare {
		for _, n := range [...]int64{int64(a.Most), int64(a.Over), int64(a.Left), int64(a.Late), int64(a.Relearned)} {
			w.number(n)
		}
		w.mark(int64(a.Relearn))
	}
	for i := range a.Holders {
		w.holding(&a.Holders[i])
	}
}

// window is written as a time if it is one: a bucket's.
func (w *writer) window(n ratelimit.Window) { w.number(int64(n)) }

// holding is one holder's record. Its name is random, and would be longer as a varint.
func (w *writer) holding(h *ledger.Holding) {
	w.b = binary.LittleEndian.AppendUint64(w.b, uint64(h.Holder))
	w.b = binary.AppendUvarint(w.b, h.Seq)
	w.window(h.Window)
	w.mark(int64(h.Expires))
	w.mark(int64(h.Fence))
	for _, n := range [...]int64{int64(h.Granted), int64(h.InFlight), int64(h.Spent), int64(h.Returned), int64(h.Over)} {
		w.number(n)
	}
	w.b = append(w.b, flag(h.Direct, 0)|flag(h.Closed, 1)|flag(h.Void, 2)|flag(h.Eager, 3)|flag(h.Last, 4))
}

// flag is a bit of a byte of flags.
func flag(set bool, bit uint) byte {
	if set {
		return 1 << bit
	}
	return 0
}

// reader reads a parcel, which may hold anything.
type reader struct {
	b    []byte
	base int64
	bad  bool
}

// readParcel calls each with every account of a parcel, in order. The key is the
// parcel's. It ends at the first that makes no sense.
func readParcel(b []byte, each func(m moved)) error {
	r := &reader{b: b}
	r.base = r.within(0, 1<<62)
	for len(r.b) > 0 && !r.bad {
		if m := r.account(); !r.bad {
			each(m)
		}
	}
	if r.bad {
		return errAccount
	}
	return nil
}

// fail ends the parcel. What is read afterwards means nothing, and reading it does no harm,
// so that nobody looks at each field: readParcel looks once an account.
func (r *reader) fail() int64 {
	r.b, r.bad = nil, true
	return 0
}

// within reads a number, which must lie between two others: what is beyond them no node
// writes, and sums of such numbers could overflow.
func (r *reader) within(least, most int64) int64 {
	v, n := binary.Varint(r.b)
	if n <= 0 || v < least || v > most {
		return r.fail()
	}
	r.b = r.b[n:]
	return v
}

func (r *reader) unsigned(most uint64) uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 || v > most {
		return uint64(r.fail())
	}
	r.b = r.b[n:]
	return v
}

// bytes are the parcel's own, cut off behind, so that no append writes into the next field.
func (r *reader) bytes(n int) []byte {
	if n > len(r.b) {
		r.fail()
		return nil
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b
}

func (r *reader) byte() byte {
	if b := r.bytes(1); b != nil {
		return b[0]
	}
	return 0
}

// time is a time that was written as a difference; one before 1970 no clock has shown.
func (r *reader) time() int64 {
	// Base and difference are both below 2^62, so that their sum does not overflow.
	if t := r.base + r.within(-1<<62, 1<<62-1); t >= 0 {
		return t
	}
	return r.fail()
}

func (r *reader) mark() int64 {
	if r.byte() == 0 {
		return 0
	}
	return r.time()
}

func (r *reader) tokens() ratelimit.Tokens {
	return ratelimit.Tokens(r.within(-mostTokens, mostTokens))
}

func (r *reader) charge() ratelimit.Tokens { return ratelimit.Tokens(r.within(0, mostTokens)) }

func (r *reader) account() (m moved) {
	n := r.unsigned(ratelimit.MaxKeyLen)
	if m.key = r.bytes(int(n)); n == 0 {
		r.fail()
	}
	a := &m.account
	a.Now, a.Fence = ratelimit.LedgerTime(r.time()), ratelimit.Fence(r.mark())
	a.Born, a.Folded = ratelimit.Fence(r.mark()), ratelimit.Fence(r.mark())
	a.Window, a.Dead = ratelimit.Window(r.within(0, 1<<62)), ratelimit.LedgerTime(r.mark())
	a.Charged, a.Previous = r.tokens(), r.charge() // an operator's reset leaves less than nothing charged
	a.Level, a.Carry = r.within(0, 1<<62), r.within(0, 1<<62)
	a.Lag = ratelimit.LedgerTime(r.within(0, 1<<53))
	more := r.unsigned(mostHolders<<1 | 1)
	if more&1 != 0 {
		a.Most, a.Over, a.Left, a.Late, a.Relearned = r.charge(), r.charge(), r.tokens(), r.charge(), r.tokens()
		a.Relearn = ratelimit.LedgerTime(r.mark())
	}
	// Holders are appended one by one. Memory for as many as the number says would let a few bytes
	// of a peer cost much.
	for range more >> 1 {
		h := r.holding()
		if r.bad {
			break
		}
		a.Holders = append(a.Holders, h)
	}
	return m
}

func (r *reader) holding() (h ledger.Holding) {
	if b := r.bytes(8); b != nil {
		h.Holder = ratelimit.Holder(binary.LittleEndian.Uint64(b))
	}
	h.Seq, h.Window = r.unsigned(1<<63), ratelimit.Window(r.within(0, 1<<62))
	h.Expires, h.Fence = ratelimit.LedgerTime(r.mark()), ratelimit.Fence(r.mark())
	h.Granted, h.InFlight, h.Spent, h.Returned, h.Over = r.charge(), r.charge(), r.charge(), r.charge(), r.charge()
	flags := r.byte()
	set := func(bit uint) bool { return flags&(1<<bit) != 0 }
	h.Direct, h.Closed, h.Void, h.Eager, h.Last = set(0), set(1), set(2), set(3), set(4)
	// Holders 0 and 1 are none, and a record begins with a first claim.
	if h.Holder < 2 || h.Seq == 0 {
		r.fail()
	}
	return h
}
