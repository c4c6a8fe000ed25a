package check

import (
	"maps"
	"os"
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
	"sigs.k8s.io/yaml"
)

// settings are what the chart is rendered with.
var settings = map[string]map[string]any{
	"default": {},
	"everything": {
		"peers": map[string]any{"enabled": true}, "existingSecret": "sluice", "autoscaling": map[string]any{"enabled": true},
		"serviceMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}}, "prometheusRule": map[string]any{"enabled": true},
		"grafanaDashboards": map[string]any{"enabled": true}, "env": map[string]any{"COORDINATION_MODE": "approx", "SHADOW_MODE": true, "MAX_MEMORY": 2147483648.0, "NEAR_LIMIT_RATIO": 0.75, "REDIS_TYPE": "SINGLE", "DEBUG_HOST": "::", "ADMIN_TOKEN": "a"},
		"extraEnv":         []any{map[string]any{"name": "PEER_SECRET", "value": "b"}, map[string]any{"name": "COORDINATION_ON_STORE_FAILURE", "value": "closed"}},
		"rules":            map[string]any{"edge.yaml": "# max_nodes: 2\ndomain: edge\n"},
		"imagePullSecrets": []any{map[string]any{"name": "pull"}}, "podAnnotations": map[string]any{"a": "b"}, "nodeSelector": map[string]any{"disk": "ssd"},
		"tolerations": []any{map[string]any{"key": "k", "operator": "Exists"}}, "affinity": map[string]any{"podAntiAffinity": map[string]any{}},
		"networkPolicy": map[string]any{"enabled": true, "from": []any{map[string]any{"namespaceSelector": map[string]any{}}}, "debugFrom": []any{map[string]any{"namespaceSelector": map[string]any{}}}},
	},
	"secrets": {
		"redis": map[string]any{
			"urlSecret": map[string]any{"name": "redis-url"}, "caSecret": map[string]any{"name": "redis-ca", "key": "root.pem"}, "clientCertSecret": "redis-client", "tls": true,
		},
		"rulesCopy": map[string]any{"enabled": true}, "maxNodes": 12, "resources": map[string]any{"limits": map[string]any{"memory": "1500M"}}, "priorityClassName": "high",
		"envFrom": []any{map[string]any{"secretRef": map[string]any{"name": "more"}}}, "podLabels": map[string]any{"team": "edge"}, "check": map[string]any{"strict": true},
		"extraEnv":     []any{map[string]any{"name": "TRACING_SERVICE_INSTANCE_ID", "valueFrom": map[string]any{"fieldRef": map[string]any{"fieldPath": "metadata.name"}}}},
		"extraVolumes": []any{map[string]any{"name": "certs", "secret": map[string]any{"secretName": "certs"}}}, "extraVolumeMounts": []any{map[string]any{"name": "certs", "mountPath": "/certs"}},
	},
	"database": {"store": map[string]any{"url": "postgres://sluice@db1,db2/limits?sslmode=verify-full"}},
	"etcd":     {"store": map[string]any{"urlSecret": map[string]any{"name": "limits", "key": "etcd"}}},
	"named": {
		"nameOverride": "limits", "serviceAccount": map[string]any{"create": false, "name": "theirs"},
		"podSecurityContext": map[string]any{"runAsUser": 1000, "fsGroup": 1000}, "securityContext": map[string]any{"readOnlyRootFilesystem": true},
	},
	"alone": {"redis": map[string]any{"url": ""}, "networkPolicy": map[string]any{"enabled": false}, "podDisruptionBudget": map[string]any{"enabled": false}},
}

func init() {
	for _, name := range []string{"agent-router", "regions"} {
		text, err := os.ReadFile(top + "deploy/" + name + "/values.yaml")
		if err != nil {
			panic(err)
		}
		var values map[string]any
		if err := yaml.UnmarshalStrict(text, &values); err != nil {
			panic(err)
		}
		settings[name] = values
	}
}

// Kubernetes cannot ask for health over TLS, nor where gRPC has a socket: it asks the HTTP port.
func TestChartIsReadyWithTLS(t *testing.T) {
	for _, values := range []map[string]any{
		{"env": map[string]any{"GRPC_SERVER_USE_TLS": "true"}}, {"env": map[string]any{"GRPC_UDS": "/s"}}, {"extraEnv": []any{map[string]any{"name": "GRPC_UDS", "value": "/s"}}},
	} {
		d, _ := deployed(t, values)
		if p := d.Spec.Template.Spec.Containers[0].ReadinessProbe; p.GRPC != nil || p.HTTPGet == nil || p.HTTPGet.Path != "/healthcheck" {
			t.Errorf("with %v, readiness is %+v", values, p.ProbeHandler)
		}
	}
}

