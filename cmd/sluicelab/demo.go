package main

import (
	"cmp"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"text/template"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/sluice-gate/sluice/bench/caller"
	"github.com/sluice-gate/sluice/bench/load"
	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/realenvoy"
	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/deploy"
)

// demoRules has a rule for each mode, of the domain edge.
//
//go:embed demo.yaml
var demoRules string

// demoCmd is the command that shows a fleet at work.
type demoCmd struct {
	measured `embed:""`

	Nodes int           `default:"3" help:"Number of nodes, 1 to 10."`
	Rate  float64       `default:"1500" help:"Requests a second of all clients."`
	For   time.Duration `help:"Length (0: until interrupted)."`
	Redis string        `placeholder:"HOST:PORT" help:"Address of a running Redis. Default: start one (redis-server must be installed)."`
	Envoy bool          `default:"true" negatable:"" help:"Start an Envoy in front of the nodes, if one is on the PATH or below .cache/envoy."`
	HTTP  string        `name:"http" placeholder:"URL" help:"Start no nodes, and send HTTP requests to an Envoy."`
}

// Run starts what there must be, prints where to look, and keeps the demand up. The steps: a Redis and nodes, an Envoy
// before them if there is one, then tables and demand at the same time. With --http it only sends demand.
func (c *demoCmd) Run(s cli.Streams) error {
	if c.Nodes < 1 || c.Nodes > 10 || !(c.Rate >= 0.001) || c.Rate > 1e5 {
		return fmt.Errorf("--nodes is %d and --rate %v, must be 1 to 10 nodes and 0.001 to 100000 requests a second", c.Nodes, c.Rate)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if c.HTTP != "" {
		ctx, cancel := c.lasts(ctx)
		defer cancel()
		fmt.Fprintf(s.Out, "%v requests a second to %s\n", c.Rate, c.HTTP)
		return c.demand(ctx, s, httpAsker(c.HTTP), nil)
	}
	// max_nodes must not be below the number of nodes: the others would have no drift seat.
	rules := strings.Replace(demoRules, "max_nodes: 3", fmt.Sprintf("max_nodes: %d", c.Nodes), 1)
	binary, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	// In a Redis of others, it takes no seats and accounts of theirs.
	more := []string{"--cache-key-prefix", "demo:", "--redis-startup-max-elapsed-time", "3s", "--drain-time", "0s", "--hold-keys", "only-for-the-demo"}
	if c.Redis != "" {
		more = append(more, "--redis-url", c.Redis)
	}
	// It starts a Redis, unless --redis names one.
	fleet, err := process.NewFleet(binary, rules, c.Nodes, c.Redis == "", more...)
	if errors.Is(err, process.ErrNoRedis) {
		return errors.New("redis-server is not on the PATH: install it (apt-get install redis-server), or set --redis")
	}
	if err != nil {
		return err
	}
	if err := fleet.StartFirst(c.Nodes); err != nil {
		return err
	}
	defer fleet.Stop()
	front, err := c.front(fleet.Running())
	if err != nil {
		return err
	}
	if front != nil {
		defer front.Stop()
	}
	return c.show(ctx, s, fleet, front)
}

// lasts ends a demo after its length. Its time begins when the fleet is ready, so it is called after the start.
func (c *demoCmd) lasts(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.For == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.For)
}

// front starts an Envoy in front of the nodes, if there is one: it answers the passed requests itself. The Envoy has
// the configuration that the project ships, with the nodes' addresses.
func (c *demoCmd) front(nodes []*process.Process) (*realenvoy.Envoy, error) {
	if !c.Envoy {
		return nil, nil //nolint:nilnil // without one, clients ask the nodes themselves
	}
	binary, err := realenvoy.Find()
	if errors.Is(err, realenvoy.ErrNoEnvoy) {
		return nil, nil //nolint:nilnil // the same
	}
	if err != nil {
		return nil, err
	}
	config := realenvoy.Config{Text: deploy.EnvoyCompose, Clusters: map[string][]string{}}
	for _, n := range nodes {
		config.Clusters["sluice"] = append(config.Clusters["sluice"], n.Address)
	}
	return realenvoy.Start(binary, &config)
}

