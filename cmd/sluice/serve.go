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
	"github.com/sluice-gate/sluice/ratelimit/shed"
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
	log := c.logger(s.err)
	if names := inEnvironment(lookup, withoutEffect); len(names) > 0 {
		log.Warn("these settings have no effect in this version", "names", strings.Join(names, " "))
	}
	p, err := c.assemble(log)
	if err != nil {
		return err
	}
	defer p.spans.stop()
	return c.live(drain, hurry, p, s)
}

// parts are what a node is made of.
type parts struct {
	*decider
	ring    *routing.Router // nil: there is none
	source  config.Source
	store   *config.Store
	clock   ratelimit.Clock
	begun   ratelimit.Instant
	shown   metrics.Collector
	latency prometheus.Histogram
	spans   *tracing
	server  *server.Server
	log     *slog.Logger
}

// assemble makes the parts, and opens the ports last. Nothing runs yet.
func (c *serveCmd) assemble(log *slog.Logger) (*parts, error) {
	coordination, err := c.Coordination.coordination()
	if err != nil {
		return nil, err
	}
	clock := ratelimit.MonotonicClock()
	p := &parts{clock: clock, begun: clock(), latency: metrics.NewLatency(), log: log}
	if p.source, p.store, err = c.rules(coordination, log); err != nil {
		return nil, err
	}
	if p.decider, err = c.decider(p.clock, p.store, log); err != nil {
		return nil, err
	}
	var ring func() ratelimit.RoutingStats
	if c.Ring.Peers != "" {
		r, peered, err := c.Ring.route(&c.Bounds, p.limiter, p.run, p.clock, log)
		if err != nil {
			return nil, err
		}
		p.limiter, p.run, p.ring, ring = r, peered, r.Router, r.Router.Stats
	}
	budgets := c.Bounds.budgets()
	gate := c.gate()
	options := c.serviceOptions(budgets.http)
	options.Gate = gate
	svc := service.New(p.store.Rules, p.limiter, p.clock, time.Now, p.latency, options, log)
	p.shown = metrics.Collector{Source: metrics.Source{
		Store: p.store, Stats: &svc.Stats, Limiter: p.Stats, MaxKeys: c.MaxKeys, Version: version(), Seat: p.seat, Ring: ring, Budgets: budgets.all(),
		Safety: p.safety, RepliesRefused: p.refused.Load, Gate: gate,
	}}
	if p.spans, err = c.Tracing.start(log); err != nil {
		return nil, err
	}
	people := console.Source{Metrics: p.shown, Inspector: p.limiter, Clock: p.clock, Token: c.AdminToken, Nodes: p.who.all, Questions: c.Bounds.ExplainRate, Log: log}
	p.server, err = c.open(svc, budgets, p.shown, people, p.latency, p.spans, gate, log)
	return p, err
}

// storeSettles is how long a node that starts waits for its store to be heard of,
// and to know all again if it has just lost its data, before it is healthy. After
// that rules decide by on_store_failure.
const storeSettles = 5 * time.Second

// healthy tells whether the node can answer.
func (c *serveCmd) healthy(p *parts) bool {
	if !p.ready() && p.clock().Sub(p.begun) < storeSettles {
		return false
	}
	return (c.ForceStart && !c.HealthyWithOne || p.store.Rules() != nil) && (p.ring == nil || p.ring.Ready())
}

// live runs the parts until drain is done, and ends them one after the other.
func (c *serveCmd) live(drain, hurry context.Context, p *parts, s streams) error {
	background, stop := context.WithCancel(drain)
	defer stop()
	go followWallClock(background, p.limiter, p.clock)
	if tree, ok := p.source.(config.Tree); ok {
		go watch(background, p.store, tree, c.RuleBounds.Interval, p.log)
	}
	go pushed(background, p.source, p.store, p.log)
	healthy := func() bool { return c.healthy(p) }
	go keepHealthy(background, p.server, healthy)
	if c.Redis.HealthCheck {
		go watchStore(background, p.server, healthy, p.ping, p.log)
	}
	counting, uncount := context.WithCancel(context.Background())
	flushed := c.statsd(counting, p.shown, p.latency, p.log)
	claiming, release := context.WithCancel(context.Background())
	released := async(func() { p.run(claiming) })
	registered := async(func() { p.who.run(background, p.server, c.Ring.Addr) })
	left := leaveRing(drain, hurry, p.ring)
	announce(s.out, p.server, p.source)
	err := p.server.Serve(drain, hurry)
	if drain.Err() != nil {
		<-left
	}
	stop()
	<-registered
	release() // after the last call: what is unspent goes back
	<-released
	uncount()
	<-flushed
	return err
}

// async runs f; the channel is closed when it has ended.
func async(f func()) <-chan struct{} {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	return ended
}

// rules finds where rules come from, and reads the first.
func (c *serveCmd) rules(coordination ratelimit.Coordination, log *slog.Logger) (source config.Source, store *config.Store, err error) {
	source = c.source()
	if c.ConfigType == configXDS {
		if source, err = c.XDS.client(&c.RuleBounds, log); err != nil {
			return nil, nil, err
		}
	}
	store = config.NewStore(source, config.Options{Coordination: coordination, MergeDomains: c.MergeDomains, CalendarMonths: c.CalendarMonths, Bounds: c.RuleBounds.bounds()}, log)
	if c.RuleBounds.LastGood != "" {
		if err := store.KeepLastGood(c.RuleBounds.LastGood); err != nil {
			return nil, nil, fmt.Errorf("CONFIG_LAST_GOOD_FILE: %w", err)
		}
	}
	err = store.Load()
	if err != nil && c.RuleBounds.LastGood != "" {
		if err = store.LoadLastGood(err); err != nil {
			log.Warn("there are no last good rules to start with (CONFIG_LAST_GOOD_FILE)", "error", err)
		}
	}
	if err != nil && !c.ForceStart && c.ConfigType != configXDS { // which may come late
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
	return async(func() {
		<-drain.Done()
		if ring != nil {
			ctx, cancel := context.WithTimeout(hurry, leaveTime)
			defer cancel()
			ring.Leave(ctx)
		}
	})
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

func (c *serveCmd) open(svc *service.Service, budgets budgets, shown metrics.Collector, people console.Source, latency prometheus.Collector, spans *tracing, gate *shed.Gate, log *slog.Logger) (*server.Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(shown, latency, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scrape := shown.Handler(registry)
	debug := server.Debug(shown.WriteRules, shown.WriteStats, shown.WriteRing, scrape, c.debugOptions(), func(mux *http.ServeMux) { console.Register(mux, people) })
	only := http.NewServeMux()
	only.Handle(c.PrometheusPath, scrape)
	public := http.NewServeMux()
	public.Handle("/json", spans.http("/json", http.HandlerFunc(svc.ServeJSON)))
	options := c.serverOptions(budgets)
	options.Extra = spans.grpc()
	options.Gated = gated(gate, people.Clock)
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

func watch(ctx context.Context, store *config.Store, tree config.Tree, interval time.Duration, log *slog.Logger) {
	if err := store.Watch(ctx, tree, interval); err != nil {
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
