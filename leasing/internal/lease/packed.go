package lease

import (
	"encoding/binary"
	"math"
	"time"

	"github.com/sluice-gate/sluice/ratelimit"
)

// A cold key's state as bytes:
//
//	8 bytes   46 bits: which of the numbers below are not 0, lowest bit first;
//	          18 bits: what is true or not, see the flags below
//	4 bytes   tokens that were spent since it is cold, beyond those numbers
//	4 bytes   when it was last used, in ticks
//	varint    the rule's number in its shard
//	varints   those numbers, in the order of (*packer).numbers
//	8 bytes   the rate, if it was measured
//
// Instants are differences to when the last claim was sent, or to others that they are
// near, which makes them short. What a request from the lease needs comes first. The
// same function writes and reads, so that the two cannot differ.

// packer walks through what is known of a key, and writes or reads it.
type packer struct {
	b       []byte
	reading bool
	present uint64 // which numbers are not 0
	next    uint64 // the bit of the next
}

// packedFlags are the bits of a packed key.
const (
	packedSplit = 1 << iota
	packedEager
	packedAsked
	packedStretched
	packedRecalling
	packedSettled
	packedGauged                      // its rule's gauges have it
	packedOddName                     // it is under the node's second name
	packedLimited                     // its lease's limit is that of its rule, and else among the numbers
	packedFruits                      // and the three bits above: how many, which are fewer than 16
	packedHolds   = packedFruits << 4 // and the bit above
	packedCrowded = packedHolds << 2
	packedVain    = packedHolds << 3
	packedShut    = packedHolds << 4
)

// Where the parts of a packed key are.
const (
	packedFlagsAt  = 46 // of its first 64 bits; below is which numbers are there
	packedTaken    = 8
	packedLastUsed = 12
	packedHeader   = 16
)

// Packable tells whether a key may be cold: nothing is under way for it, it has no lease
// of the next window, which has an instant to look at, and its rule says the rest.
func (h *Held) Packable() bool {
	if h.Gauges.Of != nil && h.Rule != nil && h.Gauges.Of != h.Rule.Counters {
		h.Gauge() // a reload has given its rule other counters
	}
	return h.underWay == nil && h.Next == nil && h.Rule != nil
}

// OverDue is when a sweep must look at a key because its window is over.
func (h *Held) OverDue() instant {
	if h.Gauges.Of != nil || h.needsLastWord() {
		return h.Lease.Reset
	}
	return Never
}

// MayDrift tells whether something of the key may still count as drift.
func (h *Held) MayDrift() bool { return h.Lease.Drifted() > 0 || h.Carried > 0 }

// Pack appends what is known of a key that is Packable; rule is its rule's number.
func (h *Held) Pack(b []byte, rule uint32) []byte {
	start := len(b)
	flags := h.flags()
	b = binary.LittleEndian.AppendUint64(b, 0) // what is there is known at the end
	b = binary.LittleEndian.AppendUint32(b, 0) // nothing was taken since it is cold
	b = binary.LittleEndian.AppendUint32(b, uint32(TicksOf(h.Demand.LastUse)))
	p := packer{b: binary.AppendUvarint(b, uint64(rule)), next: 1}
	p.numbers(h, flags)
	if h.Demand.PerSec != 0 {
		// The rate has no place among the numbers: as a double it would be no shorter as a varint.
		p.present |= p.next
		p.b = binary.LittleEndian.AppendUint64(p.b, math.Float64bits(h.Demand.PerSec))
	}
	binary.LittleEndian.PutUint64(p.b[start:], p.present|flags<<packedFlagsAt)
	return p.b
}

// PackedRule is the number of a packed key's rule.
func PackedRule(b []byte) uint64 {
	number, _ := binary.Uvarint(b[packedHeader:])
	return number
}

// Unpack reads what Pack wrote, into a zero Held. rule has the number that PackedRule says,
// and name is the node's even name.
func (h *Held) Unpack(b []byte, rule *ratelimit.Rule, name ratelimit.Holder) {
	head := binary.LittleEndian.Uint64(b)
	flags := head >> packedFlagsAt
	_, n := binary.Uvarint(b[packedHeader:])
	p := packer{b: b[packedHeader+n:], reading: true, next: 1, present: head & (1<<packedFlagsAt - 1)}
	h.Rule = rule
	h.setFlags(flags, name)
	p.numbers(h, flags)
	if p.present&p.next != 0 {
		h.Demand.PerSec = math.Float64frombits(binary.LittleEndian.Uint64(p.b))
	}
	h.Demand.LastUse = LastUsedCold(b)
	// What was spent since was only counted beside the numbers. The ledger has not heard of it.
	if taken := tokens(binary.LittleEndian.Uint32(b[packedTaken:])); taken > 0 {
		h.Lease.Spent += taken
		h.Demand.Used = ratelimit.AddTokens(h.Demand.Used, taken)
		h.Settled = false
	}
}

