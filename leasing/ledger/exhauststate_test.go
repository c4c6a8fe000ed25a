package ledger

import (
	"bytes"
	"encoding/binary"
	"reflect"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/cespare/xxhash/v2"

	"github.com/sluice-gate/sluice/leasing/internal/lease"
	"github.com/sluice-gate/sluice/ratelimit"
)

// Two worlds are the same state if nothing that is to come can tell them apart.
// Numbers that grow for ever are therefore written down as what they are
// compared with: instants relative to now, windows relative to the current one,
// fences and sequence numbers by their rank among those of their holder; and the
// nodes are put in order, whatever their names.
//
// The fields of the product's types are found by reflection and written by their
// types, so that one that is added to them is part of the state as well.

// notState are the fields that nothing depends on which is searched for.
var notState = map[string]string{
	"Account.fence":      "every new one is above all, which is checked when it is issued",
	"Account.dead":       "for whoever evicts accounts",
	"Account.most":       "for over",
	"Account.over":       "counts what was over, and decides nothing",
	"Account.left":       "for late",
	"Account.late":       "counts what was over, and decides nothing",
	"Account.first":      "written with its holder",
	"Account.others":     "written with their holders",
	"record.holder":      "is the holder's place",
	"record.over":        "counts what was over, and decides nothing",
	"record.missing":     "is counted",
	"Grant.Missing":      "is counted",
	"Lease.Available":    "is said to clients",
	"Lease.Debt":         "is said to clients",
	"Claim.Key":          "there is one",
	"Claim.Limit":        "there is one",
	"Claim.Holder":       "is the holder's place",
	"Claim.Audit":        "is for records",
	"Grant.At":           "for a node that does not know the ledger's clock, and here it does",
	"Grant.Holders":      "plans renewals, and here a node may always renew",
	"Grant.Stranded":     "is shown to people",
	"Grant.Over":         "is shown to people",
	"Grant.OverAdmitted": "is shown to people",
	"Account.tills":      "is written by itself",
	"Grant.Err":          "such an answer is delivered at once",
}

type fieldKind uint8

const (
	fieldNumber fieldKind = iota // 8 bytes as they are
	fieldSmall                   // 1 byte
	fieldMedium                  // 4 bytes
	fieldLedgerTime
	fieldInstant
	fieldWindow
	fieldFence
	fieldSeq
	fieldReceived // granted or returned: see stateWriter.shift
	fieldRecalled // when holders were asked to give back: they may be asked again after RecallAgain
)

type field struct {
	at   uintptr
	kind fieldKind
}

var (
	stateOfAccount = fieldsOf(reflect.TypeFor[Account]())
	stateOfRecord  = fieldsOf(reflect.TypeFor[record]())
	stateOfLease   = fieldsOf(reflect.TypeFor[lease.Lease]())
	stateOfClaim   = fieldsOf(reflect.TypeFor[ratelimit.Claim]())
	stateOfGrant   = fieldsOf(reflect.TypeFor[ratelimit.Grant]())
)

// fieldsOf tells how a struct is written. It panics at a field whose type says
// nothing about that.
func fieldsOf(t reflect.Type) []field {
	var all []field
	for _, f := range reflect.VisibleFields(t) {
		if _, ok := notState[t.Name()+"."+f.Name]; ok || f.Anonymous {
			continue
		}
		for n := range len(f.Index) - 1 { // where what it is embedded in is
			f.Offset += t.FieldByIndex(f.Index[:n+1]).Offset
		}
		kind := fieldNumber
		if name := strings.ToLower(f.Name); name == "granted" || name == "returned" {
			all = append(all, field{f.Offset, fieldReceived})
			continue
		}
		switch f.Type {
		case reflect.TypeFor[ledgerTime]():
			kind = fieldLedgerTime
			if t == reflect.TypeFor[Account]() && f.Name == "recalled" {
				kind = fieldRecalled
			}
		case reflect.TypeFor[instant]():
			kind = fieldInstant
		case reflect.TypeFor[window]():
			kind = fieldWindow
		case reflect.TypeFor[ratelimit.Fence]():
			kind = fieldFence
		case reflect.TypeFor[tokens](), reflect.TypeFor[int](), reflect.TypeFor[int64](), reflect.TypeFor[time.Duration]():
		case reflect.TypeFor[uint64]():
			kind = fieldSeq // as long as nothing else is one
		default:
			switch f.Type.Size() {
			case 1:
				kind = fieldSmall
			case 4:
				kind = fieldMedium
			default:
				panic("leasing: how is " + t.Name() + "." + f.Name + " part of a state? See notState and fieldsOf.")
			}
		}
		all = append(all, field{f.Offset, kind})
	}
	return all
}

