package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/cmd/sluice/settings"
	"github.com/sluice-gate/sluice/leasing"
	"github.com/sluice-gate/sluice/leasing/local"
	"github.com/sluice-gate/sluice/ratelimit"
	"github.com/sluice-gate/sluice/ratelimit/config"
	"github.com/sluice-gate/sluice/ratelimit/server"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
	"github.com/sluice-gate/sluice/routing"
)

// Run serves until SIGTERM or SIGHUP (drains), or SIGINT (stops at once). After nohup, SIGHUP stays ignored.
//
// The life of a node: Run turns signals into two contexts, drain and hurry. serve checks settings, sizes the tables by
// the memory, and assembles the parts, which opens the ports. live runs the parts, and ends them in order.
func (c *serveCmd) Run(s cli.Streams) error {
	drain, cancel := context.WithCancel(context.Background())
	defer cancel()
	hurry, rush := context.WithCancel(context.Background())
	defer rush()
	// signal.Notify drops a signal that finds the channel full, so it has room for more than a person sends.
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	// A node under nohup must outlive its terminal. Notify would turn the ignored signal into an end.
	if !signal.Ignored(syscall.SIGHUP) {
		signal.Notify(signals, syscall.SIGHUP)
	}
	defer signal.Stop(signals)
	signal.Ignore(syscall.SIGPIPE) // a node outlives the reader of its log
	go func() {
		for sig := range signals {
			if sig == syscall.SIGINT || drain.Err() != nil { // or a second signal
				rush()
			}
			cancel()
		}
	}()
	return c.serve(drain, hurry, s, os.LookupEnv)
}

// serve does the work of Run, and can be run without signals. lookup reads the environment. An error of a setting has
// exit code 2 ([cli.Wrong]), and one of the machine or of the rules 1.
func (c *serveCmd) serve(drain, hurry context.Context, s cli.Streams, lookup func(string) (string, bool)) error {
	if err := c.validate(); err != nil {
		return cli.Wrong(err)
	}
	log := c.logger(s.Err)
	if c.Ring.Region != "" {
		log = log.With("region", c.Ring.Region)
	}
	// Both lines are logged by functions that run when a context ends. Each is stopped at the end, so that a node that
	// fails at its start does not claim to drain.
	defer context.AfterFunc(drain, func() {
		if hurry.Err() == nil {
			log.Info("SIGTERM or SIGHUP: the node drains, then stops; a second signal stops it at once", "DRAIN_TIME", c.DrainTime)
		}
	})()
	defer context.AfterFunc(hurry, func() {
		text := "SIGINT, or a second signal: the node stops without a drain"
		if c.Store.Shared() || c.Ring.Peers != "" {
			text += "; leases and keys go to other nodes"
		}
		log.Info(text)
	})()
	// Users come from envoyproxy/ratelimit with its environment. The next three warnings are about names that would
	// have an effect there.
	if names := settings.WithoutEffect(lookup); len(names) > 0 {
		log.Warn("settings without effect in this version", "names", strings.Join(names, " "))
	}
	host, set := lookup("STATSD_HOST")
	if _, said := lookup("USE_STATSD"); set && !said && !c.UseStatsd && !c.DisableStats { // envoyproxy/ratelimit sends then
		log.Warn("no statistics are sent to STATSD_HOST: set USE_STATSD=true", "host", host)
	}
	if c.BackendType == memcache {
		log.Warn("BACKEND_TYPE=memcache has no effect: memcached cannot store accounts", "a store is set", c.Store.Shared(), "COORDINATION_MAX_NODES", c.Coordination.MaxNodes)
	}
	// The memory comes before the parts: tables, caps of the ports and the size of rules follow from it.
	memory, err := settings.MemoryOf(c.MaxMemory)
	if err != nil {
		return cli.Wrong(err)
	}
	c.caps = memory.Caps()
	// A key takes more with a store, where it also has a lease and messages.
	each := int64(leasing.KeyBytes)
	if !c.Store.Shared() {
		each = local.KeyBytes
	}
	c.MaxKeys = memory.Table(c.MaxKeys, each, log)
	defer runtime.KeepAlive(memory.Ballast(lookup))
	p, err := c.assemble(log)
	// A port in use is a matter of the machine, and bad rules are a matter of the rules. All other errors of the
	// assembly are settings.
	if _, busy := errors.AsType[*net.OpError](err); err != nil && !busy && !errors.Is(err, errFirstRules) {
		return cli.Wrong(err)
	}
	if err != nil { // of the machine, or of the rules
		return err
	}
	defer p.spans.stop()
	// Streams of Envoys keep much on the heap, so the collector is eased by their number.
	quotas := p.people.Quotas.Stats()
	go settings.EaseCollector(drain, quotas.Streams.Load, lookup)
	return c.live(drain, hurry, p, s)
}

