package gateways

import (
	"github.com/tsaarni/certyaml"
	core "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

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
