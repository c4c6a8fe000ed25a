package pods

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"k8s.io/client-go/discovery/cached/memory"
)

const (
	// The one node: it is also the bridge of all pods, their gateway, their name server and the address of the API
	// server.
	nodeIP = "10.244.0.1"
	// A local route makes the kernel accept connections to each of these addresses, so that a proxy can listen there.
	services = "10.96.0.0/16"
	// Clients is a range of addresses that requests from here can have as their source.
	Clients = "10.1.0.0/16"
	// The API server cannot be reached from outside of the namespaces, so this token is no secret.
	bearer = "only-for-this-test"
)

// Image stands for the images with Name in their names. The first entry of Config.Images whose Name is in the name of a
// container's image stands for it.
type Image struct {
	Name       string
	Files      map[string]string // places in the container, and files of this machine
	Entrypoint []string
	User       int64
}

// Config is what a cluster runs. Logf gets events of the cluster, from several goroutines.
type Config struct {
	APIServer, Etcd string // programs
	Images          []Image
	Logf            func(format string, args ...any)
}

// A Cluster is an API server, its etcd, and the loop that does what its objects say. It is safe for concurrent use.
type Cluster struct {
	Config
	Kube kubernetes.Interface

	dir     string
	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper

	// Of the loop alone, so they need no lock. Start writes them before the loop begins.
	pods     map[types.UID]*pod
	proxies  map[string]net.Listener // by address
	nextPod  int
	finished chan struct{}

	mu    sync.Mutex
	names map[string][]string // addresses by name, without the last dot
}

// Start returns a cluster that works until ctx is done. Call it in Enter, once. Its steps: the bridge and the routes,
// etcd and the API server, names, and then the loop. An error leaves programs running; they end with ctx, and with the
// namespaces.
func Start(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{
		Config: config, dir: os.Getenv(folder), pods: map[types.UID]*pod{},
		proxies: map[string]net.Listener{}, names: map[string][]string{}, finished: make(chan struct{}),
	}
	for _, args := range []string{
		// Without an address of its own, the bridge takes that of a pod, and pods lose it when that one ends.
		"link set lo up", "link add pods address 02:00:00:00:00:01 type bridge", "addr add " + nodeIP + "/16 dev pods", "link set pods up",
		"route add local " + services + " dev lo", "route add local " + Clients + " dev lo",
	} {
		if err := ip(strings.Fields(args)...); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return nil, err
	}
	if err := c.serveAPI(ctx); err != nil {
		return nil, err
	}
	conn, err := net.ListenPacket("udp", nodeIP+":53")
	if err != nil {
		return nil, err
	}
	go c.serveNames(conn)
	go c.loop(ctx)
	return c, nil
}

// path is that of a file of the cluster. The folder is a file system in memory that ends with the namespaces (settle).
func (c *Cluster) path(names ...string) string {
	return filepath.Join(append([]string{c.dir}, names...)...)
}

// serveAPI starts etcd and the API server, and returns when it is ready. The API server authorizes every request, and
// has one administrator, with a static token. Admission of service accounts is off, because it needs a controller that
// makes their objects. Their tokens are real: the server signs them with the key of accounts.key.
func (c *Cluster) serveAPI(ctx context.Context) error {
	key, tokens := c.path("accounts.key"), c.path("tokens.csv")
	if err := writeKey(key); err != nil {
		return err
	}
	if err := os.WriteFile(tokens, []byte(bearer+",admin,1,system:masters\n"), 0o600); err != nil {
		return err
	}
	if err := c.run(ctx, "etcd", c.Etcd, "-token", "kubernetes", c.path("etcd"), "2379", "2380"); err != nil {
		return err
	}
	if err := c.run(ctx, "kube-apiserver", c.APIServer, "--etcd-servers=http://127.0.0.1:2379", "--bind-address=0.0.0.0",
		"--advertise-address="+nodeIP, "--secure-port=6443", "--cert-dir="+c.dir, "--service-cluster-ip-range="+services,
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+key,
		"--service-account-signing-key-file="+key, "--authorization-mode=AlwaysAllow", "--token-auth-file="+tokens,
		"--disable-admission-plugins=ServiceAccount"); err != nil {
		return err
	}
	config := &rest.Config{
		Host: "https://" + nodeIP + ":6443", BearerToken: bearer, QPS: 500, Burst: 500, Timeout: 10 * time.Second,
		TLSClientConfig: rest.TLSClientConfig{CAFile: c.authority()},
	}
	var err error
	for end := time.Now().Add(2 * time.Minute); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if _, err = os.Stat(c.path("apiserver.key")); err != nil { // the server writes it after the certificates
			continue
		}
		c.Kube, err = kubernetes.NewForConfig(config)
		if err != nil {
			return err
		}
		_, err = c.Kube.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		if err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the API server is not ready after 2m: %w", err)
	}
	c.mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(c.Kube.Discovery()))
	c.objects, err = dynamic.NewForConfig(config)
	return err
}

// authority is the file with the certificates of the API server, and of the authority that it makes. The API server
// makes a self-signed certificate in --cert-dir, and appends that of its authority to the file.
func (c *Cluster) authority() string { return c.path("apiserver.crt") }

// run starts a program of the cluster itself. It must run until ctx is done; an earlier end is logged, and nothing
// starts it again.
func (c *Cluster) run(ctx context.Context, name, program string, args ...string) error {
	log, err := os.Create(c.path("logs", name))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		err := cmd.Wait()
		if ctx.Err() == nil {
			c.Logf("%s ended: %v", name, err)
		}
	}()
	return nil
}

// writeKey writes a key that signs tokens of service accounts.
func writeKey(name string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// Log returns the last lines of each log with part in its name (NAMESPACE_POD_CONTAINER). A test prints it when it
// fails. A log grows over restarts of its container.
func (c *Cluster) Log(part string, lines int) string {
	names, _ := filepath.Glob(c.path("logs", "*"+part+"*"))
	var b strings.Builder
	for _, name := range names {
		text, _ := os.ReadFile(name)
		all := strings.Split(strings.TrimSpace(string(text)), "\n")
		fmt.Fprintf(&b, "-- %s\n%s\n", filepath.Base(name), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return b.String()
}
