package check

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	aigateway "github.com/envoyproxy/ai-gateway/api/v1alpha1"
	gateway "github.com/envoyproxy/gateway/api/v1alpha1"
	"github.com/kgateway-dev/kgateway/v2/api/v1alpha1/agentgateway"
	"github.com/kgateway-dev/kgateway/v2/api/v1alpha1/kgateway"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"github.com/santhosh-tekuri/jsonschema/v6"
	istio "istio.io/client-go/pkg/apis/networking/v1alpha3"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	reference "sigs.k8s.io/gateway-api/apis/v1beta1"
	"sigs.k8s.io/yaml"
)

const (
	top   = "../../"
	chart = top + "deploy/helm/sluice"
)

var update = flag.Bool("update", false, "write deploy/kubernetes anew")

// strict reads a document as the type that its kind names, and refuses fields
// that the type lacks.
func strict(document string) (kind string, object any, err error) {
	var head struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := yaml.Unmarshal([]byte(document), &head); err != nil {
		return "", nil, err
	}
	types := map[string]any{
		"apps/v1 Deployment": &apps.Deployment{}, "v1 Pod": &core.Pod{}, "v1 Service": &core.Service{}, "v1 ConfigMap": &core.ConfigMap{}, "v1 ServiceAccount": &core.ServiceAccount{}, "v1 Namespace": &core.Namespace{},
		"v1 Secret": &core.Secret{}, "policy/v1 PodDisruptionBudget": &policy.PodDisruptionBudget{}, "autoscaling/v2 HorizontalPodAutoscaler": &autoscaling.HorizontalPodAutoscaler{},
		"networking.k8s.io/v1 NetworkPolicy": &networking.NetworkPolicy{}, "monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{},
		"monitoring.coreos.com/v1 PrometheusRule": &monitoring.PrometheusRule{}, "batch/v1 Job": &batch.Job{}, "apps/v1 StatefulSet": &apps.StatefulSet{},
		"gateway.envoyproxy.io/v1alpha1 EnvoyGateway": &gateway.EnvoyGateway{}, "gateway.envoyproxy.io/v1alpha1 BackendTrafficPolicy": &gateway.BackendTrafficPolicy{},
		"gateway.envoyproxy.io/v1alpha1 EnvoyPatchPolicy": &gateway.EnvoyPatchPolicy{}, "aigateway.envoyproxy.io/v1alpha1 QuotaPolicy": &aigateway.QuotaPolicy{},
		"gateway.kgateway.dev/v1alpha1 GatewayExtension": &kgateway.GatewayExtension{}, "gateway.kgateway.dev/v1alpha1 TrafficPolicy": &kgateway.TrafficPolicy{},
		"agentgateway.dev/v1alpha1 AgentgatewayPolicy": &agentgateway.AgentgatewayPolicy{}, "gateway.networking.k8s.io/v1beta1 ReferenceGrant": &reference.ReferenceGrant{},
		"networking.istio.io/v1alpha3 EnvoyFilter": &istio.EnvoyFilter{},
	}
	object, ok := types[head.APIVersion+" "+head.Kind]
	if !ok {
		return head.Kind, nil, fmt.Errorf("%s %s is no kind that is known here", head.APIVersion, head.Kind)
	}
	return head.Kind, object, yaml.UnmarshalStrict([]byte(document), object)
}

// The plain manifests are what the chart renders by default. Each object names its namespace, because kubectl apply takes
// the one of its context otherwise.
func TestManifests(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Written from the chart by: make manifests\n# helm template sluice deploy/helm/sluice --namespace sluice --skip-tests --set check.enabled=false, with the namespace in each object\napiVersion: v1\nkind: Namespace\nmetadata: {name: sluice}\n")
	for _, d := range render(t, map[string]any{"check": map[string]any{"enabled": false}}) {
		if strings.Contains(d, "helm.sh/hook: test") {
			continue
		}
		b.WriteString("---\n" + strings.Replace(d, "\nmetadata:\n", "\nmetadata:\n  namespace: sluice\n", 1) + "\n")
	}
	file := filepath.Join(top, "deploy/kubernetes/sluice.yaml")
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("deploy/kubernetes/sluice.yaml is not what make manifests writes (%v)", err)
	}
	manifests, err := filepath.Glob(top + "deploy/kubernetes/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range manifests {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range strings.Split(string(text), "\n---\n") {
			kind, object, err := strict(d)
			if o, ok := object.(interface{ GetNamespace() string }); err != nil || !ok || kind != "Namespace" && o.GetNamespace() != "sluice" {
				t.Errorf("%s: a %s of no namespace, or no good one (%v):\n%s", name, kind, err, d)
			}
		}
	}
}