// show waits until each node has answered, for 15 seconds at most. Then it prints where to look, and runs demand and
// tables until ctx is done.
func (c *demoCmd) show(ctx context.Context, s cli.Streams, fleet *process.Fleet, front *realenvoy.Envoy) error {
	store := c.Redis
	if fleet.Redis != nil {
		store = fleet.Redis.Addr
	}
	shown := demoText{Demo: c, Store: store, Front: front, Clients: llmClients, Name: "sluice"}
	// The printed commands must work for a reader who copies them.
	if strings.Contains(os.Args[0], "go-build") { // by go run, in a checkout
		shown.Name = "go run ./cmd/sluice"
	}
	nodes := func() rls.RateLimitServiceClient { return rls.NewRateLimitServiceClient(fleet.Pool.Next()) }
	ready, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	// Debug ports are printed, and tables ask them. Each turn sends one request to the next node.
	for _, n := range fleet.Running() {
		shown.Debug = append(shown.Debug, n.Debug)
		if _, err := nodes().ShouldRateLimit(ready, caller.Request("edge", "ready", ""), grpc.WaitForReady(true)); err != nil {
			return fmt.Errorf("a node does not answer: %w", err)
		}
	}
	if err := demoTexts.Write(s.Out, shown); err != nil {
		return err
	}
	ctx, cancel = c.lasts(ctx)
	defer cancel()
	// With an Envoy, requests go through it. Requests for tokens go to nodes in any case.
	ask := grpcAsker(nodes)
	if front != nil {
		ask = httpAsker(front.URL)
	}
	var g errgroup.Group
	g.Go(func() error { return watch(ctx, s.Out, shown.Debug) })
	g.Go(func() error { return c.demand(ctx, s, ask, llmAsker(nodes)) })
	return g.Wait()
}

// demoText is what a demo says before it runs. Its fields are read by demo.txt.
type demoText struct {
	Demo    *demoCmd
	Store   string   // address
	Debug   []string // of the nodes
	Front   *realenvoy.Envoy
	Clients int
	Name    string // of sluice, in commands
}

//go:embed demo.txt
var demoLines string

var demoTexts = cli.NewText(demoLines, template.FuncMap{"inc": func(i int) int { return i + 1 }})

// asker sends one request and reports whether it passed. An error is a request without an answer. A refusal is none.
type asker func(ctx context.Context, key, value string) (bool, error)

// grpcAsker asks nodes as Envoy does, without an Envoy.
func grpcAsker(node func() rls.RateLimitServiceClient) asker {
	return func(ctx context.Context, key, value string) (bool, error) {
		r, err := node().ShouldRateLimit(ctx, caller.Request("edge", key, value))
		return r.GetOverallCode() == rls.RateLimitResponse_OK, err
	}
}

// httpAsker sends requests through an Envoy, with the key in a header, such as x-api-key: key-3. The route of
// deploy/envoy makes a descriptor of it.
func httpAsker(url string) asker {
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: demoCallers}}
	return func(ctx context.Context, key, value string) (bool, error) {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		r.Header.Set("x-"+strings.ReplaceAll(key, "_", "-"), value)
		answer, err := client.Do(r)
		if err != nil {
			return false, err
		}
		answer.Body.Close()
		return answer.StatusCode == http.StatusOK, nil
	}
}

const (
	demoCallers = 32 // idle connections to an Envoy at most
	demoMayFail = 10 // one request in so many
)

// demand sends requests until ctx is done, and says how many passed. llm, if not nil, has requests for tokens. Requests
// come at their instants, whether earlier ones are answered or not (caller.Open). An error after the end of ctx counts
// as sent and as nothing else.
func (c *demoCmd) demand(ctx context.Context, s cli.Streams, ask asker, llm func(ctx context.Context, team string) (bool, error)) error {
	var sent, passed, failed atomic.Int64
	var lastErr atomic.Pointer[error]
	var wg sync.WaitGroup
	count := func(ok bool, err error) {
		sent.Add(1)
		switch {
		// The end of the demo cancels calls under way. They are no failures.
		case err != nil && ctx.Err() == nil:
			failed.Add(1)
			lastErr.Store(&err)
		case ok:
			passed.Add(1)
		}
	}
	if llm != nil {
		for client := range llmClients {
			wg.Go(func() { llmClient(ctx, llm, client, count) })
		}
	}
	keys := load.Load{Rate: c.Rate, Keys: 20, Skew: 1.2, Length: cmp.Or(c.For, math.MaxInt64)}
	caller.Open(ctx, keys, 7, time.Now(), func(r load.Request, _ time.Time) {
		call, cancel := context.WithTimeout(ctx, caller.Timeout)
		defer cancel()
		// Two of five requests are for api_key, and the others for the other rules.
		key := [...]string{"api_key", "api_key", "tenant", "account", "remote_address"}[rand.IntN(5)]
		count(ask(call, key, fmt.Sprint("key-", r.Key)))
	})
	// Clients of the language model end with ctx, and give their holds back before.
	wg.Wait()
	fmt.Fprintf(s.Out, "%d requests, %d passed, %d without an answer\n", sent.Load(), passed.Load(), failed.Load())
	// A machine that does other things as well answers some too late; a demo that
	// shows little else has failed.
	if err := lastErr.Load(); err != nil && failed.Load() > sent.Load()/demoMayFail {
		return fmt.Errorf("more than one in %d had no answer, the last: %w", demoMayFail, *err)
	}
	return nil
}
