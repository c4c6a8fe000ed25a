package realenvoy

import (
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/sluice-gate/sluice/leasing/redistest"
)

// Envoy calls over TLS, and presents a certificate if a node requires one. Without alpn_protocols its calls
// arrive, but its health checks do not: it finds no healthy node, and calls all of them regardless of their
// state.
func TestTLS(t *testing.T) {
	needsLong(t)
	a := redistest.NewAuthority(t)
	a.Leaf("sluice", time.Hour, "sluice")
	a.Leaf("envoy", time.Hour, "envoy")
	trust := "validation_context: {trusted_ca: {filename: " + a.File("ca.crt") + "}, " +
		"match_typed_subject_alt_names: [{san_type: DNS, matcher: {exact: sluice}}]}"
	own := "tls_certificates: [{certificate_chain: {filename: " + a.File("envoy.crt") + "}, " +
		"private_key: {filename: " + a.File("envoy.key") + "}}], "
	server := []string{
		"--grpc-server-use-tls", "--grpc-server-tls-cert", a.File("sluice.crt"),
		"--grpc-server-tls-key", a.File("sluice.key"),
	}
	mutual := slices.Concat(server, []string{
		"--grpc-client-tls-cacert", a.File("ca.crt"), "--grpc-client-tls-san", "envoy",
	})
	const h2 = "alpn_protocols: [h2], "
	plain := change(t, shipped(t, "envoy/envoy.yaml"),
		"failure_mode_deny: false", "failure_mode_deny: true", "timeout: 0.02s", "timeout: 1s")
	with := func(context string) string {
		return change(t, plain, "      health_checks:", "      transport_socket:\n        name: tls\n"+
			"        typed_config: {\"@type\": "+
			"type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext, sni: sluice, "+
			"common_tls_context: {"+context+"}}\n      health_checks:")
	}
	for name, at := range map[string]struct {
		text   string
		flags  []string
		status int
		unwell bool
	}{
		"TLS":                  {with(h2 + trust), server, http.StatusOK, false},
		"mTLS":                 {with(h2 + own + trust), mutual, http.StatusOK, false},
		"TLS, no ALPN":         {with(trust), server, http.StatusOK, true},
		"mTLS, none presented": {with(h2 + trust), mutual, http.StatusInternalServerError, true},
		"no TLS":               {plain, server, http.StatusInternalServerError, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{T: t, rules: fleetRules("mode: leasing", 2), config: Config{Text: at.text}, flags: at.flags}
			w.unwell = at.unwell
			w.run()
			if got := w.get("/", "x-api-key", "k").Status; got != at.status {
				t.Errorf("the answer is %d, not %d", got, at.status)
			}
			if at.status == http.StatusOK && w.passes(3, "/", "x-api-key", "k") != 1 {
				t.Error("the limit of 2 does not hold")
			}
		})
	}
}
