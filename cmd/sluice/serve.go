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
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/sluice-gate/sluice/approx"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
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
	source := c.source()
	if c.ConfigType == configXDS {
		if source, err = c.XDS.client(log); err != nil {
			return err
		}
	}
	store := config.NewStore(source, config.Options{Coordination: coordination, MergeDomains: c.MergeDomains}, log)
	if err := store.Load(); err != nil && !c.ForceStart && c.ConfigType != configXDS { // which may come late
		return fmt.Errorf("the first rules are bad, and FORCE_START_WITHOUT_INITIAL_CONFIG is not set:\n%w", err)
	}
	if c.Ring.Peers == "" {
		warnOfModes(store.Rules(), log)
	}
	clock := ratelimit.MonotonicClock()
	limiter, seat, run, err := c.limiter(clock, store, log)
	if err != nil {
		return err
	}
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
		Store: store, Stats: &svc.Stats, Limiter: limiter.Stats, MaxKeys: c.MaxKeys, Version: version(), Seat: seat,
	}}
	v, err := c.open(svc, shown, latency, log)
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
	go keepHealthy(background, v, store, ring, c.ForceStart && !c.HealthyWithOne)
	left := make(chan struct{})
	go func() {
		defer close(left)
		<-drain.Done()
		if ring != nil { // others own its keys while it drains
			ctx, cancel := context.WithTimeout(hurry, leaveTime)
			defer cancel()
			ring.Leave(ctx)
		}
	}()
	announce(s.out, v, source)
	err = v.Serve(drain, hurry)
	if drain.Err() != nil {
		<-left
	}
	release() // after the last call: what is unspent goes back
	<-released
	uncount()
	<-flushed
	return err
}

