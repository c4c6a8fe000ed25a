package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http/httpguts"

	"github.com/sluice-gate/sluice/cmd/sluice/coordination"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/cmd/sluice/sizing"
	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

// flags are the server's, from flags and environment. Names, defaults and
// meaning are envoyproxy/ratelimit's where it has them.
type flags struct {
	File            settings.File `group:"rules" name:"settings" placeholder:"FILE" help:"YAML file of settings, such as store: {redis_url: redis:6379}. The command 'sluice settings' prints the names and sections. Flags and the environment override it."`
	Config          string        `group:"rules" placeholder:"DIR|FILE" help:"Rules: a file, or a directory with subdirectories. Overrides RUNTIME_ROOT. Default without both: a built-in example."`
	RuntimeRoot     string        `group:"rules" env:"RUNTIME_ROOT" placeholder:"DIR" help:"Root of the rules directory. Default: /srv/runtime_data/current, if it exists."`
	RuntimeSubdir   string        `group:"rules" env:"RUNTIME_SUBDIRECTORY" name:"runtime-subdirectory" placeholder:"DIR" help:"Directory below RUNTIME_ROOT."`
	RuntimeAppdir   string        `group:"rules" env:"RUNTIME_APPDIRECTORY" name:"runtime-appdirectory" default:"config" help:"Directory of the rules, below RUNTIME_SUBDIRECTORY."`
	IgnoreDotFiles  bool          `group:"rules" env:"RUNTIME_IGNOREDOTFILES" name:"runtime-ignoredotfiles" help:"Skip files and directories that start with a dot."`
	WatchRoot       bool          `group:"rules" env:"RUNTIME_WATCH_ROOT" name:"runtime-watch-root" default:"true" negatable:"" help:"If RUNTIME_ROOT is a link, reload only when the link changes. false: reload at each change of a file."`
	ForceStart      bool          `group:"rules" env:"FORCE_START_WITHOUT_INITIAL_CONFIG" name:"force-start-without-initial-config" help:"Start also with bad first rules. Calls then fail."`
	HealthyWithOne  bool          `group:"rules" env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" name:"healthy-with-at-least-one-config-loaded" help:"Report health only once a domain has rules."`
	MergeDomains    bool          `group:"rules" env:"MERGE_DOMAIN_CONFIG" name:"merge-domain-config" help:"Merge descriptors of files with the same domain."`
	CalendarMonths  bool          `group:"rules" env:"USE_CALENDAR_MONTH_RATE_LIMIT" name:"use-calendar-month-rate-limit" help:"Use calendar months in UTC instead of 30 days, for fixed_window."`
	ConfigType      string        `group:"rules" env:"CONFIG_TYPE" default:"FILE" help:"Source of rules: FILE or GRPC_XDS_SOTW."`
	Host            string        `group:"ports" env:"HOST" default:"0.0.0.0" help:"Address of the HTTP port: /json and /healthcheck."`
	Port            uint16        `group:"ports" env:"PORT" default:"8080" help:"HTTP port."`
	GRPCHost        string        `group:"ports" env:"GRPC_HOST" name:"grpc-host" default:"0.0.0.0" help:"Address of the gRPC port: RateLimitService v3, health, reflection."`
	GRPCPort        uint16        `group:"ports" env:"GRPC_PORT" name:"grpc-port" default:"8081" help:"gRPC port."`
	GRPCUDS         string        `group:"ports" env:"GRPC_UDS" name:"grpc-uds" placeholder:"PATH" help:"Unix socket for gRPC, instead of the port."`
	DebugHost       string        `group:"ports" env:"DEBUG_HOST" default:"127.0.0.1" help:"Address of the debug port: /console, /explain, /metrics, /rlconfig, /stats, /debug/pprof/."`
	DebugPort       uint16        `group:"ports" env:"DEBUG_PORT" default:"6070" help:"Debug port."`
	MaxConnAge      time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE" name:"grpc-max-connection-age" default:"24h" help:"Maximum age of a gRPC connection. Then it is asked to close."`
	MaxConnAgeGrace time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE_GRACE" name:"grpc-max-connection-age-grace" default:"1h" help:"Time for calls in progress after GRPC_MAX_CONNECTION_AGE. Then the connection is closed."`
	ConsoleRedact   *bool         `group:"ports" env:"CONSOLE_REDACT" help:"Show marks instead of descriptor values, such as API keys, on the console, in top and in /ring. Default: true, unless DEBUG_HOST is a loopback address."`
	AdminToken      string        `group:"ports" env:"ADMIN_TOKEN" placeholder:"TOKEN" help:"Token for changes on the debug port: resets of keys, drops of leases, and overrides of limits. Default: no changes."`
	DrainTime       time.Duration `group:"ports" env:"DRAIN_TIME" default:"5s" help:"Time after SIGTERM in which health checks fail and the node still answers calls. Then it returns its leases."`
	ShadowMode      bool          `group:"answers" env:"SHADOW_MODE" help:"Answer OK to all requests, and count as usual."`
	QuotaMode       bool          `group:"answers" env:"QUOTA_MODE" help:"Treat all descriptors as quota_mode."`
	DynamicMetadata bool          `group:"answers" env:"RESPONSE_DYNAMIC_METADATA" name:"response-dynamic-metadata" help:"Add metadata of requests and rules to answers."`
	HeadersEnabled  bool          `group:"answers" env:"LIMIT_RESPONSE_HEADERS_ENABLED" name:"limit-response-headers-enabled" help:"Add the headers RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to responses. LIMIT_LIMIT_HEADER, LIMIT_REMAINING_HEADER and LIMIT_RESET_HEADER rename them."`
	LimitHeader     string        `group:"answers" env:"LIMIT_LIMIT_HEADER" name:"limit-limit-header" default:"RateLimit-Limit" help:"Header for the limit."`
	RemainingHeader string        `group:"answers" env:"LIMIT_REMAINING_HEADER" name:"limit-remaining-header" default:"RateLimit-Remaining" help:"Header for the remaining tokens."`
	ResetHeader     string        `group:"answers" env:"LIMIT_RESET_HEADER" name:"limit-reset-header" default:"RateLimit-Reset" help:"Header for the seconds until the limit resets."`
	SpareOthers     bool          `group:"answers" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" name:"stop-cache-key-increment-when-overlimit" help:"If one descriptor refuses a request, charge none of the others."`
	IETFHeaders     bool          `group:"answers" env:"LIMIT_IETF_HEADERS_ENABLED" name:"limit-ietf-headers-enabled" help:"Add RateLimit-Policy and RateLimit to responses (draft-ietf-httpapi-ratelimit-headers-11)."`
	NearLimitRatio  float64       `group:"answers" env:"NEAR_LIMIT_RATIO" name:"near-limit-ratio" default:"0.8" help:"Part of a limit above which hits count as near_limit, 0 to 1."`

	TLS          tlsFlags           `embed:"" group:"ports"`
	DebugHosts   string             `group:"ports" env:"DEBUG_ALLOWED_HOSTS" name:"debug-allowed-hosts" placeholder:"NAME,..." help:"Host names of the debug port, in addition to addresses, names without a dot, and .localhost, .local, .internal, .svc, .cluster.local. *: all. Other names are refused, against DNS rebinding."`
	Holds        holdFlags          `embed:"" group:"coordination"`
	XDS          xdsFlags           `embed:"" group:"rules"`
	LastGood     string             `group:"rules" env:"CONFIG_LAST_GOOD_FILE" name:"config-last-good-file" placeholder:"FILE" help:"File for a copy of the last good rules. The node starts with it if the rules are bad or missing. Use one for each node, outside of the rules directory."`
	Tracing      tracingFlags       `embed:"" group:"log"`
	Coordination coordination.Flags `embed:"" group:"coordination"`
	Store        store.Flags        `embed:"" group:"store"`
	Ring         peerFlags          `embed:"" group:"peers"`
	caps         sizing.Caps        // derived from the memory, before all else

	MaxMemory string `group:"limits" env:"MAX_MEMORY" name:"max-memory" placeholder:"BYTES" help:"Memory for this process, such as 2GiB. The node derives its maximum of keys, connections, requests in flight and rules from it. Default: GOMEMLIMIT, else the limit of the container, else the memory of the machine but at most 2 GiB."`
	MaxKeys   int    `group:"limits" env:"MAX_KEYS" default:"0" help:"Maximum of tracked keys (0: as many as half of the memory of the process or container, or a quarter of the machine's, can hold, up to 10,000,000). Without a store, further keys share accounts, and may be refused early. With one, the node limits each alone, as under local, or refuses it under closed."`
	AuditFile string `group:"log" env:"AUDIT_FILE" name:"audit-file" placeholder:"FILE" help:"File for the record of audited rules as JSON lines, written before tokens are spent. At 64 MB it moves to FILE.1. The store keeps its own record."`
	LogLevel  string `group:"log" env:"LOG_LEVEL" default:"info" help:"Log level: debug, info, warn or error."`
	LogFormat string `group:"log" env:"LOG_FORMAT" default:"text" help:"Log format: text or json."`

	MaxWait time.Duration `group:"limits" env:"MAX_WAIT" default:"100ms" help:"Wait of callers that send no deadline, and upper bound of deadlines (grpc-timeout). Under overload, calls that would be answered too late are rejected at once. 0: no call is rejected."`

	LocalCacheSize int64 `group:"log" env:"LOCAL_CACHE_SIZE_IN_BYTES" name:"local-cache-size-in-bytes" help:"Size of envoyproxy/ratelimit's local cache in bytes, for the counter over_limit_with_local_cache (0: no counter). It changes no decision."`
	LatencyMillis  bool  `group:"log" env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" name:"prometheus-response-time-as-milliseconds" help:"Report ratelimit_service_response_time_seconds in milliseconds. The alerts here expect seconds."`

	BackendType string `group:"store" env:"BACKEND_TYPE" default:"redis" help:"Backend of envoyproxy/ratelimit: redis. memcache is refused, unless REDIS_URL or COORDINATION_MAX_NODES=1 is set."`

	UseStatsd     bool          `group:"log" env:"USE_STATSD" help:"Send counters to a statsd server over TCP."`
	StatsdHost    string        `group:"log" env:"STATSD_HOST" default:"localhost" help:"Host of the statsd server."`
	StatsdPort    uint16        `group:"log" env:"STATSD_PORT" default:"8125" help:"Port of the statsd server."`
	StatsInterval time.Duration `group:"log" env:"STATS_FLUSH_INTERVAL" name:"stats-flush-interval" default:"10s" help:"Time between two messages to statsd."`
	ExtraTags     string        `group:"log" env:"EXTRA_TAGS" placeholder:"K:V,..." help:"Tags of all statsd names."`
	DisableStats  bool          `group:"log" env:"DISABLE_STATS" help:"Turn statsd off. Overrides USE_STATSD."`

	UsePrometheus  bool   `group:"log" env:"USE_PROMETHEUS" help:"Serve metrics on PROMETHEUS_ADDR too. The debug port always serves them."`
	PrometheusAddr string `group:"log" env:"PROMETHEUS_ADDR" default:":9090" help:"Address for USE_PROMETHEUS."`
	PrometheusPath string `group:"log" env:"PROMETHEUS_PATH" default:"/metrics" help:"Path for USE_PROMETHEUS."`
}

