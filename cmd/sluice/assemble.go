package main

import (
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/routing"
)

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
	svc := rls.New(p.store.Rules, p.limiter, p.clock, time.Now, p.latency, options, log)
	quotas := c.RLQS.node(p.store, p.limiter)
	p.shown = metrics.Collector{Source: metrics.Source{
		Store: p.store, Stats: &svc.Stats, Limiter: p.Stats, MaxKeys: c.MaxKeys, Version: version(), Seat: p.seat, Ring: ring, Budgets: budgets.all(),
		Safety: p.safety, RepliesRefused: p.refused.Load, Gate: gate, Quotas: quotas.Stats(),
	}}
	if p.spans, err = c.Tracing.start(log); err != nil {
		return nil, err
	}
	people := console.Source{Metrics: p.shown, Inspector: p.limiter, Clock: p.clock, Token: c.AdminToken, Nodes: p.who.all, Questions: c.Bounds.ExplainRate, Quotas: quotas, Log: log}
	p.server, err = c.open(svc, c.RLQS.service(quotas, clock, log), budgets, p.shown, people, p.latency, p.spans, gate, log)
	return p, err
}

func (c *serveCmd) open(svc *rls.Service, streams server.Streams, budgets budgets, shown metrics.Collector, people console.Source, latency prometheus.Collector, spans *tracing, gate *shed.Gate, log *slog.Logger) (*server.Server, error) {
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
	options.Extra, options.Streams = spans.grpc(), streams
	options.Gated = gated(gate, people.Clock)
	options.Note = seatNote(shown.Seat)
	var err error
	if options.TLS, err = c.TLS.credentials(log); err != nil {
		return nil, err
	}
	return server.New(svc, public, debug, only, options, log)
}
