package check

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/kube"
	"helm.sh/helm/v3/pkg/release"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
)

// make kube-test builds both programs.
var (
	apiServer = flag.String("apiserver", "", "kube-apiserver of the module in the folder apiserver")
	etcd      = flag.String("etcd", "", "etcd of the module leasing/redistest/etcdtest/server")
)

// Helm installs the chart on a real API server with each of the settings, and upgrades one to the next: the API server
// takes all objects, with strict fields. No controller runs, so that no pod does, and hooks would not end.
func TestChartOnAPIServer(t *testing.T) {
	k := startKubernetes(t)
	c, err := loader.Load(chart)
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(k.configuration("sluice"))
	install.ReleaseName, install.Namespace, install.CreateNamespace, install.DisableHooks = "sluice", "sluice", true, true
	all := settings(t)
	if _, err := install.Run(c, all["default"].Values); err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		values := all[name].Values
		if name == "everything" { // the operator's own types are not on this server
			values = maps.Clone(values)
			delete(values, "serviceMonitor")
			delete(values, "prometheusRule")
		}
		upgrade := action.NewUpgrade(k.configuration("sluice"))
		upgrade.Namespace, upgrade.DisableHooks, upgrade.ResetValues = "sluice", true, true
		r, err := upgrade.Run("sluice", c, values)
		if err != nil || r.Info.Status != release.StatusDeployed {
			t.Errorf("an upgrade to %q: %v", name, err)
		}
		client, err := k.configuration("sluice").KubernetesClientSet()
		if err != nil {
			t.Fatal(err)
		}
		d, err := client.AppsV1().Deployments("sluice").Get(t.Context(), "sluice", meta.GetOptions{})
		if err != nil || *d.Spec.Replicas != 3 { // also as autoscaling is turned on
			t.Errorf("after an upgrade to %q: %+v %v", name, d, err)
		}
	}
	rollback := action.NewRollback(k.configuration("sluice"))
	rollback.Version, rollback.DisableHooks = 1, true
	if err := rollback.Run("sluice"); err != nil {
		t.Errorf("a rollback to the first revision: %v", err)
	}
	uninstall := action.NewUninstall(k.configuration("sluice"))
	uninstall.DisableHooks = true
	if _, err := uninstall.Run("sluice"); err != nil {
		t.Errorf("an uninstall: %v", err)
	}
	for _, file := range []string{"sluice.yaml", "redis.yaml"} {
		if err := k.apply(top + "deploy/kubernetes/" + file); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// kubernetes is an API server, and its etcd.
type kubernetes struct {
	*testing.T
	url string
}

func startKubernetes(t *testing.T) *kubernetes {
	t.Helper()
	if *apiServer == "" || *etcd == "" {
		t.Skip("this test needs -apiserver and -etcd: run make kube-test")
	}
	dir, ports := t.TempDir(), freePorts(t, 3)
	runs(t, exec.Command(*etcd, "-token", "kubernetes", "-members", ports[1], filepath.Join(dir, "etcd"), ports[0], ports[1]))
	key := filepath.Join(dir, "accounts.key")
	writeKey(t, key)
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",admin,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runs(t, exec.Command(*apiServer, "--etcd-servers=http://127.0.0.1:"+ports[0], "--bind-address=127.0.0.1", "--secure-port="+ports[2],
		"--cert-dir="+dir, "--service-account-issuer=https://tests", "--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=AlwaysAllow", "--token-auth-file="+tokens, "--disable-admission-plugins=ServiceAccount"))
	k := &kubernetes{t, "https://127.0.0.1:" + ports[2]}
	k.untilReady()
	return k
}

// runs starts a program that ends with the test; what it wrote is shown if the test fails.
func runs(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("%s:\n%.4000s", cmd.Path, out.Bytes()[max(0, out.Len()-4000):])
		}
	})
}

func freePorts(t *testing.T, n int) (ports []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close() // after the loop, so that all differ
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports
}

func writeKey(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (k *kubernetes) untilReady() {
	k.Helper()
	config, err := k.flags("default").ToRESTConfig()
	if err != nil {
		k.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		k.Fatal(err)
	}
	var last string
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		r, err := client.Get(k.url + "/readyz")
		if err != nil {
			last = err.Error()
			continue
		}
		text, _ := io.ReadAll(io.LimitReader(r.Body, 4096))
		_ = r.Body.Close()
		if r.StatusCode == http.StatusOK {
			return
		}
		last = string(text)
	}
	k.Fatalf("the API server is not ready: %s", last)
}

const token = "only-for-this-test"

// flags say to Helm and to kubectl's library where the server is.
func (k *kubernetes) flags(namespace string) *genericclioptions.ConfigFlags {
	f, insecure, bearer := genericclioptions.NewConfigFlags(true), true, token
	f.APIServer, f.Insecure, f.BearerToken, f.Namespace = &k.url, &insecure, &bearer, &namespace
	return f
}

func (k *kubernetes) configuration(namespace string) *action.Configuration {
	k.Helper()
	c := new(action.Configuration)
	if err := c.Init(k.flags(namespace), namespace, "secret", func(format string, more ...any) { k.Logf(format, more...) }); err != nil {
		k.Fatal(err)
	}
	return c
}

// apply creates the objects of a file that are missing.
func (k *kubernetes) apply(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	client := kube.New(k.flags("default")) // as without -n
	objects, err := client.Build(bytes.NewReader(text), true)
	if err != nil {
		return err
	}
	if len(objects) == 0 {
		return fmt.Errorf("%s has no object", file)
	}
	_, err = client.Update(objects, objects, false) // the namespace is there
	return err
}
