package realenvoy

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

const rlsRules = `domain: edge
descriptors:
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 3}}
  - {key: five, rate_limit: {unit: minute, unit_multiplier: 5, requests_per_unit: 2}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: cost, rate_limit: {unit: year, requests_per_unit: 10}}
  - {key: refund, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: done, rate_limit: {unit: year, requests_per_unit: 3}}
  - {key: own, rate_limit: {unit: year, requests_per_unit: 100}}
  - {key: tier, metadata: {plan: large}, rate_limit: {unit: year, requests_per_unit: 2}}
  - {key: masked_remote_address, rate_limit: {unit: year, requests_per_unit: 2}}
`

// rlsRoutes are rate_limits by path. KEY(x) is an action with that descriptor key.
var rlsRoutes = map[string]string{
	"plain":       "[{actions: [KEY(plain)]}]",
	"five":        "[{actions: [KEY(five)]}]",
	"shadow":      "[{actions: [KEY(shadow)]}]",
	"cost":        `[{actions: [KEY(cost)], hits_addend: {format: "%REQ(x-cost)%"}}]`,
	"refund":      "[{actions: [KEY(refund)]}]",
	"refund-back": "[{actions: [KEY(refund)], hits_addend: {number: 2, is_negative_hits: true}}]",
	"done": "[{actions: [KEY(done)], hits_addend: {number: 0}}, " +
		"{actions: [KEY(done)], apply_on_stream_done: true, hits_addend: {number: 4}}]",
	"own": "[{actions: [KEY(own)], limit: {dynamic_metadata: " +
		"{metadata_key: {key: test, path: [{key: limit}]}}}}]",
	"own-static": "[{actions: [KEY(own), KEY(static)], limit: {rate_limit: {requests_per_unit: 4, unit: DAY}}}]",
	"tier": "[{actions: [{metadata: {descriptor_key: tier, source: DYNAMIC, " +
		"metadata_key: {key: test, path: [{key: tier}]}}}]}]",
	"v6": "[{actions: [{masked_remote_address: {v6_prefix_mask_len: 64}}]}]",
}

// rlsConfig is envoy.yaml with these routes, behind one proxy that is trusted.
func rlsConfig(t *testing.T) string {
	t.Helper()
	const first, filters = "                      routes:\n", "                http_filters:\n"
	routes := first
	for path, limits := range rlsRoutes {
		for before, rest, ok := strings.Cut(limits, "KEY("); ok; before, rest, ok = strings.Cut(limits, "KEY(") {
			key, after, _ := strings.Cut(rest, ")")
			limits = before + "{generic_key: {descriptor_key: " + key + ", descriptor_value: v}}" + after
		}
		routes += fmt.Sprintf("%s- {match: {path: /%s}, route: {cluster: service}, response_headers_to_add: [{header: "+
			"{key: x-plan, value: \"%%DYNAMIC_METADATA(envoy.filters.http.ratelimit:metadata:plan)%%\"}}], "+
			"typed_per_filter_config: {envoy.filters.http.ratelimit: {\"@type\": %s, rate_limits: %s}}}\n",
			strings.Repeat(" ", 24), path, perRoute, limits)
	}
	routes += fmt.Sprintf("%s- {match: {path: /direct}, direct_response: {status: 200}, typed_per_filter_config: {"+
		"envoy.filters.http.ratelimit: {\"@type\": %s, rate_limits: [{actions: [%s]}]}}}\n",
		strings.Repeat(" ", 24), perRoute, "{generic_key: {descriptor_key: plain, descriptor_value: v}}")
	return change(t, shipped(t, "envoy/envoy.yaml"), first, routes,
		"use_remote_address: true", "use_remote_address: true\n                xff_num_trusted_hops: 1",
		"timeout: 0.02s", "timeout: 1s", "failure_mode_deny: false",
		"failure_mode_deny: true\n                      enable_retry_after_header: true",
		filters, filters+`                  - name: envoy.filters.http.set_metadata
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.set_metadata.v3.Config
                      metadata:
                        - metadata_namespace: test
                          value: {tier: gold, limit: {requests_per_unit: 4, unit: DAY}}
`)
}

// What Envoy makes of Sluice's answers, rule by rule. Requests fail where Sluice fails, so that what
// passes was decided.
func TestRLS(t *testing.T) {
	w := (&world{T: t, rules: rlsRules, config: Config{Text: rlsConfig(t)}, flags: []string{
		"--response-dynamic-metadata", "--limit-response-headers-enabled", "--limit-ietf-headers-enabled",
	}}).run()
	passes := func(want, of int, path string, headers ...string) {
		t.Helper()
		if n := w.passes(of, path, headers...); n != want {
			t.Errorf("%s %v: %d of %d passed, not %d", path, headers, n, of, want)
		}
	}
	has := func(a Answer, status int, headers ...string) {
		t.Helper()
		if a.Status != status {
			t.Errorf("the answer is %d, not %d", a.Status, status)
		}
		for i := 0; i < len(headers); i += 2 {
			if got := strings.Join(a.Header.Values(headers[i]), " and "); got != headers[i+1] {
				t.Errorf("%s is %q, not %q", headers[i], got, headers[i+1])
			}
		}
	}
	a := w.get("/plain")
	reset := a.Header.Get("Ratelimit-Reset")
	has(a, http.StatusOK, "X-Ratelimit-Limit", "3, 3;w=3600", "X-Ratelimit-Remaining", "2", "X-Ratelimit-Reset", reset,
		"Ratelimit-Limit", "3", "Ratelimit-Remaining", "2", "Ratelimit-Policy", `"plain";q=3;w=3600`,
		"Ratelimit", `"plain";r=2;t=`+reset, "Retry-After", "", "X-Envoy-Ratelimited", "")
	passes(2, 3, "/plain")
	a = w.get("/plain")
	has(a, http.StatusTooManyRequests, "X-Ratelimit-Remaining", "0", "X-Envoy-Ratelimited", "true")
	if s, err := strconv.Atoi(a.Header.Get("Retry-After")); err != nil || s < 1 || s > 3600 {
		t.Errorf("Retry-After is %q", a.Header.Get("Retry-After"))
	}
	passes(2, 2, "/direct") // it has the limit of /plain, and is not asked about
	has(w.get("/five"), http.StatusOK, "X-Ratelimit-Limit", "2, 2;w=300")
	passes(1, 2, "/five")
	passes(5, 5, "/shadow")
	passes(2, 3, "/cost", "x-cost", "4")
	passes(3, 4, "/refund")
	passes(1, 1, "/refund-back")
	passes(1, 3, "/refund") // 4 were charged, one of them refused, and 2 came back
	passes(1, 1, "/done")
	w.need(Until("the cost of the stream has arrived", func() bool { return w.passes(1, "/done") == 0 }))
	for _, path := range []string{"/own", "/own-static"} {
		has(w.get(path), http.StatusOK, "X-Ratelimit-Limit", "4, 4;w=86400")
		passes(3, 5, path)
	}
	has(w.get("/tier"), http.StatusOK, "X-Plan", "large")
	passes(1, 3, "/tier")
	for network := range 3 { // of each, the last 64 bits change
		passed := 0
		for host := range 4 {
			passed += w.passes(1, "/v6", "x-forwarded-for", fmt.Sprintf("2001:db8:0:%x::%x", network, host+1))
		}
		if passed != 2 {
			t.Errorf("of network %d %d passed, the limit is 2", network, passed)
		}
	}
	w.quiet()
}
