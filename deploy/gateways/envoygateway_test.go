package gateways

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var modes = []string{"leasing", "routing", "approx"}

// Envoy Gateway, with the settings of deploy/envoy-gateway and each mode, limits what its policies say.
func TestThroughEnvoyGateway(t *testing.T) {
	w := start(t)
	w.installGateway(w.configuration(modes[0]))
	w.apply("", read(t, "testdata/class.yaml"))
	keys := newIssuer(t)
	for i, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			w := &world{t, w.Cluster}
			if i > 0 {
				config := w.configuration(mode)
				if mode == "routing" { // which differs from leasing by nothing else here: the gateway gives nodes no PEERS
					w.secureRedis(config)
				}
				w.reconfigure(config)
			}
			w.apply("", namespace(mode))
			w.apply(mode, read(t, "testdata/backend.yaml"))
			w.apply(mode, read(t, "testdata/gateway.yaml"))
			for _, c := range cases {
				w.apply(mode, keys.fill(route(c.name, c.gateway)+c.more))
				if c.rules != "" {
					w.apply(mode, policy(c.name, c.rules, c.merge, c.too))
				}
			}
			w.live(mode, "eg", 80)
			w.live(mode, "eg", 81)
			w.live(mode, "policed", 80)
			for _, c := range cases {
				t.Run(c.name, func(t *testing.T) {
					w := &world{t, w.Cluster}
					before := w.sum(ofEnvoyGateway, fallbacks)
					gateway := c.gateway
					if gateway == "" {
						gateway = "eg"
					}
					for _, k := range c.calls {
						if k.host == "" {
							k.host = c.name
						}
						if k.port == 0 {
							k.port = 80
						}
						k.headers = keys.fill(k.headers)
						w.judge(ofEnvoyGateway, before, w.gateway(mode, gateway, k.port).plays(t.Context(), k))
					}
				})
			}
			t.Run("metrics", func(t *testing.T) { (&world{t, w.Cluster}).counts(mode) })
			t.Run("changes", func(t *testing.T) { (&world{t, w.Cluster}).changes(mode) })
			faults := w.faults(mode)
			for _, f := range faults {
				w.apply(mode, route(f.name, "eg")+policy(f.name, fmt.Sprintf(users, budget), false, false))
			}
			w.live(mode, "eg", 80)
			for _, f := range faults {
				t.Run(f.name, func(t *testing.T) {
					(&world{t, w.Cluster}).suffers(f, ofEnvoyGateway, mode, target{w.gateway(mode, "eg", 80), call{host: f.name, headers: "x-user=load"}})
				})
			}
			w.check(w.Delete(t.Context(), mode, []byte(read(t, "testdata/gateway.yaml"))))
		})
	}
}

func route(name, gateway string) string {
	if gateway == "" {
		gateway = "eg"
	}
	return strings.NewReplacer("NAME", name, "GATEWAY", gateway).Replace(`
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: NAME}
spec: {parentRefs: [{name: GATEWAY}], hostnames: [NAME], rules: [{backendRefs: [{name: backend, port: 8000}]}]}
---
`)
}

func policy(name, rules string, merge, too bool) string {
	target := "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: " + name
	targets := target + "}"
	if too {
		targets += ", " + target + "-too}"
	}
	how := ""
	if merge {
		how = "mergeType: StrategicMerge"
	}
	return strings.NewReplacer("NAME", name, "RULES", rules, "TARGETS", targets, "MERGE", how).Replace(`
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: BackendTrafficPolicy
metadata: {name: NAME}
spec:
  targetRefs: [TARGETS]
  MERGE
  rateLimit: {global: {rules: RULES}}
`)
}

// live waits until a rule that is applied now works at a port of a gateway. Those of before do too then: both, rules and routes, arrive
// in their order.
func (w *world) live(mode, gateway string, port int32) {
	w.Helper()
	lives++
	name := fmt.Sprintf("live-%d", lives)
	w.apply(mode, route(name, gateway)+policy(name, `[{clientSelectors: [{headers: [{name: x-try, type: Distinct}]}], limit: {requests: 1, unit: Day}}]`, false, false))
	try := 0
	w.until(2*time.Minute, func() error {
		envoys, err := w.gateway(mode, gateway, port)()
		if err != nil {
			return err
		}
		for range 4 {
			try++
			c := call{method: http.MethodGet, host: name, headers: fmt.Sprintf("x-try=%d", try)}
			first, err := do(w.Context(), envoys[0], c)
			if err != nil {
				return err
			}
			second, err := do(w.Context(), envoys[0], c)
			if err != nil {
				return err
			}
			if first.StatusCode != http.StatusOK || second.StatusCode != http.StatusTooManyRequests {
				return fmt.Errorf("%s answers %s, and then %s", name, first.Status, second.Status)
			}
		}
		return nil
	})
}

