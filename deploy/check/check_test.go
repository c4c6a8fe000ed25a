package check

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/cli"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

const (
	top   = "../../"
	chart = top + "deploy/helm/sluice"
)

var update = flag.Bool("update", false, "write deploy/kubernetes anew")

// settings are what the chart is rendered with.
var settings = map[string]map[string]any{
	"default": {},
	"everything": {
		"peers": map[string]any{"enabled": true, "allowOld": true}, "existingSecret": "sluice", "autoscaling": map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}, "prometheusRule": map[string]any{"enabled": true},
		"grafanaDashboards": map[string]any{"enabled": true}, "env": map[string]any{"COORDINATION_MODE": "approx", "SHADOW_MODE": true},
		"imagePullSecrets": []any{map[string]any{"name": "pull"}}, "podAnnotations": map[string]any{"a": "b"}, "nodeSelector": map[string]any{"disk": "ssd"},
		"tolerations": []any{map[string]any{"key": "k", "operator": "Exists"}}, "affinity": map[string]any{"podAntiAffinity": map[string]any{}},
		"networkPolicy": map[string]any{"enabled": true, "from": []any{map[string]any{"namespaceSelector": map[string]any{}}}, "debugFrom": []any{map[string]any{"namespaceSelector": map[string]any{}}}},
	},
	"alone": {"redis": map[string]any{"url": ""}, "networkPolicy": map[string]any{"enabled": false}, "podDisruptionBudget": map[string]any{"enabled": false}},
}

func TestChartLints(t *testing.T) {
	for name, values := range settings {
		l := action.NewLint()
		l.Strict = true
		result := l.Run([]string{chart}, values)
		for _, m := range result.Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %s: %v", name, m.Path, m.Err)
			}
		}
		if len(result.Errors) > 0 {
			t.Errorf("%s: %v", name, result.Errors)
		}
	}
}

// render is what helm template prints, document by document.
func render(t *testing.T, values map[string]any) []string {
	t.Helper()
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	v, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "sluice", Namespace: "sluice"}, chartutil.DefaultCapabilities)
	if err != nil {
		t.Fatal(err)
	}
	files, err := engine.Render(c, v)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".yaml") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var documents []string
	for _, name := range names {
		for _, d := range strings.Split(files[name], "\n---\n") {
			if strings.TrimSpace(d) != "" {
				documents = append(documents, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(d), "---")))
			}
		}
	}
	return documents
}

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
		"apps/v1 Deployment": &apps.Deployment{}, "v1 Service": &core.Service{}, "v1 ConfigMap": &core.ConfigMap{}, "v1 ServiceAccount": &core.ServiceAccount{}, "v1 Namespace": &core.Namespace{},
		"v1 Secret": &core.Secret{}, "policy/v1 PodDisruptionBudget": &policy.PodDisruptionBudget{}, "autoscaling/v2 HorizontalPodAutoscaler": &autoscaling.HorizontalPodAutoscaler{},
		"networking.k8s.io/v1 NetworkPolicy": &networking.NetworkPolicy{}, "monitoring.coreos.com/v1 ServiceMonitor": &monitoring.ServiceMonitor{},
		"monitoring.coreos.com/v1 PrometheusRule": &monitoring.PrometheusRule{},
	}
	object, ok := types[head.APIVersion+" "+head.Kind]
	if !ok {
		return head.Kind, nil, fmt.Errorf("%s %s is no kind that is known here", head.APIVersion, head.Kind)
	}
	return head.Kind, object, yaml.UnmarshalStrict([]byte(document), object)
}

