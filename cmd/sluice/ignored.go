package main

import (
	"slices"
	"strings"
)

// withoutEffect are names of envoyproxy/ratelimit that mean nothing here. Where
// doing nothing would break a promise, the server refuses to start instead.
var withoutEffect = []string{
	"EXPIRATION_JITTER_MAX_SECONDS", "REDIS_CLUSTER_PIPELINE_PARALLELISM", "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
	"REDIS_PIPELINE_WINDOW", "REDIS_PIPELINE_LIMIT", "REDIS_PERSECOND_PIPELINE_WINDOW", "REDIS_PERSECOND_PIPELINE_LIMIT",
	"REDIS_USE_EXPLICIT_PIPELINE", "REDIS_PERSECOND_USE_EXPLICIT_PIPELINE",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_POOL_ON_EMPTY_WAIT_DURATION",
	"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION",
	"MEMCACHE_HOST_PORT", "MEMCACHE_MAX_IDLE_CONNS", "MEMCACHE_SRV", "MEMCACHE_SRV_REFRESH", "MEMCACHE_TLS", "MEMCACHE_TLS_CLIENT_CERT",
	"MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
	"PROTO", "USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "PROMETHEUS_MAPPER_YAML",
}

// mogrifiers are the names of the settings that USE_DOG_STATSD_MOGRIFIERS, a list by
// comma, says there are.
func mogrifiers(lookup func(string) (string, bool)) (names []string) {
	list, _ := lookup("USE_DOG_STATSD_MOGRIFIERS")
	for one := range strings.SplitSeq(list, ",") {
		if one = strings.TrimSpace(one); one == "" {
			continue
		}
		for _, what := range []string{"PATTERN", "NAME", "TAGS"} {
			names = append(names, "DOG_STATSD_MOGRIFIER_"+strings.ToUpper(one)+"_"+what)
		}
	}
	return names
}

// inEnvironment looks for names that this version does nothing with. off are
// values that say what is true anyway.
func inEnvironment(lookup func(string) (string, bool), names []string) (found []string) {
	off := []string{"", "false", "0", "tcp", "redis", "0s"}
	for _, name := range names {
		if value, ok := lookup(name); ok && !slices.Contains(off, strings.ToLower(value)) {
			found = append(found, name)
		}
	}
	return found
}