// The chart's copies of the alerts and dashboards are those of this repository.
func TestChartFiles(t *testing.T) {
	copies, err := filepath.Glob(chart + "/files/*")
	if err != nil || len(copies) != 9 {
		t.Fatal(copies, err)
	}
	for _, name := range copies {
		from := filepath.Join(top, "deploy/grafana/dashboards", filepath.Base(name))
		if filepath.Ext(name) == ".yaml" {
			from = filepath.Join(top, "deploy/prometheus", filepath.Base(name))
		}
		want, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		have, err := os.ReadFile(name)
		if err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not %s: make manifests (%v)", name, from, err)
		}
	}
}

// The compose file is one, and what it mounts and builds from is there.
func TestCompose(t *testing.T) {
	o, err := cli.NewProjectOptions([]string{top + "deploy/compose/compose.yaml"}, cli.WithName("sluice"))
	if err != nil {
		t.Fatal(err)
	}
	p, err := o.LoadProject(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	sluices := 0
	for _, s := range p.Services {
		for _, v := range s.Volumes {
			if _, err := os.Stat(v.Source); v.Type == "bind" && err != nil {
				t.Errorf("%s mounts %s: %v", s.Name, v.Source, err)
			}
		}
		if s.Build != nil {
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
		if peer := s.Environment["PEER_ADDR"]; peer != nil {
			sluices++
			if own := *peer; own != s.Name+":8082" || !strings.Contains(*s.Environment["PEERS"], own) {
				t.Errorf("%s has the peer address %s of %s", s.Name, own, *s.Environment["PEERS"])
			}
		}
	}
	if sluices != 3 {
		t.Errorf("%d nodes", sluices)
	}
}

// Of the mistakes in cmd/sluice/testdata/mistakes.md, an editor with the schema shows those in the
// names and types of fields; of rules that are good it shows nothing.
func TestRulesSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile(top + "docs/reference/rules.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	// judge is what the schema says of a text; whole says whether it is YAML at all.
	judge := func(text string) (whole bool, err error) {
		data, err := yaml.YAMLToJSON([]byte(text))
		if err != nil {
			return false, err
		}
		var value any
		if err := json.Unmarshal(data, &value); err != nil {
			t.Fatal(err)
		}
		return true, schema.Validate(value)
	}
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```")
	shown := 0
	for _, section := range strings.Split(string(file(t, "cmd/sluice/testdata/mistakes.md")), "\n### ")[1:] {
		title, _, _ := strings.Cut(section, "\n")
		for _, m := range blocks.FindAllStringSubmatch(section, -1) {
			whole, err := judge(m[1])
			if err != nil {
				shown++
			}
			ofFields := strings.Contains(section, "unknown key") || strings.Contains(section, "must be a ")
			float := strings.Contains(m[1], "1e6") // a whole number for JSON
			if whole && ofFields && err == nil && !float && !strings.Contains(m[1], "rules/edge.yaml") {
				t.Errorf("%s: an editor does not show it", title)
			}
			onlyWarned := !strings.Contains(section, ": error: ") && !strings.Contains(section, "no effect here")
			if onlyWarned && err != nil && !strings.Contains(m[1], "rate_limit:\n") {
				t.Errorf("%s: a server takes it, and the schema says %v", title, err)
			}
		}
	}
	if shown < 20 {
		t.Errorf("an editor shows %d of the mistakes", shown)
	}
	for _, name := range []string{"README.md", "docs/explain/approx.md", "docs/reference/rules.md"} {
		for _, m := range blocks.FindAllStringSubmatch(string(file(t, name)), -1) {
			if !strings.HasPrefix(m[1], "domain:") {
				continue
			}
			if _, err := judge(m[1]); err != nil {
				t.Errorf("%s: %v of\n%s", name, err, m[1])
			}
		}
	}
}
