package main

// The rows of envoyproxy/ratelimit's behaviour (parity.md), as exchanges with
// the binary. Within one run they follow each other in this order.

// parityRules come by file and by xDS.
const parityRules = `
domain: parity
descriptors:
  - {key: plain, rate_limit: {unit: day, requests_per_unit: 3, name: the-limit}, metadata: {team: {name: plain, a: 1}}}
  - {key: user, value: vip, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: user, value: "v*p", rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: user, value: "v*", rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: user, rate_limit: {unit: day, requests_per_unit: 6}}
  - key: deep
    descriptors: [{key: er, rate_limit: {unit: day, requests_per_unit: 7}}]
  - key: only
    value: a
    descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 8}}]
  - key: only
    descriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 9}}]
  - {key: second, rate_limit: {unit: SECOND, requests_per_unit: 11}}
  - {key: minute, rate_limit: {unit: Minute, requests_per_unit: 12}}
  - {key: hour, rate_limit: {unit: hour, requests_per_unit: 13}}
  - {key: week, rate_limit: {unit: week, requests_per_unit: 15}}
  - {key: month, rate_limit: {unit: month, requests_per_unit: 16}}
  - {key: year, rate_limit: {unit: year, requests_per_unit: 17}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: ban, rate_limit: {unit: day, requests_per_unit: 0}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 1}, metadata: {team: {name: shadow, b: 2}}}
  - {key: quota, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: quota2, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: replaced, rate_limit: {unit: day, requests_per_unit: 5, name: old}}
  - {key: replacer, rate_limit: {unit: day, requests_per_unit: 6, name: new, replaces: [{name: old}]}}
  - {key: near, rate_limit: {unit: day, requests_per_unit: 20}}
  - {key: other, rate_limit: {unit: day, requests_per_unit: 5}}
`

// fileRules are what xDS messages cannot say.
const fileRules = `
domain: files
descriptors:
  - {key: shared, value: "a*", share_threshold: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: named, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: detailed, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: spared, coordination: {on_deny: refund}, rate_limit: {unit: day, requests_per_unit: 10}}
  - {key: large, rate_limit: {unit: month, requests_per_unit: 30000000000}}
  - {key: ip, value: 10.0.0.1, rate_limit: {unit: day, requests_per_unit: 3}}
`

// exchange is a request and what must be answered. Descriptors are separated by
// ";", entries by ","; see parseRequest. An answer is the overall code and each
// status: its code, the limit, and what is left.
type exchange struct{ request, want string }

