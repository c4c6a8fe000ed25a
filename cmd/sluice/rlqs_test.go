package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	rlqsv3 "github.com/envoyproxy/go-control-plane/envoy/service/rate_limit_quota/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
)

const hourlyRules = "domain: d\ndescriptors:\n- key: k\n  rate_limit: {unit: hour, requests_per_unit: 36000}\n"

// envoyStream is a stream of an Envoy.
type envoyStream = rlqsv3.RateLimitQuotaService_StreamRateLimitQuotasClient

func (s *sluice) envoy(name string) envoyStream {
	s.Helper()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(s.Context(), rlqs.HolderHeader, name), patience)
	s.Cleanup(cancel)
	stream, err := rlqsv3.NewRateLimitQuotaServiceClient(s.dial()).StreamRateLimitQuotas(ctx)
	if err != nil {
		s.Fatal(err)
	}
	return stream
}

// reports has an Envoy report a refused request of each bucket, and returns the answer.
func (s *sluice) reports(stream envoyStream, values ...string) *rlqsv3.RateLimitQuotaResponse {
	s.Helper()
	m := &rlqsv3.RateLimitQuotaUsageReports{Domain: "d"}
	for _, v := range values {
		m.BucketQuotaUsages = append(m.BucketQuotaUsages, &rlqsv3.RateLimitQuotaUsageReports_BucketQuotaUsage{
			BucketId: &rlqsv3.BucketId{Bucket: map[string]string{"k": v}}, NumRequestsDenied: 1,
		})
	}
	sent := stream.Send(m)
	answer, err := stream.Recv()
	if sent != nil || err != nil {
		s.Fatal(sent, err)
	}
	return answer
}

// A node that drains ends its streams, and takes no lease back. Without their leases, Envoys would refuse everything
// until another node answers. That one has a lease for them at once.
func TestEnvoysOfANodeThatLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, setup{rules: hourlyRules, store: aRedis(t)})
	leased := func(m *rlqsv3.RateLimitQuotaResponse) {
		t.Helper()
		a := m.BucketAction[len(m.BucketAction)-1].GetQuotaAssignmentAction() // the last one counts
		if a.GetRateLimitStrategy().GetTokenBucket().GetMaxTokens() == 0 || a.GetAssignmentTimeToLive().AsDuration() == 0 {
			t.Errorf("the Envoy has no lease: %v", m)
		}
	}
	for _, s := range f.nodes {
		stream := s.envoy("edge")
		leased(s.reports(stream, "v"))
		s.Signal(syscall.SIGTERM)
		m, err := stream.Recv()
		for ; err == nil; m, err = stream.Recv() {
			leased(m)
		}
		if status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ends with %v", err)
		}
	}
}

// The console shows streams as holders: the largest leases and how many there are, with what
// requests brought along hidden, and a name that is markup as text.
func TestConsoleShowsEnvoys(t *testing.T) {
	t.Parallel()
	s := serve(t, []string{"CONSOLE_REDACT=true"}, "--config", rulesFile(t, hourlyRules))
	const name = "<b onload=x>\"edge\""
	values := make([]string, 30)
	for i := range values {
		values[i] = fmt.Sprint("s3cret", i)
	}
	s.reports(s.envoy(name), values...)
	var v console.State
	var body string
	s.eventually("the console shows all", func() bool {
		_, body = s.get(s.debug + "/console/state")
		if err := json.Unmarshal([]byte(body), &v); err != nil {
			t.Fatal(err)
		}
		return v.Envoys != nil && v.Envoys.Leases == 30
	})
	if e := v.Envoys; e.Streams != 1 || len(e.Held) != 24 || e.Held[0].Name != name || e.Held[0].Charged != 1800 ||
		!strings.HasPrefix(e.Held[0].Account, "hour|d|k=#") {
		t.Errorf("it shows %+v", e)
	}
	if strings.Contains(body, "s3cret") || strings.Contains(body, "<b") {
		t.Errorf("it shows a value, or markup: %s", body)
	}
	// A caller of RLS and the Envoys share a budget.
	_, text := s.get(s.debug + "/explain?domain=d&entry=k=s3cret0")
	if !strings.Contains(text, `"envoys":[{"name":`) || !strings.Contains(text, `"free":34200`) {
		t.Errorf("of an Envoy's account explain says %s", text)
	}
	b := newBrowser(t)
	b.open("http://" + s.debug + "/console")
	s.eventually("the page shows them", func() bool {
		return b.eval(`document.querySelectorAll('#held tbody tr').length`) == "24"
	})
	if cell := b.eval(`document.querySelector('#held tbody td').textContent`); cell != name {
		t.Errorf("the page names the Envoy %q", cell)
	}
	if note := b.eval(`$('envoysnote').textContent`); !strings.HasPrefix(note, "1 streams hold 30 leases;") ||
		!strings.HasSuffix(note, "The largest 24 are shown, 6 more are not.") {
		t.Errorf("the page says %q", note)
	}
}