var lives int

// reconfigure does step 4 of the guide: it changes the configuration, and restarts the gateway.
func (w *world) reconfigure(config map[string]any) {
	w.Helper()
	w.configMap(system, "envoy-gateway-config", "envoy-gateway.yaml", config)
	generation := func() int64 {
		d, err := w.Kube.AppsV1().Deployments(system).Get(w.Context(), "envoy-ratelimit", metav1.GetOptions{})
		w.check(err)
		return d.Generation
	}
	w.rolled(system, "envoy-ratelimit")
	before := generation()
	w.restart(system, "envoy-gateway")
	w.rolled(system, "envoy-gateway")
	w.until(time.Minute, func() error {
		if generation() == before {
			return errors.New("the gateway has not changed its limiters")
		}
		return nil
	})
	w.rolled(system, "envoy-ratelimit")
	w.settled(ofEnvoyGateway)
}

// An issuer signs tokens.
type issuer struct {
	*testing.T
	signer jose.Signer
	keys   string
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: "ES256", Use: "sig"}}})
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t, signer, string(keys)}
}

// fill writes the keys for JWKS, and a token of its subject for TOKEN-SUBJECT.
func (i *issuer) fill(text string) string {
	i.Helper()
	text = strings.ReplaceAll(text, "'JWKS'", "'"+i.keys+"'")
	before, subject, ok := strings.Cut(text, "TOKEN-")
	if !ok {
		return text
	}
	token, err := jwt.Signed(i.signer).Claims(jwt.Claims{Subject: subject, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}).Serialize()
	if err != nil {
		i.Fatal(err)
	}
	return before + token
}

// users is a rule with a limit for each x-user.
const users = `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: %d, unit: Day}}]`

// changes plays the life of a policy.
func (w *world) changes(mode string) {
	c := call{host: "changes", headers: "x-user=a"}
	before := w.sum(ofEnvoyGateway, fallbacks)
	plays := func(n, ok int, shown string) {
		w.Helper()
		c.n, c.ok, c.shown = n, ok, shown
		w.judge(ofEnvoyGateway, before, w.gateway(mode, "eg", 80).plays(w.Context(), c))
	}
	w.apply(mode, route("changes", "eg")+policy("changes", fmt.Sprintf(users, 3), false, false))
	w.live(mode, "eg", 80)
	plays(3, 3, "3")
	w.apply(mode, policy("changes", fmt.Sprintf(users, 5), false, false))
	w.live(mode, "eg", 80)
	plays(4, 2, "5")
	w.check(w.Delete(w.Context(), mode, []byte(policy("changes", fmt.Sprintf(users, 5), false, false))))
	w.live(mode, "eg", 80)
	plays(5, 5, "-")
	w.apply(mode, policy("changes", fmt.Sprintf(users, 5), false, false))
	w.live(mode, "eg", 80)
	plays(3, 0, "5") // the window goes on
}

// faults are those of the nodes, and of the other programs.
func (w *world) faults(mode string) []fault {
	return append(
		ofEnvoyGateway.faults(), fault{name: "gateway-restarts", do: func(w *world) {
			w.restart(system, "envoy-gateway")
			w.rolled(system, "envoy-gateway")
		}}, fault{name: "envoy-restarts", do: func(w *world) {
			name := w.proxy(mode)
			w.restart(system, name)
			w.rolled(system, name)
		}},
	)
}

// proxy is the name of the deployment of the Envoys of gateway eg.
func (w *world) proxy(mode string) string {
	w.Helper()
	list, err := w.Kube.AppsV1().Deployments(system).List(w.Context(), metav1.ListOptions{LabelSelector: ofGateway(mode, "eg")})
	w.check(err)
	if len(list.Items) != 1 {
		w.Fatalf("%d deployments of Envoys", len(list.Items))
	}
	return list.Items[0].Name
}