// statsd sends counters until ctx is done, if that is asked for; the channel is
// closed when the last are sent.
func (c *serveCmd) statsd(ctx context.Context, shown metrics.Collector, latency prometheus.Metric, log *slog.Logger) <-chan struct{} {
	done := make(chan struct{})
	if !c.UseStatsd || c.DisableStats {
		close(done)
		return done
	}
	tags, _ := parseTags(c.ExtraTags) // it was validated
	s := &metrics.Statsd{
		Addr: net.JoinHostPort(c.StatsdHost, strconv.Itoa(int(c.StatsdPort))), Interval: c.StatsInterval, Tags: tags,
		Counters: shown.Counters, Latency: latency,
		OnError: seldom(time.Minute, func(err error) { log.Warn("counters are not sent; they will be when it is back", "error", err) }),
	}
	go func() {
		defer close(done)
		s.Run(ctx)
	}()
	return done
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

// limiter is what decides, and what must run for it to.
type limiter interface {
	ratelimit.Limiter
	Stats() ratelimit.LimiterStats
	SyncClock(ratelimit.Instant, time.Time)
}

// limiter chooses by REDIS_URL: leases from a shared ledger and a drift seat, or
// budgets in this process. run must run for it to decide; it returns when ctx
// is done and all is given back.
func (c *serveCmd) limiter(clock ratelimit.Clock, store *config.Store, log *slog.Logger) (l limiter, seat func() (int, bool), run func(context.Context), err error) {
	other, err := c.Redis.perSecond()
	if err != nil {
		return nil, nil, nil, err
	}
	if c.Redis.URL == "" {
		return leasing.NewLocal(c.MaxKeys, clock(), time.Now()), nil, func(context.Context) {}, nil
	}
	audit, err := c.audit(log)
	if err != nil {
		return nil, nil, nil, err
	}
	redis.SetLogger(redisLog{log})
	seats := func() int { return store.Rules().Seats() }
	usual, err := c.shared(&c.Redis, seats, audit, clock, log)
	if err != nil {
		return nil, nil, nil, err
	}
	if other == nil {
		return usual.Fleet, usual.keeper.Seat, usual.run, nil
	}
	brief, err := c.shared(other, seats, audit, clock, log)
	if err != nil {
		return nil, nil, nil, err
	}
	run = func(ctx context.Context) {
		var wg sync.WaitGroup
		wg.Go(func() { brief.run(ctx) })
		usual.run(ctx)
		wg.Wait()
	}
	return &byUnit{usual: usual.Fleet, brief: brief.Fleet}, usual.keeper.Seat, run, nil
}

// shared is a limiter over one Redis, with a drift seat there.
type shared struct {
	*leasing.Fleet
	keeper *approx.Keeper
	client redis.UniversalClient
	seats  func() int // that are wanted
}

func (c *serveCmd) shared(flags *redisFlags, seats func() int, audit func(leasing.Reconciliation), clock ratelimit.Clock, log *slog.Logger) (*shared, error) {
	client, err := flags.client()
	if err != nil {
		return nil, err
	}
	holder := leasing.NewHolder()
	f := leasing.NewFleet(leasing.NewRedis(client, flags.KeyPrefix), holder, c.MaxKeys, clock, time.Now())
	f.OnFailure = seldom(time.Second, func(err error) { log.Warn("the store does not answer", "of", flags.setting("URL"), "error", err) })
	f.OnReconcile = audit
	keeper := approx.NewKeeper(approx.NewRedis(client, flags.KeyPrefix), holder, clock)
	keeper.OnChange = logSeats(log)
	f.Drift = keeper
	return &shared{f, keeper, client, seats}, nil
}

// run claims and keeps a seat until ctx is done, and then gives all back.
func (s *shared) run(ctx context.Context) {
	var wg sync.WaitGroup
	wg.Go(func() { s.Run(ctx) })
	wg.Go(func() { s.keeper.Run(ctx, s.seats) })
	wg.Wait()
	s.keeper.Leave(context.Background(), !s.Drifting())
	_ = s.client.Close()
}

// logSeats says when this node gets or loses its drift seat.
func logSeats(log *slog.Logger) func(approx.Tenancy, error) {
	complain := seldom(10*time.Second, func(err error) { log.Warn("drift seats cannot be asked for", "error", err) })
	return func(t approx.Tenancy, err error) {
		switch {
		case err != nil:
			complain(err)
		case t.Seat < 0:
			log.Info("no drift seat: rules of mode approx run as leasing here")
		default:
			log.Info("drift seat taken", "seat", t.Seat, "fence", t.Fence, "windows_from", time.UnixMicro(int64(t.Taint)).UTC())
		}
	}
}

// seatNote is what /healthcheck says of a node that may not drift.
func seatNote(seat func() (int, bool)) func() string {
	return func() string {
		if seat == nil {
			return ""
		}
		if n, wanted := seat(); !wanted || n >= 0 {
			return ""
		}
		return "no drift seat (all max_nodes are taken, or the store does not answer): rules of mode approx run as leasing here"
	}
}

func (c *serveCmd) open(svc *service.Service, shown metrics.Collector, latency prometheus.Collector, log *slog.Logger) (*server.Server, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(shown, latency, collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	scrape := promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4})
	debug := server.Debug(shown.WriteRules, shown.WriteStats, shown.WriteRing, scrape)
	only := http.NewServeMux()
	only.Handle(c.PrometheusPath, scrape)
	public := http.NewServeMux()
	public.HandleFunc("/json", svc.ServeJSON)
	options := c.serverOptions()
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

// redisLog takes the client library's own lines at debug level.
type redisLog struct{ log *slog.Logger }

// Printf implements the library's logger.
func (l redisLog) Printf(ctx context.Context, format string, args ...any) {
	if l.log.Enabled(ctx, slog.LevelDebug) {
		l.log.DebugContext(ctx, fmt.Sprintf(format, args...))
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

// keepHealthy makes the server healthy once there are rules, or at once.
func keepHealthy(ctx context.Context, v *server.Server, store *config.Store, ring *routing.Router, always bool) {
	healthy := func() bool { return (always || store.Rules() != nil) && (ring == nil || ring.Ready()) }
	v.SetHealthy(healthy())
	every(ctx, 100*time.Millisecond, func() {
		if healthy() {
			v.SetHealthy(true)
		}
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
