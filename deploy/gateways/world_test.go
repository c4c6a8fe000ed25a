package gateways

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/sluice-gate/sluice/deploy/gateways/pods"
)

const (
	top    = "../../"
	system = "envoy-gateway-system"
)

var (
	programs = flag.String("programs", "", "folder with envoy-gateway, kube-apiserver, etcd-for-tests, sluice and backend: make gateways-test")
	envoy    = flag.String("envoy", "", "Envoy")
	lines    = flag.Int("lines", 5, "of each log, after a failure")
	verbose  = flag.Bool("pods", false, "log what pods do")
)

func TestMain(m *testing.M) {
	flag.Parse()
	if *programs == "" {
		os.Exit(m.Run())
	}
	if why := missing(); why != "" {
		fmt.Fprintln(os.Stderr, "left out, all of it:", why)
		return
	}
	os.Exit(pods.Enter(m.Run))
}

// missing says what this machine lacks.
func missing() string {
	if why := pods.Missing(); why != "" {
		return why
	}
	for _, name := range []string{"redis-server", "redis-cli"} {
		if _, err := exec.LookPath(name); err != nil {
			return "no " + name + " here: make deps installs it"
		}
	}
	if _, err := os.Stat(*envoy); err != nil {
		return "no Envoy here: make envoy installs it"
	}
	return ""
}

// A world is a cluster, in a test.
type world struct {
	*testing.T
	*pods.Cluster
}

// run runs a test of its own in the cluster.
func (w *world) run(name string, test func(w *world)) {
	w.T.Run(name, func(t *testing.T) { test(&world{t, w.Cluster}) })
}

// start returns the cluster that all tests share. It ends with this process.
func start(t *testing.T) *world {
	t.Helper()
	if *programs == "" {
		t.Skip("this test needs -programs: run make gateways-test")
	}
	c, err := cluster()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t, c}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Log("", *lines))
		}
	})
	return w
}

