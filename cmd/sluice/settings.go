package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// flags are the server's, from flags and environment. Names, defaults and meaning are envoyproxy/ratelimit's where it
// has them. A tag has all of a setting. group is its section in files and in the help, and env its name in the
// environment and, in lower case, in files. The page docs/reference/settings.md is made of the tags.
type flags struct {
	File            settings.File `group:"rules" name:"settings" placeholder:"FILE" help:"YAML file of settings, such as store: {redis_url: redis:6379}."`
	Config          string        `group:"rules" placeholder:"DIR|FILE" help:"File of rules, or directory with subdirectories. It overrides RUNTIME_ROOT. Default without both: a built-in example."`
	RuntimeRoot     string        `group:"rules" env:"RUNTIME_ROOT" placeholder:"DIR" help:"Root of the rules directory. Default: /srv/runtime_data/current, if it exists."`
	RuntimeSubdir   string        `group:"rules" env:"RUNTIME_SUBDIRECTORY" name:"runtime-subdirectory" placeholder:"DIR" help:"Directory below RUNTIME_ROOT."`
	RuntimeAppdir   string        `group:"rules" env:"RUNTIME_APPDIRECTORY" name:"runtime-appdirectory" default:"config" help:"Directory of the rules, below RUNTIME_SUBDIRECTORY."`
	IgnoreDotFiles  bool          `group:"rules" env:"RUNTIME_IGNOREDOTFILES" name:"runtime-ignoredotfiles" help:"Skip files and directories that start with a dot."`
	WatchRoot       bool          `group:"rules" env:"RUNTIME_WATCH_ROOT" name:"runtime-watch-root" default:"true" negatable:"" help:"Reload only when the link RUNTIME_ROOT changes. If it is no link, or with false: reload at each change of a file."`
	ForceStart      bool          `group:"rules" env:"FORCE_START_WITHOUT_INITIAL_CONFIG" name:"force-start-without-initial-config" help:"Start even if the first rules are bad. Calls fail until valid rules arrive."`
	HealthyWithOne  bool          `group:"rules" env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" name:"healthy-with-at-least-one-config-loaded" help:"Report the node as healthy only while a domain has rules."`
	MergeDomains    bool          `group:"rules" env:"MERGE_DOMAIN_CONFIG" name:"merge-domain-config" help:"Merge descriptors of files with the same domain."`
	CalendarMonths  bool          `group:"rules" env:"USE_CALENDAR_MONTH_RATE_LIMIT" name:"use-calendar-month-rate-limit" help:"Use calendar months in UTC instead of 30 days, for fixed_window."`
	ConfigType      string        `group:"rules" env:"CONFIG_TYPE" default:"FILE" help:"Source of rules: FILE, or GRPC_XDS_SOTW for a management server (xDS)."`
	Host            string        `group:"ports" env:"HOST" default:"0.0.0.0" help:"Address of the HTTP port, which serves /json, /healthcheck, /readyz, /healthz and /livez."`
	Port            uint16        `group:"ports" env:"PORT" default:"8080" help:"HTTP port."`
	GRPCHost        string        `group:"ports" env:"GRPC_HOST" name:"grpc-host" default:"0.0.0.0" help:"Address of the gRPC port, which serves RateLimitService v3, health and reflection."`
	GRPCPort        uint16        `group:"ports" env:"GRPC_PORT" name:"grpc-port" default:"8081" help:"gRPC port."`
	GRPCUDS         string        `group:"ports" env:"GRPC_UDS" name:"grpc-uds" placeholder:"PATH" help:"Unix socket for gRPC, instead of the port."`
	DebugHost       string        `group:"ports" env:"DEBUG_HOST" default:"127.0.0.1" help:"Address of the debug port, which serves /console, /explain, /metrics, /rlconfig, /stats and /debug/pprof/."`
	DebugPort       uint16        `group:"ports" env:"DEBUG_PORT" default:"6070" help:"Debug port."`
	MaxConnAge      time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE" name:"grpc-max-connection-age" default:"24h" help:"Maximum age of a gRPC connection. Then the node asks the client to close it."`
	MaxConnAgeGrace time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE_GRACE" name:"grpc-max-connection-age-grace" default:"1h" help:"Time for calls in progress after GRPC_MAX_CONNECTION_AGE. Then the node closes the connection."`
	ConsoleRedact   *bool         `group:"ports" env:"CONSOLE_REDACT" help:"Show marks instead of descriptor values, such as API keys. This concerns the console, sluice top and /ring. Default: true, unless DEBUG_HOST is a loopback address."`
	AdminToken      string        `group:"ports" env:"ADMIN_TOKEN" placeholder:"TOKEN" help:"Token for changes on the debug port: resets of keys, drops of leases, and overrides of limits. Without a token, the node refuses them."`
	DrainTime       time.Duration `group:"ports" env:"DRAIN_TIME" default:"5s" help:"Time after SIGTERM in which the node still answers calls, while its health checks fail. Then it returns its leases and ends."`
	ShadowMode      bool          `group:"answers" env:"SHADOW_MODE" help:"Answer OK to all requests, and count as usual."`
	QuotaMode       bool          `group:"answers" env:"QUOTA_MODE" help:"Use quota_mode for all descriptors."`
	DynamicMetadata bool          `group:"answers" env:"RESPONSE_DYNAMIC_METADATA" name:"response-dynamic-metadata" help:"Add metadata of requests and rules to answers."`
	HeadersEnabled  bool          `group:"answers" env:"LIMIT_RESPONSE_HEADERS_ENABLED" name:"limit-response-headers-enabled" help:"Add headers with the limit to responses."`
	Headers         headerFlags   `embed:"" group:"answers" prefix:"limit-" envprefix:"LIMIT_"`
	RequestEnabled  bool          `group:"answers" env:"LIMIT_REQUEST_HEADERS_ENABLED" name:"limit-request-headers-enabled" help:"Add the same headers to requests, so that your services get them."`
	SpareOthers     bool          `group:"answers" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" name:"stop-cache-key-increment-when-overlimit" help:"If one descriptor refuses a request, charge none of the others."`
	IETFHeaders     bool          `group:"answers" env:"LIMIT_IETF_HEADERS_ENABLED" name:"limit-ietf-headers-enabled" help:"Add RateLimit-Policy and RateLimit to responses (draft-ietf-httpapi-ratelimit-headers-11)."`
	NearLimitRatio  float64       `group:"answers" env:"NEAR_LIMIT_RATIO" name:"near-limit-ratio" default:"0.8" help:"Part of a limit, 0 to 1. Hits above it count as near_limit."`

	TLS          tlsFlags              `embed:"" group:"ports"`
	DebugHosts   string                `group:"ports" env:"DEBUG_ALLOWED_HOSTS" name:"debug-allowed-hosts" placeholder:"NAME,..." help:"Further host names that the debug port accepts, or * for all. It always accepts addresses, names without a dot, .localhost, .local, .internal, .svc and .cluster.local. Other names are refused, against DNS rebinding."`
	Holds        holdFlags             `embed:"" group:"coordination"`
	XDS          xdsFlags              `embed:"" group:"rules"`
	LastGood     string                `group:"rules" env:"CONFIG_LAST_GOOD_FILE" name:"config-last-good-file" placeholder:"FILE" help:"File for a copy of the last good rules. If the rules are bad or missing, the node starts with the copy. Each node needs a file of its own, outside the rules directory."`
	Tracing      tracingFlags          `embed:"" group:"log"`
	Coordination settings.Coordination `embed:"" group:"coordination"`
	Store        store.Flags           `embed:"" group:"store"`
	Ring         peerFlags             `embed:"" group:"peers"`
	caps         settings.Caps         // derived from the memory, before all else

	MaxMemory string `group:"limits" env:"MAX_MEMORY" name:"max-memory" placeholder:"BYTES" help:"Memory for this process, such as 2GiB. The maximum of keys, connections, requests in flight and rules follows from it. Default: GOMEMLIMIT, or the limit of the container. Without both: the memory of the machine, at most 2 GiB."`
	MaxKeys   int    `group:"limits" env:"MAX_KEYS" default:"0" help:"Maximum number of tracked keys. 0: as many as fit into half of the memory of the process or container, at most 10,000,000. If these have no limit, a quarter of the machine's memory counts. Without a store, further keys share accounts. With a store, each node limits further keys alone."`
	AuditFile string `group:"log" env:"AUDIT_FILE" name:"audit-file" placeholder:"FILE" help:"File for the record of audited rules, as JSON lines. A line is written before its tokens are spent. At 64 MB, the file moves to FILE.1."`
	LogLevel  string `group:"log" env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
	LogFormat string `group:"log" env:"LOG_FORMAT" default:"text" help:"Log format: text or json."`

	MaxWait time.Duration `group:"limits" env:"MAX_WAIT" default:"100ms" help:"Maximum wait of a caller for its answer. It replaces missing and longer deadlines (grpc-timeout). Under overload, the node at once rejects calls whose answers would be too late. 0: no call is rejected."`

	LocalCacheSize int64 `group:"log" env:"LOCAL_CACHE_SIZE_IN_BYTES" name:"local-cache-size-in-bytes" help:"Size of the local cache of envoyproxy/ratelimit, in bytes. Sluice needs none: a size above 0 only turns on the counter over_limit_with_local_cache."`
	LatencyMillis  bool  `group:"log" env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" name:"prometheus-response-time-as-milliseconds" help:"Report ratelimit_service_response_time_seconds in milliseconds. The alerts here expect seconds."`

	BackendType string `group:"store" env:"BACKEND_TYPE" default:"redis" help:"Backend of envoyproxy/ratelimit: redis. Sluice cannot use memcache: with this value, set REDIS_URL, or COORDINATION_MAX_NODES=1 for a single node."`

	UseStatsd     bool          `group:"log" env:"USE_STATSD" help:"Send counters to a statsd server over TCP."`
	StatsdHost    string        `group:"log" env:"STATSD_HOST" default:"localhost" help:"Host of the statsd server."`
	StatsdPort    uint16        `group:"log" env:"STATSD_PORT" default:"8125" help:"Port of the statsd server."`
	StatsInterval time.Duration `group:"log" env:"STATS_FLUSH_INTERVAL" name:"stats-flush-interval" default:"10s" help:"Time between two messages to statsd."`
	ExtraTags     string        `group:"log" env:"EXTRA_TAGS" placeholder:"K:V,..." help:"Tags of all names in statsd."`
	DisableStats  bool          `group:"log" env:"DISABLE_STATS" help:"Turn statsd off. Overrides USE_STATSD."`

	UsePrometheus  bool   `group:"log" env:"USE_PROMETHEUS" help:"Serve metrics also on PROMETHEUS_ADDR. The debug port always serves them."`
	PrometheusAddr string `group:"log" env:"PROMETHEUS_ADDR" default:":9090" help:"Address for USE_PROMETHEUS."`
	PrometheusPath string `group:"log" env:"PROMETHEUS_PATH" default:"/metrics" help:"Path for USE_PROMETHEUS."`
	PrometheusMap  string `group:"log" env:"PROMETHEUS_MAPPER_YAML" name:"prometheus-mapper-yaml" placeholder:"FILE" help:"Mapping file of statsd_exporter, for the names of envoyproxy/ratelimit's metrics. It is read at start."`
}

