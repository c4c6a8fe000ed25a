package rlqs

import (
	"maps"
	"testing"
	"time"
	"unicode/utf8"

	rlqs "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
)

// FuzzReports holds the reader of messages against the protobuf library.
func FuzzReports(f *testing.F) {
	// said is what a message says, read by either reader.
	type said struct {
		id              map[string]string // nil: it has too many entries
		allowed, denied tokens
		elapsed         time.Duration
	}
	// bytesOnly is the message as a session reads it.
	bytesOnly := func(message []byte) (domain string, all []said, err error) {
		if domain, err = domainOf(message); err != nil {
			return "", nil, err
		}
		err = eachReport(message, new(report), func(r *report) error {
			is := said{id: map[string]string{}, allowed: r.Allowed, denied: r.Denied, elapsed: r.Elapsed}
			for i, e := range r.id() {
				// What is not in order has no canonical name.
				if i > 0 && e.Key <= r.entries[i-1].Key {
					return bad("%q follows %q", e.Key, r.entries[i-1].Key)
				}
				is.id[e.Key] = e.Value
			}
			if r.more {
				is.id = nil
			}
			all = append(all, is)
			return nil
		})
		return domain, all, err
	}
	// library is the message as the protobuf library reads it.
	library := func(message []byte) (domain string, all []said, err error) {
		var m rlqs.RateLimitQuotaUsageReports
		if err := proto.Unmarshal(message, &m); err != nil {
			return "", nil, err
		}
		for _, u := range m.GetBucketQuotaUsages() {
			is := said{
				id: map[string]string{}, elapsed: max(0, u.GetTimeElapsed().AsDuration()),
				allowed: counted(u.GetNumRequestsAllowed()), denied: counted(u.GetNumRequestsDenied()),
			}
			maps.Copy(is.id, u.GetBucketId().GetBucket())
			if len(is.id) > maxEntries {
				is.id = nil
			}
			all = append(all, is)
		}
		return m.GetDomain(), all, nil
	}
	// notText reports whether a string of a message is no UTF-8, which the library refuses at once, and
	// a session when it subscribes.
	notText := func(all []said) bool {
		for _, is := range all {
			for k, v := range is.id {
				if !utf8.ValidString(k) || !utf8.ValidString(v) {
					return true
				}
			}
		}
		return false
	}
	// joined is a message whose parts come twice, and in another order than they are written in.
	joined := func() []byte {
		one, other := usageOf(7, 8, "k", "v", "a", "b"), usageOf(1, 2, "k", "w", "c", "")
		other.BucketQuotaUsages[0].TimeElapsed = &durationpb.Duration{Nanos: 5}
		b := wired(&rlqs.RateLimitQuotaUsageReports{BucketQuotaUsages: one.GetBucketQuotaUsages()})
		b = append(b, wired(other)...)
		usage := append(wired(one.GetBucketQuotaUsages()[0]), wired(other.GetBucketQuotaUsages()[0])...)
		return append(append(b, 0x12, byte(len(usage))), usage...)
	}
	// compare holds what a session reads against what the library does.
	compare := func(t *testing.T, message []byte) {
		t.Helper()
		domain, got, err := bytesOnly(message)
		wantDomain, want, wantErr := library(message)
		switch {
		case wantErr != nil:
			// An entry beyond those that are kept, or one whose value comes again, is not looked at.
			if err == nil && !notText(got) && utf8.Valid(message) {
				t.Fatalf("%q is read, and the library says %v", message, wantErr)
			}
			return
		case err != nil || domain != wantDomain || len(got) != len(want):
			t.Fatalf("%q is domain %q with %d reports, want %q with %d: %v", message, domain, len(got), wantDomain,
				len(want), err)
		}
		for i := range got {
			a, b := &got[i], &want[i]
			same := a.allowed == b.allowed && a.denied == b.denied && a.elapsed == b.elapsed
			if !same || (a.id == nil) != (b.id == nil) || !maps.Equal(a.id, b.id) {
				t.Fatalf("%q: report %d says %+v, want %+v", message, i, a, b)
			}
		}
	}
	_, ten := crowd(f, 10)
	f.Add(ten)
	f.Add(joined())
	f.Add(wired(usageOf(1<<63, 1<<64-1)))
	f.Add([]byte("\x12\x00\x0a\x01d\x18\x01"))
	f.Add([]byte("\x12\x0d\x12\x0b\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"))
	f.Fuzz(func(t *testing.T, message []byte) { compare(t, message) })
}
