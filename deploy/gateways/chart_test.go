package gateways

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"
)

// The rules that the gateways' files and testdata need.
const edge = `domain: edge
descriptors:
  - {key: api_key, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: api_key, value: load-*, rate_limit: {unit: day, requests_per_unit: 2500}}
  - {key: remote_address, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: masked_remote_address, rate_limit: {unit: hour, requests_per_unit: 100}}
  - {key: masked_remote_address, value: 10.244.0.1/32, rate_limit: {unlimited: true}}
  - {key: header_match, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: route, rate_limit: {unit: day, requests_per_unit: 3}, descriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 3}}]}
`

var ofChart = limiters{"sluice", "sluice", "app.kubernetes.io/name=sluice", 6070}

// Contour and Istio call the Sluice of the chart, by the addresses of its pods, as their guides say. In mode routing it has peers.
func TestThroughContourAndIstio(t *testing.T) {
	w := start(t)
	w.sluice(modes[0])
	w.apply("default", read(t, "testdata/backend.yaml"))
	contour, istio := w.contour(), w.istio()
	for i, mode := range modes {
		w.run(mode, func(w *world) {
			w.sluice(mode)
			w.rolled("sluice", "sluice")
			w.settled(ofChart)
			w.apply("", strings.ReplaceAll(read(w.T, "testdata/contour.yaml"), "MODE", mode))
			routes := "routes-" + mode
			w.until(time.Minute, func() error { return contour.works(w.Context(), "backend.example.com", "5") })
			w.until(time.Minute, func() error { return contour.works(w.Context(), routes, "") })
			w.until(time.Minute, func() error { return istio.works(w.Context(), "istio", "5") })
			for _, c := range []struct {
				name string
				door
				call
			}{
				{"header", contour, call{Host: "backend.example.com", Headers: "x-api-key=" + mode, From: fmt.Sprintf("10.1.8.%d", i), Sent: 8, OK: 5, Shown: "5"}},
				{"address", contour, call{Host: "backend.example.com", From: fmt.Sprintf("10.1.9.%d", i), Sent: 105, OK: 100, Shown: "100"}},
				{"generic key", contour, call{Host: routes, Path: "/generic", Sent: 5, OK: 3, Shown: "3"}},
				{"header value", contour, call{Host: routes, Path: "/match", Headers: "x-org=acme", Sent: 5, OK: 3, Shown: "3"}},
				{"other header value", contour, call{Host: routes, Path: "/match", Headers: "x-org=other", Sent: 5, OK: 5, Shown: "-"}},
				{"two entries, first user", contour, call{Host: routes, Path: "/both", Headers: "x-user=a", Sent: 5, OK: 3, Shown: "3"}},
				{"two entries, second user", contour, call{Host: routes, Path: "/both", Headers: "x-user=b", Sent: 5, OK: 3, Shown: "3"}},
				{"no limit", contour, call{Host: routes, Sent: 5, OK: 5, Shown: "-"}},
				{"istio, header", istio, call{Headers: "x-api-key=istio-" + mode, Sent: 8, OK: 5, Shown: "5"}},
				{"istio, address", istio, call{From: fmt.Sprintf("10.1.10.%d", i), Sent: 105, OK: 100}},
			} {
				w.run(c.name, func(w *world) {
					before := w.sum(ofChart, fallbacks)
					w.judge(ofChart, before, c.plays(w.Context(), c.call))
				})
			}
			for _, f := range ofChart.faults()[:2] {
				w.run(f.name, func(w *world) {
					key := "x-api-key=load-" + mode + "-" + f.name
					w.suffers(f, ofChart, mode, target{contour, call{Host: "faults", Headers: key}}, target{istio, call{Host: "istio", Headers: key + "-istio"}})
				})
			}
		})
	}
}

// sluice installs or upgrades the chart of Sluice in a mode.
func (w *world) sluice(mode string) {
	w.Helper()
	values := map[string]any{
		"redis": map[string]any{"url": "redis.sluice.svc:6379"}, "rules": map[string]any{"edge.yaml": edge},
		// The EnvoyFilter for Istio has Envoy show no limits.
		"env":          map[string]any{"COORDINATION_MODE": mode, "LIMIT_RESPONSE_HEADERS_ENABLED": true},
		"drainSeconds": 10, "peers": map[string]any{"enabled": mode == "routing"},
	}
	if mode == "routing" {
		values["extraEnv"] = []any{map[string]any{"name": "PEER_SECRET", "value": "only-for-this-test, 16 bytes or more"}}
	}
	w.install(top+"deploy/helm/sluice", "sluice", "sluice", nil, values)
}

// contour installs Contour by the manifests of its module, with deploy/contour.
func (w *world) contour() door {
	w.Helper()
	dir, _, err := module("contour", "github.com/projectcontour/contour")
	w.check(err)
	w.apply("", read(w.T, dir+"/examples/render/contour.yaml"))
	config := map[string]any{}
	w.check(yaml.Unmarshal([]byte(read(w.T, top+"deploy/contour/contour.yaml")), &config))
	w.configMap("projectcontour", "contour", "contour.yaml", config)
	// A busy machine stalls for longer than the 200 ms of the file.
	w.apply("", strings.Replace(read(w.T, top+"deploy/contour/sluice.yaml"), "200ms", "1s", 1))
	w.apply("", read(w.T, top+"deploy/contour/proxy.yaml"))
	return w.door("projectcontour", "envoy", "http")
}

// istio installs Istio by the charts of its module, with deploy/istio.
func (w *world) istio() door {
	w.Helper()
	const system = "istio-system"
	dir, _, err := module("istio", "istio.io/istio")
	w.check(err)
	charts := dir + "/manifests/charts/"
	w.apply("", namespace(system))
	w.install(charts+"base", "istio-base", system, nil, map[string]any{})
	// A stock Envoy has no filters of Istio's own.
	w.install(charts+"istio-control/istio-discovery", "istiod", system, nil, map[string]any{
		"global":    map[string]any{"hub": "docker.io/istio", "tag": "test"},
		"env":       map[string]any{"PILOT_ENABLE_ALPN_FILTER": "false", "PILOT_ENABLE_METADATA_EXCHANGE": "false"},
		"telemetry": map[string]any{"enabled": false},
	})
	w.rolled(system, "istiod")
	w.install(charts+"gateway", "istio-ingressgateway", system, nil, map[string]any{})
	w.apply("", read(w.T, "testdata/istio.yaml"))
	w.apply("", strings.Replace(read(w.T, top+"deploy/istio/ratelimit.yaml"), "0.2s", "1s", 1))
	w.rolled(system, "istio-ingressgateway")
	return w.door(system, "istio-ingressgateway", "http2")
}
