package envoy

import (
	"context"
	"errors"
	"net/http"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// LLM calls the rate limit service as an Envoy with deploy/envoy/llm.yaml does, with failure_mode_deny. It is safe for
// concurrent use.
//
//	Begin: the request's call, which holds an estimate --> passes, or is refused --> End: a call that settles the hold
//	       '--> the client goes away during the call: nothing more is sent
type LLM struct {
	Domain  string
	Timeout time.Duration // of each call
	Service func() rls.RateLimitServiceClient
	// Peeks has requests ask without a hold, and charge their costs at their ends. llm.yaml has no such entries.
	Peeks bool
}

// Request is a request of a team on its way. It is not safe for concurrent use.
type Request struct {
	Team string
	Most uint64 // that it may cost, as its client says; 0: its client does not say it
	Hold string // that the service has made for it; "": none
	gone bool   // the client went away during the call of the request
}

// ErrOver says that a request is over its limit.
var ErrOver = errors.New("over the limit")

// Begin makes the request's own call. It returns ErrOver where the request is refused, and the call's error where that
// has failed.
func (l *LLM) Begin(ctx context.Context, r *Request) error {
	d := r.descriptor()
	switch {
	case l.Peeks:
		d.HitsAddend = wrapperspb.UInt64(0)
	case r.Most > 0:
		d.HitsAddend = wrapperspb.UInt64(r.Most)
	}
	answer, err := l.call(ctx, d)
	r.gone = ctx.Err() != nil
	if err != nil || r.gone {
		return errors.Join(err, ctx.Err())
	}
	r.Hold = answer.GetDynamicMetadata().GetFields()["sluice_hold"].GetStringValue()
	if answer.GetOverallCode() == rls.RateLimitResponse_OVER_LIMIT {
		return ErrOver
	}
	return nil
}

// End makes the call of a request that is done, with its cost; nil is an unknown one. It sends nothing where there is
// neither a hold nor a cost to charge.
func (l *LLM) End(r *Request, cost *wrapperspb.UInt64Value) error {
	if r.gone {
		return nil
	}
	var all []*common.RateLimitDescriptor
	add := func(hits *wrapperspb.UInt64Value, more ...*common.RateLimitDescriptor_Entry) {
		d := r.descriptor(more...)
		d.HitsAddend = hits
		all = append(all, d)
	}
	hold := &common.RateLimitDescriptor_Entry{Key: "sluice_hold", Value: r.Hold}
	switch {
	case l.Peeks && cost != nil:
		add(cost)
	case r.Hold != "" && cost != nil:
		add(cost, hold)
	}
	if r.Hold != "" { // Envoy sends this entry with a known cost, too
		add(wrapperspb.UInt64(http.StatusOK), &common.RateLimitDescriptor_Entry{Key: "sluice_end", Value: "true"}, hold)
	}
	if len(all) == 0 {
		return nil
	}
	_, err := l.call(context.Background(), all...)
	return err
}

func (r *Request) descriptor(more ...*common.RateLimitDescriptor_Entry) *common.RateLimitDescriptor {
	entries := []*common.RateLimitDescriptor_Entry{{Key: "team", Value: r.Team}}
	return &common.RateLimitDescriptor{Entries: append(entries, more...)}
}

func (l *LLM) call(ctx context.Context, all ...*common.RateLimitDescriptor) (*rls.RateLimitResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	return l.Service().ShouldRateLimit(ctx, &rls.RateLimitRequest{Domain: l.Domain, Descriptors: all}) //nolint:wrapcheck // as the service says it
}
