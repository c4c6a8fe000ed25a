package check

import (
	"maps"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint/support"
	apps "k8s.io/api/apps/v1"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
)

// setting is what the chart is rendered with, and what comes of it: testdata/settings.yaml.
type setting struct {
	Values map[string]any
	Kinds  map[string]int
	Env    map[string]*string
}

// settings are all of them by name.
func settings(t *testing.T) map[string]setting {
	t.Helper()
	all := parsed[map[string]setting](t, "deploy/check/testdata/settings.yaml")
	for _, name := range []string{"agent-router", "regions"} {
		s := all[name]
		s.Values = parsed[map[string]any](t, "deploy/"+name+"/values.yaml")
		all[name] = s
	}
	return all
}

// Kubernetes cannot ask for health over TLS, nor where gRPC has a socket: it asks the HTTP port.
func TestChartIsReadyWithTLS(t *testing.T) {
	for _, values := range []map[string]any{
		{"env": map[string]any{"GRPC_SERVER_USE_TLS": "true"}}, {"env": map[string]any{"GRPC_UDS": "/s"}}, {"extraEnv": []any{map[string]any{"name": "GRPC_UDS", "value": "/s"}}},
	} {
		d := deployed(t, values)
		if p := d.Spec.Template.Spec.Containers[0].ReadinessProbe; p.GRPC != nil || p.HTTPGet == nil || p.HTTPGet.Path != "/healthcheck" {
			t.Errorf("with %v, readiness is %+v", values, p.ProbeHandler)
		}
	}
}

// Agent Router's Envoys find the nodes by the name that they call.
func TestChartForAgentRouter(t *testing.T) {
	router := settings(t)["agent-router"].Values
	s := rendered[*core.Service](t, router)["envoy-ai-gateway-ratelimit"]
	d := deployed(t, router)
	if s == nil || s.Spec.ClusterIP != "None" || s.Spec.Ports[0].Port != 8081 || !maps.Equal(s.Spec.Selector, d.Spec.Selector.MatchLabels) {
		t.Fatalf("%+v", s)
	}
	if c := d.Spec.Template.Spec.Containers[0]; c.Ports[0].Name != s.Spec.Ports[0].TargetPort.StrVal || c.Ports[0].ContainerPort != 8081 {
		t.Errorf("%+v: a Service without an address does not map ports", c.Ports)
	}
	m := rendered[*core.ConfigMap](t, router)["sluice-rules"]
	if len(m.Data) != 1 || !strings.Contains(m.Data["additions.yaml"], "domain: ai-gateway-quota\n") {
		t.Errorf("%v", m.Data)
	}
}

func TestChartLints(t *testing.T) {
	for name, s := range settings(t) {
		l := action.NewLint()
		l.Strict = true
		result := l.Run([]string{chart}, s.Values)
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

// template is what helm template makes of the chart's files.
func template(values map[string]any) (files map[string]string, err error) {
	c, err := loader.Load(chart)
	if err != nil {
		return nil, err
	}
	v, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: "sluice", Namespace: "sluice"}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, v)
}

// render is what helm template prints, document by document.
func render(t *testing.T, values map[string]any) (documents []string) {
	t.Helper()
	files, err := template(values)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if !strings.HasSuffix(name, ".yaml") {
			continue
		}
		for _, d := range strings.Split(files[name], "\n---\n") {
			if d = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(d), "---")); d != "" {
				documents = append(documents, d)
			}
		}
	}
	return documents
}

// Where the operator's usual chart has its Prometheus.
const prometheusIsLetIn = "{port: debug}] from: - namespaceSelector: matchLabels: kubernetes.io/metadata.name: monitoring podSelector: matchLabels: app.kubernetes.io/name: prometheus"