// headerFlags rename the headers of envoyproxy/ratelimit.
type headerFlags struct {
	Limit     string `env:"LIMIT_HEADER" name:"limit-header" default:"RateLimit-Limit" help:"Header for the limit."`
	Remaining string `env:"REMAINING_HEADER" name:"remaining-header" default:"RateLimit-Remaining" help:"Header for the remaining tokens."`
	Reset     string `env:"RESET_HEADER" name:"reset-header" default:"RateLimit-Reset" help:"Header for the seconds until the limit resets."`
}

// names are those of headers that are on. Without on it returns no names, and rls writes no headers. The conversion
// holds as long as both types have the same fields.
func (f *headerFlags) names(on bool) (all rls.HeaderNames, err error) {
	if !on {
		return all, nil
	}
	for name, header := range map[string]string{"LIMIT": f.Limit, "REMAINING": f.Remaining, "RESET": f.Reset} {
		if !httpguts.ValidHeaderFieldName(header) {
			err = errors.Join(err, fmt.Errorf("LIMIT_%s_HEADER is %q, must be the name of a header", name, header))
		}
	}
	return rls.HeaderNames(*f), err
}

// validate reports settings outside their bounds, with name and value. It collects all faults, so that one start shows
// them all. It opens nothing: sluice settings calls it, too.
func (s *flags) validate() error {
	var errs []error
	must := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	must(s.MaxKeys >= 0 && s.MaxKeys <= 1<<30, "MAX_KEYS is %d, must be 0 (from the memory), or between 1 and %d", s.MaxKeys, 1<<30)
	must(s.MaxWait == 0 || s.MaxWait >= time.Millisecond && s.MaxWait <= time.Minute, "MAX_WAIT is %v, must be 0 (never shed) or between 1ms and 1m", s.MaxWait)
	must(s.NearLimitRatio >= 0 && s.NearLimitRatio <= 1, "NEAR_LIMIT_RATIO is %v, must be between 0 and 1", s.NearLimitRatio) // no NaN
	must(s.DrainTime >= 0, "DRAIN_TIME is %v, must not be negative", s.DrainTime)
	must(s.MaxConnAge >= 0, "GRPC_MAX_CONNECTION_AGE is %v, must not be negative", s.MaxConnAge)
	must(s.MaxConnAgeGrace >= 0, "GRPC_MAX_CONNECTION_AGE_GRACE is %v, must not be negative", s.MaxConnAgeGrace)
	must(strings.HasPrefix(s.PrometheusPath, "/"), "PROMETHEUS_PATH is %q, must begin with /", s.PrometheusPath)
	_, level := logLevels[strings.ToLower(s.LogLevel)]
	must(level, "LOG_LEVEL is %q, must be debug, info, warn or error", s.LogLevel)
	must(slices.Contains([]string{"text", "json"}, strings.ToLower(s.LogFormat)), "LOG_FORMAT is %q, must be text or json", s.LogFormat)
	must(!s.UseStatsd || s.StatsInterval >= time.Millisecond, "STATS_FLUSH_INTERVAL is %v, must be at least 1ms", s.StatsInterval)
	must(s.LocalCacheSize >= 0, "LOCAL_CACHE_SIZE_IN_BYTES is %d, must be 0 (off) or more", s.LocalCacheSize)
	pushed := s.ConfigType == configXDS
	must(pushed || s.ConfigType == "FILE", "CONFIG_TYPE is %q, must be FILE or %s", s.ConfigType, configXDS)
	must(!pushed || s.Config == "", "CONFIG_TYPE is %s, and --config is %q: unset one of them", configXDS, s.Config)
	must(pushed || s.XDS.Additions == "", "CONFIG_GRPC_XDS_ADDITIONS is %q, and CONFIG_TYPE is not %s: write its fields into the files of rules", s.XDS.Additions, configXDS)
	// Headers are checked only if one of the two kinds is on.
	_, badHeaders := s.Headers.names(s.HeadersEnabled || s.RequestEnabled)
	_, badTags := s.tags()
	return errors.Join(append(errs, badHeaders, badTags, s.Tracing.validate(), s.validateBackend())...)
}

