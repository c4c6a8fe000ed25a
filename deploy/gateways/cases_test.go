package gateways

import "time"

// Each case is an HTTPRoute of its name, for a host of its name, and a BackendTrafficPolicy of its name with these rules. The namespace,
// the gateways and the backend are those of testdata/gateway.yaml. A limit of 3 is exact in each mode: approx has less than a token of drift for it.
var cases = []struct {
	name    string
	gateway string // default: eg
	rules   string // "": no policy
	merge   bool   // with the policy of the gateway
	too     bool   // the policy is also of the route with this name and -too
	more    string // further objects
	calls   []call
}{
	{name: "header", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 3, shown: "3"}, {headers: "x-user=b", n: 4, ok: 3}, {n: 5, ok: 5, shown: "-"},
	}},
	{name: "header-exact", rules: `[{clientSelectors: [{headers: [{name: x-user, value: a}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 3}, {headers: "x-user=b", n: 5, ok: 5},
	}},
	{
		name: "header-regex", rules: `[{clientSelectors: [{headers: [{name: x-user, type: RegularExpression, value: "a.*"}]}], limit: {requests: 3, unit: Day}}]`,
		calls: []call{{headers: "x-user=ab", n: 2, ok: 2}, {headers: "x-user=ac", n: 3, ok: 1}, {headers: "x-user=b", n: 5, ok: 5}},
	},
	{
		name: "headers", rules: `[{clientSelectors: [{headers: [{name: x-org, value: acme}, {name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`,
		calls: []call{
			{headers: "x-org=acme, x-user=a", n: 5, ok: 3},
			{headers: "x-org=acme, x-user=b", n: 4, ok: 3},
			{headers: "x-org=other, x-user=a", n: 5, ok: 5},
			{headers: "x-org=acme", n: 5, ok: 5},
		},
	},
	{name: "header-inverted", rules: `[{clientSelectors: [{headers: [{name: x-org, value: acme, invert: true}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-org=acme", n: 5, ok: 5}, {headers: "x-org=b", n: 2, ok: 2}, {headers: "x-org=c", n: 3, ok: 1},
	}},
	{name: "method", rules: `[{clientSelectors: [{methods: [{value: POST}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{method: "POST", n: 5, ok: 3}, {method: "GET", n: 5, ok: 5},
	}},
	{name: "path", rules: `[{clientSelectors: [{path: {type: PathPrefix, value: /a}}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{path: "/a/1", n: 2, ok: 2}, {path: "/a/2", n: 3, ok: 1}, {path: "/b", n: 5, ok: 5},
	}},
	{name: "query", rules: `[{clientSelectors: [{queryParams: [{name: user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{path: "/?user=a", n: 5, ok: 3}, {path: "/?user=b", n: 4, ok: 3}, {path: "/", n: 5, ok: 5},
	}},
	{name: "cidr", rules: `[{clientSelectors: [{sourceCIDR: {value: 10.1.1.0/24}}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{from: "10.1.1.1", n: 2, ok: 2}, {from: "10.1.1.2", n: 3, ok: 1}, {from: "10.1.2.1", n: 5, ok: 5},
	}},
	{name: "cidr-distinct", rules: `[{clientSelectors: [{sourceCIDR: {type: Distinct, value: 0.0.0.0/0}}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{from: "10.1.1.1", n: 5, ok: 3}, {from: "10.1.1.2", n: 4, ok: 3},
	}},
	{name: "cidr-inverted", rules: `[{clientSelectors: [{sourceCIDR: {value: 10.1.1.0/24, invert: true}}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{from: "10.1.1.1", n: 5, ok: 5}, {from: "10.1.2.1", n: 2, ok: 2}, {from: "10.1.3.1", n: 3, ok: 1},
	}},
	{
		name: "cidr-exempt", rules: `[{clientSelectors: [{sourceCIDR: {value: 10.1.0.0/16}, headers: [{name: x-exempt, value: "yes", invert: true}]}], limit: {requests: 3, unit: Day}}]`,
		calls: []call{{from: "10.1.1.1", n: 5, ok: 3}, {from: "10.1.1.1", headers: "x-exempt=yes", n: 5, ok: 5}},
	},
	{name: "jwt", rules: `[{clientSelectors: [{headers: [{name: x-sub, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, more: `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: SecurityPolicy
metadata: {name: jwt}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: jwt}]
  jwt: {providers: [{name: test, localJWKS: {type: Inline, inline: 'JWKS'}, claimToHeaders: [{claim: sub, header: x-sub}]}]}`, calls: []call{
		{headers: "authorization=Bearer TOKEN-ann", n: 5, ok: 3}, {headers: "authorization=Bearer TOKEN-bob", n: 4, ok: 3},
	}},
	{name: "shared", too: true, rules: `[{shared: true, clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 2, ok: 2}, {host: "shared-too", headers: "x-user=a", n: 3, ok: 1}, {headers: "x-user=b", n: 4, ok: 3},
	}},
	{name: "gateway", gateway: "policed", calls: []call{
		{headers: "x-user=all", n: 2, ok: 2},
		{host: "gateway-too", headers: "x-user=all", n: 3, ok: 1},
		{headers: "x-user=each", n: 5, ok: 3},
		{host: "gateway-too", headers: "x-user=each", n: 5, ok: 3},
	}},
	{name: "merged", gateway: "policed", merge: true, rules: `[{clientSelectors: [{headers: [{name: x-user, value: own}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=own", n: 5, ok: 3}, {headers: "x-user=merged", n: 5, ok: 3},
	}},
	{name: "listeners", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 3}, {port: 81, headers: "x-user=a", n: 5, ok: 3},
	}},
	{name: "rules", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}, {limit: {requests: 5, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 3, ok: 3, shown: "3"}, {headers: "x-user=b", n: 3, ok: 2},
	}},
	{name: "headers-off", rules: `[{xRateLimitHeaders: "Off", clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 3, shown: "-"},
	}},
	{name: "shadow", rules: `[{shadowMode: true, clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 3, unit: Day}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 5, shown: "3"},
	}},
	{name: "cost", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 6, unit: Day}, cost: {request: {from: Number, number: 2}}}]`, calls: []call{
		{headers: "x-user=a", n: 5, ok: 3},
	}},
	{name: "cost-request", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 10, unit: Day},
  cost: {request: {from: Metadata, metadata: {namespace: test, key: tokens}}}}]`, more: lua("cost-request", "request"), calls: []call{
		{headers: "x-user=a, x-tokens=4", n: 4, ok: 2}, {headers: "x-user=b, x-tokens=5", n: 4, ok: 2},
	}},
	{name: "cost-response", rules: `[{clientSelectors: [{headers: [{name: x-user, type: Distinct}]}], limit: {requests: 10, unit: Day},
  cost: {request: {from: Number, number: 0}, response: {from: Metadata, metadata: {namespace: test, key: tokens}}}}]`, more: lua("cost-response", "response"), calls: []call{
		// the charge leaves after the response
		{headers: "x-user=a, x-tokens=4", n: 5, ok: 3, pause: 200 * time.Millisecond},
		{headers: "x-user=b, x-tokens=11", n: 3, ok: 1, pause: 200 * time.Millisecond},
	}},
}

// lua writes the number in x-tokens of a request or a response into metadata.
func lua(route, of string) string {
	return `
apiVersion: gateway.envoyproxy.io/v1alpha1
kind: EnvoyExtensionPolicy
metadata: {name: ` + route + `}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: HTTPRoute, name: ` + route + `}]
  lua:
    - type: Inline
      inline: |
        function envoy_on_` + of + `(handle)
          local tokens = tonumber(handle:headers():get("x-tokens"))
          if tokens ~= nil then
            handle:streamInfo():dynamicMetadata():set("test", "tokens", tokens)
          end
        end`
}