// The rendered chart fits Kubernetes' types, and its parts fit together.
func TestChartRenders(t *testing.T) {
	holdsTogether := func(name string, d *apps.Deployment) {
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
		case pod.EnableServiceLinks == nil || *pod.EnableServiceLinks: // STATSD_PORT, where there is a Service statsd
			t.Errorf("%s gets settings from Services", name)
		case c.StartupProbe.TCPSocket == nil || c.LivenessProbe.TCPSocket == nil: // health waits for the store, for as long as it takes
			t.Errorf("%s restarts in an outage of the store", name)
		case *pod.TerminationGracePeriodSeconds != 65 || env["DRAIN_TIME"] != "45s":
			t.Errorf("%s: %d s to end, drains for %s", name, *pod.TerminationGracePeriodSeconds, env["DRAIN_TIME"])
		case !*pod.SecurityContext.RunAsNonRoot || !*c.SecurityContext.ReadOnlyRootFilesystem || *c.SecurityContext.AllowPrivilegeEscalation:
			t.Errorf("%s has rights that it does not need", name)
		}
		for label, value := range d.Spec.Selector.MatchLabels {
			if d.Spec.Template.Labels[label] != value {
				t.Errorf("%s: its pods do not have %s", name, label)
			}
		}
	}
	for name, s := range settings(t) {
		kinds := map[string]int{}
		for _, d := range render(t, s.Values) {
			kind, object, err := strict(d)
			if err != nil {
				t.Errorf("%s: %v\n%s", name, err, d)
			}
			kinds[kind]++
			if deployment, ok := object.(*apps.Deployment); ok {
				holdsTogether(name, deployment)
			}
			if kind == "NetworkPolicy" && name == "everything" && !strings.Contains(strings.Join(strings.Fields(d), " "), prometheusIsLetIn) {
				t.Errorf("%s: the ServiceMonitor is not let in:\n%s", name, d)
			}
			if rule, ok := object.(*monitoring.PrometheusRule); ok && (len(rule.Spec.Groups) != 1 || len(rule.Spec.Groups[0].Rules) < 11) {
				t.Errorf("%s: the rule has not all alerts", name)
			}
		}
		if !maps.Equal(kinds, s.Kinds) {
			t.Errorf("%s renders %v, want %v", name, kinds, s.Kinds)
		}
	}
}

// rendered are the chart's objects of a type, by name.
func rendered[T interface{ GetName() string }](t *testing.T, values map[string]any) map[string]T {
	t.Helper()
	found := map[string]T{}
	for _, d := range render(t, values) {
		if _, object, err := strict(d); err != nil {
			t.Fatal(err)
		} else if is, ok := object.(T); ok {
			found[is.GetName()] = is
		}
	}
	return found
}

// Envoy sees nodes that are ready, and only peers see the others.
func TestEnvoySeesReadyNodes(t *testing.T) {
	found := rendered[*core.Service](t, settings(t)["everything"].Values)
	for name, s := range found {
		peers := name == "sluice-peers"
		if s.Spec.PublishNotReadyAddresses != peers {
			t.Errorf("%s: publishes nodes that are not ready: %t", name, s.Spec.PublishNotReadyAddresses)
		}
		for _, p := range s.Spec.Ports {
			if (p.Name == "peers") != peers {
				t.Errorf("%s has the port %s", name, p.Name)
			}
		}
	}
	if len(found) != 3 {
		t.Errorf("%d services", len(found))
	}
}

// deployed is the chart's Deployment.
func deployed(t *testing.T, values map[string]any) (d *apps.Deployment) {
	t.Helper()
	for _, d = range rendered[*apps.Deployment](t, values) {
	}
	return d
}

// hasEnv holds the environment of a pod's container against what is wanted: null is not set, and SECRET/KEY is of a Secret.
func hasEnv(t *testing.T, name string, pod core.PodSpec, want map[string]*string) {
	t.Helper()
	env := map[string]string{}
	for _, e := range pod.Containers[0].Env {
		env[e.Name] = e.Value
		if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
			env[e.Name] = e.ValueFrom.SecretKeyRef.Name + "/" + e.ValueFrom.SecretKeyRef.Key
		}
	}
	for variable, value := range want {
		got, set := env[variable]
		if set != (value != nil) || set && got != *value {
			t.Errorf("%s: %s is %q (%t)", name, variable, got, set)
		}
	}
}

