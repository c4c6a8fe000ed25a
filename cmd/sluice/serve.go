package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/service"
	"github.com/sluice-gate/sluice/routing"
)

type serveCmd struct {
	settings
}

// Run serves until SIGTERM (drains) or SIGINT (stops at once).
func (c *serveCmd) Run(s streams) error {
	drain, cancel := context.WithCancel(context.Background())
	defer cancel()
	hurry, rush := context.WithCancel(context.Background())
	defer rush()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	go func() {
		for sig := range signals {
			if sig == syscall.SIGINT || drain.Err() != nil { // or a second SIGTERM
				rush()
			}
			cancel()
		}
	}()
	return c.serve(drain, hurry, s, os.LookupEnv)
}

func (c *serveCmd) serve(drain, hurry context.Context, s streams, lookup func(string) (string, bool)) error {
	if err := c.validate(); err != nil {
		return err
	}
	coordination, err := c.Coordination.coordination()
	if err != nil {
		return err
	}
	log := c.logger(s.err)
	if names := inEnvironment(lookup, withoutEffect); len(names) > 0 {
		log.Warn("these settings have no effect in this version", "names", strings.Join(names, " "))
	}
	source, store, err := c.rules(coordination, log)
	if err != nil {
		return err
	}
	clock := ratelimit.MonotonicClock()
	decider, err := c.decider(clock, store, log)
	if err != nil {
		return err
	}
	limiter, run := decider.limiter, decider.run
	var ring *routing.Router
	if c.Ring.Peers != "" {
		r, peered, err := c.Ring.route(limiter, run, clock, log)
		if err != nil {
			return err
		}
		limiter, run, ring = r, peered, r.Router
	}
	latency := metrics.NewLatency()
	svc := service.New(store.Rules, limiter, clock, time.Now, latency, c.serviceOptions(), log)
	var ringStats func() ratelimit.RoutingStats
	if ring != nil {
		ringStats = ring.Stats
	}
	shown := metrics.Collector{Source: metrics.Source{
		Ring:  ringStats,
		Store: store, Stats: &svc.Stats, Limiter: limiter.Stats, MaxKeys: c.MaxKeys, Version: version(), Seat: decider.seat,
	}}
	spans, err := c.Tracing.start(log)
	if err != nil {
		return err
	}
	defer spans.stop()
	v, err := c.open(svc, shown, console.Source{Metrics: shown, Inspector: limiter, Clock: clock, Token: c.AdminToken, Nodes: decider.who.all, Log: log}, latency, spans, log)
	if err != nil {
		return err
	}
	background, stop := context.WithCancel(drain)
	defer stop()
	go followWallClock(background, limiter, clock)
	if tree, ok := source.(config.Tree); ok {
		go watch(background, store, tree, log)
	}
	counting, uncount := context.WithCancel(context.Background())
	flushed := c.statsd(counting, shown, latency, log)
	go pushed(background, source, store, log)
	claiming, release := context.WithCancel(context.Background())
	released := make(chan struct{})
	go func() {
		defer close(released)
		run(claiming)
	}()
	healthy := func() bool {
		return (c.ForceStart && !c.HealthyWithOne || store.Rules() != nil) && (ring == nil || ring.Ready())
	}
	go keepHealthy(background, v, healthy)
	if c.Redis.HealthCheck {
		go watchStore(background, v, healthy, decider.ping, log)
	}
	registered := make(chan struct{})
	go func() {
		defer close(registered)
		if decider.who != nil {
			_, _, debug := v.Addresses()
			decider.who.run(background, debug, c.Ring.Addr)
		}
	}()
	left := leaveRing(drain, hurry, ring)
	announce(s.out, v, source)
	err = v.Serve(drain, hurry)
	if drain.Err() != nil {
		<-left
	}
	<-registered
	release() // after the last call: what is unspent goes back
	<-released
	uncount()
	<-flushed
	return err
}

// rules finds where rules come from, and reads the first.
func (c *serveCmd) rules(coordination ratelimit.Coordination, log *slog.Logger) (source config.Source, store *config.Store, err error) {
	source = c.source()
	if c.ConfigType == configXDS {
		if source, err = c.XDS.client(log); err != nil {
			return nil, nil, err
		}
	}
	store = config.NewStore(source, config.Options{Coordination: coordination, MergeDomains: c.MergeDomains, CalendarMonths: c.CalendarMonths}, log)
	if err := store.Load(); err != nil && !c.ForceStart && c.ConfigType != configXDS { // which may come late
		return nil, nil, fmt.Errorf("the first rules are bad, and FORCE_START_WITHOUT_INITIAL_CONFIG is not set:\n%w", err)
	}
	if c.Ring.Peers == "" {
		warnOfModes(store.Rules(), log)
	}
	return source, store, nil
}