// Agent Router's Envoys find the nodes by the name that they call, and the nodes their rules.
func TestChartForAgentRouter(t *testing.T) {
	s := rendered[*core.Service](t, settings["agent-router"])["envoy-ai-gateway-ratelimit"]
	d, env := deployed(t, settings["agent-router"])
	if s == nil || s.Spec.ClusterIP != "None" || s.Spec.Ports[0].Port != 8081 || !maps.Equal(s.Spec.Selector, d.Spec.Selector.MatchLabels) {
		t.Fatalf("%+v", s)
	}
	if c := d.Spec.Template.Spec.Containers[0]; c.Ports[0].Name != s.Spec.Ports[0].TargetPort.StrVal || c.Ports[0].ContainerPort != 8081 {
		t.Errorf("%+v: a Service without an address does not map ports", c.Ports)
	}
	for name, want := range map[string]string{
		"CONFIG_TYPE": "GRPC_XDS_SOTW", "CONFIG_GRPC_XDS_NODE_ID": "envoy-ai-gateway-ratelimit",
		"CONFIG_GRPC_XDS_SERVER_URL": "ai-gateway-controller.envoy-ai-gateway-system.svc.cluster.local:18002",
		"CONFIG_GRPC_XDS_ADDITIONS":  "/etc/sluice/rules/additions.yaml",
	} {
		if env[name].Value != want {
			t.Errorf("%s is %q, want %q", name, env[name].Value, want)
		}
	}
	if m := rendered[*core.ConfigMap](t, settings["agent-router"])["sluice-rules"]; len(m.Data) != 1 || !strings.Contains(m.Data["additions.yaml"], "domain: ai-gateway-quota\n") {
		t.Errorf("%v", m.Data)
	}
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
	want := map[string][]string{
		"default":    {"ConfigMap", "ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"},
		"everything": {"ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "ConfigMap", "Deployment", "HorizontalPodAutoscaler", "Job", "NetworkPolicy", "PodDisruptionBudget", "PrometheusRule", "Service", "Service", "Service", "ServiceAccount", "ServiceMonitor"},
		"secrets":    {"ConfigMap", "ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "ServiceAccount"},
		"alone":      {"ConfigMap", "ConfigMap", "Deployment", "Job", "Service", "Service", "ServiceAccount"},

		"named":        {"ConfigMap", "ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service"},
		"regions":      {"ConfigMap", "ConfigMap", "Deployment", "Job", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "Service", "ServiceAccount"},
		"agent-router": {"ConfigMap", "Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "Service", "Service", "ServiceAccount"},
	}
	want["database"], want["etcd"] = want["default"], want["default"]
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
			if kind == "NetworkPolicy" && name == "everything" && !strings.Contains(strings.Join(strings.Fields(d), " "), prometheusIsLetIn) {
				t.Errorf("%s: the ServiceMonitor is not let in:\n%s", name, d)
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
	found := rendered[*core.Service](t, settings["everything"])
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

// deployed is the chart's Deployment and the environment of its container.
func deployed(t *testing.T, values map[string]any) (d *apps.Deployment, env map[string]core.EnvVar) {
	t.Helper()
	for _, d = range rendered[*apps.Deployment](t, values) {
		env = environment(d.Spec.Template.Spec)
	}
	return d, env
}

func environment(p core.PodSpec) map[string]core.EnvVar {
	env := map[string]core.EnvVar{}
	for _, e := range p.Containers[0].Env {
		env[e.Name] = e
	}
	return env
}

// Secrets come from where they are kept, and a copy of the rules has a place that may be written. Memory is the container's:
// GOMEMLIMIT would not count the table of keys.
func TestChartSettings(t *testing.T) {
	_, env := deployed(t, nil)
	for name, want := range map[string]string{"COORDINATION_MAX_NODES": "4", "REDIS_URL": "redis:6379"} {
		if got := env[name].Value; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"CONFIG_LAST_GOOD_FILE", "MAX_KEYS", "GOMEMLIMIT"} {
		if v, set := env[name]; set {
			t.Errorf("%s is set unasked: %q", name, v.Value)
		}
	}
	d, env := deployed(t, settings["secrets"])
	for name, want := range map[string]string{
		"COORDINATION_MAX_NODES": "12", "REDIS_TLS_CACERT": "/etc/sluice/redis-ca/ca.crt",
		"REDIS_TLS_CLIENT_KEY": "/etc/sluice/redis-client/tls.key", "CONFIG_LAST_GOOD_FILE": "/var/lib/sluice/rules.json",
	} {
		if got := env[name].Value; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	if from := env["REDIS_URL"].ValueFrom; from == nil || from.SecretKeyRef.Name != "redis-url" || from.SecretKeyRef.Key != "url" {
		t.Errorf("REDIS_URL is from %v", from)
	}
	_, env = deployed(t, settings["database"])
	if got := env["STORE_URL"].Value; !strings.HasPrefix(got, "postgres://") {
		t.Errorf("STORE_URL is %q", got)
	}
	_, onEtcd := deployed(t, settings["etcd"])
	if from := onEtcd["STORE_URL"].ValueFrom; from == nil || from.SecretKeyRef.Name != "limits" || from.SecretKeyRef.Key != "etcd" {
		t.Errorf("STORE_URL is from %v", from)
	}
	for _, of := range []map[string]core.EnvVar{env, onEtcd} {
		if _, set := of["REDIS_URL"]; set {
			t.Error("REDIS_URL is set beside STORE_URL: the node would not start")
		}
	}
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
	// Up to 10 pods, and one more in a rolling update. Numbers are written out: in a file of values each is a float64.
	_, env = deployed(t, settings["everything"])
	for name, want := range map[string]string{"COORDINATION_MAX_NODES": "11", "MAX_MEMORY": "2147483648", "NEAR_LIMIT_RATIO": "0.75"} {
		if got := env[name].Value; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
}

// The job that checks rules before an upgrade has them all, and looks at them as
// the nodes will.
func TestChartChecksRules(t *testing.T) {
	job := rendered[*batch.Job](t, settings["everything"])["sluice-check"]
	pod := job.Spec.Template.Spec
	args, env := pod.Containers[0].Args, environment(pod)
	if job.Annotations["helm.sh/hook"] != "pre-install,pre-upgrade" || !slices.Equal(args, []string{"check", "/etc/sluice/rules", "--nodes=11"}) {
		t.Errorf("%v %v", job.Annotations, args)
	}
	if pod.NodeSelector["disk"] != "ssd" || len(pod.Tolerations) != 1 || job.Spec.Template.Annotations["a"] != "b" {
		t.Errorf("it may find no machine, or a sidecar that does not end: %+v", job.Spec.Template)
	}
	for name, want := range map[string]string{"COORDINATION_MODE": "approx", "COORDINATION_ON_STORE_FAILURE": "closed", "MAX_MEMORY": "2147483648"} {
		if got := env[name].Value; got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	all := rendered[*core.ConfigMap](t, settings["everything"])
	for _, m := range []*core.ConfigMap{all["sluice-check"], all["sluice-rules"]} {
		if len(m.Data) != 1 || m.Data["edge.yaml"] == "" {
			t.Errorf("%s has %v beside the rules of the release, whose domains it may have", m.Name, m.Data)
		}
	}
}

// Bad values of the chart are refused.
func TestChartRefuses(t *testing.T) {
	for want, values := range map[string]map[string]any{
		"'/redis/type': value must be one of":             {"redis": map[string]any{"type": "RING"}},
		"'/store/url': 'db:5432' does not match":          {"store": map[string]any{"url": "db:5432"}},
		"'/replicaCount': got string":                     {"replicaCount": "three"},
		"'/replicaCount': minimum":                        {"replicaCount": 0},
		"'': additional properties 'replica'":             {"replica": 3},
		"'/networkPolicy': additional properties 'form'":  {"networkPolicy": map[string]any{"form": []any{}}},
		"'': 'log_format' does not match":                 {"env": map[string]any{"log_format": "json"}},
		"'': 'edge' does not match":                       {"rules": map[string]any{"edge": "domain: edge"}},
		"maxNodes is 3, and there may be 4 pods":          {"maxNodes": 3},
		"maxNodes is 10, and there may be 11 pods":        {"maxNodes": 10, "autoscaling": map[string]any{"enabled": true}},
		"maxNodes is 2, and there may be 4 pods":          {"env": map[string]any{"COORDINATION_MAX_NODES": 2}},
		"maxNodes is 1, and there may be 4 pods":          {"extraEnv": []any{map[string]any{"name": "COORDINATION_MAX_NODES", "value": "1"}}},
		"rules, a.yaml: max_nodes is 3, and there may be": {"rules": map[string]any{"a.yaml": "coordination: {mode: approx, max_nodes: 3}"}},
		"set drainSeconds":                                {"env": map[string]any{"DRAIN_TIME": "90s"}},
		"ask the debug port at the pod's address":         {"env": map[string]any{"DEBUG_HOST": "127.0.0.1"}},
		"env has GRPC_PORT":                               {"env": map[string]any{"GRPC_PORT": 9000}},
		"lower maxKeys to 671088 at most":                 {"maxKeys": 1000000, "resources": map[string]any{"limits": map[string]any{"memory": "512Mi"}}},
	} {
		if _, err := template(values); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