// stateWriter writes worlds down. It is used again for each, and not safe for
// concurrent use.
type stateWriter struct {
	buf    []byte
	w      *smallWorld
	bucket bool
	here   window // the current one
	seqs   []uint64
	fences []ratelimit.Fence
	shifts [2]tokens // of each of the holder's names
	shift  tokens
	blocks [][]byte
	texts  [][]byte // of one holder's messages
	arena  []byte
}

// hash is 128 bits of the state: so many that of a billion states, no two are
// likely to share one.
func (s *stateWriter) hash(w *smallWorld) [2]uint64 {
	text := s.describe(w)
	return [2]uint64{xxhash.Sum64(text), xxhash.Sum64(text[5:])*31 + uint64(len(text))}
}

func (s *stateWriter) start(w *smallWorld) {
	s.w, s.here, s.bucket = w, w.window(), w.scope.rule.Limit.Algorithm == ratelimit.TokenBucket
	s.buf, s.arena = s.buf[:0], s.arena[:0]
	if s.bucket {
		s.here = w.ledger.window
	}
}

func (s *stateWriter) describe(w *smallWorld) []byte {
	s.start(w)
	s.header()
	s.blocks = s.blocks[:0]
	for i := range w.parties {
		from := len(s.buf)
		s.party(&w.parties[i])
		s.arena = append(s.arena, s.buf[from:]...)
		s.blocks = append(s.blocks, s.arena[len(s.arena)-(len(s.buf)-from):])
		s.buf = s.buf[:from]
	}
	slices.SortFunc(s.blocks, bytes.Compare)
	for _, b := range s.blocks {
		s.buf = append(s.buf, 0xfe)
		s.buf = append(s.buf, b...)
	}
	return s.buf
}

// header writes what belongs to nobody.
func (s *stateWriter) header() {
	w := s.w
	if w.scope.horizon > 0 {
		s.number(int64(w.tick))
	} else {
		s.number(int64(w.tick % w.scope.ticks))
	}
	if w.ledger.folded != 0 || w.ledger.renamed != 0 {
		panic("leasing: fences of several holders are compared here, and a state has only the ranks of each one's")
	}
	s.number(int64(w.sub))
	if w.scope.faults[faultAmnesia] {
		s.number(int64(w.epoch.ID))
		s.ledgerTime(w.epoch.Began)
		s.ledgerTime(w.epoch.Learning)
	}
	for _, used := range w.used {
		s.number(int64(btoi(used)))
	}
	s.number(int64(w.spent))
	s.number(int64(w.taken))
	s.number(int64(w.before))
	s.number(int64(w.excuse[0]))
	s.number(int64(w.excuse[1]))
	if s.bucket {
		s.number(int64(w.level))
	}
	for i := range w.ledger.tills {
		if t := &w.ledger.tills[i]; t.window >= s.here {
			s.window(t.window)
			s.number(int64(t.units))
		}
	}
	if w.scope.rule.Limit.Algorithm == ratelimit.FixedWindow && w.ledger.window < s.here {
		s.buf = append(s.buf, 0) // all that it says is about a window that is over
		s.ledgerTime(w.ledger.relearn)
		s.number(int64(w.ledger.relearned))
		return
	}
	s.fields(unsafe.Pointer(&w.ledger), stateOfAccount)
}

// over tells whether what is said about a window matters no more: that of the
// window before still does where windows slide.
func (s *stateWriter) over(x window) bool {
	switch s.w.scope.rule.Limit.Algorithm {
	case ratelimit.FixedWindow:
		return x < s.here
	case ratelimit.SlidingWindow:
		return x < s.here-1
	}
	return false
}

