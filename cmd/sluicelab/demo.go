package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-gate/sluice/bench/process"
	"github.com/sluice-gate/sluice/bench/realenvoy"
	"github.com/sluice-gate/sluice/cmd/cli"
	"github.com/sluice-gate/sluice/deploy"
	"github.com/sluice-gate/sluice/ratelimit/upkeep"
)

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

// Help is what `sluicelab demo --help` says below its summary.
func (*demoCmd) Help() string {
	return `Examples:

  sluicelab demo
  sluicelab demo --nodes 5 --rate 3000 --for 1m`
}

// Run starts what there must be, prints where to look, and keeps the demand up.
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
		return c.demand(ctx, s, []asker{httpAsker(c.HTTP)}, nil)
	}
	store := c.Redis
	if store == "" {
		redis, err := process.OpenRedis()
		if err != nil {
			return fmt.Errorf("%w, or set --redis", err)
		}
		defer redis.Close()
		store = redis.Addr
	}
	rules := strings.Replace(demoRules, "max_nodes: 3", fmt.Sprintf("max_nodes: %d", c.Nodes), 1)
	binary, done, err := c.find()
	if err != nil {
		return err
	}
	defer done()
	// In a Redis of others, it takes no seats and accounts of theirs.
	fleet, err := process.StartFleet(binary, rules, c.Nodes, "--redis-url", store, "--cache-key-prefix", "demo:", "--redis-startup-max-elapsed-time", "3s", "--drain-time", "0s",
		"--hold-keys", "only-for-the-demo")
	if err != nil {
		return err
	}
	defer fleet.Stop()
	nodes := fleet.Running()
	front, err := c.front(nodes)
	if err != nil {
		return err
	}
	if front != nil {
		defer front.Stop()
	}
	return c.show(ctx, s, nodes, store, front)
}

// lasts ends a demo after its length.
func (c *demoCmd) lasts(ctx context.Context) (context.Context, context.CancelFunc) {
	if c.For == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, c.For)
}

// untilReady waits until the nodes answer.
func untilReady(ctx context.Context, clients []rls.RateLimitServiceClient) error {
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for _, client := range clients {
		if _, err := client.ShouldRateLimit(ctx, requestFor("ready", ""), grpc.WaitForReady(true)); err != nil {
			return fmt.Errorf("a node does not answer: %w", err)
		}
	}
	return nil
}

// front starts an Envoy in front of the nodes, if there is one: it answers the passed requests itself.
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

func (c *demoCmd) show(ctx context.Context, s cli.Streams, nodes []*process.Process, store string, front *realenvoy.Envoy) error {
	var debug []string
	var askers []asker
	var clients []rls.RateLimitServiceClient
	fmt.Fprintf(s.Out, "%d nodes share limits through the Redis at %s, and get %v requests a second for 20 keys, more than the limits allow.\n"+
		"Each rule declares its over-admission before it runs. The table shows the measured one.\n"+
		"The rule api_key may exceed its limit by 6 %%, which is 6 tokens for %d nodes. The default is 1 %%.\n\nConsoles of the nodes:\n\n",
		len(nodes), store, c.Rate, len(nodes))
	for i, n := range nodes {
		fmt.Fprintf(s.Out, "  node %d: http://%s/console\n", i+1, n.Debug)
		debug = append(debug, n.Debug)
		conn, err := grpc.NewClient("passthrough:///"+n.Address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			return err
		}
		defer conn.Close()
		clients = append(clients, rls.NewRateLimitServiceClient(conn))
		askers = append(askers, grpcAsker(clients[i]))
	}
	if err := untilReady(ctx, clients); err != nil {
		return err
	}
	ctx, cancel := c.lasts(ctx)
	defer cancel()
	llm := llmAsker(clients)
	name := "sluice"
	if strings.Contains(os.Args[0], "go-build") { // by go run, in a checkout
		name = "go run ./cmd/sluice"
	}
	fmt.Fprintf(s.Out, "\nIn another terminal, see all nodes, and why a key is refused:\n\n  %s top %s\n  %s explain --debug %s edge api_key=key-0\n\n", name, strings.Join(debug, " "), name, debug[0])
	if front != nil {
		askers = []asker{httpAsker(front.URL)}
		fmt.Fprintf(s.Out, "Send requests through an Envoy with deploy/compose/envoy.yaml:\n\n  curl -i -H 'x-api-key: key-0' %s\n\n", front.URL)
	}
	fmt.Fprintf(s.Out, "The rule team counts tokens of a language model. %d clients hold an estimate at each request, and settle its cost at the end, as an Envoy does\n"+
		"with deploy/envoy/llm.yaml. See the holds and the costs:\n\n  %s explain --debug %s edge team=team-0\n\n", llmClients, name, debug[0])
	var g errgroup.Group
	g.Go(func() error { return watch(ctx, s.Out, debug) })
	g.Go(func() error { return c.demand(ctx, s, askers, llm) })
	return g.Wait()
}

// asker sends one request and reports whether it passed.
type asker func(ctx context.Context, key, value string) (bool, error)

func requestFor(key, value string) *rls.RateLimitRequest {
	return &rls.RateLimitRequest{Domain: "edge", Descriptors: []*common.RateLimitDescriptor{
		{Entries: []*common.RateLimitDescriptor_Entry{{Key: key, Value: value}}},
	}}
}

func grpcAsker(client rls.RateLimitServiceClient) asker {
	return func(ctx context.Context, key, value string) (bool, error) {
		r, err := client.ShouldRateLimit(ctx, requestFor(key, value))
		return r.GetOverallCode() == rls.RateLimitResponse_OK, err
	}
}

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
	demoCallers = 32 // requests that are under way at most
	demoMayFail = 10 // one in so many
)

// demand sends requests until ctx is done, and says how many passed. llm, if not nil, has requests for tokens.
func (c *demoCmd) demand(
	ctx context.Context, s cli.Streams, askers []asker, llm func(ctx context.Context, team string) (bool, error),
) error {
	var sent, passed, failed atomic.Int64
	var lastErr atomic.Pointer[error]
	var wg sync.WaitGroup
	count := func(ok bool, err error) {
		sent.Add(1)
		switch {
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
	for worker := range demoCallers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(worker), 7))
			zipf := rand.NewZipf(rnd, 1.2, 1, 19)
			pause := time.Duration(float64(demoCallers) / c.Rate * float64(time.Second))
			upkeep.Every(ctx, pause, func() {
				key := [...]string{"api_key", "api_key", "tenant", "account", "remote_address"}[rnd.IntN(5)]
				call, cancel := context.WithTimeout(ctx, time.Second)
				ok, err := askers[rnd.IntN(len(askers))](call, key, fmt.Sprint("key-", zipf.Uint64()))
				cancel()
				count(ok, err)
			})
		})
	}
	wg.Wait()
	fmt.Fprintf(s.Out, "%d requests, %d passed, %d without an answer\n", sent.Load(), passed.Load(), failed.Load())
	// A machine that does other things as well answers some too late; a demo that
	// shows little else has failed.
	if err := lastErr.Load(); err != nil && failed.Load() > sent.Load()/demoMayFail {
		return fmt.Errorf("more than one in %d had no answer, the last: %w", demoMayFail, *err)
	}
	return nil
}