// leaveRing has others own this node's keys while it drains. The channel is
// closed when they do.
func leaveRing(drain, hurry context.Context, ring *routing.Router) <-chan struct{} {
	left := make(chan struct{})
	go func() {
		defer close(left)
		<-drain.Done()
		if ring != nil {
			ctx, cancel := context.WithTimeout(hurry, leaveTime)
			defer cancel()
			ring.Leave(ctx)
		}
	}()
	return left
}

// warnOfModes says which rules ask for owners that nobody named.
func warnOfModes(rules *config.Rules, log *slog.Logger) {
	for _, r := range rules.All() {
		if r.Coordination.Mode == ratelimit.Routing {
			log.Warn("PEERS is not set: mode routing runs as leasing", "first", r.Domain+"."+r.Path, "mode", r.Coordination.Mode.String())
			return
		}
	}
}

func (c *serveCmd) open(svc *service.Service, shown metrics.Collector, people console.Source, latency prometheus.Collector, spans *tracing, log *slog.Logger) (*server.Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(shown, latency, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scrape := shown.Handler(registry)
	debug := server.Debug(shown.WriteRules, shown.WriteStats, shown.WriteRing, scrape, func(mux *http.ServeMux) { console.Register(mux, people) })
	only := http.NewServeMux()
	only.Handle(c.PrometheusPath, scrape)
	public := http.NewServeMux()
	public.Handle("/json", spans.http("/json", http.HandlerFunc(svc.ServeJSON)))
	options := c.serverOptions()
	options.Extra = spans.grpc()
	options.Note = seatNote(shown.Seat)
	var err error
	if options.TLS, err = c.TLS.credentials(log); err != nil {
		return nil, err
	}
	return server.New(svc, public, debug, only, options, log)
}

// seldom calls f, but not again for a while.
func seldom(d time.Duration, f func(error)) func(error) {
	var next atomic.Int64
	return func(err error) {
		now := time.Now().UnixNano()
		if due := next.Load(); now >= due && next.CompareAndSwap(due, now+int64(d)) {
			f(err)
		}
	}
}

// followWallClock keeps windows on the wall clock through its corrections.
func followWallClock(ctx context.Context, l limiter, clock ratelimit.Clock) {
	every(ctx, time.Second, func() { l.SyncClock(clock(), time.Now()) })
}

func watch(ctx context.Context, store *config.Store, tree config.Tree, log *slog.Logger) {
	if err := store.Watch(ctx, tree); err != nil {
		log.Error("rules are no longer reloaded", "error", err)
	}
}

// keepHealthy makes the server healthy once it is ready.
func keepHealthy(ctx context.Context, v *server.Server, healthy func() bool) {
	ctx, ready := context.WithCancel(ctx)
	defer ready()
	v.SetHealthy(healthy())
	every(ctx, 100*time.Millisecond, func() {
		if healthy() {
			v.SetHealthy(true)
			ready()
		}
	})
}

// watchStore has health follow the store: REDIS_HEALTH_CHECK_ACTIVE_CONNECTION.
func watchStore(ctx context.Context, v *server.Server, healthy func() bool, ping func(context.Context) error, log *slog.Logger) {
	up := true
	every(ctx, 250*time.Millisecond, func() {
		bounded, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		err := ping(bounded)
		if now := err == nil; now != up && ctx.Err() == nil {
			up = now
			log.Warn("health follows the store (REDIS_HEALTH_CHECK_ACTIVE_CONNECTION)", "up", up, "error", err)
		}
		v.SetHealthy(up && healthy())
	})
}

func every(ctx context.Context, d time.Duration, f func()) {
	t := time.NewTicker(d)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			f()
		}
	}
}

func announce(w io.Writer, v *server.Server, source config.Source) {
	web, rpc, debug := v.Addresses()
	fmt.Fprintf(w, "sluice %s: HTTP on %s, gRPC on %s, debug on %s\n", version(), web, rpc, debug)
	if _, builtIn := source.(config.Static); !builtIn {
		return
	}
	_, port, err := net.SplitHostPort(web.String())
	if err != nil {
		return
	}
	fmt.Fprintf(w, "serving the built-in example (3 requests an hour for each user); your own rules: --config DIR|FILE. Try, four times:\n\n  curl -s -o /dev/null -w '%%{http_code}\\n' localhost:%s/json -d '%s'\n\n", port, exampleRequest)
}
