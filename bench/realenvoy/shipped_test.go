package realenvoy

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
)

// notOurs are warnings of Envoy about any configuration like these.
var notOurs = []string{
	// Each Envoy without this monitor has this warning.
	"There is no configured limit to the number of allowed active downstream connections",
	// The message has DENY_ALL, which RLQS cannot do without.
	"message 'envoy.type.v3.RateLimitStrategy' is contained in proto file " +
		"'envoy/type/v3/ratelimit_strategy.proto' marked as work-in-progress",
}

// quiet fails for a warning that is about what a configuration says.
func (w *world) quiet() {
	w.Helper()
lines:
	for line := range strings.Lines(w.envoy.Log()) {
		for _, other := range notOurs {
			if strings.Contains(line, other) {
				continue lines
			}
		}
		w.Errorf("Envoy warns: %s", line)
	}
}

const edge = `domain: edge
descriptors:
  - key: api_key
    rate_limit: {unit: year, requests_per_unit: 5}
  - key: masked_remote_address
    rate_limit: {unit: year, requests_per_unit: 40}
    descriptors:
      - key: path
        value: /login
        rate_limit: {unit: year, requests_per_unit: 3}
`

// Each configuration of deploy starts without a warning of ours, and limits what its comments say.
func TestShippedConfigurations(t *testing.T) {
	needsEnvoy(t)
	t.Run("envoy.yaml", shippedEnvoy)
	t.Run("approx.yaml", shippedApprox)
	t.Run("ring-hash.yaml", shippedRingHash)
	t.Run("rlqs.yaml", shippedRLQS)
	t.Run("concurrency.yaml", shippedConcurrency)
	t.Run("compose", shippedCompose)
	t.Run("istio", shippedIstio)
}

func shippedEnvoy(t *testing.T) {
	w := (&world{T: t, rules: edge, config: Config{Text: shipped(t, "envoy/envoy.yaml")}}).run()
	for _, key := range []string{"a", "b"} {
		w.admits(5, 8, "/", "x-api-key", key)
	}
	// One login, however it is written, and whatever address a header names.
	w.admits(3, 3, "/login")
	for i, path := range []string{"/login?x=1", "//login", "/./login", "/LOGIN", "/login/", "/x/../login", "/login;v=1", "/logi%6e"} {
		w.admits(0, 1, path, "x-forwarded-for", "192.0.2."+strconv.Itoa(i))
	}
	r := w.get("/%2Flogin")
	if to := r.Header.Get("Location"); r.Status != http.StatusTemporaryRedirect || !strings.HasSuffix(to, "/login") {
		t.Errorf("an escaped slash: %d to %q", r.Status, to)
	}
	// All of these were of one address, also those that the key or the login had refused.
	w.admits(40-2*8-11, 40, "/", "x-forwarded-for", "192.0.2.99")
	w.quiet()
	w.fleet.Nodes[0].Stop()
	if n := w.passes(3, "/", "x-api-key", "a"); n != 3 {
		t.Errorf("without Sluice %d of 3 passed", n)
	}
}

// A client's second request is refused while its first is in flight, and another client's is not.
func shippedConcurrency(t *testing.T) {
	begun, end := make(chan struct{}, 8), make(chan struct{})
	rules := "domain: edge\ncoordination: {store_deadline: 1s}\ndescriptors:\n- {key: api_key, rate_limit: {concurrency: 1, hold_ttl: 15m}}\n"
	w := (&world{
		T: t, rules: rules, config: Config{Text: change(t, shipped(t, "envoy/concurrency.yaml"), "timeout: 0.2s", "timeout: 1s")},
		handler: func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				begun <- struct{}{}
				<-end
			}
		},
	}).run()
	var slow sync.WaitGroup
	slow.Go(func() { w.admits(1, 1, "/slow", "x-api-key", "a") })
	<-begun
	w.admits(0, 3, "/", "x-api-key", "a")
	w.admits(1, 1, "/", "x-api-key", "b")
	close(end)
	slow.Wait()
	w.need(Until("the slot is free again", func() bool { return w.passes(1, "/", "x-api-key", "a") == 1 }))
	w.quiet()
}

func shippedApprox(t *testing.T) {
	rules := "domain: edge\ncoordination: {mode: approx, drift_budget: 1%}\ndescriptors:\n" +
		"- {key: masked_remote_address, rate_limit: {unit: year, requests_per_unit: 30}}\n"
	w := (&world{T: t, rules: rules, nodes: 3, config: Config{Text: shipped(t, "envoy/approx.yaml")}}).run()
	w.admits(30, 40, "/") // 1 % is less than one more
	w.quiet()
	// A node that hangs costs 5 ms, and lets requests pass.
	for _, n := range w.fleet.Nodes {
		w.need(n.Pause(true))
	}
	w.need(Until("all three stand still", func() bool { return w.passes(3, "/") == 3 }))
	for range 5 {
		began := time.Now()
		if w.passes(1, "/") != 1 {
			t.Error("a request was refused while no node answers")
		}
		if took := time.Since(began); took < 4*time.Millisecond || took > 100*time.Millisecond {
			t.Errorf("a request took %v, the filter's timeout is 5ms", took)
		}
	}
}

