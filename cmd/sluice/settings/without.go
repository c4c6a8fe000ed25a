package settings

import (
	"slices"
	"strings"
)

// withoutEffect are names of envoyproxy/ratelimit that mean nothing here. Where
// doing nothing would break a promise, the server refuses to start instead.
var withoutEffect = []string{
	"EXPIRATION_JITTER_MAX_SECONDS", "REDIS_STARTUP_INITIAL_INTERVAL", "REDIS_STARTUP_MAX_INTERVAL", "REDIS_CLUSTER_PIPELINE_PARALLELISM", "REDIS_PERSECOND_CLUSTER_PIPELINE_PARALLELISM",
	"REDIS_PIPELINE_WINDOW", "REDIS_PIPELINE_LIMIT", "REDIS_PERSECOND_PIPELINE_WINDOW", "REDIS_PERSECOND_PIPELINE_LIMIT",
	"REDIS_USE_EXPLICIT_PIPELINE", "REDIS_PERSECOND_USE_EXPLICIT_PIPELINE",
	"REDIS_POOL_ON_EMPTY_BEHAVIOR", "REDIS_POOL_ON_EMPTY_WAIT_DURATION",
	"REDIS_PERSECOND_POOL_ON_EMPTY_BEHAVIOR", "REDIS_PERSECOND_POOL_ON_EMPTY_WAIT_DURATION",
	"REDIS_PERSECOND", "REDIS_PERSECOND_URL", "REDIS_PERSECOND_TYPE", "REDIS_PERSECOND_SOCKET_TYPE", "REDIS_PERSECOND_POOL_SIZE", "REDIS_PERSECOND_AUTH",
	"REDIS_PERSECOND_SENTINEL_AUTH", "REDIS_PERSECOND_TLS", "REDIS_PERSECOND_TIMEOUT",
	"MEMCACHE_HOST_PORT", "MEMCACHE_MAX_IDLE_CONNS", "MEMCACHE_SRV", "MEMCACHE_SRV_REFRESH", "MEMCACHE_TLS", "MEMCACHE_TLS_CLIENT_CERT",
	"MEMCACHE_TLS_CLIENT_KEY", "MEMCACHE_TLS_CACERT", "MEMCACHE_TLS_SKIP_HOSTNAME_VERIFICATION",
	"PROTO", "USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS",
	"SANITIZE_DESCRIPTOR_METRIC_DOTS", "MAX_CONCURRENT_REQUESTS", "REQUEST_TIMEOUT", "GRPC_MAX_CONCURRENT_STREAMS",
	"LIMIT_REQUEST_LIMIT_HEADER", "LIMIT_REQUEST_REMAINING_HEADER", "LIMIT_REQUEST_RESET_HEADER",
}

// WithoutEffect are the names in the environment that have no effect in this version. Values that agree with the effect
// anyway are left out. off are the values in lower case that ask for no more than Sluice does: features off, and the
// default names of headers.
func WithoutEffect(lookup func(string) (string, bool)) (found []string) {
	off := []string{"", "false", "0", "tcp", "single", "redis", "0s", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
	for _, name := range withoutEffect {
		if value, ok := lookup(name); ok && !slices.Contains(off, strings.ToLower(value)) {
			found = append(found, name)
		}
	}
	return found
}