var cluster = sync.OnceValues(func() (*pods.Cluster, error) {
	program := func(name string) string { return filepath.Join(*programs, name) }
	istio, _, err := module("istio", "istio.io/istio")
	if err != nil {
		return nil, err
	}
	c, err := pods.Start(context.Background(), pods.Config{
		APIServer: program("kube-apiserver"), Etcd: program("etcd-for-tests"),
		Images: []pods.Image{
			{Name: "/sluice:", Files: map[string]string{"/bin/sluice": program("sluice"), "/bin/ratelimit": program("sluice")}, Entrypoint: []string{"/bin/sluice"}, User: 65532},
			{Name: "envoyproxy/gateway", Files: map[string]string{"/usr/local/bin/envoy-gateway": program("envoy-gateway")}, Entrypoint: []string{"envoy-gateway"}, User: 65532},
			{Name: "envoyproxy/envoy:", Files: map[string]string{"/usr/local/bin/envoy": *envoy}, User: 65532},
			{Name: "projectcontour/contour:", Files: map[string]string{"/bin/contour": program("contour")}, User: 65532},
			{Name: "istio/pilot:", Files: map[string]string{"/usr/local/bin/pilot-discovery": program("pilot-discovery")}, Entrypoint: []string{"pilot-discovery"}, User: 1337},
			{Name: "istio/proxyv2:", Files: map[string]string{
				"/usr/local/bin/pilot-agent": program("pilot-agent"), "/usr/local/bin/envoy": *envoy,
				"/var/lib/istio/envoy/envoy_bootstrap_tmpl.json": istio + "/tools/packaging/common/envoy_bootstrap.json",
			}, Entrypoint: []string{"pilot-agent"}, User: 1337},
			{Name: "redis:", Entrypoint: []string{"/usr/bin/sh", "-c", `exec "$@" --protected-mode no`, "redis"}}, // the default of the image
			{Name: "backend", Files: map[string]string{"/bin/backend": program("backend")}, Entrypoint: []string{"backend"}, User: 65532},
		},
		Logf: func(format string, args ...any) {
			if *verbose {
				fmt.Printf(time.Now().Format("15:04:05.000 ")+format+"\n", args...)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	redis, err := os.ReadFile(top + "deploy/kubernetes/redis.yaml")
	if err != nil {
		return nil, err
	}
	return c, c.Apply(context.Background(), "", append([]byte(namespace("sluice")+"\n---\n"), redis...))
})

func (w *world) check(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// apply creates or changes objects.
func (w *world) apply(namespace, text string) {
	w.Helper()
	w.check(w.Apply(w.Context(), namespace, []byte(text)))
}

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// until tries f until it returns nil.
func (w *world) until(limit time.Duration, f func() error) {
	w.Helper()
	var err error
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if err = f(); err == nil {
			return
		}
	}
	w.Fatalf("after %v: %v", limit, err)
}

func namespace(name string) string {
	return "{apiVersion: v1, kind: Namespace, metadata: {name: " + name + "}}"
}

// install installs or upgrades a chart as Helm does. The order of the objects differs.
func (w *world) install(dir, release, namespace string, defaults []byte, values map[string]any) {
	w.Helper()
	chart, err := loader.Load(dir)
	w.check(err)
	if defaults != nil {
		w.check(yaml.Unmarshal(defaults, &chart.Values))
	}
	w.check(chartutil.ProcessDependencies(chart, values))
	all, err := chartutil.ToRenderValues(chart, values, chartutil.ReleaseOptions{Name: release, Namespace: namespace, IsInstall: true}, nil)
	w.check(err)
	rendered, err := engine.Render(chart, all)
	w.check(err)
	for _, crd := range chart.CRDObjects() {
		w.apply("", string(crd.File.Data))
	}
	for name, text := range rendered {
		if strings.Contains(text, "before-hook-creation") {
			w.check(w.Delete(w.Context(), namespace, []byte(text)))
		}
		if strings.HasSuffix(name, ".yaml") {
			w.apply(namespace, text)
		}
	}
}

// module returns the folder and the version of a module that the module in dir needs.
func module(dir, name string) (folder, version string, err error) {
	out, err := exec.Command("go", "list", "-C", dir, "-m", "-f", "{{.Dir}} {{.Version}}", name).Output()
	folder, version, _ = strings.Cut(strings.TrimSpace(string(out)), " ")
	return folder, version, err
}

// installGateway installs Envoy Gateway by the chart of its module.
func (w *world) installGateway(config map[string]any) {
	w.Helper()
	dir, version, err := module(".", "github.com/envoyproxy/gateway")
	w.check(err)
	dir += "/charts/gateway-helm"
	defaults := strings.NewReplacer("${GatewayImage}", "docker.io/envoyproxy/gateway:"+version, "${GatewayImagePullPolicy}", "IfNotPresent").
		Replace(read(w.T, dir+"/values.tmpl.yaml"))
	w.apply("", namespace(system))
	// The webhook of the topology injector is called at the binding of pods, which nothing here does.
	values := map[string]any{"topologyInjector": map[string]any{"enabled": false}, "config": map[string]any{"envoyGateway": config}}
	w.install(dir, "eg", system, []byte(defaults), values)
}

// configuration is deploy/envoy-gateway/envoy-gateway.yaml, with a mode.
func (w *world) configuration(mode string) map[string]any {
	w.Helper()
	text := read(w.T, top+"deploy/envoy-gateway/envoy-gateway.yaml")
	text = strings.Replace(text, "{name: COORDINATION_MODE, value: leasing}", "{name: COORDINATION_MODE, value: "+mode+"}", 1)
	var config map[string]any
	w.check(yaml.UnmarshalStrict([]byte(text), &config))
	at(config, "rateLimit")["timeout"] = "1s"                   // a busy machine stalls for longer than the 200 ms of the file
	config["extensionApis"] = map[string]any{"enableLua": true} // for costs in metadata
	return config
}

// restart does what kubectl rollout restart does.
func (w *world) restart(namespace, deployment string) {
	w.Helper()
	patch := `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"` + time.Now().Format(time.RFC3339Nano) + `"}}}}}`
	_, err := w.Kube.AppsV1().Deployments(namespace).Patch(w.Context(), deployment, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	w.check(err)
}

// rolled waits until all pods of a deployment are of its present template, and ready.
func (w *world) rolled(namespace, deployment string) {
	w.Helper()
	w.until(90*time.Second, func() error {
		d, err := w.Kube.AppsV1().Deployments(namespace).Get(w.Context(), deployment, metav1.GetOptions{})
		if err != nil {
			return err
		}
		s, n := d.Status, *d.Spec.Replicas
		if s.ObservedGeneration != d.Generation || s.UpdatedReplicas != n || s.AvailableReplicas != n || s.Replicas != n {
			return fmt.Errorf("deployment %s: %d wanted, %d updated, %d ready, %d there", deployment, n, s.UpdatedReplicas, s.ReadyReplicas, s.Replicas)
		}
		return nil
	})
}

// configMap writes a configuration as the only key of a ConfigMap.
func (w *world) configMap(namespace, name, key string, config map[string]any) {
	w.Helper()
	text, err := yaml.Marshal(config)
	w.check(err)
	object, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{key: string(text)},
	})
	w.check(err)
	w.apply(namespace, string(object))
}
