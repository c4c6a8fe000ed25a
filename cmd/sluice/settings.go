package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/sluice-gate/sluice/cmd/sluice/store"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/transport"
)

var groups = []kong.Group{
	{Key: "rules", Title: "Rules:"},
	{Key: "ports", Title: "Ports and connections:"},
	{Key: "answers", Title: "Answers:"},
	{Key: "coordination", Title: "Coordination (what a rule has when its file says nothing):"},
	{Key: "store", Title: "Store (shared by all nodes of a fleet):"},
	{Key: "peers", Title: "Peers (owners of keys, for mode routing):"},
	{Key: "limits", Title: "Resources:"},
	{Key: "log", Title: "Logs and metrics:"},
}

// settings are the server's, from flags and environment. Names, defaults and
// meaning are envoyproxy/ratelimit's where it has them.
type settings struct {
	settingsFile
	Config          string        `group:"rules" placeholder:"DIR|FILE" help:"Rules: a file, or a directory read recursively. Overrides RUNTIME_ROOT. Without either: a built-in example."`
	RuntimeRoot     string        `group:"rules" env:"RUNTIME_ROOT" placeholder:"DIR" help:"Root of the rules' directory (/srv/runtime_data/current if that is there)."`
	RuntimeSubdir   string        `group:"rules" env:"RUNTIME_SUBDIRECTORY" name:"runtime-subdirectory" placeholder:"DIR" help:"Below RUNTIME_ROOT."`
	RuntimeAppdir   string        `group:"rules" env:"RUNTIME_APPDIRECTORY" name:"runtime-appdirectory" default:"config" help:"Below RUNTIME_SUBDIRECTORY: the rules are in here."`
	IgnoreDotFiles  bool          `group:"rules" env:"RUNTIME_IGNOREDOTFILES" name:"runtime-ignoredotfiles" help:"Leave out files and directories that start with a dot."`
	WatchRoot       bool          `group:"rules" env:"RUNTIME_WATCH_ROOT" name:"runtime-watch-root" default:"true" negatable:"" help:"Where RUNTIME_ROOT is a link, reload only when it is swapped; false: at every change of a file."`
	ForceStart      bool          `group:"rules" env:"FORCE_START_WITHOUT_INITIAL_CONFIG" name:"force-start-without-initial-config" help:"Start even if the first rules are bad."`
	HealthyWithOne  bool          `group:"rules" env:"HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED" name:"healthy-with-at-least-one-config-loaded" help:"After a forced start, be healthy only once rules are loaded."`
	MergeDomains    bool          `group:"rules" env:"MERGE_DOMAIN_CONFIG" name:"merge-domain-config" help:"Join the descriptors of files with the same domain."`
	CalendarMonths  bool          `group:"rules" env:"USE_CALENDAR_MONTH_RATE_LIMIT" name:"use-calendar-month-rate-limit" help:"Windows of a month are those of the calendar, in UTC, not 30 days; for fixed_window."`
	ConfigType      string        `group:"rules" env:"CONFIG_TYPE" default:"FILE" help:"Where rules come from: FILE or GRPC_XDS_SOTW."`
	Host            string        `group:"ports" env:"HOST" default:"0.0.0.0" help:"Of the HTTP port: /json and /healthcheck."`
	Port            uint16        `group:"ports" env:"PORT" default:"8080" help:"Of HTTP."`
	GRPCHost        string        `group:"ports" env:"GRPC_HOST" name:"grpc-host" default:"0.0.0.0" help:"Of the gRPC port: RateLimitService v3, health, reflection."`
	GRPCPort        uint16        `group:"ports" env:"GRPC_PORT" name:"grpc-port" default:"8081" help:"Of gRPC."`
	GRPCUDS         string        `group:"ports" env:"GRPC_UDS" name:"grpc-uds" placeholder:"PATH" help:"Serve gRPC on this Unix socket instead."`
	DebugHost       string        `group:"ports" env:"DEBUG_HOST" default:"127.0.0.1" help:"Of the debug port: /console, /explain, /metrics, /rlconfig, /stats, /debug/pprof/."`
	DebugPort       uint16        `group:"ports" env:"DEBUG_PORT" default:"6070" help:"Of debug."`
	MaxConnAge      time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE" name:"grpc-max-connection-age" default:"24h" help:"After which a gRPC connection is asked to end."`
	MaxConnAgeGrace time.Duration `group:"ports" env:"GRPC_MAX_CONNECTION_AGE_GRACE" name:"grpc-max-connection-age-grace" default:"1h" help:"For calls that are under way then."`
	ConsoleRedact   *bool         `group:"ports" env:"CONSOLE_REDACT" help:"Replace the values of descriptors, such as API keys and addresses, by marks in the keys that the console, top and /ring show. Unset: true, unless DEBUG_HOST is a loopback address."`
	AdminToken      string        `group:"ports" env:"ADMIN_TOKEN" placeholder:"TOKEN" help:"Who has it may reset keys and drop leases on the debug port; unset: nobody."`
	DrainTime       time.Duration `group:"ports" env:"DRAIN_TIME" default:"5s" help:"On SIGTERM: how long calls are still served after health has failed."`
	GraceTime       time.Duration `group:"ports" env:"GRACE_TIME" default:"10s" help:"On SIGTERM: how long calls under way may take after that."`
	ShadowMode      bool          `group:"answers" env:"SHADOW_MODE" help:"Answer OK whatever the rules say; count as always."`
	QuotaMode       bool          `group:"answers" env:"QUOTA_MODE" help:"Treat every descriptor as one of quota_mode."`
	DynamicMetadata bool          `group:"answers" env:"RESPONSE_DYNAMIC_METADATA" name:"response-dynamic-metadata" help:"Put request and rule metadata into answers."`
	HeadersEnabled  bool          `group:"answers" env:"LIMIT_RESPONSE_HEADERS_ENABLED" name:"limit-response-headers-enabled" help:"Add the headers below to responses."`
	LimitHeader     string        `group:"answers" env:"LIMIT_LIMIT_HEADER" name:"limit-limit-header" default:"RateLimit-Limit" help:"The limit."`
	RemainingHeader string        `group:"answers" env:"LIMIT_REMAINING_HEADER" name:"limit-remaining-header" default:"RateLimit-Remaining" help:"What is left of it."`
	ResetHeader     string        `group:"answers" env:"LIMIT_RESET_HEADER" name:"limit-reset-header" default:"RateLimit-Reset" help:"Seconds until it is whole again."`
	SpareOthers     bool          `group:"answers" env:"STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT" name:"stop-cache-key-increment-when-overlimit" help:"A request that one descriptor refuses charges none of the others."`
	IETFHeaders     bool          `group:"answers" env:"LIMIT_IETF_HEADERS_ENABLED" name:"limit-ietf-headers-enabled" help:"Add RateLimit-Policy and RateLimit to responses, as draft-ietf-httpapi-ratelimit-headers-11 has them."`
	NearLimitRatio  float64       `group:"answers" env:"NEAR_LIMIT_RATIO" name:"near-limit-ratio" default:"0.8" help:"From which share of a limit on hits count as near it."`

	TLS          tlsFlags          `embed:"" group:"ports"`
	Callers      callerFlags       `embed:"" group:"ports"`
	RLQS         bool              `group:"ports" env:"RLQS" name:"rlqs" default:"true" negatable:"" help:"Serve the Rate Limit Quota Service on the gRPC port: Envoys that enforce limits themselves."`
	Holds        holdFlags         `embed:"" group:"coordination"`
	XDS          xdsFlags          `embed:"" group:"rules"`
	Reload       reloadFlags       `embed:"" group:"rules"`
	Tracing      tracingFlags      `embed:"" group:"log"`
	Coordination coordinationFlags `embed:"" group:"coordination"`
	Store        store.Flags       `embed:"" group:"store"`
	Ring         peerFlags         `embed:"" group:"peers"`
	caps         caps              // derived from the memory, before all else

	MaxMemory      string `group:"limits" env:"MAX_MEMORY" name:"max-memory" placeholder:"BYTES" help:"Memory for this process, such as 2GiB: keys, connections, requests in flight and rules have bounds in proportion. Unset: GOMEMLIMIT, the memory of the container, or up to 2 GiB of the machine."`
	MaxKeys        int    `group:"limits" env:"MAX_KEYS" default:"0" help:"Most keys tracked at once; 0: as many as have room in half of this process's memory (GOMEMLIMIT, or the container's), or in a quarter of the machine's: at most 10,000,000. A key takes at most 550 bytes on a node alone, usually 140, and 800 with a Redis, usually 220. Beyond it new keys share budgets: they may be refused early, and never get more than their limit."`
	DriftAuditFile string `group:"log" env:"DRIFT_AUDIT_FILE" name:"drift-audit-file" placeholder:"FILE" help:"Append what claims settle of drift as JSON lines; at 64 MB it is moved to FILE.1."`
	AuditFile      string `group:"log" env:"AUDIT_FILE" name:"audit-file" placeholder:"FILE" help:"Append what the ledger settles of rules with audit: true as JSON lines, before it is spent; at 64 MB it is moved to FILE.1. The ledger keeps a record of its own."`
	LogLevel       string `group:"log" env:"LOG_LEVEL" default:"info" help:"debug, info, warn or error."`
	LogFormat      string `group:"log" env:"LOG_FORMAT" default:"text" help:"text or json."`

	MaxWait time.Duration `group:"limits" env:"MAX_WAIT" default:"100ms" help:"Under overload: how long the callers wait for an answer that do not say so (grpc-timeout; Envoy does), and how much is believed of those that do. A call that would be answered too late for its caller is answered UNAVAILABLE at once, and nothing is charged. 0: all calls are begun, however late."`

	LocalCacheSize int64 `group:"log" env:"LOCAL_CACHE_SIZE_IN_BYTES" name:"local-cache-size-in-bytes" help:"Above 0: count refusals of keys that are known to be over as over_limit_with_local_cache, for as many keys as envoyproxy/ratelimit's cache of that size holds. Decides nothing."`
	LatencyMillis  bool  `group:"log" env:"PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS" name:"prometheus-response-time-as-milliseconds" help:"ratelimit_service_response_time_seconds is in milliseconds."`

	BackendType   string `group:"store" env:"BACKEND_TYPE" default:"redis" help:"redis, or memcache: which is refused, for there is no ledger in memcached yet, unless REDIS_URL is set or SINGLE_REPLICA."`
	SingleReplica bool   `group:"store" env:"SINGLE_REPLICA" help:"There is only this one replica, so that budgets in its memory are whole: allows BACKEND_TYPE=memcache without REDIS_URL."`

	UseStatsd     bool          `group:"log" env:"USE_STATSD" help:"Send counters to a statsd server, over TCP."`
	StatsdHost    string        `group:"log" env:"STATSD_HOST" default:"localhost" help:"For USE_STATSD."`
	StatsdPort    uint16        `group:"log" env:"STATSD_PORT" default:"8125" help:"For USE_STATSD."`
	StatsInterval time.Duration `group:"log" env:"STATS_FLUSH_INTERVAL" name:"stats-flush-interval" default:"10s" help:"For USE_STATSD: between two times."`
	ExtraTags     string        `group:"log" env:"EXTRA_TAGS" placeholder:"K:V,..." help:"For USE_STATSD: tags of every name."`
	DisableStats  bool          `group:"log" env:"DISABLE_STATS" help:"Overrules USE_STATSD."`

	UsePrometheus  bool   `group:"log" env:"USE_PROMETHEUS" help:"Serve metrics on PROMETHEUS_ADDR too; they are always on the debug port."`
	PrometheusAddr string `group:"log" env:"PROMETHEUS_ADDR" default:":9090" help:"For USE_PROMETHEUS."`
	PrometheusPath string `group:"log" env:"PROMETHEUS_PATH" default:"/metrics" help:"For USE_PROMETHEUS."`
}

