package gateways

import (
	"cmp"
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
	"github.com/tsaarni/certyaml"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

var modes = []string{"leasing", "routing", "approx"}

// Envoy Gateway, with the settings of deploy/envoy-gateway and each mode, limits what its policies say.
func TestThroughEnvoyGateway(t *testing.T) {
	w := start(t)
	w.installGateway(w.configuration(modes[0]))
	w.apply("", read(t, "testdata/class.yaml"))
	keys := newIssuer(t)
	var cases map[string]gatewayCase
	w.check(yaml.UnmarshalStrict([]byte(read(t, "testdata/cases.yaml")), &cases))
	for i, mode := range modes {
		w.run(mode, func(w *world) {
			if i > 0 {
				config := w.configuration(mode)
				if mode == "routing" { // which differs from leasing by nothing else here: the gateway gives nodes no PEERS
					w.secureRedis(config)
				}
				w.reconfigure(config)
			}
			w.apply("", namespace(mode))
			w.apply(mode, read(w.T, "testdata/backend.yaml"))
			w.apply(mode, read(w.T, "testdata/gateway.yaml"))
			for name, c := range cases {
				w.apply(mode, w.route(name, cmp.Or(c.Gateway, "eg"))+keys.fill(c.More))
				if c.Lua != "" {
					w.apply(mode, w.filled("lua", "NAME", name, "WHICH", c.Lua))
				}
				if c.Rules != "" {
					w.apply(mode, c.policy(w, name))
				}
			}
			w.live(mode, "eg", 80)
			w.live(mode, "eg", 81)
			w.live(mode, "policed", 80)
			for name, c := range cases {
				w.run(name, func(w *world) {
					before := w.sum(ofEnvoyGateway, fallbacks)
					for _, k := range c.Calls {
						k.Host = cmp.Or(k.Host, name)
						k.Port = cmp.Or(k.Port, 80)
						k.Headers = keys.fill(k.Headers)
						door := w.gateway(mode, cmp.Or(c.Gateway, "eg"), k.Port)
						w.judge(ofEnvoyGateway, before, door.plays(w.Context(), k))
					}
				})
			}
			w.run("metrics", func(w *world) { w.counts(mode) })
			w.run("changes", func(w *world) { w.changes(mode) })
			faults := w.faults(mode)
			for _, f := range faults {
				w.apply(mode, w.route(f.name, "eg")+w.policy(f.name, fmt.Sprintf(users, budget)))
			}
			w.live(mode, "eg", 80)
			for _, f := range faults {
				w.run(f.name, func(w *world) {
					w.suffers(f, ofEnvoyGateway, mode, target{w.gateway(mode, "eg", 80), call{Host: f.name, Headers: "x-user=load"}})
				})
			}
			w.check(w.Delete(w.Context(), mode, []byte(read(w.T, "testdata/gateway.yaml"))))
		})
	}
}

// gatewayCase is one of testdata/cases.yaml.
type gatewayCase struct {
	Gateway    string
	Rules      string // "": no policy
	Merge, Too bool
	More, Lua  string
	Calls      []call
}

func (c *gatewayCase) policy(w *world, name string) string {
	text := w.policy(name, c.Rules)
	if c.Too {
		target := "{group: gateway.networking.k8s.io, kind: HTTPRoute, name: " + name
		text = strings.Replace(text, target+"}", target+"}, "+target+"-too}", 1)
	}
	if c.Merge {
		text = strings.Replace(text, "spec:\n", "spec:\n  mergeType: StrategicMerge\n", 1)
	}
	return text
}

// filled is a file of testdata with values for its words.
func (w *world) filled(file string, values ...string) string {
	w.Helper()
	return strings.NewReplacer(values...).Replace(read(w.T, "testdata/"+file+".yaml"))
}

func (w *world) route(name, gateway string) string {
	w.Helper()
	return w.filled("route", "NAME", name, "GATEWAY", gateway)
}

func (w *world) policy(name, rules string) string {
	w.Helper()
	return w.filled("policy", "NAME", name, "RULES", rules)
}

// live waits until a rule that is applied now works at a port of a gateway. Those of before do too then: both, rules and routes, arrive
// in their order.
func (w *world) live(mode, gateway string, port int32) {
	w.Helper()
	lives++
	name := fmt.Sprintf("live-%d", lives)
	w.apply(mode, w.route(name, gateway)+w.policy(name, `[{clientSelectors: [{headers: [{name: x-try, type: Distinct}]}], limit: {requests: 1, unit: Day}}]`))
	try := 0
	w.until(2*time.Minute, func() error {
		envoys, err := w.gateway(mode, gateway, port)()
		if err != nil {
			return err
		}
		for range 4 {
			try++
			c := call{Method: http.MethodGet, Host: name, Headers: fmt.Sprintf("x-try=%d", try)}
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
	c := call{Host: "changes", Headers: "x-user=a"}
	before := w.sum(ofEnvoyGateway, fallbacks)
	plays := func(n, ok int, shown string) {
		w.Helper()
		c.Sent, c.OK, c.Shown = n, ok, shown
		w.judge(ofEnvoyGateway, before, w.gateway(mode, "eg", 80).plays(w.Context(), c))
	}
	w.apply(mode, w.route("changes", "eg")+w.policy("changes", fmt.Sprintf(users, 3)))
	w.live(mode, "eg", 80)
	plays(3, 3, "3")
	w.apply(mode, w.policy("changes", fmt.Sprintf(users, 5)))
	w.live(mode, "eg", 80)
	plays(4, 2, "5")
	w.check(w.Delete(w.Context(), mode, []byte(w.policy("changes", fmt.Sprintf(users, 5)))))
	w.live(mode, "eg", 80)
	plays(5, 5, "-")
	w.apply(mode, w.policy("changes", fmt.Sprintf(users, 5)))
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

// secureRedis runs a Redis with TLS and a password, and sets it in a configuration of Envoy Gateway.
func (w *world) secureRedis(config map[string]any) {
	w.Helper()
	authority := &certyaml.Certificate{Subject: "cn=test"}
	leaf := &certyaml.Certificate{
		Subject: "cn=redis", SubjectAltNames: []string{"DNS:redis-tls.envoy-gateway-system.svc.cluster.local"}, Issuer: authority,
	}
	ca, _, err := authority.PEM()
	w.check(err)
	cert, key, err := leaf.PEM()
	w.check(err)
	_, err = w.Kube.CoreV1().Secrets(system).Create(w.Context(), &core.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "redis-certs"}, Data: map[string][]byte{"ca.crt": ca, "tls.crt": cert, "tls.key": key},
	}, metav1.CreateOptions{})
	w.check(err)
	w.apply("", read(w.T, "testdata/redis-tls.yaml"))
	w.rolled(system, "redis-tls")
	limiter := at(config, "provider", "kubernetes", "rateLimitDeployment", "container")
	limiter["env"] = append(
		limiter["env"].([]any), map[string]any{"name": "REDIS_TLS_CACERT", "value": "/redis-certs/ca.crt"},
		map[string]any{"name": "REDIS_AUTH", "valueFrom": map[string]any{"secretKeyRef": map[string]any{"name": "redis-password", "key": "password"}}},
	)
	at(config, "rateLimit", "backend")["redis"] = map[string]any{
		"url": "redis-tls.envoy-gateway-system.svc.cluster.local:6379", "tls": map[string]any{"certificateRef": map[string]any{"name": "redis-certs"}},
	}
}

// at returns an object within another.
func at(object map[string]any, path ...string) map[string]any {
	for _, name := range path {
		object = object[name].(map[string]any)
	}
	return object
}
