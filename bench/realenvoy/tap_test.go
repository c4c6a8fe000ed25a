package realenvoy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-gate/sluice/bench/process"
)

// tap lies between Envoy and a node: it passes each call on, and notes what was asked and answered. The
// value of a call's entry id may have it do more, see ShouldRateLimit.
type tap struct {
	rls.UnimplementedRateLimitServiceServer
	address string
	node    rls.RateLimitServiceClient
	mu      sync.Mutex
	calls   []*call // guarded by mu, in the order in which they came
}

type call struct {
	id, text, nonce string
	wait            time.Duration // that the caller has said it waits; 0: it has not
}

// newTap lies before the only node of a fleet.
func newTap(t *testing.T, f *process.Fleet) *tap {
	t.Helper()
	p := &tap{node: rls.NewRateLimitServiceClient(f.Pool.Next())}
	p.address = serve(t, func(s *grpc.Server) { rls.RegisterRateLimitServiceServer(s, p) })
	return p
}

// ShouldRateLimit passes a call on. One whose id begins with hold is not answered, one with fail is answered with
// UNAVAILABLE, and one with unknown with UNKNOWN. Each answer has a nonce of its own in its dynamic metadata.
func (p *tap) ShouldRateLimit(ctx context.Context, r *rls.RateLimitRequest) (*rls.RateLimitResponse, error) {
	c := &call{}
	if end, ok := ctx.Deadline(); ok {
		c.wait = time.Until(end)
	}
	var texts []string
	for _, d := range r.Descriptors {
		texts = append(texts, c.describe(d))
	}
	c.text = strings.Join(texts, " and ")
	p.mu.Lock()
	c.nonce = fmt.Sprintf("n%d", len(p.calls))
	p.calls = append(p.calls, c)
	p.mu.Unlock()
	switch {
	case strings.HasPrefix(c.id, "hold"):
		<-ctx.Done()
	case strings.HasPrefix(c.id, "fail"):
		return nil, status.Error(codes.Unavailable, "as the test wants it")
	case strings.HasPrefix(c.id, "unknown"):
		return nil, status.Error(codes.Unknown, "as the test wants it")
	}
	a, err := p.node.ShouldRateLimit(ctx, r)
	if err != nil {
		return nil, err
	}
	if a.DynamicMetadata == nil {
		a.DynamicMetadata = &structpb.Struct{Fields: map[string]*structpb.Value{}}
	}
	a.DynamicMetadata.Fields["nonce"] = structpb.NewStringValue(c.nonce)
	a.DynamicMetadata.Fields["number"] = structpb.NewNumberValue(7)
	return a, nil
}

// describe is a descriptor in the form of the tables: its entries except the id, and its hits.
func (c *call) describe(d *common.RateLimitDescriptor) string {
	var parts []string
	for _, e := range d.Entries {
		switch e.Key {
		case "id":
			c.id = e.Value
		case "at":
			parts = append(parts, e.Value)
		default:
			parts = append(parts, e.Key+"="+e.Value)
		}
	}
	sign := ""
	if d.IsNegativeHits {
		sign = "-"
	}
	if d.HitsAddend != nil {
		parts = append(parts, fmt.Sprintf("hits %s%d", sign, d.HitsAddend.Value))
	}
	return strings.Join(parts, " ")
}

// of are the calls with an id, or all.
func (p *tap) of(id string) (all []*call) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.calls {
		if id == "" || c.id == id {
			all = append(all, c)
		}
	}
	return all
}

// sequence is what came with an id, in this order. Nonces have the name of the call whose answer had them.
func (p *tap) sequence(id string) string {
	all := p.of(id)
	texts := make([]string, len(all))
	for i, c := range all {
		texts[i] = c.text
		if at := strings.Index(c.text, "nonce="); at >= 0 {
			nonce, rest, _ := strings.Cut(c.text[at+len("nonce="):], " ")
			whose := "another request's"
			if n := slices.IndexFunc(all, func(c *call) bool { return c.nonce == nonce }); n >= 0 {
				whose = fmt.Sprintf("call %d's", n+1)
			}
			texts[i] = strings.TrimSpace(c.text[:at] + "nonce of " + whose + " answer " + rest)
		}
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, "; ")
}
