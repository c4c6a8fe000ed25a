package check

import (
	"os"
	"strings"
	"testing"

	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istioapi "istio.io/api/networking/v1alpha3"
	istio "istio.io/client-go/pkg/apis/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

func file(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(top + name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Envoy Gateway's files are what it reads.
func TestEnvoyGateway(t *testing.T) {
	var config gateway.EnvoyGateway
	if err := yaml.UnmarshalStrict(file(t, "deploy/envoy-gateway/envoy-gateway.yaml"), &config); err != nil {
		t.Fatal(err)
	}
	d := config.Provider.Kubernetes.RateLimitDeployment
	if config.RateLimit.Backend.Redis.URL == "" || !strings.Contains(*d.Container.Image, "sluice") || *d.Replicas != 3 {
		t.Errorf("%+v", config)
	}
	var policy gateway.BackendTrafficPolicy
	if err := yaml.UnmarshalStrict(file(t, "deploy/envoy-gateway/policy.yaml"), &policy); err != nil {
		t.Fatal(err)
	}
	if n := policy.Spec.RateLimit.Global.Rules[0].Limit.Requests; n != 100 {
		t.Errorf("%d requests", n)
	}
}

// Istio's file is an EnvoyFilter, and what it patches in is Envoy's.
func TestIstio(t *testing.T) {
	var f istio.EnvoyFilter
	if err := yaml.UnmarshalStrict(file(t, "deploy/istio/ratelimit.yaml"), &f); err != nil {
		t.Fatal(err)
	}
	into := map[istioapi.EnvoyFilter_ApplyTo]proto.Message{
		istioapi.EnvoyFilter_HTTP_FILTER: &hcm.HttpFilter{}, istioapi.EnvoyFilter_CLUSTER: &cluster.Cluster{}, istioapi.EnvoyFilter_VIRTUAL_HOST: &route.VirtualHost{},
	}
	for _, p := range f.Spec.ConfigPatches {
		text, err := protojson.Marshal(p.Patch.Value)
		if err != nil {
			t.Fatal(err)
		}
		if err := protojson.Unmarshal(text, into[p.ApplyTo]); err != nil {
			t.Errorf("%v: %v", p.ApplyTo, err)
		}
	}
	c, ok := into[istioapi.EnvoyFilter_CLUSTER].(*cluster.Cluster)
	if err := c.ValidateAll(); !ok || err != nil {
		t.Error(err)
	}
	filter, ok := into[istioapi.EnvoyFilter_HTTP_FILTER].(*hcm.HttpFilter)
	if !ok {
		t.Fatal("no filter")
	}
	var limit ratelimit.RateLimit
	if err := filter.GetTypedConfig().UnmarshalTo(&limit); err != nil || limit.ValidateAll() != nil || limit.RateLimitService.GrpcService.GetEnvoyGrpc().ClusterName != c.Name {
		t.Errorf("%v %v", err, &limit)
	}
}
