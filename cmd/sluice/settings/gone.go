package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-gate/sluice/ratelimit"
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
// anyway are left out.
func WithoutEffect(lookup func(string) (string, bool)) (found []string) {
	off := []string{"", "false", "0", "tcp", "single", "redis", "0s", "ratelimit-limit", "ratelimit-remaining", "ratelimit-reset"}
	for _, name := range withoutEffect {
		if value, ok := lookup(name); ok && !slices.Contains(off, strings.ToLower(value)) {
			found = append(found, name)
		}
	}
	return found
}

// replaced are settings of earlier releases, with the advice for each.
var replaced = map[string]string{
	"SETTINGS_FILE":              "unset it, and start sluice serve --settings %s",
	"CONFIG_RELOAD_INTERVAL":     "unset it: two loads of rules are at least 200ms apart",
	"SINGLE_REPLICA":             "unset it, and set COORDINATION_MAX_NODES=1",
	"GRPC_ACCEPT_GZIP":           "unset it, and send requests without compression, as Envoy does",
	"RLQS":                       "unset it: the gRPC port serves RLQS, and Envoys without its filter do not use it",
	"DEBUG_PPROF":                "unset it: profiles are for callers on this machine, and for kubectl port-forward",
	"GRACE_TIME":                 "unset it: after DRAIN_TIME, calls in progress have 10s",
	"DRIFT_AUDIT_FILE":           "unset it: sluice audit reads the record of rules with audit: true",
	"HOLD_KEYS_FILE":             "unset it, and set HOLD_KEYS=@%s",
	"PEER_GOSSIP_ADDR":           "unset it: gossip uses the port after that of PEER_ADDR",
	"PEER_BIND":                  "unset it: if PEER_ADDR is not of this machine, the node listens on its port of all addresses",
	"PEER_ALLOW_OLD":             "unset it: during an upgrade, old and new nodes form two rings (docs/guides/upgrading.md)",
	"PEER_WEIGHT":                "unset it: all nodes own as many keys",
	"HOT_KEY_RATE":               "unset it: a key is hot above 200 requests a second at its owner, and ten times the mean of all keys",
	"MAX_REQUEST_BYTES":          "unset it: a request has at most 256 KiB",
	"GRPC_MAX_HEADER_BYTES":      "unset it: headers have at most 8 KiB",
	"GRPC_MAX_CONNECTION_IDLE":   "unset it: an idle connection ends after 5m, and GRPC_MAX_CONNECTION_AGE ends others",
	"DEBUG_MAX_CONNECTIONS":      "unset it: the debug port takes 64 connections",
	"DEBUG_EXPLAIN_RATE":         "unset it: a node explains 20 keys a second",
	"PEER_MAX_CONNECTIONS":       "unset it: a node takes 2000 connections of peers",
	"RLQS_MAX_BUCKETS":           "unset it: a stream has at most 1000 buckets",
	"RLQS_MAX_BUCKET_BYTES":      "unset it: a BucketId has at most 1024 bytes",
	"RLQS_MAX_REPORTS":           "unset it: a stream sends at most 100 messages a second",
	"CONFIG_MAX_FILE_BYTES":      "unset it: a file of rules has at most 8 MiB; split larger ones",
	"CONFIG_MAX_FILES":           "unset it: there are at most 1000 files of rules; join some",
	"REDIS_MAX_REPLY":            "unset it: an answer of Redis has at most 4 MiB",
	"COORDINATION_LEASE_SIZE":    inRules("lease: {size: %s}"),
	"COORDINATION_LEASE_RESERVE": inRules("mode: approx, drift_budget: %s"),
}

func init() {
	for name := range strings.FieldsSeq("MAX_BYTES_IN_FLIGHT GRPC_MAX_CONNECTIONS HTTP_MAX_CONNECTIONS PEER_MAX_BYTES_IN_FLIGHT RLQS_MAX_STREAMS CONFIG_MAX_BYTES CONFIG_MAX_TOKENS CONFIG_MAX_RULES") {
		replaced[name] = "unset it: it follows from the memory of the process, or from MAX_MEMORY"
	}
	for field, advice := range ratelimit.ReplacedFields {
		replaced["COORDINATION_"+strings.ToUpper(strings.ReplaceAll(field, ".", "_"))] = "unset it: " + advice
	}
	for field := range strings.FieldsSeq("reclaim drift_budget check_timeout store_deadline on_deny debt audit") {
		replaced["COORDINATION_"+strings.ToUpper(field)] = inRules(field + ": %s")
	}
}

func inRules(field string) string {
	return "write coordination: {" + field + "} at the root of each file of rules"
}

// withAdvice is the advice for a setting of an earlier release with that value; "" if there was none of that name.
func withAdvice(name, value string) string { return strings.Replace(replaced[name], "%s", value, 1) }

// Refused reports settings that a release has replaced: without effect, they would be lost unseen.
func Refused(lookup func(string) (string, bool)) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(replaced)) {
		if value, set := lookup(name); set && value != "" {
			errs = append(errs, fmt.Errorf("%s is %q, and this release does not have it: %s", name, value, withAdvice(name, value)))
		}
	}
	return errors.Join(errs...)
}