// The address of all these requests is one, of one owner, so that requests of other owners' keys are forwarded
// for it. Only a request with one descriptor saves the hop completely.
func shippedRingHash(t *testing.T) {
	rules := change(t, edge, "domain: edge\n", "domain: edge\ncoordination: {mode: routing}\n",
		"requests_per_unit: 40}", "requests_per_unit: 1000}")
	text := shipped(t, "envoy/ring-hash.yaml")
	alone := change(t, text, "- actions: [{masked_remote_address: {v6_prefix_mask_len: 64}}] # who", "# who")
	for name, text := range map[string]string{"as shipped": text, "the key alone": alone} {
		w := (&world{T: t, rules: rules, nodes: 3, config: Config{Text: text}}).run()
		for i := range 30 {
			w.admits(5, 7, "/", "x-api-key", "key-"+strconv.Itoa(i))
		}
		w.quiet()
		forwarded := 0.0
		for _, n := range w.fleet.Nodes {
			forwarded += metric(t, n, `sluice_peer_asks_total{kind="forwarded"}`)
		}
		t.Logf("%s: of 210 requests, %v asks were forwarded to an owner", name, forwarded)
		if name == "the key alone" && forwarded != 0 {
			t.Errorf("Envoy's ring is another than the nodes'")
		}
		if name != "the key alone" && (forwarded < 1 || forwarded > 210) {
			t.Errorf("%v of 210 asks were forwarded, which cannot be: the address has one owner of three", forwarded)
		}
	}
}

func shippedRLQS(t *testing.T) {
	rules := "domain: edge\ndescriptors:\n- key: tier\n  value: gold\n  descriptors:\n" +
		"  - {key: api_key, rate_limit: {unit: hour, requests_per_unit: 60}}\n"
	w := (&world{T: t, rules: rules, config: Config{Text: shipped(t, "envoy/rlqs.yaml")}}).run()
	gold := []string{"x-tier", "gold", "x-api-key", "k"}
	if n := w.passes(1, "/", gold...); n != 0 {
		t.Error("the first request of a bucket passed, without a lease")
	}
	passed := 0
	w.need(Until("a lease has come", func() bool {
		passed += w.passes(1, "/", gold...)
		return passed > 0
	}))
	for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		passed += w.passes(1, "/", gold...)
	}
	if passed > 60 || passed < 2 {
		t.Errorf("%d passed, the limit is 60", passed)
	}
	t.Logf("%d of 60 passed within two reports", passed)
	if n := w.passes(70, "/", "x-api-key", "k"); n != 70 {
		t.Errorf("%d of 70 passed without a tier, which no matcher takes", n)
	}
	w.quiet()
}

func shippedCompose(t *testing.T) {
	rules := "domain: edge\ndescriptors:\n"
	kinds := map[string]string{
		"api_key": "x-api-key", "tenant": "x-tenant", "account": "x-account", "remote_address": "x-remote-address",
	}
	for key := range kinds {
		rules += "- {key: " + key + ", rate_limit: {unit: year, requests_per_unit: 4}}\n"
	}
	w := (&world{T: t, rules: rules, nodes: 3, config: Config{Text: shipped(t, "compose/envoy.yaml")}}).run()
	for _, header := range kinds {
		w.admits(4, 6, "/", header, "v")
	}
	w.quiet()
}

func shippedIstio(t *testing.T) {
	w := (&world{T: t, rules: edge, nodes: 3, config: Config{Text: istio(t, "ratelimit.yaml")}}).run()
	for _, key := range []string{"a", "b"} {
		w.admits(5, 8, "/", "x-api-key", key)
	}
	w.admits(40-2*8, 40, "/")
	w.quiet()
}

// istio is a gateway's Envoy with the patches of a file for Istio: its filters before the router, its cluster, and its
// limits of the host.
func istio(t *testing.T, file string) string {
	t.Helper()
	var tree object
	if err := yaml.Unmarshal([]byte(shipped(t, "envoy/envoy.yaml")), &tree); err != nil {
		t.Fatal(err)
	}
	gateway := at[object](tree, "static_resources", "listeners", 0, "filter_chains", 0, "filters", 0, "typed_config")
	host := at[object](gateway, "route_config", "virtual_hosts", 0)
	host["routes"] = []any{object{"match": object{"prefix": "/"}, "route": object{"cluster": "service"}}}
	delete(host, "rate_limits")
	filters := at[[]any](gateway, "http_filters")
	filters = filters[len(filters)-1:]
	for _, p := range below[[]any](t, "istio/"+file, 0, "spec", "configPatches") {
		value := at[object](p, "patch", "value")
		switch at[string](p, "applyTo") {
		case "HTTP_FILTER":
			filters = slices.Insert(filters, len(filters)-1, any(value))
		case "CLUSTER":
			at[[]any](tree, "static_resources", "clusters")[1] = value
		case "VIRTUAL_HOST":
			maps.Copy(host, value)
		case "LISTENER":
			maps.Copy(at[object](tree, "static_resources", "listeners", 0), value)
		}
	}
	gateway["http_filters"] = filters
	text, err := yaml.Marshal(tree)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