// tags are those of EXTRA_TAGS: k:v,k2:v2.
func (s *flags) tags() (map[string]string, error) {
	tags, err := parsePairs(s.ExtraTags, ":")
	if err != nil {
		return nil, fmt.Errorf("EXTRA_TAGS is %q, must be like env:prod,zone:eu: %w", s.ExtraTags, err)
	}
	return tags, nil
}

const memcache = "memcache" // a value of BACKEND_TYPE

// validateBackend refuses memcached: there is no ledger in it, and nodes that each
// count in their own memory would each admit the whole limit.
func (s *flags) validateBackend() error {
	switch {
	case s.BackendType == "redis":
		return nil
	case s.BackendType != memcache:
		return fmt.Errorf("BACKEND_TYPE is %q, must be redis or memcache", s.BackendType)
	case s.Store.Shared() || s.Coordination.MaxNodes == "1":
		return nil
	}
	return errors.New("BACKEND_TYPE is memcache, and memcached cannot store accounts: each replica would count alone, " +
		"and N of them would admit N times the limit; set REDIS_URL, or COORDINATION_MAX_NODES=1 if there is only this one")
}

// serviceOptions are those of RLS. budget bounds bodies of /json in memory.
func (s *flags) serviceOptions(budget *transport.Budget) rls.Options {
	o := rls.Options{
		MaxRequestBytes: settings.RequestBytes, Budget: budget,
		ShadowMode: s.ShadowMode, CalendarMonths: s.CalendarMonths, Traced: s.Tracing.Enabled, QuotaMode: s.QuotaMode, DynamicMetadata: s.DynamicMetadata, NearLimitRatio: s.NearLimitRatio,
		SpareOthers: s.SpareOthers, LocalCache: rls.NewLocalCache(s.LocalCacheSize), IETF: s.IETFHeaders,
	}
	o.Headers, _ = s.Headers.names(s.HeadersEnabled) // they were validated
	o.RequestHeaders, _ = s.Headers.names(s.RequestEnabled)
	return o
}

