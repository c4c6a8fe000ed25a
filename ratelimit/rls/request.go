package rls

import (
	"fmt"
	"math"
	"net/http"
	"unicode/utf8"
	"unsafe"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
)

// Bounds of one request. Envoy sends far less. They bound the memory and the time of one request: a descriptor of two
// bytes on the wire becomes a match, a key, a verdict and a status.
const (
	MaxRequestBytes = 256 << 10 // where Options do not say otherwise
	MaxDescriptors  = 1000
	MaxEntries      = 100 // in one descriptor
	// MaxAllEntries is in all descriptors together. Descriptors times entries of each would be ten times as much.
	MaxAllEntries = 10_000
	MaxTextBytes  = 64 << 10
	maxHits       = math.MaxInt64
)

// request is a decoded RateLimitRequest. Its strings lie in the bytes that it
// was decoded from, and are good only as long as these.
type request struct {
	domain      string
	hits        uint32 // hits_addend; 0 means 1
	descriptors []descriptor
	entries     []config.Entry // of all descriptors, one after the other
}

// descriptor is a RateLimitDescriptor, and what its reserved entries say (holds.go).
type descriptor struct {
	// first and count are its entries in request.entries. The reserved ones at its end are not counted.
	first, count int
	override     ratelimit.Limit
	// unit is that of override, as it was sent: it may be none.
	unit        int32
	hasOverride bool
	// hasHits reports whether hits_addend was sent: 0 is a peek, and nothing sent is the number of the request.
	hasHits bool
	// negative is is_negative_hits: a refund.
	negative bool
	hits     uint64
	hold     string // that it settles, "" if it names none
	// settles is set if it brings the cost of an earlier request, and ends if it says that the cost is not known.
	settles bool
	ends    bool
}

func (r *request) entriesOf(d *descriptor) []config.Entry {
	return r.entries[d.first : d.first+d.count]
}

// ask returns the kind and the cost of a descriptor.
func (r *request) ask(d *descriptor) (ratelimit.Kind, ratelimit.Tokens) {
	hits := uint64(max(1, r.hits))
	if d.hasHits {
		hits = d.hits
	}
	switch {
	// hits_addend of 0 at a descriptor asks without taking. At the request 0 means that nothing was said, and is 1.
	case hits == 0:
		return ratelimit.Peek, 0
	case d.negative:
		return ratelimit.Refund, ratelimit.Tokens(hits)
	// No limit admits more, and what is taken back of a charge is then what was booked.
	default:
		return ratelimit.Spend, ratelimit.Tokens(min(hits, uint64(ratelimit.MaxBooked)))
	}
}

// badRequest is the client's mistake: InvalidArgument, or a status of HTTP.
type badRequest struct {
	message string
	status  int
}

// Error describes the fault of the request.
func (e *badRequest) Error() string { return e.message }

// bad describes the fault of a request, in a line: it may quote the request, which may be long.
func bad(format string, args ...any) error {
	return &badRequest{ratelimit.OneLine(fmt.Sprintf(format, args...)), http.StatusBadRequest}
}

var errNoDescriptors = bad("rate limit descriptor list must not be empty")

// decode reads an envoy.service.ratelimit.v3.RateLimitRequest. Unknown fields
// are skipped. It does not allocate once r's slices have grown.
func (r *request) decode(b []byte) error {
	r.domain, r.hits = "", 0
	r.descriptors, r.entries = r.descriptors[:0], r.entries[:0]
	err := wire.Each(b, "request", bad, func(f wire.Field) (err error) {
		switch {
		case f.IsBytes(1):
			r.domain, err = text(f.Body, "domain", -1, -1)
		case f.IsBytes(2):
			// Bounds are looked at before anything is appended: a few bytes on the wire become far more in memory.
			if len(r.descriptors) == MaxDescriptors {
				return bad("request has more than %d descriptors", MaxDescriptors)
			}
			r.descriptors = append(r.descriptors, descriptor{first: len(r.entries)})
			// It is named by its place, for errors and because appending moves the slice.
			err = r.decodeDescriptor(f.Body, len(r.descriptors)-1)
		case f.IsVarint(3):
			r.hits = uint32(f.Value)
		}
		return err
	})
	switch {
	case err != nil:
		return err
	case r.domain == "":
		return bad("rate limit domain must not be empty")
	case len(r.descriptors) == 0:
		return errNoDescriptors
	}
	return nil
}

