// Package moved writes accounts that move from one node to another, and reads them.
//
// Guarantee: what was written is read to the token and the microsecond
// (TestParcelIsReadAsItWasWritten); what makes no sense is refused, whatever bytes come, in
// memory bounded by their length (FuzzParcel); and an account that is [Entry.Plausible] makes
// nobody wait for ever and overflows no sum.
//
// What a parcel carries: the sender's time when it was begun, and then accounts,
// each its key and its fields one after the other, as varints. Times are written
// as differences from that time, so that most of them take two or three bytes:
// a message of its own for each account would cost a hand-over of a million
// keys seconds of processor time.
package moved

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/ledger"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Bounds of what one account may say.
const (
	// mostHolders is of one account. leasing keeps at most 256 records, and those whose leases go
	// on.
	mostHolders = 1 << 10
	// MostTokens bounds each field that counts tokens, so that sums of a few do not overflow.
	MostTokens = 1 << 53
	MostTime   = 1 << 53 // microseconds since 1970: the year 2255
	// never is how far ahead a time in a parcel may lie, in microseconds. A bucket that does not
	// refill is never full, and its time is cut to that.
	never = 1 << 60
	// MostApart is how far a peer's clock may be from this node's: what is further
	// away was made up. A time that is far ahead makes an account wait until then,
	// and one that is far behind has it reckon with times before 1970.
	MostApart = 366 * 24 * time.Hour
)

var errAccount = errors.New("an account in a parcel makes no sense")

// Entry is an account on its way, with the key that it is of. Both are the reader's: who
// keeps them copies them.
type Entry struct {
	Key     []byte
	Account ledger.Statement
}

// Plausible tells whether a node can have such an account whose clock showed sent
// just now, when this one's shows here. What is refused here would make an account
// wait for ever, or its fences and levels overflow.
func (m *Entry) Plausible(here, sent ratelimit.LedgerTime) bool {
	a := &m.Account
	if !possible(here, int64(a.Now)) || !possible(here, int64(a.Relearn)) || !PossibleFence(a.Fence) ||
		!PossibleFence(a.Born) || !PossibleFence(a.Folded) {
		return false
	}
	// An account goes by its former owner's clock, which may be behind the sender's by Lag: that
	// clock must be possible, too.
	if a.Dead < 0 || a.Dead > 2*never || a.Lag < 0 || here.Sub(sent-a.Lag) > MostApart || a.Level < 0 ||
		a.Level > MostTokens || a.Carry < 0 || a.Carry > MostTokens ||
		!possibleWindow(here, a.Window) || a.Charged > MostTokens || a.Previous < 0 || a.Previous > MostTokens {
		return false
	}
	for i := range a.Holders {
		h := &a.Holders[i]
		if !possible(here, int64(h.Expires)) || !PossibleFence(h.Fence) || !possibleWindow(here, h.Window) {
			return false
		}
	}
	return true
}

// PossibleFence tells whether an account can have a fence. They grow by the clock
// and by claims, and leasing believes a holder's up to the year 2112.
func PossibleFence(f ratelimit.Fence) bool { return f >= 0 && f <= MostTime }

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

// Writer appends accounts to a parcel.
type Writer struct {
	B    []byte
	base int64
}

// NewWriter begins a parcel at the sender's time.
func NewWriter(base ratelimit.LedgerTime) *Writer {
	return &Writer{binary.AppendVarint(nil, int64(base)), int64(base)}
}

func (w *Writer) number(n int64) { w.B = binary.AppendVarint(w.B, n) }
func (w *Writer) time(t int64)   { w.number(t - w.base) }

// mark is a number that is 0 for most keys, or one that grows with the clock.
func (w *Writer) mark(t int64) {
	if t == 0 {
		// A difference from the parcel's time would make a 0 eight bytes long.
		w.B = append(w.B, 0)
		return
	}
	w.B = append(w.B, 1)
	w.time(t)
}

// Account is written in two parts. What follows the number of holders is there only if one
// of its fields is not 0, which most keys never see: over-admission, and what a loss of
// data left. The lowest bit of the number says so.
func (w *Writer) Account(key []byte, a *ledger.Statement) {
	w.B = binary.AppendUvarint(w.B, uint64(len(key)))
	w.B = append(w.B, key...)
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
	w.B = binary.AppendUvarint(w.B, uint64(len(a.Holders))<<1|uint64(Bit(rare, 0)))
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
func (w *Writer) window(n ratelimit.Window) { w.number(int64(n)) }

// holding is one holder's record. Its name is random, and would be longer as a varint.
func (w *Writer) holding(h *ledger.Holding) {
	w.B = binary.LittleEndian.AppendUint64(w.B, uint64(h.Holder))
	w.B = binary.AppendUvarint(w.B, h.Seq)
	w.window(h.Window)
	w.mark(int64(h.Expires))
	w.mark(int64(h.Fence))
	for _, n := range [...]int64{
		int64(h.Granted), int64(h.InFlight), int64(h.Spent), int64(h.Returned),
		int64(h.Over),
	} {
		w.number(n)
	}
	w.B = append(w.B, Bit(h.Direct, 0)|Bit(h.Closed, 1)|Bit(h.Void, 2)|Bit(h.Eager, 3)|Bit(h.Last, 4))
}

// Bit is a bit of a byte of flags.
func Bit(set bool, bit uint) byte {
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

// Read calls each with every account of a parcel, in order. The key is the
// parcel's. It ends at the first that makes no sense.
func Read(b []byte, each func(m Entry)) error {
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
// so that nobody looks at each field: Read looks once an account.
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
	return ratelimit.Tokens(r.within(-MostTokens, MostTokens))
}

func (r *reader) charge() ratelimit.Tokens { return ratelimit.Tokens(r.within(0, MostTokens)) }

func (r *reader) account() (m Entry) {
	n := r.unsigned(ratelimit.MaxKeyLen)
	if m.Key = r.bytes(int(n)); n == 0 {
		r.fail()
	}
	a := &m.Account
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

// possible tells whether a node's clock may have shown a time.
func possible(here ratelimit.LedgerTime, t int64) bool {
	return t >= 0 && t <= int64(here.Add(MostApart))
}

// Current tells whether a node's clock may show a time now.
func Current(here ratelimit.LedgerTime, t int64) bool {
	return possible(here, t) && t >= int64(here.Add(-MostApart))
}