// party writes one holder: its node, its records and its messages.
func (s *stateWriter) party(p *party) {
	s.rank(p)
	w := s.w
	flags := btoi(p.busy) | btoi(p.settled)<<1 | btoi(p.dead)<<2 | btoi(p.paused)<<3 | btoi(p.hasNext)<<4 | btoi(p.untold)<<5
	s.buf = append(s.buf, byte(flags), byte(p.epoch.ID))
	s.number(int64(s.seqRank(p.seq)))
	s.number(int64(p.waiting))
	if w.scope.rule.Coordination.Eager() {
		s.number(int64(p.reported))
		s.number(int64(btoi(p.silent)))
		s.instant(p.after)
	}
	if w.scope.recalls {
		s.buf = append(s.buf, byte(p.recall), byte(btoi(p.asked)), byte(p.resting))
		s.number(int64(p.reported))
	}
	if p.paused {
		s.number(int64(min(w.tick-p.since, w.scope.ttl)))
	}
	if w.scope.ahead {
		s.window(p.tried)
	}
	s.shift = s.shifts[p.other]
	s.lease(&p.lease)
	s.record(w.ledger.find(p.name ^ p.other))
	s.shift = s.shifts[p.other^1]
	if p.hasNext {
		s.lease(&p.next)
	}
	s.record(w.ledger.find(p.name ^ p.other ^ 1))
	s.drawn(p.name ^ p.other)
	s.drawn(p.name ^ p.other ^ 1)
	s.messages(p)
}

func (s *stateWriter) lease(l *lease.Lease) {
	if *l == (lease.Lease{}) {
		s.buf = append(s.buf, 0)
		return
	}
	if s.over(l.Window) {
		s.buf = append(s.buf, 2, byte(s.seqRank(l.Seq)), byte(btoi(s.w.now() >= l.Reset.Add(lease.ClaimTimeout))), byte(btoi(l.Window == 0)))
		return
	}
	s.buf = append(s.buf, 1)
	s.fields(unsafe.Pointer(l), stateOfLease)
}

func (s *stateWriter) record(r *record) {
	if r == nil {
		s.buf = append(s.buf, 0)
		return
	}
	if s.over(r.window) {
		s.buf = append(s.buf, 2, byte(s.seqRank(r.seq)))
		return
	}
	s.buf = append(s.buf, 1)
	s.fields(unsafe.Pointer(r), stateOfRecord)
}

// drawn writes what a holder has drawn from tills that still matter.
func (s *stateWriter) drawn(h ratelimit.Holder) {
	for i := range s.w.ledger.tills {
		for _, d := range s.w.ledger.tills[i].drawn {
			if d.holder == h && s.w.ledger.tills[i].window >= s.here {
				s.window(s.w.ledger.tills[i].window)
				s.number(int64(d.n))
			}
		}
	}
}

func (s *stateWriter) messages(p *party) {
	s.texts = s.texts[:0]
	for i := range s.w.net {
		m := &s.w.net[i]
		if m.claim.Holder&^1 != p.name {
			continue
		}
		from := len(s.buf)
		s.message(p, m)
		s.arena = append(s.arena, s.buf[from:]...)
		s.texts = append(s.texts, s.arena[len(s.arena)-(len(s.buf)-from):])
		s.buf = s.buf[:from]
	}
	slices.SortFunc(s.texts, bytes.Compare)
	for _, t := range s.texts {
		s.buf = append(s.buf, 0xfd)
		s.buf = append(s.buf, t...)
	}
}

func (s *stateWriter) message(p *party, m *smallMessage) {
	s.shift = s.shifts[m.claim.Holder&1]
	s.buf = append(s.buf, byte(btoi(m.late)|btoi(m.ahead)<<1|btoi(m.grant != nil)<<2|int((m.claim.Holder^p.other)&1)<<3), byte(m.age), byte(m.known), byte(m.in.ID))
	s.number(int64(s.w.tick - m.sent))
	if c := m.claim; s.over(c.Window) && !c.Ahead {
		s.buf = append(s.buf, byte(c.Waiting), byte(c.Want), byte(c.TTL/smallTick), byte(s.seqRank(c.Seq)))
	} else {
		s.fields(unsafe.Pointer(c), stateOfClaim)
	}
	if m.grant != nil {
		if s.over(m.grant.Window) {
			s.buf = append(s.buf, 0)
			return
		}
		s.fields(unsafe.Pointer(m.grant), stateOfGrant)
	}
}

// lower has the shift of one of the holder's names be at most what keeps
// returned at 1: a ledger that forgot tells a holder that has received something
// from one that has not, and nothing else depends on more than differences.
func (s *stateWriter) lower(name ratelimit.Holder, returned tokens) {
	s.shifts[name&1] = min(s.shifts[name&1], max(0, returned-1))
}