// parityExchanges are for a server with default settings.
var parityExchanges = []exchange{
	// empty domain, no descriptors
	{"domain= | plain=x", "error: rate limit domain must not be empty"},
	{"domain=parity |", "error: rate limit descriptor list must not be empty"},
	// nothing matches
	{"domain=nowhere | plain=x", "OK [OK]"},
	{"none=x", "OK [OK]"},
	{"deep=x,none=y", "OK [OK]"},
	{"deep=x", "OK [OK]"}, // a node without rate_limit
	{"deep=x,er=y,more=z", "OK [OK]"},
	{"plain=x,er=y", "OK [OK]"},
	{"deep=x,er=y", "OK [OK 7/DAY left 6]"},
	// exact, then wildcards in order, then the bare key; no way back
	{"user=vip", "OK [OK 2/DAY left 1]"},
	{"user=vp", "OK [OK 4/DAY left 3]"},
	{"user=v2", "OK [OK 5/DAY left 4]"},
	{"user=bob", "OK [OK 6/DAY left 5]"},
	{"only=a,b=1", "OK [OK 8/DAY left 7]"},
	{"only=a,c=1", "OK [OK]"},
	{"only=z,c=1", "OK [OK 9/DAY left 8]"},
	// each value its own count, also of a wildcard and a default
	{"user=v3", "OK [OK 5/DAY left 4]"},
	{"user=ann", "OK [OK 6/DAY left 5]"},
	// no collisions: the two would be the same text with "_"
	{"user=x_y", "OK [OK 6/DAY left 5]"},
	{"user=x,_y=", "OK [OK]"},
	// within, and over
	{"plain=x", "OK [OK 3/DAY the-limit left 2]"},
	{"plain=x", "OK [OK 3/DAY the-limit left 1]"},
	{"plain=x", "OK [OK 3/DAY the-limit left 0]"},
	{"plain=x", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"},
	{"plain=x", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"},
	{"plain=other", "OK [OK 3/DAY the-limit left 2]"},
	// units
	{"second=x; minute=x; hour=x; week=x; month=x; year=x", "OK [OK 11/SECOND left 10] [OK 12/MINUTE left 11] [OK 13/HOUR left 12] [OK 15/WEEK left 14] [OK 16/MONTH left 15] [OK 17/YEAR left 16]"},
	// unlimited, ban
	{"free=x", "OK [OK left 4294967295]"},
	{"ban=x", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0]"},
	{"ban=x; user=c1", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0] [OK 6/DAY left 5]"},
	// the order of statuses
	{"user=o1; none=x; plain=o1; free=x", "OK [OK 6/DAY left 5] [OK] [OK 3/DAY the-limit left 2] [OK left 4294967295]"},
	// hits_addend
	{"hits=2 | plain=h1", "OK [OK 3/DAY the-limit left 1]"},
	{"hits=2 | plain=h1", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"}, // 4 of 3, not rolled back
	{"plain=h1", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"},
	{"hits=5 | plain=h2 hits=1; plain=h3", "OVER_LIMIT [OK 3/DAY the-limit left 2] [OVER_LIMIT 3/DAY the-limit left 0]"},
	{"plain=h2 hits=0", "OK [OK 3/DAY the-limit left 2]"}, // peeks
	{"plain=h2 hits=0", "OK [OK 3/DAY the-limit left 2]"},
	{"hits=0 | plain=h4", "OK [OK 3/DAY the-limit left 2]"}, // means 1
	// what was refused is drained: one request too large leaves nothing
	{"near=drain hits=50", "OVER_LIMIT [OVER_LIMIT 20/DAY left 0]"},
	{"near=drain", "OVER_LIMIT [OVER_LIMIT 20/DAY left 0]"},
	// refunds
	{"plain=r1 hits=3", "OK [OK 3/DAY the-limit left 0]"},
	{"plain=r1 hits=2 refund", "OK [OK 3/DAY the-limit left 2]"},
	{"plain=r1", "OK [OK 3/DAY the-limit left 1]"},
	// the same descriptor twice
	{"plain=twice; plain=twice", "OK [OK 3/DAY the-limit left 2] [OK 3/DAY the-limit left 1]"},
	{"plain=twice; plain=twice", "OVER_LIMIT [OK 3/DAY the-limit left 0] [OVER_LIMIT 3/DAY the-limit left 0]"},
	// a descriptor's own limit
	{"plain=own limit=1/HOUR", "OK [OK 1/HOUR left 0]"},
	{"plain=own limit=1/HOUR", "OVER_LIMIT [OVER_LIMIT 1/HOUR left 0]"},
	{"plain=own", "OK [OK 3/DAY the-limit left 2]"},
	{"none=own limit=2/MONTH", "OK [OK 2/MONTH left 1]"},
	{"domain=nowhere | none=own limit=2/DAY", "OK [OK]"},
	// an override without a unit there panics the server
	{"plain=own limit=1/UNKNOWN", "error: no valid unit"},
	{"plain=own hits=9223372036854775808", "error: hits_addend is 9223372036854775808"},
	{"plain=own", "OK [OK 3/DAY the-limit left 1]"},
	// shadow_mode of a rule
	{"shadow=x", "OK [OK 1/DAY left 0]"},
	{"shadow=x", "OK [OK 1/DAY left 0]"},
	// quota_mode: over only if all quota descriptors are
	{"quota=x; quota2=x", "OK [OK 1/DAY left 0] [OK 2/DAY left 1]"},
	{"quota=x; quota2=x", "OK [OVER_LIMIT 1/DAY left 0] [OK 2/DAY left 0]"},
	{"quota=x; quota2=x", "OVER_LIMIT [OVER_LIMIT 1/DAY left 0] [OVER_LIMIT 2/DAY left 0]"},
	{"quota=x; plain=q1", "OVER_LIMIT [OVER_LIMIT 1/DAY left 0] [OK 3/DAY the-limit left 2]"}, // all there are
	{"quota2=q; plain=x", "OVER_LIMIT [OK 2/DAY left 1] [OVER_LIMIT 3/DAY the-limit left 0]"},
	// replaces
	{"replaced=x", "OK [OK 5/DAY old left 4]"},
	{"replaced=x; replacer=x", "OK [OK] [OK 6/DAY new left 5]"},
	{"replaced=x", "OK [OK 5/DAY old left 3]"}, // it was not counted
	// near_limit: of 20, what is above 16
	{"near=n hits=10", "OK [OK 20/DAY left 10]"},
	{"near=n hits=8", "OK [OK 20/DAY left 2]"},
	{"near=n hits=5", "OVER_LIMIT [OVER_LIMIT 20/DAY left 0]"},
}

var fileExchanges = []exchange{
	{"domain=files | shared=a1", "OK [OK 3/DAY left 2]"},
	{"domain=files | shared=a2", "OK [OK 3/DAY left 1]"},
	{"domain=files | named=x", "OK [OK 3/DAY left 2]"},
	{"domain=files | named=y", "OK [OK 3/DAY left 2]"},
	{"domain=files | detailed=x", "OK [OK 3/DAY left 2]"},
	{"domain=files | ip=10.0.0.1", "OK [OK 3/DAY left 2]"},
	// on_deny: refund, which is ours: nothing is taken, and that is what is left
	{"domain=files | spared=x; named=z hits=9", "OVER_LIMIT [OK 10/DAY left 10] [OVER_LIMIT 3/DAY left 0]"},
	{"domain=files | spared=x hits=11", "OVER_LIMIT [OVER_LIMIT 10/DAY left 10]"},
	{"domain=files | spared=x", "OK [OK 10/DAY left 9]"},
	// limits beyond 32 bits, which are ours: clamped in answers, and counted to the token
	{"domain=files | large=x hits=25000000000", "OK [OK 4294967295/MONTH left 4294967295]"},
	{"domain=files | large=x hits=4999999000", "OK [OK 4294967295/MONTH left 1000]"},
	{"domain=files | large=x hits=1000", "OK [OK 4294967295/MONTH left 0]"},
	{"domain=files | large=x", "OVER_LIMIT [OVER_LIMIT 4294967295/MONTH left 0]"},
}

// parityStatistics are what the exchanges leave in statsd, by name.
var parityStatistics = map[string]int{
	"ratelimit.service.rate_limit.parity.deep.er.total_hits":               1,
	"ratelimit.service.rate_limit.parity.deep.er.within_limit":             1,
	"ratelimit.service.rate_limit.parity.user_vip.total_hits":              1,
	"ratelimit.service.rate_limit.parity.user_v*p.total_hits":              1,
	"ratelimit.service.rate_limit.parity.user_v*.total_hits":               2,
	"ratelimit.service.rate_limit.parity.user.total_hits":                  5,
	"ratelimit.service.rate_limit.parity.only_a.b.total_hits":              1,
	"ratelimit.service.rate_limit.parity.only.c.total_hits":                1,
	"ratelimit.service.rate_limit.parity.free.total_hits":                  2,
	"ratelimit.service.rate_limit.parity.ban.over_limit":                   2,
	"ratelimit.service.rate_limit.parity.shadow.total_hits":                2,
	"ratelimit.service.rate_limit.parity.shadow.over_limit":                1,
	"ratelimit.service.rate_limit.parity.shadow.shadow_mode":               1,
	"ratelimit.service.rate_limit.parity.replaced.total_hits":              2,
	"ratelimit.service.rate_limit.parity.near.total_hits":                  74,
	"ratelimit.service.rate_limit.parity.near.near_limit":                  8, // 4 of 17..20, twice
	"ratelimit.service.rate_limit.parity.near.over_limit":                  34,
	"ratelimit.service.rate_limit.parity.plain_own.total_hits":             2,
	"ratelimit.service.rate_limit.parity.plain_own.over_limit":             1,
	"ratelimit.service.rate_limit.nowhere.domain_not_found":                2,
	"ratelimit.service.call.should_rate_limit.service_error":               4,
	"ratelimit.service.call.should_rate_limit.redis_error":                 0,
	"ratelimit.service.config_load_success":                                1,
	"ratelimit_server.ShouldRateLimit.total_requests":                      len(parityExchanges) + len(fileExchanges),
	"ratelimit_server.ShouldRateLimit.response_time":                       -1,
	"ratelimit.service.rate_limit.files.shared_a*.total_hits":              2,
	"ratelimit.service.rate_limit.files.named_x.total_hits":                1,
	"ratelimit.service.rate_limit.files.named_y.total_hits":                1,
	"ratelimit.service.rate_limit.files.detailed_x.total_hits":             1,
	"ratelimit.service.rate_limit.files.ip_10_0_0_1.total_hits":            1,
	"ratelimit.service.rate_limit.files.ip_10_0_0_1.within_limit":          1,
	"ratelimit.service.rate_limit.parity.second.total_hits":                1,
	"ratelimit.service.rate_limit.parity.quota.over_limit":                 3,
	"ratelimit.service.rate_limit.parity.month.within_limit":               1,
	"ratelimit.service.rate_limit.parity.none_own.total_hits":              1,
	"ratelimit.service.rate_limit.parity.replacer.within_limit":            1,
	"ratelimit.service.rate_limit.parity.plain.shadow_mode":                0,
	"ratelimit.service.rate_limit.parity.near.over_limit_with_local_cache": 0,
	"ratelimit.service.rate_limit.parity.ban.over_limit_with_local_cache":  0,
	"ratelimit.localcache.hitCount":                                        0,
	"ratelimit.localcache.missCount":                                       0,
	"ratelimit.localcache.lookupCount":                                     0,
	"ratelimit.localcache.entryCount":                                      0,
	"ratelimit.go.alloc":                                                   -1000,
	"ratelimit.go.sys":                                                     -1000,
	"ratelimit.go.mallocs":                                                 -1000,
	"ratelimit.go.numGoroutine":                                            -1,
	"ratelimit.redis_per_second_pool.cx_total":                             0,
}

// parityPrometheus are lines of /metrics after the exchanges.
var parityPrometheus = []string{
	`ratelimit_service_rate_limit_total_hits{domain="parity",key1="deep",key2="er"} 1`,
	`ratelimit_service_rate_limit_near_limit{domain="parity",key1="near",key2=""} 8`,
	`ratelimit_service_rate_limit_over_limit{domain="parity",key1="near",key2=""} 34`,
	`ratelimit_service_rate_limit_within_limit{domain="files",key1="named_x",key2=""} 1`,
	`ratelimit_service_rate_limit_shadow_mode{domain="parity",key1="shadow",key2=""} 1`,
	`ratelimit_service_should_rate_limit_error{err_type="service_error"} 4`,
	`ratelimit_service_config_load_success 1`,
	`ratelimit_service_config_load_error 0`,
}

// globalExchanges are for servers with settings, each with its own.
var globalExchanges = []struct {
	env        []string
	exchanges  []exchange
	statistics map[string]int // nil: none are looked at
}{
	{[]string{"SHADOW_MODE=true"}, []exchange{
		{"ban=x; plain=x", "OK [OVER_LIMIT 0/DAY left 0] [OK 3/DAY the-limit left 2]"},
	}, nil},
	{[]string{"QUOTA_MODE=true"}, []exchange{
		{"ban=x; plain=x; free=x", "OK [OVER_LIMIT 0/DAY left 0] [OK 3/DAY the-limit left 2] [OK left 4294967295]"},
		{"ban=x; free=x", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0] [OK left 4294967295]"},
	}, nil},
	{[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true"}, []exchange{
		{"plain=x; user=x", "OK [OK 3/DAY the-limit left 2] [OK 6/DAY left 5] {RateLimit-Limit: 3, RateLimit-Remaining: 2, RateLimit-Reset: +}"},
		{"user=x hits=4; plain=y", "OK [OK 6/DAY left 1] [OK 3/DAY the-limit left 2] {RateLimit-Limit: 6, RateLimit-Remaining: 1, RateLimit-Reset: +}"},
		{"ban=x; plain=z hits=9; shadow=x", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0] [OVER_LIMIT 3/DAY the-limit left 0] [OK 1/DAY left 0] {RateLimit-Limit: 3, RateLimit-Remaining: 0, RateLimit-Reset: +}"},
		{"none=x; free=x", "OK [OK] [OK left 4294967295]"},
	}, nil},
	{[]string{"LIMIT_IETF_HEADERS_ENABLED=true", "NEAR_LIMIT_RATIO=0.5"}, []exchange{
		{"plain=x; user=x", "OK [OK 3/DAY the-limit left 2] [OK 6/DAY left 5] {RateLimit-Policy: \"the-limit\";q=3;w=86400, RateLimit: \"the-limit\";r=2;t=+}"},
	}, nil},
	{[]string{"LIMIT_RESPONSE_HEADERS_ENABLED=true", "LIMIT_LIMIT_HEADER=X-L", "LIMIT_REMAINING_HEADER=X-Rem", "LIMIT_RESET_HEADER=X-Res"}, []exchange{
		{"plain=x", "OK [OK 3/DAY the-limit left 2] {X-L: 3, X-Rem: 2, X-Res: +}"},
	}, nil},
	{[]string{"RESPONSE_DYNAMIC_METADATA=true"}, []exchange{
		{
			"hits=2 | plain=x hits=1; shadow=x; ban=x limit=5/HOUR", `OK [OK 3/DAY the-limit left 2] [OK 1/DAY left 0] [OK 5/HOUR left 3] ` +
				`{"descriptors":[{"entries":["plain=x"],"hitsAddend":1},{"entries":["shadow=x"]},{"entries":["ban=x"],"limit":"requests_per_unit:5 unit:HOUR"}],` +
				`"domain":"parity","hitsAddend":2,"metadata":{"team":{"a":1,"b":2,"name":"plain"}}}`,
		},
	}, nil},
	{[]string{"USE_CALENDAR_MONTH_RATE_LIMIT=true"}, []exchange{
		{"month=x; plain=x limit=9/MONTH", "OK [OK 16/CALENDAR left 15] [OK 9/CALENDAR left 8]"},
	}, nil},
	{[]string{"LOCAL_CACHE_SIZE_IN_BYTES=1000000"}, []exchange{
		{"plain=x hits=3", "OK [OK 3/DAY the-limit left 0]"},
		{"plain=x", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"}, // found to be over: a miss
		{"plain=x hits=5", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0]"},
		{"plain=x; user=x; free=x; none=x", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0] [OK 6/DAY left 5] [OK left 4294967295] [OK]"},
		{"plain=twice hits=4; plain=twice", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0] [OVER_LIMIT 3/DAY the-limit left 0]"}, // both are looked up before either is over
		{"ban=x", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0]"},
		{"ban=x", "OVER_LIMIT [OVER_LIMIT 0/DAY left 0]"},
		{"shadow=x hits=2", "OK [OK 1/DAY left 0]"},
		{"shadow=x", "OK [OK 1/DAY left 0]"},
	}, map[string]int{
		"ratelimit.service.rate_limit.parity.plain.over_limit_with_local_cache":  6,
		"ratelimit.service.rate_limit.parity.plain.over_limit":                   9,
		"ratelimit.service.rate_limit.parity.ban.over_limit_with_local_cache":    1,
		"ratelimit.service.rate_limit.parity.shadow.over_limit_with_local_cache": 1,
		"ratelimit.localcache.hitCount":                                          4,
		"ratelimit.localcache.missCount":                                         7,
		"ratelimit.localcache.lookupCount":                                       11,
		"ratelimit.localcache.entryCount":                                        4,
		"ratelimit.localcache.evacuateCount":                                     0,
	}},
	{[]string{"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT=true"}, []exchange{
		{"near=x hits=10; plain=x hits=3", "OK [OK 20/DAY left 10] [OK 3/DAY the-limit left 0]"},
		{"near=x; plain=x", "OVER_LIMIT [OK 20/DAY left 10] [OVER_LIMIT 3/DAY the-limit left 0]"},
		{"plain=x; near=x hits=7", "OVER_LIMIT [OVER_LIMIT 3/DAY the-limit left 0] [OK 20/DAY left 10]"},
		{"near=x hits=7; ban=x", "OVER_LIMIT [OK 20/DAY left 10] [OVER_LIMIT 0/DAY left 0]"},
		{"near=x", "OK [OK 20/DAY left 9]"},
		{"near=x hits=10", "OVER_LIMIT [OVER_LIMIT 20/DAY left 0]"}, // what is over is charged
		{"near=x", "OVER_LIMIT [OVER_LIMIT 20/DAY left 0]"},
	}, map[string]int{
		"ratelimit.service.rate_limit.parity.near.total_hits":   37,
		"ratelimit.service.rate_limit.parity.near.within_limit": 26,
		"ratelimit.service.rate_limit.parity.near.over_limit":   2,
	}},
}

// parityErrors are configs that are refused, and theirs words for it.
var parityErrors = []struct{ config, want string }{
	{"descriptors: [{key: a}]", "config file cannot have empty domain"},
	{"domain: parity\ndescriptors: [{key: a}]", "duplicate domain 'parity' in config file"}, // beside parityRules
	{"domain: e\ndescriptors: [{value: a}]", "descriptor has empty key"},
	{"domain: e\ndescriptors: [{key: a, value: b}, {key: a, value: b}]", "duplicate descriptor composite key 'e.a_b'"},
	{"domain: e\ndescriptors: [{key: a, rate_limit: {unit: eon, requests_per_unit: 1}}]", "invalid rate limit unit 'eon'"},
	{"domain: e\ndescriptors: [{key: a, rate_limit: {unlimited: true, unit: day}}]", "should not specify rate limit unit when unlimited"},
	{"domain: e\ndescriptors: [{key: a, value: b, share_threshold: true}]", "share_threshold can only be used with wildcard values (containing '*'), but found key 'a_b'"},
	{"domain: e\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: ''}]}}]", "should not have an empty replaces entry"},
	{"domain: e\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]}}]", "replaces should not contain name of same descriptor"},
	{"domain: e\ndescriptors: [{key: a, rate_limits: {}}]", "config error, unknown key 'rate_limits'"},
	{"domain: e\n1: a", "config error, key is not of type string: 1"},
	{"domain: e\ndescriptors: [a]", "config error, yaml file contains list of type other than map: a"},
	{"domain: [", "error loading config file: "},
}
