// Package moved writes accounts that move between nodes, and reads them.
//
// Guarantee: accounts are read as they were written, to the token and the microsecond
// (TestParcelIsReadAsItWasWritten). Invalid bytes are refused, in memory bounded by their length
// (FuzzParcel). An account that is [Entry.Plausible] ends all waits and overflows no sum.
//
// A parcel has the sender's time at its beginning, and then accounts: each its key and its fields as varints.
// Times are differences from that time, so that most take two or three bytes. With a message for each
// account, a hand-over of a million keys would take seconds of processor time.
package moved

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Bounds of the content of one account.
const (
	// MostTokens bounds each field that counts tokens, so that sums of a few do not overflow.
	MostTokens = 1 << 43
	// mostLevel bounds a bucket's level, in micro-tokens, and its debt.
	mostLevel = 1 << 61
	// never is how far ahead a time in a parcel may lie, in microseconds. A bucket that does not
	// refill is never full, and its time is cut to that.
	never = 1 << 60
	// MostApart is the largest difference between a peer's clock and this node's. Times further away are
	// invalid. A time far ahead makes an account wait until then, and one far behind has it count with times
	// before 1970.
	MostApart = 366 * 24 * time.Hour
)

var errAccount = errors.New("an account in a parcel is invalid")

// Entry is an account on its way, with the key that it is of. Both are the reader's: who
// keeps them copies them.
type Entry struct {
	Key     []byte
	Account local.Account
}

// Plausible reports whether a node can have such an account, when this node's clock shows here. Other accounts would
// wait for ever, divide by a window without length, or overflow their levels.
func (m *Entry) Plausible(here ratelimit.LedgerTime) bool {
	a := &m.Account
	if !possible(here, int64(a.Begins)) || a.Ends < 0 || a.Ends > 2*never {
		return false
	}
	return a.Algorithm == ratelimit.TokenBucket || possibleWindow(here, ratelimit.Window(a.State)) &&
		(a.Begins <= 0 || a.Ends > a.Begins && possible(here.Add(2*MostApart), int64(a.Ends)))
}

// possibleWindow reports whether a window can have begun: one of at least a second has a lower number than seconds
// have passed.
func possibleWindow(here ratelimit.LedgerTime, w ratelimit.Window) bool {
	return w >= 0 && w < 1<<40 && possible(here, max(0, int64(w)-1)*1_000_000)
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

func (w *Writer) numbers(all ...int64) {
	for _, n := range all {
		w.B = binary.AppendVarint(w.B, n)
	}
}

// time is 0 for most keys, or one that grows with the clock.
func (w *Writer) time(t int64) {
	if t == 0 {
		// A difference from the parcel's time would make a 0 eight bytes long.
		w.B = append(w.B, 0)
		return
	}
	w.B = append(w.B, 1)
	w.numbers(t - w.base)
}

// Account writes an account.
func (w *Writer) Account(key []byte, a *local.Account) {
	w.B = binary.AppendUvarint(w.B, uint64(len(key)))
	w.B = append(w.B, key...)
	w.B = append(w.B, byte(a.Algorithm))
	w.numbers(int64(a.Sum), a.Extra, a.State, int64(a.Limit))
	w.time(int64(a.Begins))
	// A bucket that does not refill is never full, and its time lies beyond what a difference may
	// be.
	w.time(min(int64(a.Ends), w.base+never))
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
		m := r.account()
		if !r.bad {
			each(m)
		}
	}
	if r.bad {
		return errAccount
	}
	return nil
}

// fail ends the parcel. Later reads return meaningless values without harm, so that fields need no check of
// their own: Read checks once an account.
func (r *reader) fail() int64 {
	r.b, r.bad = nil, true
	return 0
}

// within reads a number, which must lie between two others: no node writes numbers beyond them, and sums of
// such numbers could overflow.
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
func (r *reader) time() ratelimit.LedgerTime {
	if r.byte() == 0 {
		return 0
	}
	// Base and difference are both below 2^62, so that their sum does not overflow.
	if t := r.base + r.within(-1<<62, 1<<62-1); t >= 0 {
		return ratelimit.LedgerTime(t)
	}
	return ratelimit.LedgerTime(r.fail())
}

func (r *reader) tokens(least int64) ratelimit.Tokens {
	return ratelimit.Tokens(r.within(least, MostTokens))
}

func (r *reader) account() (m Entry) {
	n := r.unsigned(ratelimit.MaxKeyLen)
	m.Key = r.bytes(int(n))
	if n == 0 {
		r.fail()
	}
	a := &m.Account
	a.Algorithm = ratelimit.Algorithm(r.byte())
	if a.Algorithm >= ratelimit.Concurrency { // slots do not move
		r.fail()
	}
	a.Sum = r.tokens(0)
	a.Extra = r.within(0, 1<<53)
	a.State = r.within(-mostLevel, mostLevel)
	a.Limit = r.tokens(0)
	a.Begins, a.Ends = r.time(), r.time()
	return m
}

// possible reports whether a node's clock may have shown a time.
func possible(here ratelimit.LedgerTime, t int64) bool {
	return t >= 0 && t <= int64(here.Add(MostApart))
}

// Current reports whether a node's clock may show a time now.
func Current(here ratelimit.LedgerTime, t int64) bool {
	return possible(here, t) && t >= int64(here.Add(-MostApart))
}