// LastUsedCold is when a packed key was last used, up to a tick later.
func LastUsedCold(b []byte) instant {
	return instant(binary.LittleEndian.Uint32(b[packedLastUsed:])) * instant(Tick)
}

// SpendPacked spends from the lease of a packed key, if there is enough, it is not due
// to be renewed, and nothing else needs the rest of what is known. It does not allocate.
func SpendPacked(b []byte, now instant, a *ask, v *verdict) bool {
	head := binary.LittleEndian.Uint64(b)
	_, n := binary.Uvarint(b[packedHeader:])
	p := packer{b: b[packedHeader+n:], reading: true, next: 1, present: head & (1<<packedFlagsAt - 1)}
	var h packedFront
	p.front(&h)
	taken := tokens(binary.LittleEndian.Uint32(b[packedTaken:]))
	// A key that is asked for so often is made busy: it costs less then, and is among those that
	// are looked at for the hottest.
	if taken >= busyAfter*a.Cost {
		return false
	}
	l := Lease{
		Granted: h.granted, Spent: h.spent + taken, Returned: h.returned, Available: h.available,
		Deadline: h.deadline, Reset: h.reset, Window: h.window,
	}
	switch {
	// Whatever else than spending is to be done needs all that is known: a limit that is another
	// than the rule's, an end of the window, a pause, a claim ahead, a renewal. What was taken has
	// 32 bits.
	case head>>packedFlagsAt&packedLimited == 0, now >= l.Reset, now < h.pause, now >= h.aheadAt, a.Cost > l.Left(now),
		taken+a.Cost > math.MaxUint32:
		return false
	}
	l.Spent += a.Cost
	if r := (Renewal{h.below, h.after}); r.Due(now, l.Unspent()) {
		return false
	}
	binary.LittleEndian.PutUint32(b[packedTaken:], uint32(taken+a.Cost))
	binary.LittleEndian.PutUint32(b[packedLastUsed:], uint32(TicksOf(now)))
	*v = l.Report(now, verdict{Charged: a.Cost})
	return true
}

// busyAfter is how often a cold key is asked for until it is busy.
const busyAfter = 64

// packedFront is what a request from the lease looks at.
type packedFront struct {
	told, deadline, reset               instant
	granted, spent, returned, available tokens
	window                              window
	below                               tokens
	after, aheadAt, pause               instant
}

func (h *Held) front() packedFront {
	l := &h.Lease
	return packedFront{
		told: h.Told, deadline: l.Deadline, reset: l.Reset, granted: l.Granted, spent: l.Spent, returned: l.Returned,
		available: l.Available, window: l.Window, below: h.below, after: h.After, aheadAt: h.AheadAt, pause: h.Pause,
	}
}

func (h *Held) setFront(x *packedFront) {
	l := &h.Lease
	h.Told, l.Deadline, l.Reset, l.Granted, l.Spent, l.Returned = x.told, x.deadline, x.reset, x.granted, x.spent,
		x.returned
	l.Available, l.Window, h.below, h.After, h.AheadAt, h.Pause = x.available, x.window, x.below, x.after, x.aheadAt,
		x.pause
}

// front walks through the numbers of a packedFront.
func (p *packer) front(x *packedFront) {
	p.when(&x.told, 0)
	p.when(&x.deadline, x.told)
	p.when(&x.reset, x.told)
	packNumber(p, &x.granted)
	packNumber(p, &x.spent)
	packNumber(p, &x.returned)
	packNumber(p, &x.available)
	packNumber(p, &x.window)
	packNumber(p, &x.below)
	p.when(&x.after, x.told)
	p.when(&x.aheadAt, x.told)
	p.when(&x.pause, x.told)
}

func (h *Held) flags() uint64 {
	flags := uint64(h.Fruits)*packedFruits + uint64(h.holds)*packedHolds
	for _, is := range [...]struct {
		true bool
		bit  uint64
	}{
		{h.Lease.Split, packedSplit},
		{h.eager, packedEager},
		{h.asked, packedAsked},
		{h.Stretched, packedStretched},
		{h.Recalling, packedRecalling},
		{h.Settled, packedSettled},
		{h.Gauges.Of != nil, packedGauged},
		{h.Name&1 != 0, packedOddName},
		{h.limited(), packedLimited},
		{h.crowded, packedCrowded},
		{h.vain, packedVain},
		{h.shut, packedShut},
	} {
		if is.true {
			flags |= is.bit
		}
	}
	return flags
}

