package envoy

import (
	"context"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// Filter is Envoy's rate limit filter (envoy.filters.http.ratelimit) on one route. It is not changed while it is used,
// and is safe for concurrent use.
//
//	Begin: a call for each request --> passes, or is refused --> the stream goes on --> End: a call when it is done
//	       '--> the client goes away during the call: nothing more is sent
type Filter struct {
	Domain  string
	Entries Entries
	// InRoute says that the entries are those of the route itself, where hits_addend does not count.
	InRoute bool
	Timeout time.Duration // of each call; a call that fails is not repeated
	// FailureModeDeny refuses requests whose call has failed; else they pass.
	FailureModeDeny bool
	Service         func() rls.RateLimitServiceClient // the node whose turn it is
}

// Stream is a request on its way through a Filter. It is not safe for concurrent use.
type Stream struct {
	Request, Response http.Header
	Sent              int // bytes of the answer's body
	// Metadata is dynamic metadata by namespace. That of the filter's own answer is added to it.
	Metadata map[string]*structpb.Struct
	gone     bool // the client went away during the call of the request
}

// Namespace is that of the metadata of the service's answer.
const Namespace = "envoy.filters.http.ratelimit"

// maxHits is the most that a format may have a descriptor count.
const maxHits = 1_000_000_000

// Begin makes the request's own call. It returns the status of the answer: 200 where the request passes, and 0 where
// ctx ended before the service had answered, for the client has gone.
func (f *Filter) Begin(ctx context.Context, s *Stream) int {
	answer, err := f.call(ctx, s, false)
	if ctx.Err() != nil {
		s.gone = true
		return 0
	}
	if err != nil {
		if f.FailureModeDeny {
			return http.StatusInternalServerError
		}
		return http.StatusOK
	}
	if m := answer.GetDynamicMetadata(); len(m.GetFields()) > 0 {
		if s.Metadata == nil {
			s.Metadata = map[string]*structpb.Struct{}
		}
		s.Metadata[Namespace] = m
	}
	if answer.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}

// End makes the call of a stream that is done, whatever became of it. Envoy does not wait for its answer, and ignores
// its failure: End returns with them.
func (f *Filter) End(s *Stream) error {
	if s.gone {
		return nil
	}
	_, err := f.call(context.Background(), s, true)
	return err
}

// call asks the service. It sends nothing, and answers nil, where no entry makes a descriptor.
func (f *Filter) call(ctx context.Context, s *Stream, done bool) (*rls.RateLimitResponse, error) {
	q := &rls.RateLimitRequest{Domain: f.Domain}
	for _, e := range f.Entries {
		if e.GetApplyOnStreamDone() != done {
			continue
		}
		if d := s.descriptor(e, !f.InRoute); d != nil {
			q.Descriptors = append(q.Descriptors, d)
		}
	}
	if len(q.Descriptors) == 0 {
		return nil, nil //nolint:nilnil // an answer that says nothing
	}
	ctx, cancel := context.WithTimeout(ctx, f.Timeout)
	defer cancel()
	return f.Service().ShouldRateLimit(ctx, q) //nolint:wrapcheck // as the service says it
}

// descriptor is what an entry makes of a stream; nil: it is dropped.
func (s *Stream) descriptor(e *route.RateLimit, counts bool) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for _, a := range e.GetActions() {
		key, value, ok := s.entry(a)
		if !ok {
			return nil
		}
		if key != "" {
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
		}
	}
	hits := e.GetHitsAddend()
	if hits == nil || !counts {
		return d
	}
	d.IsNegativeHits, d.HitsAddend = hits.GetIsNegativeHits(), hits.GetNumber()
	if format := hits.GetFormat(); format != "" {
		n, ok := s.hits(format)
		if !ok || n < 0 || n > maxHits {
			return nil
		}
		d.HitsAddend = wrapperspb.UInt64(uint64(n))
	}
	return d
}

// entry is what an action adds to a descriptor: nothing without a key. It is false if there is to be no descriptor.
func (s *Stream) entry(a *route.RateLimit_Action) (key, value string, ok bool) {
	if g := a.GetGenericKey(); g != nil {
		if key = g.GetDescriptorKey(); key == "" {
			key = "generic_key"
		}
		return key, g.GetDescriptorValue(), true
	}
	skip := false
	if h := a.GetRequestHeaders(); h != nil {
		key, value, skip = h.GetDescriptorKey(), s.Request.Get(h.GetHeaderName()), h.GetSkipIfAbsent()
	} else if m := a.GetMetadata(); m != nil {
		path := m.GetMetadataKey().GetPath()
		names := make([]string, len(path))
		for i := range path {
			names[i] = path[i].GetKey()
		}
		key, skip = m.GetDescriptorKey(), m.GetSkipIfAbsent()
		if value = s.metadata(m.GetMetadataKey().GetKey(), names).GetStringValue(); value == "" {
			value = m.GetDefaultValue()
		}
	}
	if value == "" {
		return "", "", skip
	}
	return key, value, true
}

// metadata is dynamic metadata at a path; nil: there is none.
func (s *Stream) metadata(namespace string, path []string) *structpb.Value {
	at := structpb.NewStructValue(s.Metadata[namespace])
	for _, name := range path {
		at = at.GetStructValue().GetFields()[name]
	}
	return at
}

// hits is the number that a format's substitution has; false: it has none. A fraction is cut.
func (s *Stream) hits(format string) (n float64, ok bool) {
	var text string
	switch kind, of := substitution(format); kind {
	case "REQ":
		text = s.Request.Get(of)
	case "RESP":
		text = s.Response.Get(of)
	case "BYTES_SENT":
		return float64(s.Sent), true
	case "DYNAMIC_METADATA":
		path := strings.Split(of, ":")
		v := s.metadata(path[0], path[1:])
		if n, ok := v.GetKind().(*structpb.Value_NumberValue); ok {
			return n.NumberValue, true
		}
		text = v.GetStringValue()
	}
	n, err := strconv.ParseFloat(text, 64)
	return n, err == nil && !math.IsNaN(n)
}

// substitution takes a format of one substitution apart: %REQ(x-cost)% is REQ and x-cost. It is "" for anything else.
func substitution(format string) (kind, of string) {
	inner, ok := strings.CutPrefix(format, "%")
	if !ok || strings.Count(inner, "%") != 1 || !strings.HasSuffix(inner, "%") {
		return "", ""
	}
	kind, of, _ = strings.Cut(strings.TrimSuffix(inner, "%"), "(")
	return kind, strings.TrimSuffix(of, ")")
}
