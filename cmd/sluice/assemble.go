package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/console"
	"github.com/sluice-gate/sluice/ratelimit/holds"
	"github.com/sluice-gate/sluice/ratelimit/metrics"
	"github.com/sluice-gate/sluice/ratelimit/rlqs"
	"github.com/sluice-gate/sluice/ratelimit/rls"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/shed"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

// assembled are what a node is made of.
type assembled struct {
	*decider
	source  config.Source
	store   *config.Store
	clock   ratelimit.Clock
	shown   metrics.Collector
	latency *metrics.Latency
	spans   *tracing
	server  *server.Server
	log     *slog.Logger
	// What people see, and where peers find the node.
	people   console.Source
	peerAddr string
}

// name is the node's debug port, as others reach it.
func (p *assembled) name() string { return debugName(p.server, p.peerAddr) }

// registers adds the changing part of the registration, for people. It runs before each registration, which other
// nodes' consoles show.
func (p *assembled) registers(s *console.Node) {
	recent, wrong := p.people.History.Recent()
	s.Rules = p.store.Status().Fingerprint
	s.Rates = &recent
	s.Wrong = wrong
	s.Region = p.shown.Region
}

// assemble makes the parts, and opens the ports last. Nothing runs yet. The order is that of needs: rules and their
// limiter, then the services over both (RLS and RLQS), then the views of them (metrics, console), then ports. An error
// on the way ends the process, so nothing is closed here.
func (c *serveCmd) assemble(log *slog.Logger) (*assembled, error) {
	coordination, err := c.Coordination.Default()
	if err != nil {
		return nil, err
	}
	// The name of the histogram says seconds in both cases, because older dashboards of envoyproxy/ratelimit expect it
	// with milliseconds.
	unit := time.Second
	if c.LatencyMillis {
		unit = time.Millisecond
	}
	// One clock is read by all parts. It never goes back, and instants of different clocks must not be compared.
	p := &assembled{clock: ratelimit.MonotonicClock(), latency: metrics.NewLatency(unit), log: log}
	// The desk comes before the rules: whether rules may hold with an id is an input of their compilation.
	desk, noHolds, err := c.desk()
	if err != nil {
		return nil, err
	}
	p.source, p.store, err = c.rules(coordination, noHolds, log)
	if err != nil {
		return nil, err
	}
	p.decider, err = c.decider(p.clock, p.store, log)
	if err != nil {
		return nil, err
	}
	// A nil redactor shows all values.
	var redact *console.Redactor
	if c.redacts() {
		redact = console.NewRedactor()
	}
	// A nil ring leaves out the metrics of a ring. Hot keys have descriptor values in their names, so they are hidden
	// here, before metrics and /ring read them.
	var ring func() ratelimit.RoutingStats
	if p.ring != nil {
		ring = func() ratelimit.RoutingStats {
			s := p.ring.Stats()
			s.HotKeys, s.HotHere = redact.Accounts(s.HotKeys), redact.Accounts(s.HotHere)
			return s
		}
	}
	// gRPC and HTTP have budgets of their own. RLS reads bodies of /json under that of HTTP.
	budgets := c.caps.Budgets()
	var gate *shed.Gate // nil: all calls are begun
	if c.MaxWait > 0 {
		gate = shed.NewGate(c.MaxWait)
	}
	options := c.serviceOptions(budgets.HTTP)
	options.Gate, options.Holds = gate, desk
	svc := rls.New(p.store.Rules, p.NodeLimiter, p.clock, time.Now, p.latency, options, log)
	quotas := rlqs.NewNode(rlqs.Source{Rules: p.store.Rules, Limiter: p.NodeLimiter, Wall: time.Now, ShadowMode: c.ShadowMode}, c.caps.Quotas())
	p.shown = metrics.Collector{
		Store: p.store, Stats: &svc.Stats, Limiter: p.Stats, MaxKeys: c.MaxKeys, Version: version(), Region: c.Ring.Region, Seat: p.seat, Ring: ring, Budgets: budgets.All(),
		Safety: p.safety, StoreNow: p.now, Gate: gate, LocalCache: options.LocalCache, Pool: p.pool, Quotas: quotas.Stats(),
		Overrides: new(metrics.OverrideChanges), Mapping: c.mapping(log),
	}
	// Without TLS there are no certificates to count, and statsd gets no names for them.
	if c.TLS.Use {
		p.shown.Certificates = new(metrics.Loads)
	}
	p.spans, err = c.Tracing.start(log)
	if err != nil {
		return nil, err
	}
	// The decider has checked PEER_ADDR, and brought it into the form that peers use.
	p.peerAddr = c.Ring.Addr
	p.people = console.Source{
		Metrics: p.shown, Inspector: p.NodeLimiter, Overrides: p.overrides, Clock: p.clock, Token: strings.TrimSpace(c.AdminToken), Nodes: p.who.all, Remove: p.who.remove, Name: p.name, Log: log,
		Quotas: quotas, History: console.NewHistory(p.shown, p.latency, p.who.all), Redact: redact, ShadowMode: c.ShadowMode,
	}
	p.server, err = c.open(p, svc, rlqs.NewService(quotas, p.clock), budgets, gate)
	return p, err
}