// validate reports settings outside their bounds, with name and value.
func (s *settings) validate() error {
	var errs []error
	if s.MaxKeys < 0 || s.MaxKeys > 1<<30 {
		errs = append(errs, fmt.Errorf("MAX_KEYS is %d, must be 0 (from the memory), or between 1 and %d", s.MaxKeys, 1<<30))
	}
	if s.MaxWait != 0 && (s.MaxWait < time.Millisecond || s.MaxWait > time.Minute) {
		errs = append(errs, fmt.Errorf("MAX_WAIT is %v, must be 0 (never shed) or between 1ms and 1m", s.MaxWait))
	}
	if s.NearLimitRatio < 0 || s.NearLimitRatio > 1 {
		errs = append(errs, fmt.Errorf("NEAR_LIMIT_RATIO is %v, must be between 0 and 1", s.NearLimitRatio))
	}
	for name, d := range map[string]time.Duration{
		"DRAIN_TIME": s.DrainTime, "GRACE_TIME": s.GraceTime,
		"GRPC_MAX_CONNECTION_AGE": s.MaxConnAge, "GRPC_MAX_CONNECTION_AGE_GRACE": s.MaxConnAgeGrace,
	} {
		if d < 0 {
			errs = append(errs, fmt.Errorf("%s is %v, must not be negative", name, d))
		}
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
	if _, err := parseTags(s.ExtraTags); err != nil {
		errs = append(errs, err)
	}
	if err := errors.Join(s.Callers.validate(), s.Reload.validate()); err != nil {
		errs = append(errs, err)
	}
	if err := s.Tracing.validate(); err != nil {
		errs = append(errs, err)
	}
	errs = append(errs, s.validateBackend(), s.validateLocalCache())
	if s.ConfigType != "FILE" && s.ConfigType != configXDS {
		errs = append(errs, fmt.Errorf("CONFIG_TYPE is %q, must be FILE or %s", s.ConfigType, configXDS))
	}
	return errors.Join(errs...)
}

func (s *settings) serviceOptions(budget *transport.Budget) rls.Options {
	o := rls.Options{
		MaxRequestBytes: requestBytes, Budget: budget,
		ShadowMode: s.ShadowMode, CalendarMonths: s.CalendarMonths, Traced: s.Tracing.Enabled, QuotaMode: s.QuotaMode, DynamicMetadata: s.DynamicMetadata, NearLimitRatio: s.NearLimitRatio,
		SpareOthers: s.SpareOthers, LocalCache: rls.NewLocalCache(s.LocalCacheSize),
	}
	if s.HeadersEnabled {
		o.Headers = rls.HeaderNames{Limit: s.LimitHeader, Remaining: s.RemainingHeader, Reset: s.ResetHeader}
	}
	o.Headers.IETF = s.IETFHeaders
	return o
}

func (s *settings) serverOptions(b budgets) server.Options {
	address := func(host string, port uint16) string { return fmt.Sprintf("%s:%d", host, port) }
	o := server.Options{
		HTTP: address(s.Host, s.Port), GRPC: address(s.GRPCHost, s.GRPCPort), GRPCSocket: s.GRPCUDS,
		Debug: address(s.DebugHost, s.DebugPort), Caps: s.caps.transport(&s.Callers), Budget: b.grpc, HTTPBudget: b.http,
		HTTPConnections: s.caps.httpConnections, DebugConnections: debugConnections,
		DrainTime: s.DrainTime, GraceTime: s.GraceTime,
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

func (s *settings) logger(w io.Writer) *slog.Logger {
	o := &slog.HandlerOptions{Level: logLevels[strings.ToLower(s.LogLevel)]}
	if strings.EqualFold(s.LogFormat, "json") {
		return slog.New(slog.NewJSONHandler(w, o))
	}
	return slog.New(slog.NewTextHandler(w, o))
}
