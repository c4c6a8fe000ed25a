package deploy

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	bootstrap "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rate_limit_quota/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
)

// Every configuration is one that Envoy's types take, and none lets a client
// escape its limit.
func TestEnvoyConfigsAreValid(t *testing.T) {
	for _, name := range []string{"envoy/envoy.yaml", "envoy/approx.yaml", "envoy/ring-hash.yaml", "envoy/rlqs.yaml", "compose/envoy.yaml"} {
		t.Run(name, func(t *testing.T) {
			text, err := yaml.YAMLToJSON([]byte(read(t, "deploy/"+name)))
			if err != nil {
				t.Fatal(err)
			}
			var b bootstrap.Bootstrap
			if err := protojson.Unmarshal(text, &b); err != nil {
				t.Fatal(err)
			}
			if err := b.ValidateAll(); err != nil {
				t.Error(err)
			}
			for _, l := range b.StaticResources.Listeners {
				for _, f := range l.FilterChains[0].Filters {
					m, err := f.GetTypedConfig().UnmarshalNew()
					if err != nil {
						t.Fatal(err)
					}
					if h, ok := m.(*hcm.HttpConnectionManager); ok && h.StatPrefix == "ingress" {
						// Where Envoys lease, buckets are matched by a filter, and not by routes.
						notBypassed(t, h, name != "compose/envoy.yaml" && !strings.HasSuffix(name, "rlqs.yaml"))
					}
				}
			}
			for _, c := range b.StaticResources.Clusters {
				if c.Name != "sluice" {
					continue
				}
				if len(c.HealthChecks) != 1 || c.HealthChecks[0].GetGrpcHealthCheck().GetServiceName() != "ratelimit" {
					t.Fatalf("the cluster %s has no health check by gRPC: nodes that drain or hang are still asked", c.Name)
				}
				h := c.HealthChecks[0]
				if h.NoTrafficInterval.AsDuration() != h.Interval.AsDuration() {
					t.Errorf("without traffic, a node that was not ready at the first check is checked again after a minute")
				}
				if gone := h.Interval.AsDuration() + h.Timeout.AsDuration(); gone > 2*time.Second || h.UnhealthyThreshold.GetValue() != 1 {
					t.Errorf("a node that hangs is asked for more than %v: deploy/README.md says 2 s", gone)
				}
			}
		})
	}
}

// notBypassed holds what comes from clients against what they could do to have
// no limit: name another address, write the path differently, add a query to it,
// send no key.
func notBypassed(t *testing.T, h *hcm.HttpConnectionManager, byAddress bool) {
	t.Helper()
	if !h.GetUseRemoteAddress().GetValue() {
		t.Error("use_remote_address is not set: X-Forwarded-For, which clients send, is believed")
	}
	if !h.GetNormalizePath().GetValue() || !h.MergeSlashes {
		t.Error("the path is not normalized: //login and /./login are other paths than /login")
	}
	for _, host := range h.GetRouteConfig().VirtualHosts {
		for _, r := range host.Routes {
			if r.GetRoute() == nil {
				t.Errorf("%v goes to no cluster: Envoy's filter asks nobody about such a route", r.Match)
			}
			limits := slices.Concat(host.RateLimits, r.GetRoute().GetRateLimits())
			addresses := 0
			for _, limit := range limits {
				for _, a := range limit.Actions {
					if a.GetRequestHeaders().GetHeaderName() == ":path" {
						t.Errorf("%v reads the path with its query: each query has a budget of its own", r.Match)
					}
					if len(limit.Actions) == 1 && (a.GetMaskedRemoteAddress() != nil || a.GetRemoteAddress() != nil) {
						addresses++
					}
				}
			}
			if byAddress && addresses == 0 {
				t.Errorf("%v: who sends no key has no limit", r.Match)
			}
		}
	}
}

// read returns a file of the repository.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile("../" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Behind gateways, a call waits for a new connection too: 20 ms, Envoy's default, are over before its handshake.
func TestGatewaysWaitForConnections(t *testing.T) {
	for _, name := range []string{
		"envoy-gateway/envoy-gateway.yaml", "envoy-gateway/envoy-gateway-tokens.yaml", "istio/ratelimit.yaml", "istio/llm.yaml", "kgateway/policy.yaml",
	} {
		if !regexp.MustCompile(`(?m)^ +timeout: (200ms|0\.2s) `).MatchString(read(t, "deploy/"+name)) {
			t.Errorf("deploy/%s does not set a timeout of 200ms", name)
		}
	}
}