func (h *Held) setFlags(flags uint64, name ratelimit.Holder) {
	h.Fruits, h.holds = uint8(flags/packedFruits%16), uint8(flags/packedHolds%4)
	h.crowded, h.vain, h.shut = flags&packedCrowded != 0, flags&packedVain != 0, flags&packedShut != 0
	h.Lease.Split, h.eager, h.asked = flags&packedSplit != 0, flags&packedEager != 0, flags&packedAsked != 0
	h.Stretched, h.Recalling, h.Settled = flags&packedStretched != 0, flags&packedRecalling != 0,
		flags&packedSettled != 0
	if flags&packedGauged != 0 {
		h.Gauges.Of = h.Rule.Counters
	}
	if h.Name = name; flags&packedOddName != 0 {
		h.Name ^= 1
	}
	if flags&packedLimited != 0 {
		h.Lease.SetLimit(&h.Rule.Limit)
	}
}

// limited tells whether the lease was granted under the limit that its rule has.
func (h *Held) limited() bool { return h.Lease.Limit() == h.Rule.Limit }

// limit walks through the limit of a lease: it is as it was, if it is not its rule's.
func (p *packer) limit(l *GrantedLimit) {
	requests, burst := Joined(l.Requests, l.RequestsHigh), Joined(l.Burst, l.BurstHigh)
	cut := uint64(l.Algorithm)<<32 | uint64(l.Period)
	packNumber(p, &requests)
	packNumber(p, &burst)
	packNumber(p, &cut)
	if p.reading {
		l.Requests, l.RequestsHigh = uint32(requests), uint8(requests>>32)
		l.Burst, l.BurstHigh = uint32(burst), uint8(burst>>32)
		l.Algorithm, l.Period = ratelimit.Algorithm(cut>>32), uint32(cut)
	}
}

// numbers walks through all numbers.
func (p *packer) numbers(h *Held, flags uint64) {
	x := h.front()
	p.front(&x)
	if p.reading {
		h.setFront(&x)
	}
	l := &h.Lease
	if flags&packedLimited == 0 {
		p.limit(&l.GrantedLimit)
	}
	p.when(&l.Retry, h.Told)
	packNumber(p, &l.RetryCost)
	packNumber(p, &l.Debt)
	packNumber(p, &l.Seq)
	packNumber(p, &l.Fence)
	packNumber(p, &h.Demand.Used)
	packNumber(p, &h.Demand.Refused)
	p.when(&h.Demand.Since, h.Told)
	packNumber(p, &h.triedAhead)
	p.when(&h.Heard, h.Told)
	p.when(&h.expires, l.Deadline)
	packNumber(p, &h.elsewhere)
	packNumber(p, &h.Reported)
	packNumber(p, &h.Gauges.Leased)
	packNumber(p, &h.Gauges.Drifting)
	packNumber(p, &h.Gauges.stranded)
	packNumber(p, &h.stranded)
	packNumber(p, &h.Carried)
	packNumber(p, &h.Before)
	packNumber(p, &h.used)
	p.when(&h.usedTill, h.Told)
	packNumber(p, &h.heir)
	p.when(&h.resume, h.Told)
	packNumber(p, &h.Unplaced)
	p.when(&h.UnplacedAt, h.Told)
	packNumber(p, &h.Unasked)
	p.when(&h.again, h.Heard.Add(RefusalHold))
	packNumber(p, &h.collects)
	packNumber(p, &h.returned)
}

// packNumber is a number that is often 0, as it is where it is read to.
func packNumber[T ~int64 | ~uint64](p *packer, v *T) {
	bit := p.next
	p.next <<= 1
	switch {
	case p.reading:
		if p.present&bit != 0 {
			n, size := binary.Varint(p.b)
			*v, p.b = T(n), p.b[size:]
		}
	case *v != 0:
		p.present |= bit
		p.b = binary.AppendVarint(p.b, int64(*v))
	}
}

// when is an instant that is often 0: its difference to another, plus 1, for 0 is never.
func (p *packer) when(v *instant, near instant) {
	bit := p.next
	p.next <<= 1
	if near == Never {
		near = 0
	}
	switch {
	case p.reading:
		if p.present&bit != 0 {
			code, size := binary.Varint(p.b)
			*v, p.b = instantOf(code, near), p.b[size:]
		}
	case *v != 0:
		code := int64(0)
		if *v != Never {
			if code = int64(*v - near); code >= 0 {
				code++
			}
		}
		p.present |= bit
		p.b = binary.AppendVarint(p.b, code)
	}
}

// instantOf is what when has written.
func instantOf(code int64, near instant) instant {
	switch {
	case code == 0:
		return Never
	case code > 0:
		return near + instant(code-1)
	}
	return near + instant(code)
}

// Ticks are instants in steps of an eighth of a second, rounded up.
type Ticks uint32

// A tick, and one that does not come.
const (
	Tick           = time.Second / 8
	NeverDue Ticks = 1<<32 - 1
)

// TicksOf is the tick of an instant, or the next.
func TicksOf(at instant) Ticks {
	if at >= instant(NeverDue)*instant(Tick) {
		return NeverDue
	}
	return Ticks(max(0, (at+instant(Tick)-1)/instant(Tick)))
}