// graceTime is for calls in progress, after DRAIN_TIME.
const graceTime = 10 * time.Second

// serverOptions are those of the ports, which must be validated before.
func (s *flags) serverOptions(b settings.Budgets) server.Options {
	address := func(host string, port uint16) string { return net.JoinHostPort(bare(host), strconv.Itoa(int(port))) }
	o := server.Options{
		HTTP: address(s.Host, s.Port), GRPC: address(s.GRPCHost, s.GRPCPort), GRPCSocket: s.GRPCUDS,
		Debug: address(s.DebugHost, s.DebugPort), Caps: s.caps.Transport(), Budget: b.GRPC, HTTPBudget: b.HTTP,
		HTTPConnections: s.caps.HTTPConnections, DebugConnections: settings.DebugConnections,
		DrainTime: s.DrainTime, GraceTime: graceTime,
	}
	// Old connections end so that callers spread over new nodes.
	o.Caps.Age, o.Caps.AgeGrace = s.MaxConnAge, s.MaxConnAgeGrace
	if s.UsePrometheus {
		o.Metrics = s.PrometheusAddr
	}
	return o
}

// redacts reports whether values are hidden on the debug port: where others than this machine reach it, unless the
// setting says otherwise. Descriptor values may be API keys. A debug port on another address than loopback is open to a
// network.
func (s *flags) redacts() bool {
	if s.ConsoleRedact != nil {
		return *s.ConsoleRedact
	}
	return s.DebugHost != "localhost" && !net.ParseIP(bare(s.DebugHost)).IsLoopback()
}

// debugHosts are further names of the debug port.
func (s *flags) debugHosts() []string {
	return strings.FieldsFunc(s.DebugHosts, func(r rune) bool { return strings.ContainsRune(", ", r) })
}

// logLevels are the names LOG_LEVEL may have there, in any case. Names such as trace and fatal are those of
// envoyproxy/ratelimit. slog has four levels, so the next one stands for them.
var logLevels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
}

// logger writes lines of text or JSON. It never fails: names were validated.
func (s *flags) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[strings.ToLower(s.LogLevel)]}
	if strings.EqualFold(s.LogFormat, "json") {
		o.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
			if a.Value.Kind() == slog.KindDuration { // otherwise a number of nanoseconds
				a.Value = slog.StringValue(a.Value.Duration().String())
			}
			return a
		}
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

// serveCmd is a type of its own because sluice settings embeds the same flags, without --help-all.
type serveCmd struct {
	flags
	HelpAll settings.HelpAll `name:"help-all" help:"Show all settings."`
}

// bare is a host without the brackets that an IPv6 address may have.
func bare(host string) string { return strings.Trim(host, "[]") }
