package check

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listener "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	route "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/json_to_metadata/v3"
	ratelimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	istioapi "istio.io/api/networking/v1alpha3"
	istio "istio.io/client-go/pkg/apis/networking/v1alpha3"
	"sigs.k8s.io/yaml"
)

// parsed reads YAML as a type, and refuses fields that the type lacks.
func parsed[T any](t *testing.T, name string) (value T) {
	t.Helper()
	if err := yaml.UnmarshalStrict(file(t, name), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

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
	for _, name := range []string{"envoy-gateway", "envoy-gateway-tokens"} {
		config := parsed[gateway.EnvoyGateway](t, "deploy/envoy-gateway/"+name+".yaml")
		d := config.Provider.Kubernetes.RateLimitDeployment
		if *config.RateLimit.Backend.Redis.URL == "" || !strings.Contains(*d.Container.Image, "sluice") || *d.Replicas != 3 {
			t.Errorf("%s: %+v", name, config)
		}
	}
}

// What is applied for a gateway is of its own types, in files and in guides.
func TestGatewaysReadTheirFiles(t *testing.T) {
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	var documents []string
	for _, pattern := range []string{"envoy-gateway", "istio", "kgateway", "agentgateway", "agent-router"} {
		names, err := filepath.Glob(top + "deploy/" + pattern + "/*.yaml")
		if err != nil || len(names) == 0 {
			t.Fatal(pattern, err)
		}
		for _, name := range names {
			text := string(file(t, strings.TrimPrefix(name, top)))
			documents = append(documents, strings.Split(text, "\n---\n")...)
		}
	}
	guides, err := filepath.Glob(top + "docs/guides/*.md")
	if err != nil || len(guides) == 0 {
		t.Fatal(err)
	}
	for _, name := range guides {
		// A block in a list is indented.
		text := strings.ReplaceAll(string(file(t, strings.TrimPrefix(name, top))), "\n   ", "\n")
		for _, m := range blocks.FindAllStringSubmatch(text, -1) {
			documents = append(documents, strings.Split(m[1], "\n---\n")...)
		}
	}
	read := map[string]int{}
	for _, d := range documents {
		if !strings.Contains("\n"+d, "\napiVersion:") {
			continue // rules, or values of the chart
		}
		kind, _, err := strict(d)
		if err != nil {
			t.Errorf("%v\n%s", err, d)
		}
		read[kind]++
	}
	for _, kind := range []string{
		"EnvoyGateway", "BackendTrafficPolicy", "EnvoyPatchPolicy", "QuotaPolicy", "GatewayExtension", "TrafficPolicy", "AgentgatewayPolicy", "EnvoyFilter",
	} {
		if read[kind] == 0 {
			t.Errorf("nothing is a %s", kind)
		}
	}
}

// What Envoy Gateway's policy for tokens patches in is Envoy's, and where it is looked for is an entry of the end.
func TestEnvoyGatewayPatches(t *testing.T) {
	for name, into := range map[string]interface {
		proto.Message
		ValidateAll() error
	}{"tokens-id": &route.RateLimit_Action{}, "tokens-json": &hcm.HttpFilter{}} {
		policy := parsed[gateway.EnvoyPatchPolicy](t, "deploy/envoy-gateway/"+name+".yaml")
		if err := protojson.Unmarshal(policy.Spec.JSONPatches[0].Operation.Value.Raw, into); err != nil {
			t.Fatal(err)
		}
		if err := into.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	var tokens gateway.BackendTrafficPolicy
	first, _, _ := strings.Cut(string(file(t, "deploy/envoy-gateway/tokens.yaml")), "\n---\n")
	if err := yaml.UnmarshalStrict([]byte(first), &tokens); err != nil {
		t.Fatal(err)
	}
	cost := tokens.Spec.RateLimit.Global.Rules[0].Cost
	if cost.Request.From != gateway.RateLimitCostFromNumber || *cost.Request.Number != 0 || cost.Response.From != gateway.RateLimitCostFromMetadata {
		t.Errorf("%+v %+v", cost.Request, cost.Response)
	}
}

// Istio's files are EnvoyFilters, and what they patch in is Envoy's.
func TestIstio(t *testing.T) {
	for _, name := range []string{"ratelimit", "llm"} {
		t.Run(name, func(t *testing.T) {
			f := parsed[istio.EnvoyFilter](t, "deploy/istio/"+name+".yaml")
			var limit ratelimit.RateLimit
			var own ratelimit.RateLimitPerRoute
			asked := ""
			for _, p := range f.Spec.ConfigPatches {
				into := map[istioapi.EnvoyFilter_ApplyTo]proto.Message{
					istioapi.EnvoyFilter_HTTP_FILTER: &hcm.HttpFilter{}, istioapi.EnvoyFilter_CLUSTER: &cluster.Cluster{}, istioapi.EnvoyFilter_VIRTUAL_HOST: &route.VirtualHost{},
					istioapi.EnvoyFilter_LISTENER: &listener.Listener{},
				}[p.ApplyTo]
				text, err := protojson.Marshal(p.Patch.Value)
				if err != nil {
					t.Fatal(err)
				}
				if err := protojson.Unmarshal(text, into); err != nil {
					t.Fatalf("%v: %v", p.ApplyTo, err)
				}
				switch m := into.(type) {
				case *hcm.HttpFilter:
					if m.Name == "envoy.filters.http.ratelimit" {
						err = errors.Join(m.GetTypedConfig().UnmarshalTo(&limit), limit.ValidateAll())
					}
				case *cluster.Cluster:
					asked, err = m.Name, m.ValidateAll()
				case *route.VirtualHost:
					if c := m.TypedPerFilterConfig["envoy.filters.http.ratelimit"]; c != nil {
						err = errors.Join(c.UnmarshalTo(&own), own.ValidateAll())
					}
					for _, r := range m.RateLimits {
						if r.HitsAddend != nil {
							t.Error("Envoy does not read hits_addend in rate_limits of a host")
						}
					}
				}
				if err != nil {
					t.Errorf("%v: %v", p.ApplyTo, err)
				}
			}
			if name := limit.RateLimitService.GrpcService.GetEnvoyGrpc().ClusterName; name == "" || name != asked {
				t.Errorf("the filter asks %q, and the cluster is %q", name, asked)
			}
			if own.Domain != "" && own.Domain != limit.Domain {
				t.Errorf("the limits are of %s, and the filter of %s", own.Domain, limit.Domain)
			}
		})
	}
}

// The mapping file of metrics, by which ratelimit/metrics is tested, is that of Envoy Gateway.
func TestMappingIsOfEnvoyGateway(t *testing.T) {
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/envoyproxy/gateway").Output()
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile(strings.TrimSpace(string(dir)) + "/internal/infrastructure/kubernetes/ratelimit/statsd_conf.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if _, ours, _ := strings.Cut(string(file(t, "ratelimit/metrics/testdata/envoy-gateway.yaml")), "\n"); ours != string(theirs) {
		t.Error("Envoy Gateway has another mapping: copy it below the first line of ours")
	}
}
