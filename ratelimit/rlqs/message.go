// Messages of Envoys. Field numbers are those of envoy/service/rate_limit_quota/v3/rlqs.proto:
//
//	RateLimitQuotaUsageReports   domain 1, bucket_quota_usages 2
//	BucketQuotaUsage             bucket_id 1, time_elapsed 2, num_requests_allowed 3, num_requests_denied 4
//	BucketId                     a map, whose entries are messages: key 1, value 2

package rlqs

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
	"unsafe"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/internal/wire"
	"github.com/sluice-gate/sluice/ratelimit/sublease"
)

// incoming is an envoy.service.rate_limit_quota.v3.RateLimitQuotaUsageReports as gRPC reads it:
// bytes, which the session reads where they lie.
type incoming struct {
	wire.Message
	err error // instead of bytes
}

// report is what a message says of one bucket, a BucketQuotaUsage. Its strings lie in the message. As in every message,
// of a number that is there twice the last counts, and a message that is there twice is joined.
type report struct {
	sublease.Usage
	entries [maxEntries]config.Entry // of the BucketId, by key
	count   int
	more    bool // it has more entries than a BucketId may have
	seconds int64
	nanos   int32
}

// domainOf is what a message names as its domain; "": it names none.
func domainOf(message []byte) (domain string, err error) {
	err = wire.Each(message, "message", bad, func(f wire.Field) error {
		if !f.IsBytes(1) {
			return nil
		}
		if !utf8.Valid(f.Body) {
			return bad("the domain is not UTF-8: %q", f.Body)
		}
		domain = stringOf(f.Body)
		return nil
	})
	return domain, err
}

// eachReport reads a message's reports into r, one after the other.
func eachReport(message []byte, r *report, take func(*report) error) error {
	return wire.Each(message, "message", bad, func(f wire.Field) error {
		if !f.IsBytes(2) {
			return nil
		}
		if err := r.read(f.Body); err != nil {
			return err
		}
		return take(r)
	})
}

// read reads a BucketQuotaUsage into r, in place of the report before. A time below 0 counts as unknown.
func (r *report) read(b []byte) error {
	r.Usage = sublease.Usage{}
	r.count = 0
	r.more = false
	r.seconds = 0
	r.nanos = 0
	err := wire.Each(b, "report", bad, func(f wire.Field) error {
		switch {
		case f.IsBytes(1):
			return r.readID(f.Body)
		case f.IsBytes(2):
			return r.readElapsed(f.Body)
		case f.IsVarint(3):
			r.Allowed = counted(f.Value)
		case f.IsVarint(4):
			r.Denied = counted(f.Value)
		}
		return nil
	})
	r.Elapsed = max(0, (&durationpb.Duration{Seconds: r.seconds, Nanos: r.nanos}).AsDuration())
	return err
}

// counted is a number of requests. One that no Envoy can have counted must not overflow a sum.
func counted(n uint64) tokens { return tokens(min(n, uint64(ratelimit.MaxBooked))) }

// readElapsed reads a google.protobuf.Duration. If it comes twice, the parts are joined, as in any message.
func (r *report) readElapsed(b []byte) error {
	return wire.Each(b, "time_elapsed", bad, func(f wire.Field) error {
		switch {
		case f.IsVarint(1):
			r.seconds = int64(f.Value)
		case f.IsVarint(2):
			r.nanos = int32(f.Value)
		}
		return nil
	})
}

// readID reads a BucketId. Entries beyond the bound are noted and dropped, so that a report has a fixed size.
func (r *report) readID(b []byte) error {
	return wire.Each(b, "bucket_id", bad, func(f wire.Field) error {
		if !f.IsBytes(1) {
			return nil
		}
		var e config.Entry
		err := wire.Each(f.Body, "entry of a bucket_id", bad, func(f wire.Field) error {
			switch {
			case f.IsBytes(1):
				e.Key = stringOf(f.Body)
			case f.IsBytes(2):
				e.Value = stringOf(f.Body)
			}
			return nil
		})
		r.put(e)
		return err
	})
}

// put adds an entry, in the order of keys, so that equal BucketIds have one canonical name. It is a map on the wire: a
// key that comes twice has its last value.
func (r *report) put(e config.Entry) {
	at, found := slices.BinarySearchFunc(r.entries[:r.count], e.Key, func(of config.Entry, key string) int {
		return strings.Compare(of.Key, key)
	})
	switch {
	case found:
		r.entries[at] = e
	case r.count == maxEntries:
		r.more = true
	default:
		copy(r.entries[at+1:r.count+1], r.entries[at:r.count])
		r.entries[at] = e
		r.count++
	}
}

// id are the entries of the BucketId, by key.
func (r *report) id() []config.Entry { return r.entries[:r.count] }

// stringOf is b as a string, without a copy.
func stringOf(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// appendID writes a field 1 that is a BucketId.
func appendID(b []byte, id []config.Entry) []byte {
	return wire.AppendMessage(b, 1, func(b []byte) []byte {
		for _, e := range id {
			b = wire.AppendMessage(b, 1, func(b []byte) []byte {
				return wire.AppendString(wire.AppendString(b, 1, e.Key), 2, e.Value)
			})
		}
		return b
	})
}

// appendDuration writes a google.protobuf.Duration that is not negative.
func appendDuration(b []byte, d time.Duration) []byte {
	b = wire.AppendVarint(b, 1, uint64(d/time.Second))
	return wire.AppendVarint(b, 2, uint64(d%time.Second))
}