// validate reports settings outside their bounds, with name and value.
func (s *flags) validate() error {
	var errs []error
	if s.MaxKeys < 0 || s.MaxKeys > 1<<30 {
		errs = append(errs, fmt.Errorf("MAX_KEYS is %d, must be 0 (from the memory), or between 1 and %d", s.MaxKeys, 1<<30))
	}
	if s.MaxWait != 0 && (s.MaxWait < time.Millisecond || s.MaxWait > time.Minute) {
		errs = append(errs, fmt.Errorf("MAX_WAIT is %v, must be 0 (never shed) or between 1ms and 1m", s.MaxWait))
	}
	if !(s.NearLimitRatio >= 0 && s.NearLimitRatio <= 1) { // a NaN, too
		errs = append(errs, fmt.Errorf("NEAR_LIMIT_RATIO is %v, must be between 0 and 1", s.NearLimitRatio))
	}
	for name, d := range map[string]time.Duration{
		"DRAIN_TIME":              s.DrainTime,
		"GRPC_MAX_CONNECTION_AGE": s.MaxConnAge, "GRPC_MAX_CONNECTION_AGE_GRACE": s.MaxConnAgeGrace,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", name, d))
		}
	}
	for name, header := range map[string]string{
		"LIMIT_LIMIT_HEADER": s.LimitHeader, "LIMIT_REMAINING_HEADER": s.RemainingHeader, "LIMIT_RESET_HEADER": s.ResetHeader,
	} {
		if s.HeadersEnabled && !httpguts.ValidHeaderFieldName(header) {
			errs = append(errs, fmt.Errorf("%s is %q, must be the name of a header", name, header))
		}
	}
	if !strings.HasPrefix(s.PrometheusPath, "/") {
		errs = append(errs, fmt.Errorf("PROMETHEUS_PATH is %q, must begin with /", s.PrometheusPath))
	}
	if _, ok := logLevels[strings.ToLower(s.LogLevel)]; !ok {
		errs = append(errs, fmt.Errorf("LOG_LEVEL is %q, must be debug, info, warn or error", s.LogLevel))
	}
	if f := strings.ToLower(s.LogFormat); f != "text" && f != "json" {
		errs = append(errs, fmt.Errorf("LOG_FORMAT is %q, must be text or json", s.LogFormat))
	}
	if s.UseStatsd && s.StatsInterval < time.Millisecond {
		errs = append(errs, fmt.Errorf("STATS_FLUSH_INTERVAL is %v, must be at least 1ms", s.StatsInterval))
	}
	_, badTags := s.tags()
	errs = append(errs, badTags, s.Tracing.validate())
	if s.LocalCacheSize < 0 {
		errs = append(errs, fmt.Errorf("LOCAL_CACHE_SIZE_IN_BYTES is %d, must be 0 (off) or more", s.LocalCacheSize))
	}
	errs = append(errs, s.validateBackend())
	if s.ConfigType != "FILE" && s.ConfigType != configXDS {
		errs = append(errs, fmt.Errorf("CONFIG_TYPE is %q, must be FILE or %s", s.ConfigType, configXDS))
	}
	return errors.Join(errs...)
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