// live runs the parts until drain is done, and ends them one after the other.
//
// The order of the end:
//  1. Serve drains: health fails, calls are served for DRAIN_TIME, and then the ports close. Meanwhile the ring gives
//     its keys to other nodes.
//  2. Background work stops, and the registration is removed.
//  3. The limiter returns unspent tokens and the seat. It comes after the last call, which would claim again.
//  4. statsd gets the last counters.
func (c *serveCmd) live(drain, hurry context.Context, p *assembled, s cli.Streams) error {
	drain, end := context.WithCancel(drain)
	defer end()
	hurry, rush := context.WithCancel(hurry)
	defer rush()
	// The contexts differ by their end. drain ends with the signal, background after the last call, claiming then, and
	// counting last.
	background, stop := context.WithCancel(context.Background()) // a node that drains still decides
	defer stop()
	go upkeep.Every(background, time.Second, func() { p.SyncClock(p.clock(), time.Now()) }) // windows follow its corrections
	go upkeep.Every(background, ratelimit.TurnEvery, p.shown.Turn)
	go watchRules(background, p.store, p.log)
	go c.Holds.follow(background, p.log)
	healthy := func() bool { return c.healthy(p) }
	// Health must not return while the node drains, so its loops end with drain.
	go keepHealthy(drain, p.server, healthy, sync.OnceFunc(p.server.Open))
	// Only one of the two loops may set health: watchStore includes the condition of the other.
	if c.Store.Redis.HealthCheck {
		go watchStore(drain, p.server, healthy, p.ping, p.log)
	} else if c.HealthyWithOne {
		go upkeep.Every(drain, 250*time.Millisecond, func() { p.server.SetHealthy(healthy()) })
	}
	counting, uncount := context.WithCancel(context.Background())
	flushed := c.statsd(counting, p.shown, p.latency, p.log)
	claiming, release := context.WithCancel(context.Background())
	var failed error // read after released
	// If the store does not come in time, the node ends at once. The error of run is the reason, and Serve returns
	// because its context is done.
	released := async(func() {
		if failed = p.run(claiming); failed != nil { // the store did not come
			release()
			rush()
			end()
		}
	})
	registered := async(func() { p.who.run(background, p.name(), p.registers) })
	remembered := async(func() { p.people.History.Run(background) })
	left := leaveRing(drain, claiming, p.ring)
	announce(s.Out, p.server, p.source)
	// Serve blocks for the life of the node.
	err := p.server.Serve(drain, hurry)
	end() // also if a port has failed
	// The keys are handed over before background ends, because peers still call this node meanwhile.
	<-left
	stop()
	<-registered
	<-remembered
	release() // after the last call: unspent tokens go back
	<-released
	uncount()
	<-flushed
	return errors.Join(failed, err)
}

// leaveRing has others own this node's keys when it drains, also in a hurry: no other node has the accounts. The
// channel is closed when they do, or when the node does not run any more. It begins with the drain, so that it takes no
// time in addition to it.
func leaveRing(drain, runs context.Context, ring *routing.Router) <-chan struct{} {
	return async(func() {
		<-drain.Done()
		if ring != nil {
			ctx, cancel := context.WithTimeout(runs, leaveTime)
			defer cancel()
			ring.Leave(ctx)
		}
	})
}

// announce prints the addresses as they were opened, for tests and scripts that use port 0. Without rules of the user's
// own it also prints a first command.
func announce(w io.Writer, v *server.Server, source config.Source) {
	web, rpc, debug := v.Addresses()
	fmt.Fprintf(w, "sluice %s: HTTP on %s, gRPC on %s, debug on %s\n", version(), web, rpc, debug)
	if _, builtIn := source.(config.Static); !builtIn {
		return
	}
	// The command works as printed on this machine, also if PORT is 0.
	_, port, _ := net.SplitHostPort(web.String())
	fmt.Fprintf(w, "serving the built-in example (3 requests an hour for each user); your own rules: --config DIR|FILE. Try, four times:\n\n  curl -s -o /dev/null -w '%%{http_code}\\n' localhost:%s/json -d '%s'\n\n", port, exampleRequest)
}