// decodeDescriptor reads a descriptor: entries (1), limit (2), hits_addend (3), is_negative_hits (4). As in every
// message, of a number that is there twice the last counts, and a message that is there twice is joined.
func (r *request) decodeDescriptor(b []byte, i int) error {
	d := &r.descriptors[i]
	err := wire.Each(b, "descriptor", bad, func(f wire.Field) error {
		switch {
		case f.IsBytes(1):
			if d.count == MaxEntries {
				return bad("descriptor %d has more than %d entries", i, MaxEntries)
			}
			if len(r.entries) == MaxAllEntries {
				return bad("request has more than %d entries", MaxAllEntries)
			}
			r.entries = append(r.entries, config.Entry{})
			d.count++
			return decodeEntry(f.Body, &r.entries[len(r.entries)-1], i, d.count-1)
		case f.IsBytes(2):
			d.hasOverride = true
			return decodeOverride(f.Body, d)
		case f.IsBytes(3):
			// 0 is a value of its own here, so that it has to be told from nothing said.
			d.hasHits = true
			if err := decodeWrapper(f.Body, &d.hits); err != nil {
				return err
			}
			if d.hits > maxHits {
				return bad("descriptor %d: hits_addend is %d, and the maximum is %d", i, d.hits, int64(maxHits))
			}
		case f.IsVarint(4):
			d.negative = f.Value != 0
		}
		return nil
	})
	r.reserve(d)
	if err == nil && d.settles && d.negative {
		return bad("descriptor %d: it settles a hold, and its hits_addend is negative: a cost is not", i)
	}
	// Unit and multiplier are checked when all fields are read, for they may come in any order.
	if err != nil || !d.hasOverride {
		return err
	}
	return d.checkOverride(i)
}

// decodeEntry reads an entry of a descriptor: key (1), value (2).
func decodeEntry(b []byte, e *config.Entry, descriptor, entry int) error {
	return wire.Each(b, "entry", bad, func(f wire.Field) (err error) {
		switch {
		case f.IsBytes(1):
			e.Key, err = text(f.Body, "key", descriptor, entry)
		case f.IsBytes(2):
			e.Value, err = text(f.Body, "value", descriptor, entry)
		}
		return err
	})
}

// decodeOverride reads a limit that the request brings: requests_per_unit (1), unit (2), unit_multiplier (3).
func decodeOverride(b []byte, d *descriptor) error {
	return wire.Each(b, "limit override", bad, func(f wire.Field) error {
		switch {
		case f.IsVarint(1):
			d.override.Requests = ratelimit.Tokens(uint32(f.Value))
		case f.IsVarint(2):
			d.unit = int32(f.Value) // an enum has 32 bits
		case f.IsBytes(3):
			// A wrapper that comes twice is joined, so that one without a number leaves that of the first.
			multiplier := uint64(d.override.Multiplier)
			if err := decodeWrapper(f.Body, &multiplier); err != nil {
				return err
			}
			d.override.Multiplier = uint32(multiplier)
		}
		return nil
	})
}

// checkOverride refuses a limit without a period. envoyproxy/ratelimit has the same units; 0 is UNKNOWN.
func (d *descriptor) checkOverride(i int) error {
	l := &d.override
	if d.unit <= int32(ratelimit.UnitUnknown) || d.unit > int32(ratelimit.Year) {
		return bad("descriptor %d: its limit override has no valid unit (%d); use 1 SECOND, 2 MINUTE, 3 HOUR, 4 DAY, "+
			"5 MONTH or 6 YEAR", i, d.unit)
	}
	l.Unit = ratelimit.Unit(d.unit)
	if most := l.Unit.MostMultiplier(); l.Multiplier > most {
		return bad("descriptor %d: its limit override has unit_multiplier %d, and the maximum for a %s is %d", i,
			l.Multiplier, l.Unit, most)
	}
	return nil
}

// decodeWrapper reads a google.protobuf.UInt32Value or UInt64Value.
func decodeWrapper(b []byte, value *uint64) error {
	return wire.Each(b, "number", bad, func(f wire.Field) error {
		if f.IsVarint(1) {
			*value = f.Value
		}
		return nil
	})
}

// text is b as a string, without a copy: it is good as long as the request's bytes are. descriptor and entry, from 0,
// are for the error; -1: it is the domain.
func text(b []byte, what string, descriptor, entry int) (string, error) {
	// A string in proto3 is UTF-8. Other bytes could not be shown, nor sent on as a string.
	if len(b) <= MaxTextBytes && utf8.Valid(b) {
		return unsafe.String(unsafe.SliceData(b), len(b)), nil
	}
	where := ""
	if descriptor >= 0 {
		where = fmt.Sprintf("descriptor %d, entry %d: ", descriptor, entry)
	}
	if len(b) > MaxTextBytes {
		return "", bad("%s%s has %d bytes, and the maximum is %d", where, what, len(b), MaxTextBytes)
	}
	return "", bad("%s%s is not valid UTF-8", where, what)
}
