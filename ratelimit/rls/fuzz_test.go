package rls

import (
	"context"
	"errors"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rlsv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit/fuzztest"
)

// Whatever the bytes, an answer or an error comes back; what is answered was read
// as protobuf's own decoder reads it; and no budget gives more than its limit.
//
// The service is made once. The budgets are new in every run: what a run does
// must not depend on those before it, or the fuzzer takes each for a discovery.
func FuzzAnswer(f *testing.F) {
	for _, r := range []*rlsv3.RateLimitRequest{
		rlsRequest(desc("five=x"), hits(desc("twenty=y"), 3), negative(hits(desc("twenty=y"), 9))),
		rlsRequest(override(desc("a=b"), 3, typev3.RateLimitUnit_DAY)),
		rlsRequest(desc("replacer=x"), desc("twenty=y"), desc("quota=q"), desc("bucket=b"), desc("node=a,leaf=b"),
			desc("shared=ab")),
	} {
		in, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(in)
	}
	f.Add([]byte{0x0a, 0x80})
	valid, _ := proto.Marshal(rlsRequest(desc("five=x")))
	// a field number that no message may have
	f.Add(protowire.AppendVarint(protowire.AppendVarint(valid, (1<<29)<<3), 1))
	// Two limits in one descriptor, which protobuf joins: the second has the unit that the first lacks.
	first, _ := proto.Marshal(hits(override(desc("a=b"), 3, typev3.RateLimitUnit_UNKNOWN), 7))
	second, _ := proto.Marshal(override(&common.RateLimitDescriptor{}, 0, typev3.RateLimitUnit_DAY))
	joined := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "d")
	f.Add(protowire.AppendBytes(protowire.AppendTag(joined, 2, protowire.BytesType), append(first, second...)))
	lean := newFixture(f, Options{Headers: HeaderNames{Limit: "L", Remaining: "Rem", Reset: "Res"}}, testRules)
	full := newFixture(f, Options{DynamicMetadata: true, Headers: HeaderNames{
		Limit: "L", Remaining: "Rem",
		Reset: "Res",
	}}, testRules)
	c, theirs, answer := &call{}, &rlsv3.RateLimitRequest{}, &rlsv3.RateLimitResponse{}
	// checkRefusal: what protobuf reads is refused only for a reason that the request shows.
	checkRefusal := func(t *testing.T, err, parseErr error, r *rlsv3.RateLimitRequest) {
		if _, ok := errors.AsType[*badRequest](err); !ok || len(err.Error()) > 300 {
			t.Fatalf("an error of %d bytes that is not the client's: %.300v", len(err.Error()), err)
		}
		if parseErr != nil || r.Domain == "" || len(r.Descriptors) == 0 || len(r.Descriptors) > MaxDescriptors {
			return
		}
		for _, d := range r.Descriptors {
			if len(d.Entries) > MaxEntries || d.HitsAddend.GetValue() > maxHits ||
				d.Limit != nil && (d.Limit.Unit < 1 || d.Limit.Unit > 6 || d.Limit.UnitMultiplier.GetValue() > 1) {
				return
			}
		}
		t.Fatalf("refused: %v\n%v", err, r)
	}
	// checkRequest compares the two readings.
	checkRequest := func(t *testing.T, got *request, want *rlsv3.RateLimitRequest) {
		if got.domain != want.Domain || got.hits != want.HitsAddend || len(got.descriptors) != len(want.Descriptors) {
			t.Fatalf("read %q, %d hits, %d descriptors of %v", got.domain, got.hits, len(got.descriptors), want)
		}
		for i, d := range want.Descriptors {
			x := &got.descriptors[i]
			entries := got.entriesOf(x)
			if len(entries) != len(d.Entries) || x.negative != d.IsNegativeHits || x.hasHits != (d.HitsAddend != nil) ||
				x.hits != d.HitsAddend.GetValue() || x.hasOverride != (d.Limit != nil) {
				t.Fatalf("read %+v of %v", x, d)
			}
			for j, e := range d.Entries {
				if entries[j].Key != e.Key || entries[j].Value != e.Value {
					t.Fatalf("read %+v of %v", entries[j], e)
				}
			}
			if x.hasOverride && (int64(x.override.Requests) != int64(d.Limit.RequestsPerUnit) ||
				int32(x.override.Unit) != int32(d.Limit.Unit) ||
				x.override.Multiplier != d.Limit.UnitMultiplier.GetValue()) {
				t.Fatalf("read %+v of %v", x.override, d.Limit)
			}
		}
	}
	// admittedBeyond reports whether one descriptor alone took more than its budget.
	// What shadow_mode and quota_mode answer OK is not a budget's word.
	type status = rlsv3.RateLimitResponse_DescriptorStatus
	admittedBeyond := func(s *status, d *common.RateLimitDescriptor, all uint32) bool {
		if s.Code != rlsv3.RateLimitResponse_OK || s.CurrentLimit == nil || d.IsNegativeHits ||
			d.Limit == nil && d.Entries[0].Key != "five" && d.Entries[0].Key != "node" {
			return false
		}
		cost := uint64(max(1, all))
		if d.HitsAddend != nil {
			cost = d.HitsAddend.Value
		}
		return cost > uint64(s.CurrentLimit.RequestsPerUnit)
	}
	// checkAnswer: budgets are whole, and in one request a key's descriptors are
	// admitted at most its limit and what is given back.
	checkAnswer := func(t *testing.T, answer *rlsv3.RateLimitResponse, r *rlsv3.RateLimitRequest) {
		if len(answer.Statuses) != len(r.Descriptors) {
			t.Fatalf("%d statuses for %d descriptors", len(answer.Statuses), len(r.Descriptors))
		}
		over := false
		for i, s := range answer.Statuses {
			over = over || s.Code == rlsv3.RateLimitResponse_OVER_LIMIT
			switch {
			case s.Code != rlsv3.RateLimitResponse_OK && s.Code != rlsv3.RateLimitResponse_OVER_LIMIT:
				t.Fatalf("status %d is %v", i, s)
			case s.CurrentLimit != nil && s.LimitRemaining > max(s.CurrentLimit.RequestsPerUnit, 3): // a bucket's burst
				t.Fatalf("remaining beyond the limit: %v", s)
			case r.Domain == "d" && admittedBeyond(s, r.Descriptors[i], r.HitsAddend):
				t.Fatalf("%v was admitted: %v", r.Descriptors[i], s)
			}
		}
		if !over && answer.OverallCode == rlsv3.RateLimitResponse_OVER_LIMIT {
			t.Fatalf("over limit, and no status is: %v", answer)
		}
	}
	run := func(t *testing.T, in []byte) {
		fix := lean
		if len(in)%8 == 0 { // metadata cost more than all else, and their maps have no order
			fix = full
		}
		fix.limiter = local.New(16, fix.now, time.Unix(1_800_000_015, 0))
		c.in = in
		err := fix.answer(context.Background(), c)
		parseErr := proto.Unmarshal(in, theirs)
		switch {
		case fix.Stats.Panics.Load() > 0:
			t.Fatal("it panicked")
		case parseErr != nil && err == nil:
			t.Fatalf("answered what protobuf refuses: %v", parseErr)
		case err != nil:
			checkRefusal(t, err, parseErr, theirs)
			return
		}
		checkRequest(t, &c.request, theirs)
		if err := proto.Unmarshal(c.out, answer); err != nil {
			t.Fatal(err)
		}
		checkAnswer(t, answer, theirs)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		if len(in) > 4<<10 {
			return // more of the same
		}
		fuzztest.Bytes(in, func(in []byte) { run(t, in) })
	})
}