// open opens the ports of the parts. The debug port has the console and /metrics. The public HTTP port has /json alone,
// and the metrics port (PROMETHEUS_ADDR) has metrics alone.
func (c *serveCmd) open(p *assembled, svc *rls.Service, streams server.Streams, budgets settings.Budgets, gate *shed.Gate) (*server.Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(p.shown, p.latency, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scrape := p.shown.Handler(registry)
	debug := server.Debug(map[string]func(io.Writer){
		"/rlconfig": p.shown.WriteRules, "/stats": p.shown.WriteStats, "/ring": p.shown.WriteRing,
	}, scrape, c.debugHosts(), func(mux *http.ServeMux) { console.Register(mux, p.people) })
	only := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != c.PrometheusPath { // which may have braces, that a pattern may not
			http.NotFound(w, r)
			return
		}
		scrape.ServeHTTP(w, r)
	})
	public := http.NewServeMux()
	public.Handle("/json", p.spans.http("/json", http.HandlerFunc(svc.ServeJSON)))
	// Handlers are made first, because server.New opens the ports at once.
	options := c.serverOptions(budgets)
	options.Spans, options.Streams = p.spans.calls(), streams
	if gate != nil {
		options.Gate = gate.Before(p.clock)
	}
	options.Note = seatNote(p.shown.Seat)
	var err error
	options.TLS, err = c.TLS.credentials(p.shown.Certificates, p.log)
	if err != nil {
		return nil, err
	}
	return server.New(svc, public, debug, only, options, p.log)
}

// desk makes the desk where holds are made and settled. noKeys says why rules may not hold; nil: they may. A hold is a
// signed text in the hands of the caller, which any node of the fleet may settle. So all nodes must verify it by the
// same keys: those of HOLD_KEYS, or a key from PEER_SECRET. A node without a fleet takes a random key.
func (c *serveCmd) desk() (d *holds.Desk, noKeys, err error) {
	d = new(holds.Desk)
	switch name, file := c.Holds.file(); {
	case file:
		c.Holds.read = &upkeep.FileValue[time.Time]{Files: []string{name}, Read: func(now time.Time) (time.Time, error) { return now, readKeys(name, d) }}
		if err := c.Holds.read.Load(time.Now()); err != nil {
			return nil, nil, err
		}
	case c.Holds.Keys != "":
		if err := d.Set(c.Holds.Keys); err != nil {
			return nil, nil, fmt.Errorf("HOLD_KEYS: %w", err)
		}
	case c.Ring.Peers != "" && c.Ring.Secret != "":
		d.SetOne([]byte(c.Ring.Secret))
	case c.Store.Shared() || c.Ring.Peers != "":
		return d, errNoHoldKeys, nil
	default: // budgets end with this process, and so do holds
		d.SetOne([]byte(rand.Text()))
	}
	return d, nil, nil
}