// Settings reach the nodes. Volumes are mounted, and pods spread.
func TestChartSettings(t *testing.T) {
	all := settings(t)
	for name, s := range all {
		hasEnv(t, name, deployed(t, s.Values).Spec.Template.Spec, s.Env)
	}
	d := deployed(t, all["secrets"].Values)
	pod := d.Spec.Template.Spec
	mounts := map[string]bool{}
	for _, m := range pod.Containers[0].VolumeMounts {
		mounts[m.Name] = true
	}
	for _, v := range pod.Volumes {
		if !mounts[v.Name] {
			t.Errorf("the volume %s is not mounted", v.Name)
		}
		delete(mounts, v.Name)
	}
	if len(mounts) != 0 || pod.Containers[0].EnvFrom[0].SecretRef.Name != "more" || d.Spec.Template.Labels["team"] != "edge" || pod.PriorityClassName != "high" {
		t.Errorf("mounts without volumes %v, envFrom %v, labels %v, priority %q", mounts, pod.Containers[0].EnvFrom, d.Spec.Template.Labels, pod.PriorityClassName)
	}
	if spread := pod.TopologySpreadConstraints; len(spread) != 2 || spread[0].TopologyKey != "topology.kubernetes.io/zone" {
		t.Errorf("pods spread over %v", spread)
	}
}

// The job that checks rules before an upgrade has them all, and looks at them as
// the nodes will.
func TestChartChecksRules(t *testing.T) {
	everything := settings(t)["everything"].Values
	job := rendered[*batch.Job](t, everything)["sluice-check"]
	pod := job.Spec.Template.Spec
	args := pod.Containers[0].Args
	if job.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || !slices.Equal(args, []string{"check", "/etc/sluice/rules", "--nodes=11"}) {
		t.Errorf("%v %v", job.Annotations, args)
	}
	if pod.NodeSelector["disk"] != "ssd" || len(pod.Tolerations) != 1 || job.Spec.Template.Annotations["a"] != "b" {
		t.Errorf("it may find no machine, or a sidecar that does not end: %+v", job.Spec.Template)
	}
	approx, closed, memory := "approx", "closed", "2147483648"
	hasEnv(t, "the job", pod, map[string]*string{
		"COORDINATION_MODE": &approx, "COORDINATION_ON_STORE_FAILURE": &closed, "MAX_MEMORY": &memory,
	})
	all := rendered[*core.ConfigMap](t, everything)
	for _, m := range []*core.ConfigMap{all["sluice-check"], all["sluice-rules"]} {
		if len(m.Data) != 1 || m.Data["edge.yaml"] == "" {
			t.Errorf("%s has %v beside the rules of the release, whose domains it may have", m.Name, m.Data)
		}
	}
}

// helm test asks a node through Envoy's Service, and its pod is none that a Service would send calls to.
func TestChartTest(t *testing.T) {
	everything := settings(t)["everything"].Values
	pod := rendered[*core.Pod](t, everything)["sluice-test"]
	service := rendered[*core.Service](t, everything)["sluice-headless"]
	if pod == nil || service == nil || pod.Annotations["helm.sh/hook"] != "test" {
		t.Fatalf("%+v %+v", pod, service)
	}
	if args := pod.Spec.Containers[0].Args; !slices.Equal(args, []string{"top", "--times=1", service.Name + ".sluice.svc:6070"}) {
		t.Errorf("it runs %v", args)
	}
	if name := "app.kubernetes.io/name"; pod.Labels[name] == service.Spec.Selector[name] {
		t.Errorf("%s sends calls to the test", service.Name)
	}
	for _, p := range rendered[*networking.NetworkPolicy](t, everything) {
		if !slices.ContainsFunc(p.Spec.Ingress, func(r networking.NetworkPolicyIngressRule) bool {
			return r.Ports[0].Port.StrVal == "debug" && slices.ContainsFunc(r.From, func(f networking.NetworkPolicyPeer) bool {
				return f.PodSelector != nil && len(f.PodSelector.MatchLabels) == 2 && maps.Equal(f.PodSelector.MatchLabels, pod.Labels)
			})
		}) {
			t.Errorf("%s does not let the test in: %+v", p.Name, p.Spec.Ingress)
		}
	}
}

// Bad values of the chart are refused.
func TestChartRefuses(t *testing.T) {
	for want, values := range parsed[map[string]map[string]any](t, "deploy/check/testdata/refused.yaml") {
		if _, err := template(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