func (s *flags) serviceOptions(budget *transport.Budget) rls.Options {
	o := rls.Options{
		MaxRequestBytes: sizing.RequestBytes, Budget: budget,
		ShadowMode: s.ShadowMode, CalendarMonths: s.CalendarMonths, Traced: s.Tracing.Enabled, QuotaMode: s.QuotaMode, DynamicMetadata: s.DynamicMetadata, NearLimitRatio: s.NearLimitRatio,
		SpareOthers: s.SpareOthers, LocalCache: rls.NewLocalCache(s.LocalCacheSize),
	}
	if s.HeadersEnabled {
		o.Headers = rls.HeaderNames{Limit: s.LimitHeader, Remaining: s.RemainingHeader, Reset: s.ResetHeader}
	}
	o.Headers.IETF = s.IETFHeaders
	return o
}

// graceTime is for calls in progress, after DRAIN_TIME.
const graceTime = 10 * time.Second

func (s *flags) serverOptions(b sizing.Budgets) server.Options {
	address := func(host string, port uint16) string { return net.JoinHostPort(bare(host), strconv.Itoa(int(port))) }
	o := server.Options{
		HTTP: address(s.Host, s.Port), GRPC: address(s.GRPCHost, s.GRPCPort), GRPCSocket: s.GRPCUDS,
		Debug: address(s.DebugHost, s.DebugPort), Caps: s.caps.Transport(), Budget: b.GRPC, HTTPBudget: b.HTTP,
		HTTPConnections: s.caps.HTTPConnections, DebugConnections: sizing.DebugConnections,
		DrainTime: s.DrainTime, GraceTime: graceTime,
	}
	o.Caps.Age, o.Caps.AgeGrace = s.MaxConnAge, s.MaxConnAgeGrace
	if s.UsePrometheus {
		o.Metrics = s.PrometheusAddr
	}
	return o
}

// logLevels are the names LOG_LEVEL may have there, in any case.
var logLevels = map[string]slog.Level{
	"trace": slog.LevelDebug, "debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "warning": slog.LevelWarn,
	"error": slog.LevelError, "fatal": slog.LevelError, "panic": slog.LevelError,
}

func (s *flags) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[strings.ToLower(s.LogLevel)]}
	if strings.EqualFold(s.LogFormat, "json") {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}

type serveCmd struct {
	flags
	HelpAll settings.HelpAll `name:"help-all" help:"Show all settings."`
}

// bare is a host without the brackets that an IPv6 address may have.
func bare(host string) string { return strings.Trim(host, "[]") }