// What the chart renders is what Kubernetes knows, and holds together.
func TestChartRenders(t *testing.T) {
	want := map[string][]string{
		"default":    {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"},
		"everything": {"ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "NetworkPolicy", "PodDisruptionBudget", "PrometheusRule", "Service", "Service", "ServiceAccount", "ServiceMonitor"},
		"alone":      {"ConfigMap", "Deployment", "Service", "Service", "ServiceAccount"},
	}
	for name, values := range settings {
		var kinds []string
		for _, d := range render(t, values) {
			kind, object, err := strict(d)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, d)
			}
			kinds = append(kinds, kind)
			if deployment, ok := object.(*apps.Deployment); ok {
				holdsTogether(t, name, deployment)
			}
			if rule, ok := object.(*monitoring.PrometheusRule); ok && (len(rule.Spec.Groups) != 1 || len(rule.Spec.Groups[0].Rules) < 11) {
				t.Errorf("%s: the rule has not all alerts", name)
			}
		}
		slices.Sort(kinds)
		if !slices.Equal(kinds, want[name]) {
			t.Errorf("%s renders %v, want %v", name, kinds, want[name])
		}
	}
}

func holdsTogether(t *testing.T, name string, d *apps.Deployment) {
	t.Helper()
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	ports := map[string]bool{}
	for _, p := range c.Ports {
		ports[p.Name] = true
	}
	env := map[string]string{}
	for _, e := range c.Env {
		if _, twice := env[e.Name]; twice {
			t.Errorf("%s: %s is set twice", name, e.Name)
		}
		env[e.Name] = e.Value
	}
	switch {
	case !ports["grpc"] || !ports["http"] || !ports["debug"]:
		t.Errorf("%s: ports %v", name, ports)
	case ports["peers"] != (env["PEERS"] != ""):
		t.Errorf("%s: peers' port %t, PEERS %q", name, ports["peers"], env["PEERS"])
	case c.ReadinessProbe.GRPC == nil || c.StartupProbe == nil || c.LivenessProbe == nil:
		t.Errorf("%s lacks probes", name)
	case *pod.TerminationGracePeriodSeconds != 25 || env["DRAIN_TIME"] != "5s" || env["GRACE_TIME"] != "10s":
		t.Errorf("%s: %d s to end, drains for %s and %s", name, *pod.TerminationGracePeriodSeconds, env["DRAIN_TIME"], env["GRACE_TIME"])
	case !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation:
		t.Errorf("%s has rights that it does not need", name)
	}
	for label, value := range d.Spec.Selector.MatchLabels {
		if d.Spec.Template.Labels[label] != value {
			t.Errorf("%s: its pods do not have %s", name, label)
		}
	}
}

// Bad values of the chart are refused.
func TestChartRefuses(t *testing.T) {
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	for name, values := range map[string]map[string]any{
		"a type that there is not": {"redis": map[string]any{"type": "RING"}},
		"replicas in words":        {"replicas": "three"},
		"no replicas":              {"replicas": 0},
	} {
		if _, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "sluice", Namespace: "sluice"}, chartutil.DefaultCapabilities); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}

// The plain manifests are what the chart renders by default, in a namespace.
func TestManifests(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Written from the chart by: make manifests\n# helm template sluice deploy/helm/sluice --namespace sluice\napiVersion: v1\nkind: Namespace\nmetadata: {name: sluice}\n")
	for _, d := range render(t, nil) {
		b.WriteString("---\n" + d + "\n")
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
			if _, _, err := strict(d); err != nil {
				t.Errorf("%s: %v\n%s", name, err, d)
			}
		}
	}
}

// The chart's copies of the alerts and dashboards are those of this repository.
func TestChartFiles(t *testing.T) {
	copies, err := filepath.Glob(chart + "/files/*")
	if err != nil || len(copies) != 6 {
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
			sluices++
			if _, err := os.Stat(filepath.Join(s.Build.Context, s.Build.Dockerfile)); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
			if own := *s.Environment["PEER_ADDR"]; own != s.Name+":8082" || !strings.Contains(*s.Environment["PEERS"], own) {
				t.Errorf("%s has the peer address %s of %s", s.Name, own, *s.Environment["PEERS"])
			}
		}
	}
	if sluices != 3 {
		t.Errorf("%d nodes", sluices)
	}
}