// rank collects the numbers that p's are compared with: what was granted and
// returned in turn, again and again, is only compared with itself.
func (s *stateWriter) rank(p *party) {
	s.shifts = [2]tokens{1 << 40, 1 << 40}
	if !s.over(p.lease.Window) {
		s.lower(p.name^p.other, p.lease.Returned)
	}
	if p.hasNext {
		s.lower(p.name^p.other^1, p.next.Returned)
	}
	s.seqs = append(s.seqs[:0], 0, p.seq, p.lease.Seq, p.next.Seq)
	s.fences = append(s.fences[:0], 0, p.lease.Fence, p.next.Fence)
	for _, name := range [2]ratelimit.Holder{p.name, p.name ^ 1} {
		if r := s.w.ledger.find(name); r != nil {
			s.seqs, s.fences = append(s.seqs, r.seq), append(s.fences, r.fence)
			if !s.over(r.window) {
				s.lower(name, r.returned)
			}
		}
	}
	for i := range s.w.net {
		m := &s.w.net[i]
		if m.claim.Holder&^1 != p.name {
			continue
		}
		s.seqs, s.fences = append(s.seqs, m.claim.Seq), append(s.fences, m.claim.Fence)
		if !s.over(m.claim.Window) {
			s.lower(m.claim.Holder, m.claim.Returned)
		}
		if m.grant != nil {
			s.fences = append(s.fences, m.grant.Fence)
		}
	}
	slices.Sort(s.seqs)
	slices.Sort(s.fences)
	s.seqs, s.fences = slices.Compact(s.seqs), slices.Compact(s.fences)
}

func (s *stateWriter) seqRank(seq uint64) int { return slices.Index(s.seqs, seq) }

func (s *stateWriter) number(n int64) { s.buf = binary.AppendVarint(s.buf, n) }

// instant writes how far ahead an instant is. What is past is past, but for how
// long only matters for a tick (a node forgets a key that long after its reset).
func (s *stateWriter) instant(t instant) {
	s.number(int64(max(t.Sub(s.w.now()), -smallTick)))
}

// ledgerTime does the same by the ledger's clock. A bucket forgets an expired
// lease after periods, and an ended holder is folded after FoldAfter.
func (s *stateWriter) ledgerTime(t ledgerTime) {
	past := time.Duration(0)
	if s.bucket || s.w.scope.faults[faultEnd] {
		past = 16 * smallTick
	}
	s.number(int64(max(t.Sub(s.w.ledgerNow()), -past)))
}

// window writes how far from the current window one is; a bucket's life is this
// one or another.
func (s *stateWriter) window(x window) {
	switch {
	case x == 0:
		s.number(9)
	case s.bucket:
		s.number(int64(btoi(x != s.here)))
	default:
		s.number(int64(max(x-s.here, -3)))
	}
}

func (s *stateWriter) fields(at unsafe.Pointer, fields []field) {
	for _, f := range fields {
		x := unsafe.Add(at, f.at)
		switch f.kind {
		case fieldReceived:
			s.number(int64(max(0, *(*tokens)(x)-s.shift)))
		case fieldNumber:
			s.number(*(*int64)(x))
		case fieldSmall:
			s.buf = append(s.buf, *(*byte)(x))
		case fieldMedium:
			s.number(int64(*(*uint32)(x)))
		case fieldLedgerTime:
			s.ledgerTime(*(*ledgerTime)(x))
		case fieldRecalled:
			s.number(max(int64(*(*ledgerTime)(x)-s.w.ledgerNow()), -int64(RecallAgain)))
		case fieldInstant:
			s.instant(*(*instant)(x))
		case fieldWindow:
			s.window(*(*window)(x))
		case fieldFence:
			s.number(int64(slices.Index(s.fences, *(*ratelimit.Fence)(x))))
		case fieldSeq:
			s.number(int64(s.seqRank(*(*uint64)(x))))
		}
	}
}

// sameAccount compares accounts field by field.
func (w *smallWorld) sameAccount(a, b *Account) bool {
	x, y := *a, *b
	x.others, y.others = nil, nil
	return reflect.DeepEqual(x, y) && slices.Equal(a.others, b.others)
}
